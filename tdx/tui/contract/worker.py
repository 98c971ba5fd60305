"""Worker side of the Contract view: records the chain, and compares it with a contract."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tdx.compare.model import Contract, Segment, StageRecord, display_key
from tdx.compare.report import ContractReport, KeyRow, StageRow
from tdx.compare.values import Values, differing_elements, element_gaps, format_number
from tdx.contracts import check_contract, freeze, load_contract, save_contract
from tdx.contracts.storage import check_target
from tdx.foundation.errors import ArgumentError, StorageError, TdxError
from tdx.foundation.files import is_contract
from tdx.foundation.text import escape_control_characters
from tdx.pipeline.file.pipeline_file import PipelineFile
from tdx.pipeline.model import EnvConfig, Pipeline
from tdx.rollouts.samples import read_samples
from tdx.stacks import Stack
from tdx.stacks.building import build_stack, opens_as_stack
from tdx.stacks.checkpoints import is_checkpoint
from tdx.tui.chain_status import truncate
from tdx.tui.contract.messages import (
    MAX_ELEMENTS,
    Comparison,
    KeyValues,
    Records,
    StageComparison,
    StageText,
)

_MAX_TEXT = 200


def compare_contract(
    pipeline: Pipeline,
    reference: str,
    *,
    evaluation: bool = False,
    allow_code: bool = False,
    samples: str | None = None,
) -> Comparison:
    """Run the recorded inputs of a contract through the chain, and compare stage by stage."""
    try:
        contract = _read_reference(reference, allow_code, samples)
    except TdxError as error:
        if reference in error.message:
            raise
        raise ArgumentError(f"{reference}: {error.message}", hint=error.hint) from error
    stack = _build_stack(pipeline, allow_code, samples)
    try:
        report = check_contract(
            stack, contract, pipeline.env.id, evaluation=evaluation, reference=reference
        )
    finally:
        stack.close()
    described: Comparison = _escape(_describe(contract.inputs, report))
    return described


def freeze_contract(
    pipeline: Pipeline,
    path: str,
    *,
    force: bool = False,
    allow_code: bool = False,
    samples: str | None = None,
) -> str:
    """Write a contract of the chain."""
    folder = Path(path)
    check_target(folder, force=force)
    contract = _freeze(pipeline, allow_code, samples)
    save_contract(contract, folder, force=force)
    count = len(contract.stages) - 1
    text = f"wrote {folder.name} ({count} stage{'' if count == 1 else 's'})"
    random = [stage.place for stage in contract.stages if stage.random == "excluded"]
    return f"{text}; random and excluded: {', '.join(random)}" if random else text


def _build_stack(pipeline: Pipeline, allow_code: bool, samples: str | None) -> Stack:
    # Samples belong to the chain; the other side may be an env, which takes none.
    if samples is None or not opens_as_stack(pipeline):
        return build_stack(pipeline, allow_code)
    return build_stack(pipeline, allow_code, read_samples(samples))


def _freeze(pipeline: Pipeline, allow_code: bool, samples: str | None) -> Contract:
    stack = _build_stack(pipeline, allow_code, samples)
    try:
        return freeze(stack, seed=pipeline.env.seed or 0)
    finally:
        stack.close()


def _read_reference(name: str, allow_code: bool, samples: str | None) -> Contract:
    """Load a contract, or record another target."""
    path = Path(name)
    if is_contract(path):
        return load_contract(path)
    if path.is_dir() and not is_checkpoint(path):
        raise StorageError(
            f"{name} has no contract.yaml",
            hint="give a folder that a contract was written to, or a policy checkpoint",
        )
    pipeline = Pipeline(EnvConfig(name))
    if path.suffix in (".yaml", ".yml", ".json") or os.path.isfile(path):
        pipeline = PipelineFile.load(path).pipeline
    return replace(_freeze(pipeline, allow_code, samples), noun="reference")


# Plain data for the app


def _escape(value: Any) -> Any:
    """Escape control characters in all texts: a contract is untrusted."""
    if isinstance(value, str):
        return escape_control_characters(value)
    if isinstance(value, tuple):
        return tuple(map(_escape, value))
    if isinstance(value, Mapping):
        return {_escape(name): _escape(item) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        names = [entry.name for entry in fields(value)]
        return replace(value, **{name: _escape(getattr(value, name)) for name in names})
    return value


def _describe(inputs: Sequence[Segment], report: ContractReport) -> Comparison:
    # Outputs of the env that do not fit the target.
    padded = ", ".join(
        f"{display_key(key.key)} {list(key.b.shape)} instead of {list(key.a.shape)}"
        for row in report.rows[:1]
        for key in row.keys
        if key.lane == "forward" and _has_other_shape(key)
        if key.a is not None and key.b is not None
    )
    inside_a, inside_b = (
        {stage.index + 1: stage for stage in stages if stage is not None}
        for stages in ([row.a for row in report.rows], [row.b for row in report.rows])
    )
    stages = tuple(
        StageComparison(
            _describe_stage(row.a, inside_a, report.compare, row),
            _describe_stage(row.b, inside_b, report.compare, row),
            row.status,
            row.differences,
            tuple(_describe_key(key, inputs, padded) for key in row.keys),
            any(stage is not None and stage.random == "excluded" for stage in (row.a, row.b)),
        )
        for row in report.rows
    )
    return Comparison(replace(report, rows=()), stages)


def _has_other_shape(key: KeyRow) -> bool:
    return key.a is not None and key.b is not None and key.a.shape != key.b.shape


def _describe_stage(
    stage: StageRecord | None,
    inside: Mapping[int, StageRecord],
    compared: Sequence[str],
    row: StageRow,
) -> StageText | None:
    if stage is None:
        return None
    before = set() if stage.index < 0 else set(inside[stage.index].specs)
    written = {key for _, key in stage.written}
    changed = {
        spec.key
        for spec in stage.specs
        if stage.index >= 0 and (spec.key in written or spec not in before)
    }
    own = {spec.key for spec in stage.specs if spec.part in compared}
    is_paired = row.a is not None and row.b is not None
    listed = own | changed if is_paired or stage.index < 0 else changed
    return StageText(
        stage.index,
        stage.name,
        {name: truncate(repr(value), _MAX_TEXT) for name, value in stage.arguments.items()},
        {
            display_key(spec.key): f"{list(spec.shape)} {spec.dtype} {spec.domain}"
            for spec in sorted(stage.specs, key=lambda spec: spec.key not in changed)
            if spec.key in listed
        },
        {
            tensor.name: _describe_state(tensor.shape, tensor.dtype, tensor.value)
            for tensor in stage.state
        },
        tuple(display_key(spec.key) for spec in stage.specs if spec.key in changed - own),
    )


def _describe_state(shape: Sequence[int], dtype: str, value: Tensor | None) -> str:
    if value is None or not value.numel():
        return f"{list(shape)} {dtype}"
    if value.numel() == 1:
        return format_number(value)
    shown = " ".join(format_number(number) for number in value.flatten()[:4])
    return f"{list(shape)} {shown}{' …' if value.numel() > 4 else ''}"


def _describe_key(row: KeyRow, inputs: Sequence[Segment], padded: str) -> KeyValues:
    key, is_inverse = display_key(row.key), row.lane == "inverse"
    left, right = _describe_values(row.a), _describe_values(row.b)
    known = next((values for values in (row.a, row.b) if values is not None), None)
    if known is None:
        return KeyValues(key, is_inverse, left, right)
    reason = ""
    target = row.b
    if padded and not is_inverse:
        # The target was run with the outputs of the other env, cut or filled up with zeros.
        reason, target = f"not compared: the env of the target returns {padded}", None
    elif _has_other_shape(row):
        reason = f"the shapes differ, so the values are not compared: {left} and {right}"
    if row.a is None and target is None:
        return KeyValues(key, is_inverse, left, right, reason=reason)
    a, b, labels, note = _pick_elements(row.a, target)
    count = max(len(records) for records in (a, b) if records is not None)
    unequal: tuple[frozenset[int], ...] = ()
    if a is not None and b is not None and not reason:
        count = min(len(a), len(b))
        mask = differing_elements(a[:count], b[:count], row.tolerance)
        unequal = tuple(frozenset(step.nonzero()[:, 0].tolist()) for step in mask)
    return KeyValues(
        key,
        is_inverse,
        left,
        right,
        _name_steps(inputs, count, is_inverse=is_inverse),
        labels,
        _to_records(a, count),
        _to_records(b, count),
        unequal,
        note,
        reason,
    )


def _describe_values(values: Values | None) -> str | None:
    return None if values is None else f"{list(values.shape)} {values.dtype}"


def _to_records(elements: Tensor | None, count: int) -> Records:
    return () if elements is None else tuple(map(tuple, elements[:count].tolist()))


def _name_steps(inputs: Sequence[Segment], count: int, *, is_inverse: bool) -> tuple[str, ...]:
    """Name the records of a key: the reset and the steps of each reference episode."""
    # They count from 0, as in the smallest case. A reward has no record of the reset, as an
    # action has none.
    for starts in ([],) if is_inverse else (["reset"], []):
        names: list[str] = []
        for number, segment in enumerate(inputs):
            steps = [*starts, *(f"step {step}" for step in range(segment.steps))]
            names += [f"{name} of episode {number}" for name in steps] if number else steps
        if len(names) == count:
            return tuple(names)
    return tuple(f"call {at + 1}" for at in range(count))


Picked = tuple[Tensor | None, Tensor | None, tuple[str, ...], str]


def _pick_elements(a: Values | None, b: Values | None) -> Picked:
    """Return the elements to show, ``[T, E]``: if there are many, the ones that differ most."""
    sides = [None if values is None else values.numbers.double() for values in (a, b)]
    known = [side for side in sides if side is not None]
    rows = min(side.shape[1] for side in known)
    flat = [None if side is None else side[:, :rows].flatten(1) for side in sides]
    largest = max(known, key=lambda side: side[0, :rows].numel())
    shape = largest.shape[2:]
    total = largest[0, :rows].numel()
    one, other = flat
    chosen = torch.arange(total)
    note = "thumbnail; " if any(values is not None and values.digests for values in (a, b)) else ""
    if total > MAX_ELEMENTS:
        note += f"{MAX_ELEMENTS} of {total:,} values"
        if one is not None and other is not None and one.shape[1] == other.shape[1]:
            count = min(len(one), len(other))
            apart = element_gaps(one[:count], other[:count]).amax(0)
            chosen = apart.argsort(descending=True, stable=True)
            note += ", the most different ones"
        chosen = chosen[:MAX_ELEMENTS].sort().values
    labels = []
    size = max(shape.numel(), 1)
    for place in chosen.tolist():
        row, place = divmod(place, size)
        index: list[int] = []
        for dim in reversed(shape):
            place, at = divmod(place, dim)
            index.insert(0, at)
        text = f"[{', '.join(map(str, index))}]" if index else ""
        labels.append(f"env {row} {text}".rstrip() if rows > 1 or not text else text)
    picked = [
        None if side is None else side[:, chosen[chosen < side.shape[1]]] for side in (one, other)
    ]
    return picked[0], picked[1], tuple(labels), note.removesuffix("; ")
