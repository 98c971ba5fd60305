"""Compare two policy checkpoints: their settings, steps, statistics, specs and values."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from tdx.compare.alignment import match_stages
from tdx.compare.arguments import MISSING, changed_arguments
from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError
from tdx.foundation.text import count_text
from tdx.inspection.checkpoint_report import inspect_checkpoint
from tdx.inspection.diff import (
    DiffReport,
    SettingChange,
    StageChange,
    StageStatus,
    ValueChange,
    describe_values,
)
from tdx.inspection.spec_report import compare_leaves
from tdx.specs.leaf import LeafSpec
from tdx.stacks.checkpoints import Checkpoint, SampleEntries, Step
from tdx.stacks.checkpoints.specs import checkpoint_calls
from tdx.stacks.checkpoints.steps import DEFINITIONS, run

_FEATURES = ("input_features", "output_features")
_SHOWN = 4
"""Number of values of an array that are shown."""


def compare_checkpoints(a: Checkpoint, b: Checkpoint) -> DiffReport:
    """Compare the processors of two checkpoints, and run both on the same drawn sample.

    Steps are paired by their names, in order. The weights of the policies are not compared.
    """
    specs = inspect_checkpoint(a), inspect_checkpoint(b)
    before = [[c.before for c in report.changes if c.before is not None] for report in specs]
    after = [[c.after for c in report.changes if c.after is not None] for report in specs]
    return DiffReport(
        str(a.path),
        str(b.path),
        tuple(_compare_settings(a, b)),
        tuple(_compare_steps(a, b)),
        compare_leaves(before[0], before[1]),
        compare_leaves(after[0], after[1]),
        steps=1,
        seed=0,
        values=_compare_values(a, b, [*before[0], *before[1]]),
        notes=tuple(_not_run(a, b)),
    )


def _not_run(a: Checkpoint, b: Checkpoint) -> Iterator[str]:
    """Yield how many steps of each side are not run, so that their values are not compared."""
    for side in (a,) if a.path == b.path else (a, b):
        names = [step.name for _, step in side.stages if step.name not in DEFINITIONS]
        if names:
            count = f"{len(names)} of {count_text(len(side.stages), 'step')} of {side.path}"
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
            yield SettingChange(name, _text(first), _text(second) + note)


def _text(array: Array | None) -> str:
    if array is None:
        return "missing"
    values = array.ravel()
    shown = ", ".join(f"{value:.4g}" for value in values[:_SHOWN])
    return f"[{shown}{', …' if values.size > _SHOWN else ''}]"


def _compare_values(
    a: Checkpoint, b: Checkpoint, leaves: list[LeafSpec]
) -> tuple[ValueChange, ...]:
    import torch

    from tdx.compare.values import compare_entries

    sample = _draw([leaf for leaf in leaves if leaf.part == "observation"])
    action = _draw([leaf for leaf in leaves if leaf.part == "action"])
    results = [_run(checkpoint, sample, action) for checkpoint in (a, b)]
    one, other = (
        {
            key: torch.from_numpy(value)
            for key, value in result.items()
            if isinstance(value, np.ndarray)
        }
        for result in results
    )
    return describe_values(compare_entries(one, other))


def _draw(leaves: list[LeafSpec]) -> dict[str, object]:
    from tdx.stacks.checkpoints.stack import leaf_box
    from tdx.stacks.samples import draw_box

    sample: dict[str, object] = {}
    for leaf in leaves:
        key = str(leaf.key)
        # The same for both sides, whatever their other features are.
        rng = np.random.default_rng(zlib.crc32(key.encode()))
        if leaf.dtype.startswith("float"):
            # A robot and a policy give float32; the spec of an action is that after its steps.
            leaf = replace(leaf, dtype="float32")
        sample.setdefault(key, draw_box(leaf_box(leaf), rng))
    return sample


def _run(checkpoint: Checkpoint, sample: SampleEntries, action: SampleEntries) -> dict[str, object]:
    result: dict[str, object] = {}
    for processor in checkpoint.processors:
        is_first = processor.role == "preprocessor"
        # Relative actions become absolute by the state.
        given = sample if is_first else {**sample, **action}
        try:
            after = run(processor, given).samples[-1]
            result |= {key: after[key] for key in after if is_first or key not in sample}
        except ArgumentError as error:
            raise error.at(env=str(checkpoint.path), file=processor.file) from None
    return result
