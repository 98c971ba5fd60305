"""How the deferred stages of a chain run over the steps of a chunk: one by one, or compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from tdx.core.chain import (
    StageForms,
    declares,
    not_pointwise,
)
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import with_stage
from tdx.core.meter import Meter, Part
from tdx.core.plan.build import PlanCache, Program
from tdx.core.planned.columns import CollectedSteps
from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.kernels import Chunk, Columns, owner
from tdx.foundation.errors import DeviceError
from tdx.foundation.keys import NestedKey

_Move = tuple[NestedKey, NestedKey, Callable[[Tensor], Tensor]]


class CompiledStages:
    """Neighboring pointwise stages, compiled into one function.

    Values agree with those of the single stages within float rounding.

    Args:
        stages: The stages in order; each maps tensor by tensor.
        backend: The compiler, as ``torch.compile`` names it.
    """

    def __init__(self, stages: Sequence[StageForms], backend: str) -> None:
        self.stages = tuple(stages)
        self._moves: list[_Move] = [
            (in_key, out_key, forms.stage._apply_transform)
            for forms in stages
            for in_key, out_key in zip(forms.stage.in_keys, forms.stage.out_keys, strict=True)
        ]
        inputs: dict[NestedKey, None] = {}
        outputs: dict[NestedKey, None] = {}
        for in_key, out_key, _ in self._moves:
            if in_key not in outputs:
                inputs[in_key] = None
            outputs[out_key] = None
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        # Chunks differ in length, which must not cause a recompilation.
        self._function: Any = torch.compile(self._map_values, backend=backend, dynamic=True)

    def _map_values(self, *values: Tensor) -> tuple[Tensor | None, ...]:
        known = dict(zip(self._inputs, values, strict=True))
        for in_key, out_key, function in self._moves:
            if in_key in known:
                known[out_key] = function(known[in_key])
        return tuple(known.get(key) for key in self._outputs)

    def measured(self, meter: Meter) -> CompiledStages:
        """Return a copy whose runs are measured."""
        copied = copy(self)
        first, last = self.stages[0], self.stages[-1]
        name = " + ".join(forms.name for forms in self.stages)
        part = Part("stage", first.index, name, "forward", last.index)
        copied.run = meter.timed(  # type: ignore[method-assign]
            part, self.run, steps=lambda chunk: chunk.length
        )
        return copied

    def run(self, chunk: Chunk) -> None:
        """Run the stages over a chunk, in place.

        Raises:
            DeviceError: torch cannot compile on this machine.
        """
        present = tuple(key for key in self._inputs if key in chunk.steps)
        if present != self._inputs:
            for forms in self.stages:
                assert forms.chunk_kernel is not None
                forms.chunk_kernel.run(chunk)
            return
        values = [chunk.steps[key] for key in self._inputs]
        try:
            results = self._function(*values)
        except (RuntimeError, ImportError, OSError) as error:
            self._map_values(*values)  # Raises what a stage raises without the compiler.
            raise DeviceError(
                f"torch.compile failed: {next(iter(str(error).splitlines()), 'no message')}",
                hint="install a C++ compiler such as g++, or leave compile out",
            ) from error
        chunk.steps.update(
            {
                key: value
                for key, value in zip(self._outputs, results, strict=True)
                if value is not None
            }
        )
        if chunk.times:
            resets = {key: value for key, value in chunk.resets.items() if key in self._inputs}
            for in_key, out_key, function in self._moves:
                if in_key in resets:
                    resets[out_key] = function(resets[in_key])
            chunk.resets.update(resets)


def compiled_stages(env: EnvBase, program: Program, backend: str) -> Mapping[int, CompiledStages]:
    """Return the compiled groups of deferred stages by their first index, cached with the env."""
    cache: PlanCache = env.env_specs.cache.setdefault("compiled", PlanCache())
    key = (backend, program.immediate)
    if key not in cache:
        fused = () if program.fused is None else program.fused.indices
        excluded = program.immediate.union(fused)
        deferred = [forms for forms in program.stages if forms.index not in excluded]
        cache[key] = compile_stages(deferred, backend)
    groups: Mapping[int, CompiledStages] = cache[key]
    return groups


def compile_stages(stages: Sequence[StageForms], backend: str) -> dict[int, CompiledStages]:
    """Return the groups of neighboring stages that can be compiled, by their first index.

    Args:
        stages: The deferred stages, in order; a gap in their indices separates two groups.
        backend: The compiler.
    """
    groups: list[list[StageForms]] = []
    for forms in stages:
        stage, kind = forms.stage, type(forms.stage)
        is_pointwise = stage.time_behavior is TimeBehavior.POINTWISE
        if not is_pointwise or owner(kind, "make_chunk_kernel") is not Transform:
            continue
        if not stage.in_keys:
            continue
        if groups and groups[-1][-1].index == forms.index - 1:
            groups[-1].append(forms)
        else:
            groups.append([forms])
    return {group[0].index: CompiledStages(group, backend) for group in groups}


def run_deferred(
    program: Program,
    chunk: CollectedSteps,
    batch_size: torch.Size,
    compiled: Mapping[int, CompiledStages],
) -> None:
    """Run the deferred stages over the collected steps, in place.

    If a stage raises at one of the steps, that step and those after it are removed, and the error
    is stored with the collected steps.

    Args:
        program: The stages, and which of them have run already.
        chunk: Output of the env and of the immediate stages.
        batch_size: Batch size of the env after the chain, ``[*B]``.
        compiled: Compiled groups of stages, by the index of their first stage.

    Raises:
        ChainError: A stage raised, but not at a single step.
    """
    chunk.batch_size = batch_size
    chunk.first = {key: value.to(program.base.device) for key, value in chunk.first.items()}
    fused = () if program.fused is None else program.fused.indices
    next_index = 0
    for forms in program.stages:
        if forms.index in fused or forms.index < next_index:
            continue
        group = compiled.get(forms.index)
        if group is not None:
            group.run(chunk)
            next_index = group.stages[-1].index + 1
            continue
        if forms.index in program.immediate:
            # What an immediate stage wrote goes to its place in the chain.
            if forms.is_opaque:
                chunk.steps.clear()
                chunk.resets.clear()
            for key in forms.drops:
                chunk.steps.pop(key, None)
                chunk.resets.pop(key, None)
            chunk.steps.update(chunk.immediate_steps.get(forms.index, {}))
            chunk.resets.update(chunk.immediate_resets.get(forms.index, {}))
            continue
        assert forms.chunk_kernel is not None
        before = dict(chunk.steps), dict(chunk.resets)
        try:
            run_stage(forms, chunk)
        except Exception as error:
            chunk.steps, chunk.resets = before
            failure, step = with_stage(error, forms.index, forms.name), None
            if not forms.chunk_kernel.scan:
                keys = [key for key in forms.stage.in_keys if key in chunk.steps]
                step = first_failing(forms.stage, {key: chunk.steps[key] for key in keys})
            if step is None:
                raise failure from failure.__cause__
            chunk.cut(step, failure)
            if not step:
                return
            forms.chunk_kernel.run(chunk)  # the steps before the failing one


# Stages that claim to be pointwise are verified at their first chunk.

_verified: WeakSet[Transform] = WeakSet()


def run_stage(forms: StageForms, chunk: Chunk) -> None:
    """Run a stage over a chunk, and verify the first time that it maps step by step.

    Args:
        forms: The stage. Only one whose class does not declare ``_is_verified`` is checked.
        chunk: The chunk.
    """
    assert forms.chunk_kernel is not None
    stage = forms.stage
    if declares(type(stage), "_is_verified") or forms.chunk_kernel.scan or stage in _verified:
        forms.chunk_kernel.run(chunk)
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
        forms.chunk_kernel.run(chunk)
    except Exception:
        if first_failing(stage, before) is not None:
            raise
        is_pointwise = False
    else:
        is_pointwise = _maps_each_step(forms, chunk, before)
    if is_pointwise:
        _verified.add(stage)
        return
    not_pointwise.add(stage)
    stage.notify_changed()
    warnings.warn(
        f"stage {forms.index} ({forms.name}) declares that it is pointwise, but maps a block "
        "of steps to something else than the single steps; it runs step by step from now on",
        UserWarning,
        stacklevel=2,
    )
    _map_each_step(stage, chunk, before, resets)


def _maps_each_step(forms: StageForms, chunk: Chunk, before: Columns) -> bool:
    """Return True if the last step of the block equals the last step mapped on its own."""
    state, stage = torch.get_rng_state(), forms.stage
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


def _map_each_step(stage: Transform, chunk: Chunk, steps: Columns, resets: Columns) -> None:
    for in_key, out_key in zip(stage.in_keys, stage.out_keys, strict=True):
        for columns, entries in ((chunk.steps, steps), (chunk.resets, resets)):
            if in_key in entries:
                mapped = [stage._apply_transform(value) for value in entries[in_key]]
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
