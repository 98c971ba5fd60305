"""Looks after stages from outside tdx, which say of themselves that they may wait."""

from __future__ import annotations

import warnings
from weakref import WeakSet

import torch

from tdx.core.plan.forms import StageForm, not_pointwise
from tdx.core.transforms import Transform
from tdx.core.transforms.chunk import Chunk, Columns

_looked_at: WeakSet[Transform] = WeakSet()


def run_guarded(form: StageForm, chunk: Chunk) -> None:
    """Run a stage over a chunk; one from outside is looked at the first time.

    Args:
        form: the stage.
        chunk: what it is run over.
    """
    assert form.form is not None
    stage = form.stage
    if _is_own(stage) or form.form.scan or stage in _looked_at:
        form.form.run(chunk)
        return
    # Copies: it may write in place.
    before, resets = (
        {key: columns[key].clone() for key in stage.in_keys if key in columns}
        for columns in (chunk.steps, chunk.resets)
    )
    if stage in not_pointwise:  # The rollout that found this out goes on by its plan.
        _map_alone(stage, chunk, before, resets)
        return
    try:
        form.form.run(chunk)
    except Exception:
        if first_failing(stage, before) is not None:
            raise
        fits = False
    else:
        fits = _maps_each_step(form, chunk, before)
    if fits:
        _looked_at.add(stage)
        return
    _tell(form)
    _map_alone(stage, chunk, before, resets)


def _is_own(stage: Transform) -> bool:
    return type(stage).__module__.startswith("tdx.")


def _maps_each_step(form: StageForm, chunk: Chunk, before: Columns) -> bool:
    """Whether the last step of the block is what the last step alone is mapped to."""
    state = torch.get_rng_state()
    try:
        for in_key, out_key in zip(form.stage.in_keys, form.stage.out_keys, strict=True):
            block = chunk.steps[out_key]
            alone = form.stage._apply_transform(before[in_key][-1].clone())
            if block.shape != (chunk.length, *alone.shape) or block.dtype != alone.dtype:
                return False
            if not torch.allclose(block[-1], alone, rtol=1e-4, atol=1e-6, equal_nan=True):
                return False
        return bool(torch.equal(torch.get_rng_state(), state))
    finally:
        torch.set_rng_state(state)


def _tell(form: StageForm) -> None:
    """Remember a stage that cannot wait, and say so once."""
    not_pointwise.add(form.stage)
    form.stage._notify_changed()
    warnings.warn(
        f"stage {form.index} ({form.name}) says that it is pointwise, and maps a block of steps "
        "to something else than the steps one by one; it runs step by step from now on",
        UserWarning,
        stacklevel=2,
    )


def _map_alone(stage: Transform, chunk: Chunk, steps: Columns, resets: Columns) -> None:
    """Map every step by itself."""
    for in_key, out_key in zip(stage.in_keys, stage.out_keys, strict=True):
        for columns, entries in ((chunk.steps, steps), (chunk.resets, resets)):
            if in_key in entries:
                mapped = [stage._apply_transform(each) for each in entries[in_key]]
                columns[out_key] = torch.stack(mapped)


def first_failing(stage: Transform, entries: Columns) -> int | None:
    """The first step that a map raises at, when it maps one step after another.

    Args:
        stage: the transform.
        entries: what it reads, ``[T, *B, ...]`` each.
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
