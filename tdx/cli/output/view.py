"""What a command has to show, before anything is decided about how it looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tdx.text import escape_control_characters

Style = Literal["", "added", "changed", "gone", "dim", "name", "good", "bad", "title", "heading"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of text and what it means.

    Args:
        text: what is shown.
        style: its meaning, from which the colour follows.
    """

    text: str
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Args:
        title: its heading.
        fixed: whether its cells are kept on one line in a narrow terminal.
    """

    title: str = ""
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Heading:
    """A line over what follows.

    Args:
        text: the heading.
        aside: what stands beside it, less loud.
        level: 1 for the page, 2 for a part of it.
    """

    text: str
    aside: str = ""
    level: Literal[1, 2] = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text, wrapped at the width of the terminal.

    Args:
        cells: its pieces.
        indent: columns left free at the left edge.
    """

    cells: Sequence[Cell]
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Code:
    """Python code, which is shown as it is."""

    text: str


Block = Table | Heading | Paragraph | Code


@dataclass(frozen=True, slots=True)
class View:
    """A result in each of the forms it can be written in.

    Each item of the lists in ``data`` is one of the ``records`` with the same facts, nested there
    and in columns here; the rest of ``data`` holds for the result as a whole.

    Args:
        kind: what it is, for readers of the JSON.
        data: all of it, as plain data.
        records: its rows as plain data, for formats that have rows only.
        blocks: its layout for people, given the width in columns.
        names: what is in a row, where there may be no row that shows it.
    """

    kind: str
    data: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]
    blocks: Callable[[int], Sequence[Block]]
    names: Sequence[str] = ()


def escaped(blocks: Sequence[Block]) -> list[Block]:
    """The blocks with control and bidirectional characters escaped.

    Args:
        blocks: Blocks with text of any origin: env ids, keys, messages of libraries.
    """
    return [_block(block) for block in blocks]


def _block(block: Block) -> Block:
    match block:
        case Heading():
            aside = escape_control_characters(block.aside)
            return replace(block, text=escape_control_characters(block.text), aside=aside)
        case Paragraph():
            return replace(block, cells=_cells(block.cells))
        case Code():
            return Code(escape_control_characters(block.text, keep="\n\t"))
        case Table():
            titles = [escape_control_characters(column.title) for column in block.columns]
            columns = [
                replace(column, title=title)
                for column, title in zip(block.columns, titles, strict=True)
            ]
            return Table(columns, [_cells(row) for row in block.rows])


def _cells(cells: Sequence[Cell]) -> list[Cell]:
    texts = [escape_control_characters(cell.text) for cell in cells]
    return [
        cell if text is cell.text else Cell(text, cell.style)
        for cell, text in zip(cells, texts, strict=True)
    ]
