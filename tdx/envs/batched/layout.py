"""Which tensors parent and workers exchange through shared memory, and where each lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from tdx.envs.batched.metadata import EnvMetaData, SpecsOnlyEnv
from tdx.envs.batched.shared_memory import Field
from tdx.keys import NestedKey, sibling_key, unique_keys
from tdx.specs import Choice, Composite, NonTensor, StackedComposite, TensorSpec


@dataclass(frozen=True)
class EnvKeys:
    """The keys of one env's leaves by what they are used for.

    Args:
        inputs: what ``step`` and ``reset`` may read: actions, state, observations, flags.
        masks: the partial-reset masks.
        step_outputs: what a step writes.
        reset_outputs: what a reset writes.
    """

    inputs: list[NestedKey]
    masks: list[NestedKey]
    step_outputs: list[NestedKey]
    reset_outputs: list[NestedKey]

    @classmethod
    def of(cls, metadata: EnvMetaData) -> EnvKeys:
        """The keys of an env, from its specs."""
        env = SpecsOnlyEnv(metadata)
        written = [*env.observation_keys, *env.done_keys]
        return cls(
            inputs=unique_keys([*env.action_keys, *env.state_keys, *written]),
            masks=env.reset_keys,
            step_outputs=unique_keys([*written, *env.reward_keys]),
            reset_outputs=unique_keys(written),
        )


@dataclass(frozen=True)
class Layout:
    """The tensors of one worker in shared memory.

    Args:
        inputs: from the parent to the worker, masks included.
        outputs: from the worker to the parent.
    """

    inputs: dict[NestedKey, Field]
    outputs: dict[NestedKey, Field]

    @classmethod
    def of(cls, workers: Sequence[EnvMetaData]) -> Layout:
        """The tensors that are alike in every worker; others are sent by value."""
        each = [cls._of_one(metadata) for metadata in workers]
        first, others = each[0], each[1:]
        return cls(
            inputs=_in_all(first.inputs, [other.inputs for other in others]),
            outputs=_in_all(first.outputs, [other.outputs for other in others]),
        )

    @classmethod
    def _of_one(cls, metadata: EnvMetaData) -> Layout:
        observation, reward, done = _parts(
            metadata.output_spec, ("full_observation_spec", "full_reward_spec", "full_done_spec")
        )
        state, action = _parts(metadata.input_spec, ("full_state_spec", "full_action_spec"))
        flags = _fields([done])
        masks = {sibling_key(key, "_reset"): flag for key, flag in flags.items()}
        return cls(
            inputs={**_fields([action, state, observation]), **flags, **masks},
            outputs={**_fields([observation, reward]), **flags},
        )

    def batched(self, num_workers: int) -> dict[tuple[str, NestedKey], Field]:
        """The fields with a row for each worker, inputs and outputs under ``in`` and ``out``."""
        sides = {"in": self.inputs, "out": self.outputs}
        return {
            (side, key): Field(torch.Size((num_workers, *field.shape)), field.dtype)
            for side, fields in sides.items()
            for key, field in fields.items()
        }


def _parts(spec: Composite, names: Iterable[str]) -> list[Composite]:
    parts = [spec[name] for name in names]
    return [part for part in parts if isinstance(part, Composite)]


def _fields(specs: Iterable[Composite]) -> dict[NestedKey, Field]:
    return {
        key: Field(leaf.shape, leaf.dtype)
        for spec in specs
        for key, leaf in spec.items(True, True)
        if _is_plain(leaf)
    }


def _is_plain(leaf: TensorSpec) -> bool:
    if isinstance(leaf, (NonTensor, Choice)) or leaf.dtype is None:
        return False
    return _has_fixed_shape(leaf)


def _has_fixed_shape(leaf: TensorSpec) -> bool:
    return all(size >= 0 for size in leaf.shape)


def are_alike(workers: Sequence[EnvMetaData]) -> bool:
    """Whether what the envs return can be stacked: the same keys, shapes and dtypes."""
    keys, layout = EnvKeys.of(workers[0]), Layout.of(workers[:1])
    return _is_regular(workers[0]) and all(
        EnvKeys.of(other) == keys and Layout.of([other]) == layout and _is_regular(other)
        for other in workers[1:]
    )


def _is_regular(metadata: EnvMetaData) -> bool:
    return all(_keys_are_shared(part) for part in metadata.parts) and all(
        _has_fixed_shape(leaf) for part in metadata.parts for leaf in part.values(True, True)
    )


def _keys_are_shared(spec: Composite) -> bool:
    inner = [spec, *(each for each in spec.values(True) if isinstance(each, Composite))]
    return all(
        set(member.keys(True, True)) == set(stack.keys(True, True))
        for stack in inner
        if isinstance(stack, StackedComposite)
        for member in stack.specs
    )


def _in_all(
    first: dict[NestedKey, Field], others: list[dict[NestedKey, Field]]
) -> dict[NestedKey, Field]:
    return {
        key: field
        for key, field in first.items()
        if all(other.get(key) == field for other in others)
    }
