"""What could wait: the chain over a whole chunk of steps."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tdx.core.envs.failures import stage_failed
from tdx.core.plan.build import Program
from tdx.core.plan.forms import StageForm
from tdx.core.planned.collected import Collected
from tdx.core.planned.compiled import CompiledStages
from tdx.core.planned.guard import first_failing, run_guarded
from tdx.core.transforms.chunk import Chunk
from tdx.errors import TdxError, Where
from tdx.keys import NestedKey


def run_chain(
    program: Program,
    collected: Collected,
    first: Mapping[NestedKey, Tensor],
    batch_size: torch.Size,
    compiled: Mapping[int, CompiledStages],
) -> Chunk:
    """The chain over the steps that were collected.

    Where a stage raises at one of them, that and those after it are cut off, and the error is
    put with what was collected.

    Args:
        program: the stages, and which of them have run already.
        collected: what the env returned, and what those stages made of it.
        first: the root's entries before the first step, ``[*B, ...]``.
        batch_size: the env's, ``[*B]``.
        compiled: stages that are compiled, by the index of the first of each group.

    Returns:
        the chunk, as it comes out of the chain.

    Raises:
        ChainError: a stage raised, and not at one of the steps alone.
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
    arrived = () if program.fused is None else program.fused.indices
    done = 0
    for form in program.forms:
        if form.index in arrived or form.index < done:
            continue
        group = compiled.get(form.index)
        if group is not None:
            group.run(chunk)
            done = group.forms[-1].index + 1
            continue
        if form.index in program.now:
            _take_over(chunk, form, collected)
            continue
        assert form.form is not None
        before = dict(chunk.steps), dict(chunk.resets)
        try:
            run_guarded(form, chunk)
        except Exception as error:
            chunk.steps, chunk.resets = before
            _cut_off(chunk, form, collected, error)
            if not chunk.length:
                break
            form.form.run(chunk)
    return chunk


def _cut_off(chunk: Chunk, form: StageForm, collected: Collected, error: Exception) -> None:
    """Cut the chunk where a stage raised, if it is one step that it raises at.

    Raises:
        ChainError: it is none.
    """
    step = None
    if form.form is not None and not form.form.scan:
        keys = [key for key in form.stage.in_keys if key in chunk.steps]
        step = first_failing(form.stage, {key: chunk.steps[key] for key in keys})
    if step is None:
        made = located(error, form)
        raise made from made.__cause__
    chunk.cut(step)
    collected.cut(step, located(error, form))


def _take_over(chunk: Chunk, form: StageForm, collected: Collected) -> None:
    """Put what a stage has written step by step into the chunk, at the stage's place."""
    if form.is_opaque:
        chunk.steps.clear()
        chunk.resets.clear()
    for key in form.drops:
        chunk.steps.pop(key, None)
        chunk.resets.pop(key, None)
    chunk.steps.update(collected.now_steps.get(form.index, {}))
    chunk.resets.update(collected.now_resets.get(form.index, {}))


def located(error: Exception, form: StageForm) -> TdxError:
    """The error, with the stage it came from."""
    if isinstance(error, TdxError):
        return error.at(stage=form.index, transform=form.name)
    return stage_failed(error, Where(stage=form.index, transform=form.name))
