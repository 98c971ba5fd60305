"""Metadata of the envs of a batch: specs, keys and the tensors that go through shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from tdx.core.envs import EnvBase
from tdx.envs.batched.shared_memory import Field
from tdx.keys import NestedKey, sibling_key, unique_keys
from tdx.specs import Choice, Composite, NonTensor, StackedComposite, TensorSpec


@dataclass(frozen=True)
class EnvMetaData:
    """The specs of an env and where it lives, without the env.

    Args:
        input_spec: what the env takes.
        output_spec: what the env returns.
        batch_size: its batch size, ``[*B]``.
        device: where its tensors live.
        name: how it prints.
        unlike: what each of its envs is, if it is a batch of envs that do not return the same.
        reads: what its step reads beside actions and masks; ``None`` if unknown.
    """

    input_spec: Composite
    output_spec: Composite
    batch_size: torch.Size
    device: torch.device
    name: str
    unlike: tuple[EnvMetaData, ...] = ()
    reads: tuple[NestedKey, ...] | None = None

    @property
    def parts(self) -> list[Composite]:
        """The composites of observations, rewards, flags, state and actions."""
        parts = [*self.output_spec.values(), *self.input_spec.values()]
        return [part for part in parts if isinstance(part, Composite)]

    @classmethod
    def of(cls, env: EnvBase) -> EnvMetaData:
        """The metadata of a made env."""
        unlike = env.__dict__.get("_unlike", ())
        return cls(
            env.input_spec,
            env.output_spec,
            env.batch_size,
            env.device,
            repr(env),
            unlike,
            env._step_reads,
        )


class SpecsOnlyEnv(EnvBase):
    """Answers what an env's specs can answer, for an env that is elsewhere.

    Args:
        metadata: what that env said of itself.
    """

    def __init__(self, metadata: EnvMetaData) -> None:
        super().__init__(device=metadata.device, batch_size=metadata.batch_size)
        self._input_spec = metadata.input_spec
        self._output_spec = metadata.output_spec
        self._rows = [SpecsOnlyEnv(row) for row in metadata.unlike]

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._rows:
            return super().step_mdp(tensordict)
        given = zip(self._rows, tensordict.unbind(0), strict=True)
        return self._joined([row.step_mdp(part) for row, part in given])

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        if not self._rows:
            return super().rand_action(tensordict)
        parts = [None] * len(self._rows) if tensordict is None else tensordict.unbind(0)
        given = zip(self._rows, parts, strict=True)
        return self._joined([row.rand_action(part) for row, part in given])

    def fake_tensordict(self) -> TensorDictBase:
        if not self._rows:
            return super().fake_tensordict()
        return self._joined([row.fake_tensordict() for row in self._rows])

    def _joined(self, rows: list[TensorDictBase]) -> TensorDictBase:
        return LazyStackedTensorDict.lazy_stack([row.to(self.device) for row in rows], 0)


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
class TensorLayout:
    """The tensors of one worker in shared memory.

    Args:
        inputs: from the parent to the worker, masks included.
        outputs: from the worker to the parent.
    """

    inputs: dict[NestedKey, Field]
    outputs: dict[NestedKey, Field]

    @classmethod
    def of(cls, workers: Sequence[EnvMetaData]) -> TensorLayout:
        """The tensors that are alike in every worker; others are sent by value."""
        each = [cls._of_one(metadata) for metadata in workers]
        first, others = each[0], each[1:]
        return cls(
            inputs=_in_all(first.inputs, [other.inputs for other in others]),
            outputs=_in_all(first.outputs, [other.outputs for other in others]),
        )

    @classmethod
    def _of_one(cls, metadata: EnvMetaData) -> TensorLayout:
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
    keys, layout = EnvKeys.of(workers[0]), TensorLayout.of(workers[:1])
    return _is_regular(workers[0]) and all(
        EnvKeys.of(other) == keys and TensorLayout.of([other]) == layout and _is_regular(other)
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
