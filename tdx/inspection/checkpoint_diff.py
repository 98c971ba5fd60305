"""Compare two policy checkpoints: their settings, steps, statistics, specs and values."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tdx.compare.alignment import match_stages
from tdx.compare.arguments import MISSING, changed_arguments
from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError
from tdx.foundation.text import count_text
from tdx.inspection.diff import (
    DiffReport,
    SettingChange,
    StageChange,
    StageStatus,
    ValueChange,
    describe_values,
)
from tdx.inspection.spec_report import compare_leaves, inspect_checkpoint
from tdx.specs.leaf import LeafSpec
from tdx.stacks.checkpoints import Checkpoint, SampleEntries, Step
from tdx.stacks.checkpoints.dataset import Progress
from tdx.stacks.checkpoints.specs import checkpoint_calls
from tdx.stacks.checkpoints.steps import DEFINITIONS, run

if TYPE_CHECKING:
    from tdx.compare.values import Change

_FEATURES = ("input_features", "output_features")
_SHOWN = 4
"""Number of values of an array that are shown."""
_RANDOM_SAMPLES = 5
_STANDARD_RANGE = 3.0
"""Bounds of drawn values without bounds, which are random numbers of the standard normal."""


def compare_checkpoints(
    a: Checkpoint,
    b: Checkpoint,
    samples: Sequence[SampleEntries] | None = None,
    on_progress: Progress | None = None,
) -> DiffReport:
    """Compare the processors of two checkpoints, and run both on the same samples.

    Steps are paired by their names, in order. The weights of the policies are not compared.

    Without samples, both run on the middle and the bounds of the specs, and on a few random ones.
    """
    specs = inspect_checkpoint(a), inspect_checkpoint(b)
    before = [[c.before for c in report.changes if c.before is not None] for report in specs]
    after = [[c.after for c in report.changes if c.after is not None] for report in specs]
    values, count, unread = _compare_values(a, b, [*before[0], *before[1]], samples, on_progress)
    return DiffReport(
        a.name,
        b.name,
        tuple(_compare_settings(a, b)),
        tuple(_compare_steps(a, b)),
        compare_leaves(before[0], before[1]),
        compare_leaves(after[0], after[1]),
        steps=count,
        seed=0 if samples is None else None,
        samples=None if not count else "drawn" if samples is None else "recorded",
        values=values,
        notes=(*_not_run(a, b), *unread),
    )


def _not_run(a: Checkpoint, b: Checkpoint) -> Iterator[str]:
    """Yield how many steps of each side are not run, so that their values are not compared."""
    for side in (a,) if a.name == b.name else (a, b):
        names = [step.name for _, step in side.stages if step.name not in DEFINITIONS]
        if names:
            count = f"{len(names)} of {count_text(len(side.stages), 'step')} of {side.name}"
            yield f"{count} not run, only settings and statistics are compared: {', '.join(names)}"


def _compare_settings(a: Checkpoint, b: Checkpoint) -> Iterator[SettingChange]:
    one, other = ({} if c.config is None else c.config.values for c in (a, b))
    for name, *values in changed_arguments(one, other, rtol=0.0):
        # Features are compared as specs.
        if name not in _FEATURES:
            sides = ("missing" if value is MISSING else repr(value) for value in values)
            yield SettingChange(name, *sides)
    if a.fps != b.fps and one.get("fps") == other.get("fps"):
        # That of the options of the training.
        fps = ("missing" if side.fps is None else f"{side.fps:g}" for side in (a, b))
        yield SettingChange("fps", *fps)


_STATUS: Mapping[str, StageStatus] = {"missing": "removed", "extra": "added", "moved": "moved"}


def _compare_steps(a: Checkpoint, b: Checkpoint) -> Iterator[StageChange]:
    steps = a.stages, b.stages
    calls = checkpoint_calls(a), checkpoint_calls(b)
    one_side, other_side = (
        [(processor.role, step.name) for processor, step in side] for side in steps
    )
    for match in match_stages(one_side, other_side, lambda one, other: ()):
        one = None if match.a is None else steps[0][match.a][1]
        other = None if match.b is None else steps[1][match.b][1]
        arguments = tuple(_compare_arguments(one, other)) if one and other else ()
        status = _STATUS.get(match.status, "changed" if arguments else "same")
        yield StageChange(
            status,
            match.a,
            match.b,
            None if match.a is None else calls[0][match.a],
            None if match.b is None else calls[1][match.b],
            arguments,
        )


def _compare_arguments(one: Step, other: Step) -> Iterator[SettingChange]:
    import torch

    from tdx.compare.states import order_of
    from tdx.compare.values import differing_elements

    for name, *values in changed_arguments(one.config, other.config, rtol=0.0):
        sides = ("default" if value is MISSING else repr(value) for value in values)
        yield SettingChange(name, *sides)
    for name in dict.fromkeys([*one.state, *other.state]):
        first, second = one.state.get(name), other.state.get(name)
        if first is None or second is None:
            yield SettingChange(name, _text(first), _text(second))
            continue
        arrays = torch.from_numpy(first), torch.from_numpy(second)
        if first.shape != second.shape or bool(differing_elements(*arrays).any()):
            order = order_of(*(array.reshape(-1) for array in arrays))
            note = "" if order is None else f" (in another order: {', '.join(map(str, order))})"
            if first.shape != second.shape:
                note = f" (shape {list(second.shape)} instead of {list(first.shape)})"
            yield SettingChange(name, _text(first), _text(second) + note)


def _text(array: Array | None) -> str:
    if array is None:
        return "missing"
    values = array.ravel()
    shown = ", ".join(f"{value:.4g}" for value in values[:_SHOWN])
    return f"[{shown}{', …' if values.size > _SHOWN else ''}]"


def _compare_values(
    a: Checkpoint,
    b: Checkpoint,
    leaves: Sequence[LeafSpec],
    samples: Sequence[SampleEntries] | None,
    on_progress: Progress | None,
) -> tuple[tuple[ValueChange, ...], int | None, list[str]]:
    """Return how the values differ, the number of samples, and what the samples do not have."""
    import torch

    from tdx.compare.values import compare_entries
    from tdx.stacks.checkpoints.stack import find_missing
    from tdx.stacks.observe.env_inside import fit

    observed = {str(leaf.key): leaf for leaf in leaves if leaf.part == "observation"}
    returned = {str(leaf.key): leaf for leaf in leaves if leaf.part == "action"}
    drawn = _draw(leaves)
    unread: list[str] = []
    if samples is None:
        samples = [
            {key: array for key, array in sample.items() if key in observed} for sample in drawn
        ]
        if not observed and not returned:
            return (), None, ["no feature is known, so that no values are compared"]
    elif not samples:
        raise ArgumentError("there are no samples to compare")
    elif observed or returned:
        # Actions that are missing are drawn.
        absent = find_missing((*observed, *returned), samples[0])
        if missing := [key for key in absent if key in observed]:
            unread = [f"the samples do not have {', '.join(missing)}: not compared"]
    changes: dict[str, Change | None] = {}
    for index, sample in enumerate(samples):
        # What the policy returned is no observation.
        given = {key: value for key, value in sample.items() if key not in returned}
        action = {
            key: fit(torch.as_tensor(sample[key]), array.shape).numpy() if key in sample else array
            for key, array in drawn[index % len(drawn)].items()
            if key in returned
        }
        results: list[dict[str, object]] = []
        failures: list[ArgumentError] = []
        for checkpoint in (a, b):
            try:
                results.append(_run(checkpoint, given, action))
            except ArgumentError as error:
                failures.append(error.at(step=index))
        if len(failures) == 2:
            raise failures[0]
        if failures:
            # It is a difference itself.
            note = f"values are not compared, as one side fails: {failures[0]}"
            return (), None, [*unread, note]
        one, other = results
        for key, change in compare_entries(one, other).items():
            first = changes.get(key)
            if change is None or first is None:
                changes[key] = first if change is None else replace(change, step=index)
            elif change.size is not None:
                changes[key] = replace(first, size=max(first.size or 0.0, change.size))
        if on_progress is not None:
            on_progress(index + 1, len(samples))
    return describe_values(changes), len(samples), unread


def _draw(leaves: Sequence[LeafSpec]) -> list[dict[str, Array]]:
    """Return the middle of the specs, their lower and upper bounds, and random samples."""
    from tdx.stacks.checkpoints.stack import leaf_box
    from tdx.stacks.samples import draw_box

    drawn: list[dict[str, Array]] = [{} for _ in range(3 + _RANDOM_SAMPLES)]
    for leaf in leaves:
        key = str(leaf.key)
        if key in drawn[0]:
            continue
        # The same for both sides, whatever their other features are.
        rng = np.random.default_rng(zlib.crc32(key.encode()))
        if leaf.dtype.startswith("float"):
            # A robot and a policy give float32; the spec of an action is that after its steps.
            leaf = replace(leaf, dtype="float32")
        box = leaf_box(leaf)
        low, high = (
            np.where(np.isfinite(bound), bound, limit).astype(np.float64)
            for bound, limit in ((box.low, -_STANDARD_RANGE), (box.high, _STANDARD_RANGE))
        )
        fixed = [bound.astype(box.dtype) for bound in ((low + high) / 2, low, high)]
        random = [draw_box(box, rng) for _ in range(_RANDOM_SAMPLES)]
        for sample, array in zip(drawn, (*fixed, *random), strict=True):
            sample[key] = array
    return drawn


def _run(checkpoint: Checkpoint, sample: SampleEntries, action: SampleEntries) -> dict[str, object]:
    import torch

    result: dict[str, object] = {}
    for processor in checkpoint.processors:
        is_first = processor.role == "preprocessor"
        # Relative actions become absolute by the state.
        given = sample if is_first else {**sample, **action}
        try:
            after = run(processor, given).samples[-1]
            result |= {key: after[key] for key in after if is_first or key not in sample}
        except ArgumentError as error:
            raise error.at(env=checkpoint.name, file=processor.file) from None
    return {
        key: torch.from_numpy(np.ascontiguousarray(entry))
        if isinstance(entry, np.ndarray)
        else entry
        for key, entry in result.items()
    }
