"""How the deferred stages of a chain run over the steps of a chunk."""

from __future__ import annotations

import warnings
from weakref import WeakSet

import torch

from tdx.core.chain import StageForms, declares, not_pointwise
from tdx.core.envs.failures import with_stage
from tdx.core.plan.build import Program
from tdx.core.planned.columns import CollectedSteps
from tdx.core.transforms import Transform
from tdx.core.transforms.kernels import Chunk, Columns


def run_deferred(
    program: Program,
    chunk: CollectedSteps,
    batch_size: torch.Size,
) -> None:
    """Run the deferred stages over the collected steps, in place.

    If a stage raises at one of the steps, that step and those after it are removed, and the error
    is stored with the collected steps. If it raises elsewhere, ``ChainError`` is raised.
    """
    chunk.batch_size = batch_size
    chunk.first = {key: value.to(program.base.device) for key, value in chunk.first.items()}
    fused = () if program.fused is None else program.fused.indices
    for forms in program.stages:
        if forms.index in fused:
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

    Only one whose class does not declare ``_is_verified`` is checked.
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
        f"{forms.label} declares that it is pointwise, but maps a block "
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
    """Return the first of steps ``[T, *B, ...]`` at which a stage raises, mapped one by one."""
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
