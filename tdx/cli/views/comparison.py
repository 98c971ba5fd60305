"""Two sides of a chain in one table: side by side where there is room, else stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Cell, Column, Style, Table
from tdx.inspection.leaf import LeafSpec, SpecText
from tdx.inspection.spec_report import Change, KeyChange
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
