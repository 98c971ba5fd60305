"""How the stages of a chain run in a planned rollout: in each step, or over whole chunks.

:class:`ImmediateStages` runs the stages whose output the next step needs, while the env is
stepped. :func:`run_deferred` runs the others over the steps that were collected.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.chain import (
    PlannedStage,
    declares,
    not_pointwise,
    step_form_inplace,
)
from tdx.core.envs.failures import with_stage
from tdx.core.plan.build import Program
from tdx.core.planned.columns import CollectedSteps, as_tensordict, flatten
from tdx.core.planned.compiled import CompiledStages
from tdx.core.transforms import Transform
from tdx.core.transforms.callable_transform import CallableTransform
from tdx.core.transforms.kernels import Chunk, Columns
from tdx.errors import EnvError
from tdx.keys import NestedKey, format_key, normalize_key

# Immediate stages

_Values = list[Any]


class ImmediateStages:
    """Runs the immediate stages along with the env, and keeps what they write.

    Args:
        stages: The immediate stages, in order.
        batch_size: Batch size of the env, ``[*B]``.
        device: Device of the env.
        on_dicts: True if each of them runs on a dict of root entries.
        reads: Keys that the policy reads.
        deferred: The deferred stages, which may read what the immediate ones write.
    """

    def __init__(
        self,
        stages: Sequence[PlannedStage],
        batch_size: torch.Size,
        device: torch.device,
        on_dicts: bool,
        reads: Sequence[NestedKey] = (),
        deferred: Sequence[PlannedStage] = (),
    ) -> None:
        self.stages = tuple(stages)
        self._batch_size, self._device = batch_size, device
        self._on_dicts = on_dicts
        self.reads = frozenset((*reads, *(key for each in stages for key in each.reads or ())))
        self._deferred = tuple(deferred)
        self._kept = {planned.index: self._keys_to_keep(planned) for planned in self.stages}
        self.clear()

    def _keys_to_keep(self, planned: PlannedStage) -> tuple[NestedKey, ...]:
        """Return the keys that a stage writes, except those overwritten before they are read."""
        kept = []
        for key in planned.writes or ():
            overwrites = [
                each.index
                for each in self.stages
                if each.index > planned.index and key in (each.writes or ())
            ]
            end = min(overwrites, default=None)
            if end is None or any(
                planned.index < each.index < end and key in (each.reads or ())
                for each in self._deferred
            ):
                kept.append(key)
        return tuple(kept)

    def clear(self) -> None:
        """Forget everything written so far."""
        self._steps: dict[int, dict[NestedKey, _Values]] = {
            planned.index: {key: [] for key in self._kept[planned.index]} for planned in self.stages
        }
        self._resets: dict[int, dict[NestedKey, _Values]] = {
            planned.index: {} for planned in self.stages
        }
        # Flat for the step loop: the function to call, and where to append what it writes.
        self._calls = [
            (
                planned,
                step_form_inplace(planned),
                [(key, kept.append) for key, kept in self._steps[planned.index].items()],
            )
            for planned in self.stages
        ]

    def step(
        self, root: Mapping[NestedKey, Any], fields: dict[NestedKey, Any]
    ) -> dict[NestedKey, Any]:
        """Run the stages on one step.

        Args:
            root: Input of the step, by key.
            fields: Output of the env, by key; written to.

        Returns:
            The output after these stages, by key.
        """
        if not self._on_dicts:
            return self._step_tensordict(root, fields)
        planned = None
        try:
            for planned, step_form, keep in self._calls:  # noqa: B007 - the handler names it
                step_form(root, fields)  # type: ignore[misc, arg-type]
                for key, append in keep:
                    append(fields[key])
        except Exception as error:
            assert planned is not None
            failure = with_stage(error, planned.index, planned.name)
            raise failure from failure.__cause__
        return fields

    def _step_tensordict(
        self, root: Mapping[NestedKey, Any], fields: dict[NestedKey, Any]
    ) -> dict[NestedKey, Any]:
        given = as_tensordict(root, self._batch_size, self._device)
        output = as_tensordict(fields, self._batch_size, self._device)
        for planned in self.stages:
            before = set(flatten(output)) if planned.is_opaque else set()
            output = self._call_hook(planned, planned.stage._step, given, output)
            written = flatten(output)
            kept = self._steps[planned.index]
            if planned.is_opaque:
                warn_of_undeclared(planned, written.keys() - before)
            for key in written if planned.is_opaque else kept:
                kept.setdefault(key, []).append(written[key])
        return flatten(output)

    @staticmethod
    def _call_hook(
        planned: PlannedStage,
        hook: Callable[..., Any],
        given: TensorDictBase,
        output: TensorDictBase,
    ) -> TensorDictBase:
        try:
            result: TensorDictBase = hook(given, output)
        except Exception as error:
            failure = with_stage(error, planned.index, planned.name)
            raise failure from failure.__cause__
        return result

    def reset(
        self,
        root: Mapping[NestedKey, Any],
        fields: dict[NestedKey, Any],
        masks: Mapping[NestedKey, Tensor],
    ) -> dict[NestedKey, Any]:
        """Run the stages on one reset of some rows.

        Args:
            root: Entries of the rows before the reset, by key.
            fields: Output of the env's reset, by key.
            masks: Reset masks by key.

        Returns:
            The output after these stages, by key.
        """
        given = as_tensordict({**root, **masks}, self._batch_size, self._device)
        output: TensorDictBase = as_tensordict(fields, self._batch_size, self._device)
        for planned in self.stages:
            output = self._call_hook(planned, planned.stage._reset, given, output)
            written = flatten(output)
            kept = self._resets[planned.index]
            for key in written if planned.is_opaque else planned.writes or ():
                if key in written:
                    kept.setdefault(key, []).append(written[key])
        return flatten(output)

    def columns(self, steps: int, resets: int) -> tuple[dict[int, Columns], dict[int, Columns]]:
        """Return what each stage wrote in the first steps and resets, by its index and key.

        Raises:
            EnvError: A stage wrote an entry in some of them only.
        """
        return _stack(self._steps, steps), _stack(self._resets, resets)


_WARNED: WeakSet[Transform] = WeakSet()


def warn_of_undeclared(planned: PlannedStage, added: Collection[NestedKey]) -> None:
    """Warn once about a stage that writes entries that its specs do not declare.

    Args:
        planned: The stage. A plain function has no specs and is skipped.
        added: Entries that did not exist before the stage.
    """
    stage = planned.stage
    if not added or isinstance(stage, CallableTransform) or stage in _WARNED:
        return
    env = stage.parent
    if env is None:
        return
    declared = stage.transform_output_spec(env.output_spec)
    known = {normalize_key(key) for part in declared.values() for key in part.keys(True, True)}
    undeclared = sorted(format_key(key) for key in added if key not in known)
    if undeclared:
        _WARNED.add(stage)
        warnings.warn(
            f"stage {planned.index} ({planned.name}) writes {', '.join(undeclared)}, which its "
            "specs do not declare; everything up to it runs step by step",
            UserWarning,
            stacklevel=2,
        )


def _stack(kept: dict[int, dict[NestedKey, _Values]], count: int) -> dict[int, Columns]:
    return {
        index: {key: _column(values, count) for key, values in columns.items() if values and count}
        for index, columns in kept.items()
    }


def _column(values: _Values, count: int) -> Tensor:
    if len(values) < count or any(value.shape != values[0].shape for value in values):
        raise EnvError(
            "the steps of this rollout differ in shape or keys and cannot be one block",
            hint="pass planned=False to the env and return_contiguous=False to rollout",
        )
    return torch.stack(values[:count])


# Deferred stages


def run_deferred(
    program: Program,
    collected: CollectedSteps,
    first: Mapping[NestedKey, Tensor],
    batch_size: torch.Size,
    compiled: Mapping[int, CompiledStages],
) -> Chunk:
    """Run the deferred stages over the collected steps.

    If a stage raises at one of the steps, that step and those after it are removed, and the error
    is stored with the collected steps.

    Args:
        program: The stages, and which of them have run already.
        collected: Output of the env and of the immediate stages.
        first: Root entries before the first step, ``[*B, ...]``.
        batch_size: Batch size of the env, ``[*B]``.
        compiled: Compiled groups of stages, by the index of their first stage.

    Returns:
        The chunk after the chain.

    Raises:
        ChainError: A stage raised, but not at a single step.
    """
    chunk = Chunk(
        collected.length,
        batch_size,
        {key: value.to(program.base.device) for key, value in first.items()},
        dict(collected.steps),
        dict(collected.resets),
        collected.times,
        collected.masks,
    )
    fused = () if program.fused is None else program.fused.indices
    next_index = 0
    for planned in program.stages:
        if planned.index in fused or planned.index < next_index:
            continue
        group = compiled.get(planned.index)
        if group is not None:
            group.run(chunk)
            next_index = group.stages[-1].index + 1
            continue
        if planned.index in program.immediate:
            _insert_immediate(chunk, planned, collected)
            continue
        assert planned.chunk_form is not None
        before = dict(chunk.steps), dict(chunk.resets)
        try:
            run_stage(planned, chunk)
        except Exception as error:
            chunk.steps, chunk.resets = before
            _cut_at_error(chunk, planned, collected, error)
            if not chunk.length:
                break
            planned.chunk_form.run(chunk)
    return chunk


def _cut_at_error(
    chunk: Chunk, planned: PlannedStage, collected: CollectedSteps, error: Exception
) -> None:
    """Remove the step at which a stage raised, and those after it.

    Raises:
        ChainError: The stage does not raise at a single step.
    """
    step = None
    if planned.chunk_form is not None and not planned.chunk_form.scan:
        keys = [key for key in planned.stage.in_keys if key in chunk.steps]
        step = first_failing(planned.stage, {key: chunk.steps[key] for key in keys})
    if step is None:
        failure = with_stage(error, planned.index, planned.name)
        raise failure from failure.__cause__
    chunk.cut(step)
    collected.cut(step, with_stage(error, planned.index, planned.name))


def _insert_immediate(chunk: Chunk, planned: PlannedStage, collected: CollectedSteps) -> None:
    """Put what an immediate stage wrote into the chunk, at the stage's place in the chain."""
    if planned.is_opaque:
        chunk.steps.clear()
        chunk.resets.clear()
    for key in planned.drops:
        chunk.steps.pop(key, None)
        chunk.resets.pop(key, None)
    chunk.steps.update(collected.immediate_steps.get(planned.index, {}))
    chunk.resets.update(collected.immediate_resets.get(planned.index, {}))


