"""Metadata of the envs of a batch: specs, keys, and the tensors that go through shared memory."""

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
    """Specs and properties of an env as plain data that can be sent to another process.

    Args:
        input_spec: Specs of actions and state.
        output_spec: Specs of observations, rewards and done flags.
        batch_size: Batch size of the env, ``[*B]``.
        device: Device of the env.
        name: The env's ``repr``.
        unlike: Metadata of each env in a batch of envs with different outputs; else empty.
        reads: Keys that a step reads, except actions and masks. ``None``: unknown.
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
        """Composites of observations, rewards, done flags, state and actions."""
        parts = [*self.output_spec.values(), *self.input_spec.values()]
        return [part for part in parts if isinstance(part, Composite)]

    @classmethod
    def of(cls, env: EnvBase) -> EnvMetaData:
        """Collect the metadata of an env."""
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
    """Implements the methods of an env that need only its specs, for an env in another process.

    Args:
        metadata: Metadata of that env.
    """

    def __init__(self, metadata: EnvMetaData) -> None:
        super().__init__(device=metadata.device, batch_size=metadata.batch_size)
        self._specs.set_specs(metadata.input_spec, metadata.output_spec)
        self._rows = [SpecsOnlyEnv(row) for row in metadata.unlike]

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._rows:
            return super().step_mdp(tensordict)
        pairs = zip(self._rows, tensordict.unbind(0), strict=True)
        return self._stack([row.step_mdp(part) for row, part in pairs])

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        if not self._rows:
            return super().rand_action(tensordict)
        parts = [None] * len(self._rows) if tensordict is None else tensordict.unbind(0)
        pairs = zip(self._rows, parts, strict=True)
        return self._stack([row.rand_action(part) for row, part in pairs])

    def fake_tensordict(self) -> TensorDictBase:
        if not self._rows:
            return super().fake_tensordict()
        return self._stack([row.fake_tensordict() for row in self._rows])

    def _stack(self, rows: list[TensorDictBase]) -> TensorDictBase:
        return LazyStackedTensorDict.lazy_stack([row.to(self.device) for row in rows], 0)


@dataclass(frozen=True)
class EnvKeys:
    """Keys of an env's leaves by use.

    Args:
        inputs: Keys that ``step`` and ``reset`` may read: actions, state, observations, flags.
        masks: Keys of partial-reset masks.
        step_outputs: Keys that a step writes.
        reset_outputs: Keys that a reset writes.
    """

    inputs: list[NestedKey]
    masks: list[NestedKey]
    step_outputs: list[NestedKey]
    reset_outputs: list[NestedKey]

    @classmethod
    def of(cls, metadata: EnvMetaData) -> EnvKeys:
        """Collect the keys of an env from its specs."""
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
    """Shapes and dtypes of the tensors of one worker in shared memory.

    Args:
        inputs: Tensors from the parent to the worker, including masks.
        outputs: Tensors from the worker to the parent.
    """

    inputs: dict[NestedKey, Field]
    outputs: dict[NestedKey, Field]

    @classmethod
    def of(cls, workers: Sequence[EnvMetaData]) -> TensorLayout:
        """Find the tensors that are the same in every worker; others are sent by value."""
        each = [cls._of_worker(metadata) for metadata in workers]
        first, others = each[0], each[1:]
        return cls(
            inputs=_common_fields(first.inputs, [other.inputs for other in others]),
            outputs=_common_fields(first.outputs, [other.outputs for other in others]),
        )

    @classmethod
    def _of_worker(cls, metadata: EnvMetaData) -> TensorLayout:
        observation, reward, done = _select_composites(
            metadata.output_spec, ("full_observation_spec", "full_reward_spec", "full_done_spec")
        )
        state, action = _select_composites(
            metadata.input_spec, ("full_state_spec", "full_action_spec")
        )
        flags = _collect_fields([done])
        masks = {sibling_key(key, "_reset"): flag for key, flag in flags.items()}
        return cls(
            inputs={**_collect_fields([action, state, observation]), **flags, **masks},
            outputs={**_collect_fields([observation, reward]), **flags},
        )

    def batched(self, num_workers: int) -> dict[tuple[str, NestedKey], Field]:
        """Return the tensors of all workers, with keys ``("in", key)`` and ``("out", key)``."""
        sides = {"in": self.inputs, "out": self.outputs}
        return {
            (side, key): Field(torch.Size((num_workers, *field.shape)), field.dtype)
            for side, fields in sides.items()
            for key, field in fields.items()
        }


def _select_composites(spec: Composite, names: Iterable[str]) -> list[Composite]:
    parts = [spec[name] for name in names]
    return [part for part in parts if isinstance(part, Composite)]


def _collect_fields(specs: Iterable[Composite]) -> dict[NestedKey, Field]:
    return {
        key: Field(leaf.shape, leaf.dtype)
        for spec in specs
        for key, leaf in spec.items(True, True)
        if _fits_in_shared_memory(leaf)
    }


def _fits_in_shared_memory(leaf: TensorSpec) -> bool:
    if isinstance(leaf, (NonTensor, Choice)) or leaf.dtype is None:
        return False
    return _has_fixed_shape(leaf)


def _has_fixed_shape(leaf: TensorSpec) -> bool:
    return all(size >= 0 for size in leaf.shape)


def are_alike(workers: Sequence[EnvMetaData]) -> bool:
    """Return True if the outputs of the envs can be stacked: same keys, shapes and dtypes."""
    keys, layout = EnvKeys.of(workers[0]), TensorLayout.of(workers[:1])
    return _is_regular(workers[0]) and all(
        EnvKeys.of(other) == keys and TensorLayout.of([other]) == layout and _is_regular(other)
        for other in workers[1:]
    )


def _is_regular(metadata: EnvMetaData) -> bool:
    return all(_has_uniform_keys(part) for part in metadata.parts) and all(
        _has_fixed_shape(leaf) for part in metadata.parts for leaf in part.values(True, True)
    )


def _has_uniform_keys(spec: Composite) -> bool:
    inner = [spec, *(each for each in spec.values(True) if isinstance(each, Composite))]
    return all(
        set(member.keys(True, True)) == set(stack.keys(True, True))
        for stack in inner
        if isinstance(stack, StackedComposite)
        for member in stack.specs
    )


def _common_fields(
    first: dict[NestedKey, Field], others: list[dict[NestedKey, Field]]
) -> dict[NestedKey, Field]:
    return {
        key: field
        for key, field in first.items()
        if all(other.get(key) == field for other in others)
    }
