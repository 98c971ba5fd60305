"""Two sides of a chain in one table: side by side where there is room, else stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Style, Table, View
from tdx.inspection.leaf import LeafSpec
from tdx.inspection.spec_report import Change, KeyChange, SpecReport
from tdx.inspection.spec_text import SpecText, shape_text
from tdx.keys import format_key

MARKS: dict[Change, str] = {"same": " ", "added": "+", "changed": "~", "gone": "-"}
STYLES: dict[Change, Style] = {"same": "", "added": "added", "changed": "changed", "gone": "gone"}
NOTHING = "–"
_SPEC = ("kind", "shape", "dtype", "device", "low", "high", "choices", "digest")


def spec_columns(
    prefix: str, spec: Mapping[str, Any] | None, *, with_part: bool = False
) -> dict[str, Any]:
    """A spec as columns of a row: ``before_kind``, ``before_shape``; all ``None`` for no spec.

    Args:
        prefix: What each column begins with.
        spec: The spec as plain data.
        with_part: Whether there is a column for what the key is to the env.
    """
    names = ("part", *_SPEC) if with_part else _SPEC
    return {f"{prefix}_{name}": (spec or {}).get(name) for name in names}


def comparison(
    changes: Sequence[KeyChange],
    width: int,
    names: Sequence[str] = (),
    sides: tuple[str, str] = ("env", "with the chain"),
) -> Table:
    """Every key before and after, with a mark at those that differ.

    Args:
        changes: the keys, part after part.
        width: columns that there are.
        names: the transform of each stage, to say which one changed a key.
        sides: what the two sides are called.
    """
    layouts: list[Callable[[], Table]] = [
        lambda: _side_by_side(changes, names, sides),
        lambda: _side_by_side(changes, [""] * len(names), sides),
        lambda: _stacked(changes, names, whole=True),
    ]
    for layout in layouts:
        table = layout()
        if table_width(table) <= width:
            return table
    return _stacked(changes, names, whole=False)


def spec_list(leaves: Sequence[LeafSpec], width: int) -> Table:
    """The specs of one side alone."""
    for whole in (True, False):
        text = SpecText(leaves, whole=whole)
        rows = [
            [Cell(part, "dim"), Cell(format_key(leaf.key)), Cell(text(leaf))]
            for part, leaf in zip(_parts(leaves), leaves, strict=True)
        ]
        wide = Table([Column("part"), Column("key"), Column("spec")], rows)
        if table_width(wide) <= width:
            return wide
    return _grouped(leaves, text)


def _grouped(leaves: Sequence[LeafSpec], text: SpecText) -> Table:
    """The specs under the names of their parts, for narrow terminals."""
    rows: list[list[Cell]] = []
    for part, leaf in zip(_parts(leaves), leaves, strict=True):
        if part:
            rows.append([Cell(part, "dim"), Cell("")])
        rows.append([Cell(f"  {format_key(leaf.key)}"), Cell(text(leaf))])
    return Table([Column(), Column()], rows)


def stage_names(stages: Sequence[int], names: Sequence[str]) -> str:
    """The stages as people speak of them: ``0 ToTensorImage, 1 Resize``."""
    return ", ".join(f"{stage} {names[stage]}".rstrip() for stage in stages)


def _side_by_side(
    changes: Sequence[KeyChange], names: Sequence[str], sides: tuple[str, str]
) -> Table:
    left = SpecText([c.before for c in changes if c.before])
    right = SpecText([c.after for c in changes if c.after and c.change != "same"])
    rows = [
        [
            Cell(part, "dim"),
            Cell(MARKS[change.change], STYLES[change.change]),
            Cell(format_key(change.key), STYLES[change.change]),
            _left(change, left),
            _right(change, right),
            *([Cell(stage_names(change.stages, names), "dim")] if names else []),
        ]
        for part, change in zip(_parts(changes), changes, strict=True)
    ]
    titles = ("part", "", "key", *sides, *(["by stage"] if names else []))
    return Table([Column(title, fixed=True) for title in titles], rows)


def _left(change: KeyChange, text: SpecText) -> Cell:
    if change.before is None:
        return Cell(NOTHING, "dim")
    return Cell(text(change.before), STYLES[change.change] if change.after is None else "")


def _right(change: KeyChange, text: SpecText) -> Cell:
    if change.after is None:
        return Cell(NOTHING, "dim")
    if change.change == "same":
        return Cell("=", "dim")
    return Cell(text(change.after), STYLES[change.change])


def _stacked(changes: Sequence[KeyChange], names: Sequence[str], *, whole: bool) -> Table:
    sides = [side for change in changes for side in (change.before, change.after) if side]
    text = SpecText(sides, whole=whole)
    rows: list[list[Cell]] = []
    for part, change in zip(_parts(changes), changes, strict=True):
        if part:
            rows.append([Cell(part, "dim"), Cell("")])
        rows += _stacked_rows(change, text, names)
    return Table([Column(), Column()], rows)


def _stacked_rows(change: KeyChange, text: SpecText, names: Sequence[str]) -> Iterator[list[Cell]]:
    style = STYLES[change.change]
    key = Cell(f"{MARKS[change.change]} {format_key(change.key)}", style)
    if change.before and change.after and change.change == "changed":
        yield [key, Cell(text(change.before))]
        yield [Cell("  →", style), Cell(text(change.after), style)]
    else:
        side = change.after or change.before
        yield [key, Cell(text(side) if side else "", style)]
    if change.stages and names:
        yield [Cell(""), Cell(f"by {stage_names(change.stages, names)}", "dim")]


def _parts(placed: Sequence[KeyChange] | Sequence[LeafSpec]) -> Iterator[str]:
    """The part of each, empty where it is that of the one before."""
    previous = ""
    for one in placed:
        yield "" if one.part == previous else one.part
        previous = one.part


def spec_view(
    report: SpecReport, calls: Sequence[str], *, stages: bool = False, key: str | None = None
) -> View:
    """Lay out a spec report.

    Args:
        report: what to show.
        calls: each stage as the user would write it.
        stages: show the specs after every stage.
        key: follow this one key through the chain.

    Raises:
        KeyNotFoundError: there is no such key at any stage.
    """
    shown = report if key is None else report.only(key)
    each = stages or key is not None
    data = shown.to_dict(each=each)
    for stage, call in zip(data["stages"], calls, strict=True):
        stage["call"] = call

    def blocks(width: int) -> list[Block]:
        if key is not None:
            return [*_head(shown, calls), *_one_key(shown, width)]
        if stages:
            return [*_head(shown, calls), *_each_stage(shown, calls, width)]
        return [*_head(shown, calls), _whole_chain(shown, width)]

    return View("spec", data, list(_records(shown, calls, each=each)), blocks)


def _head(report: SpecReport, calls: Sequence[str]) -> list[Block]:
    before, after = report.before, report.after
    batch = _arrow(shape_text(before.batch_size), shape_text(after.batch_size))
    facts = f"batch {batch}  device {_arrow(before.device, after.device)}"
    chain = [
        Paragraph([Cell(f"{index} ", "dim"), Cell(call)], indent=2)
        for index, call in enumerate(calls)
    ]
    return [Heading(report.env, facts, level=1), *chain]


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _whole_chain(report: SpecReport, width: int) -> Table:
    if not report.stages:
        return spec_list([change.after for change in report.changes if change.after], width)
    return comparison(report.changes, width, [stage.name for stage in report.stages])


def _each_stage(report: SpecReport, calls: Sequence[str], width: int) -> list[Block]:
    blocks: list[Block] = [Heading("env"), spec_list(_env_leaves(report), width)]
    for stage, call in zip(report.stages, calls, strict=True):
        blocks.append(Heading(f"after stage {stage.index}", call))
        blocks.append(comparison(stage.changes, width, sides=("before", "after")))
    return blocks


def _env_leaves(report: SpecReport) -> list[LeafSpec]:
    changes = report.stages[0].changes if report.stages else report.changes
    return [change.before for change in changes if change.before]


def _one_key(report: SpecReport, width: int) -> list[Block]:
    """The key through the chain, one table for each part that it belongs to."""
    changes = [*report.changes, *(change for stage in report.stages for change in stage.changes)]
    blocks: list[Block] = []
    for part in dict.fromkeys(change.part for change in changes):
        steps = [change for change in changes if change.part == part]
        sides = [side for change in steps for side in (change.before, change.after) if side]
        blocks.append(Heading(format_key(steps[0].key), part))
        table = _key_table(report, part, SpecText(sides))
        if table_width(table) > width:
            table = _key_table(report, part, SpecText(sides, whole=False))
        blocks.append(table)
    return blocks


def _key_table(report: SpecReport, part: str, text: SpecText) -> Table:
    return Table([Column(), Column("stage"), Column("spec")], list(_key_rows(report, part, text)))


def _key_rows(report: SpecReport, part: str, text: SpecText) -> Iterator[list[Cell]]:
    first = next((leaf for leaf in _env_leaves(report) if leaf.part == part), None)
    yield [Cell(""), Cell("env"), Cell(text(first) if first else NOTHING)]
    for stage in report.stages:
        change = next((one for one in stage.changes if one.part == part), None)
        after = change.after if change else None
        style = STYLES[change.change] if change else ""
        mark = MARKS[change.change] if change else " "
        spec = Cell(text(after), style) if after else Cell(NOTHING, "dim")
        yield [Cell(mark, style), Cell(f"{stage.index} {stage.name}", style), spec]


def _records(report: SpecReport, calls: Sequence[str], *, each: bool) -> Iterator[dict[str, Any]]:
    """A row for each key of the whole chain, then of each stage if that is asked for."""
    for change in report.changes:
        yield _record(change, {"stage": None, "transform": None, "call": None})
    if each:
        for stage, call in zip(report.stages, calls, strict=True):
            place = {"stage": stage.index, "transform": stage.name, "call": call}
            for change in stage.changes:
                yield _record(change, place)


def _record(change: KeyChange, place: dict[str, Any]) -> dict[str, Any]:
    row = change.to_dict()
    before, after = row.pop("before"), row.pop("after")
    return {**place, **row, **spec_columns("before", before), **spec_columns("after", after)}