# Stages that claim to be pointwise are verified at their first chunk.

_verified: WeakSet[Transform] = WeakSet()


def run_stage(planned: PlannedStage, chunk: Chunk) -> None:
    """Run a stage over a chunk, and verify the first time that it maps step by step.

    Args:
        planned: The stage. Only one whose class does not declare ``_is_verified`` is checked.
        chunk: The chunk.
    """
    assert planned.chunk_form is not None
    stage = planned.stage
    if declares(type(stage), "_is_verified") or planned.chunk_form.scan or stage in _verified:
        planned.chunk_form.run(chunk)
        return
    # Copies, because the stage may write in place.
    before, resets = (
        {key: columns[key].clone() for key in stage.in_keys if key in columns}
        for columns in (chunk.steps, chunk.resets)
    )
    if stage in not_pointwise:  # A rollout that is running keeps its plan.
        _map_each_step(stage, chunk, before, resets)
        return
    try:
        planned.chunk_form.run(chunk)
    except Exception:
        if first_failing(stage, before) is not None:
            raise
        is_pointwise = False
    else:
        is_pointwise = _maps_each_step(planned, chunk, before)
    if is_pointwise:
        _verified.add(stage)
        return
    _mark_not_pointwise(planned)
    _map_each_step(stage, chunk, before, resets)


