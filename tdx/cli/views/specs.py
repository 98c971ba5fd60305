"""Views of the specs before and after a chain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from tdx.cli.views import (
    NONE,
    Block,
    Cell,
    Heading,
    Style,
    Table,
    View,
    change_text,
    dim,
    first_that_fits,
    stage_list,
    without_repeats,
)
from tdx.foundation.keys import format_key
from tdx.inspection.spec_report import Change, EnvFacts, KeyChange, SpecReport
from tdx.specs.leaf import LeafSpec, SpecText, shape_text

MARKS: dict[Change, str] = {"same": " ", "added": "+", "changed": "~", "gone": "-"}
STYLES: dict[Change, Style] = {"same": "", "added": "added", "changed": "changed", "gone": "gone"}
_SPEC_FIELDS = ("kind", "shape", "dtype", "device", "low", "high", "choices", "digest")


def spec_columns(
    prefix: str, spec: Mapping[str, object] | None, *, with_part: bool = False
) -> dict[str, object]:
    """Return a spec as columns of a record, such as ``before_kind`` and ``before_shape``."""
    names = ("part", *_SPEC_FIELDS) if with_part else _SPEC_FIELDS
    return {f"{prefix}_{name}": (spec or {}).get(name) for name in names}


def comparison_table(
    changes: Sequence[KeyChange],
    names: Sequence[str] = (),
    sides: tuple[str, str] = ("env", "after the chain"),
) -> Block:
    """Return a table of keys with their specs before and after, and a mark if they differ."""
    return first_that_fits(
        lambda: [_side_by_side(changes, names, sides)],
        lambda: [_side_by_side(changes, [""] * len(names), sides)],
        lambda: [_stack_table(changes, names, whole=True)],
        lambda: [_stack_table(changes, names, whole=False)],
    )


def spec_table(leaves: Sequence[LeafSpec]) -> Block:
    """Return a table of specs."""

    def wide(text: SpecText) -> Table:
        rows = [
            [Cell(part, "dim"), Cell(format_key(leaf.key)), Cell(text(leaf))]
            for part, leaf in zip(_parts(leaves), leaves, strict=True)
        ]
        return Table.of(("part", "key", "spec"), rows)

    def grouped(text: SpecText) -> Table:
        rows: list[list[Cell]] = []
        for part, leaf in zip(_parts(leaves), leaves, strict=True):
            if part:
                rows.append([Cell(part, "dim"), Cell("")])
            rows.append([Cell(f"  {format_key(leaf.key)}"), Cell(text(leaf))])
        return Table.of(("", ""), rows)

    short = SpecText(leaves, whole=False)
    return first_that_fits(
        lambda: [wide(SpecText(leaves))], lambda: [wide(short)], lambda: [grouped(short)]
    )


def stage_names(stages: Sequence[int], names: Sequence[str]) -> str:
    """Return stages with their indices: ``0 ToTensorImage, 1 Resize``."""
    return ", ".join(f"{stage} {names[stage]}".rstrip() for stage in stages)


def _side_by_side(
    changes: Sequence[KeyChange], names: Sequence[str], sides: tuple[str, str]
) -> Table:
    left = SpecText([c.before for c in changes if c.before])
    right = SpecText([c.after for c in changes if c.after and c.change != "same"])
    rows = []
    for part, change in zip(_parts(changes), changes, strict=True):
        style = STYLES[change.change]
        before = after = Cell(NONE, "dim")
        if change.before is not None:
            before = Cell(left(change.before), style if change.after is None else "")
        if change.after is not None:
            is_same = change.change == "same"
            after = Cell("=", "dim") if is_same else Cell(right(change.after), style)
        row = [Cell(part, "dim"), Cell(MARKS[change.change], style)]
        row += [Cell(format_key(change.key), style), before, after]
        rows.append(row + ([Cell(stage_names(change.stages, names), "dim")] if names else []))
    titles = ("part", "", "key", *sides, *(["by stage"] if names else []))
    return Table.of(titles, rows, fixed=True)


def _stack_table(changes: Sequence[KeyChange], names: Sequence[str], *, whole: bool) -> Table:
    sides = [side for change in changes for side in (change.before, change.after) if side]
    text = SpecText(sides, whole=whole)
    rows: list[list[Cell]] = []
    for part, change in zip(_parts(changes), changes, strict=True):
        if part:
            rows.append([Cell(part, "dim"), Cell("")])
        style = STYLES[change.change]
        key = Cell(f"{MARKS[change.change]} {format_key(change.key)}", style)
        if change.before and change.after and change.change == "changed":
            rows.append([key, Cell(text(change.before))])
            rows.append([Cell("  →", style), Cell(text(change.after), style)])
        else:
            side = change.after or change.before
            rows.append([key, Cell(text(side) if side else "", style)])
        if change.stages and names:
            rows.append([Cell(""), Cell(f"by {stage_names(change.stages, names)}", "dim")])
    return Table.of(("", ""), rows)


def _parts(items: Sequence[KeyChange] | Sequence[LeafSpec]) -> Iterator[str]:
    """Yield the part of each row; empty if the row above has the same."""
    return without_repeats(item.part for item in items)


def spec_view(
    report: SpecReport,
    calls: Sequence[str],
    *,
    stages: bool = False,
    changes: bool = False,
    key: str | None = None,
) -> View:
    """Lay out a spec report."""
    selected = report if key is None else report.only(key)
    selected = selected.only_changes() if changes else selected
    each = stages or changes or key is not None

    def blocks() -> list[Block]:
        head = sides_heading(selected.env, selected.before, selected.after)
        if changes:
            return [head, *_changes(selected, calls)]
        shown: list[Block] = [head, *stage_list(calls)]
        if key is not None:
            return [*shown, *_one_key(selected)]
        if stages:
            return [*shown, *_each_stage(selected, calls)]
        if selected.stages:
            names = [stage.name for stage in selected.stages]
            return [*shown, comparison_table(selected.changes, names)]
        return [*shown, spec_table([c.after for c in selected.changes if c.after])]

    return View(
        "spec",
        lambda: selected.to_dict(each=each),
        blocks,
        lambda: _records(selected, calls, each=each),
        calls,
    )


def sides_heading(env: str, before: EnvFacts, after: EnvFacts) -> Heading:
    """Return the title of a report about a chain, with the batch and the device around it."""
    batch = change_text(shape_text(before.batch_size), shape_text(after.batch_size))
    facts = f"batch {batch}  device {change_text(before.device, after.device)}"
    return Heading(env, facts, level=1)


def _each_stage(report: SpecReport, calls: Sequence[str]) -> list[Block]:
    blocks: list[Block] = [Heading("env"), spec_table(_env_leaves(report))]
    for stage, call in zip(report.stages, calls, strict=True):
        blocks.append(Heading(f"after stage {stage.index}", call))
        changed = [change for change in stage.changes if change.change != "same"]
        if changed:
            blocks.append(comparison_table(changed, sides=("before", "after")))
        same = [format_key(change.key) for change in stage.changes if change.change == "same"]
        if same:
            blocks.append(dim(f"unchanged: {', '.join(dict.fromkeys(same))}"))
    return blocks


def _changes(report: SpecReport, calls: Sequence[str]) -> list[Block]:
    """Return what each stage changes, without the keys that it leaves as they are."""
    blocks: list[Block] = []
    for stage, call in zip(report.stages, calls, strict=True):
        blocks.append(Heading(f"{stage.index} {call}", "" if stage.changes else "no spec changes"))
        if stage.changes:
            blocks.append(comparison_table(stage.changes, sides=("before", "after")))
    return blocks


def _env_leaves(report: SpecReport) -> list[LeafSpec]:
    changes = report.stages[0].changes if report.stages else report.changes
    return [change.before for change in changes if change.before]


def _one_key(report: SpecReport) -> list[Block]:
    """Follow a key through the chain, in one table for each part that it belongs to."""

    def table(part: str, text: SpecText) -> list[Block]:
        return [Table.of(("", "stage", "spec"), list(_key_rows(report, part, text)))]

    changes = [*report.changes, *(change for stage in report.stages for change in stage.changes)]
    blocks: list[Block] = []
    for part in dict.fromkeys(change.part for change in changes):
        steps = [change for change in changes if change.part == part]
        sides = [side for change in steps for side in (change.before, change.after) if side]
        blocks.append(Heading(format_key(steps[0].key), part))
        texts = SpecText(sides), SpecText(sides, whole=False)
        blocks.append(first_that_fits(*(partial(table, part, text) for text in texts)))
    return blocks


def _key_rows(report: SpecReport, part: str, text: SpecText) -> Iterator[list[Cell]]:
    first = next((leaf for leaf in _env_leaves(report) if leaf.part == part), None)
    yield [Cell(""), Cell("env"), Cell(text(first) if first else NONE)]
    for stage in report.stages:
        change = next((c for c in stage.changes if c.part == part), None)
        after = change.after if change else None
        style = STYLES[change.change] if change else ""
        mark = MARKS[change.change] if change else " "
        spec = Cell(text(after), style) if after else Cell(NONE, "dim")
        yield [Cell(mark, style), Cell(f"{stage.index} {stage.name}", style), spec]


def _records(
    report: SpecReport, calls: Sequence[str], *, each: bool
) -> Iterator[dict[str, object]]:
    """Yield a record for each key of the whole chain, then, if ``each`` is set, of each stage."""
    for change in report.changes:
        yield _record(change, {"stage": None, "transform": None, "call": None})
    if each:
        for stage, call in zip(report.stages, calls, strict=True):
            place = {"stage": stage.index, "transform": stage.name, "call": call}
            for change in stage.changes:
                yield _record(change, place)


def _record(change: KeyChange, place: dict[str, object]) -> dict[str, object]:
    row = change.to_dict()
    before, after = row.pop("before"), row.pop("after")
    return {**place, **row, **spec_columns("before", before), **spec_columns("after", after)}