def _maps_each_step(planned: PlannedStage, chunk: Chunk, before: Columns) -> bool:
    """Return True if the last step of the block equals the last step mapped on its own."""
    state, stage = torch.get_rng_state(), planned.stage
    try:
        for in_key, out_key in zip(stage.in_keys, stage.out_keys, strict=True):
            block = chunk.steps[out_key]
            single = stage._apply_transform(before[in_key][-1].clone())
            if block.shape != (chunk.length, *single.shape) or block.dtype != single.dtype:
                return False
            if not torch.allclose(block[-1], single, rtol=1e-4, atol=1e-6, equal_nan=True):
                return False
        return bool(torch.equal(torch.get_rng_state(), state))
    finally:
        torch.set_rng_state(state)


def _mark_not_pointwise(planned: PlannedStage) -> None:
    """Run a stage step by step from now on, and warn about it."""
    not_pointwise.add(planned.stage)
    planned.stage._notify_changed()
    warnings.warn(
        f"stage {planned.index} ({planned.name}) declares that it is pointwise, but maps a block "
        "of steps to something else than the single steps; it runs step by step from now on",
        UserWarning,
        stacklevel=2,
    )


def _map_each_step(stage: Transform, chunk: Chunk, steps: Columns, resets: Columns) -> None:
    for in_key, out_key in zip(stage.in_keys, stage.out_keys, strict=True):
        for columns, entries in ((chunk.steps, steps), (chunk.resets, resets)):
            if in_key in entries:
                mapped = [stage._apply_transform(each) for each in entries[in_key]]
                columns[out_key] = torch.stack(mapped)


def first_failing(stage: Transform, entries: Columns) -> int | None:
    """Return the first step at which a stage raises if it maps the steps one by one.

    Args:
        stage: The transform.
        entries: The entries that it reads, ``[T, *B, ...]`` each.
    """
    state = torch.get_rng_state()
    try:
        for index in range(max(map(len, entries.values()), default=0)):
            try:
                for value in entries.values():
                    stage._apply_transform(value[index].clone())
            except Exception:
                return index
        return None
    finally:
        torch.set_rng_state(state)
