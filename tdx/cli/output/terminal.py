"""Blocks as text for a terminal, or for a pipe that looks like a very wide one."""

from __future__ import annotations

import io
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tdx.cli.output.view import Block, Cell, Code, Column, Heading, Paragraph, Style, Table, escaped

UNLIMITED = 10_000
"""Columns of a pipe: nothing is cut or wrapped there."""

_GAP = 2
_CODES: dict[Style, str] = {
    "added": "32",
    "changed": "33",
    "gone": "31",
    "dim": "2",
    "name": "1",
    "good": "1;32",
    "bad": "1;31",
    "title": "1",
    "heading": "1;36",
}


def terminal_width() -> int:
    """The columns of the terminal behind stdout; unlimited where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


def table_width(table: Table) -> int:
    """The columns that a table takes if nothing in it is wrapped."""
    widths = _column_widths(table)
    return sum(widths) + _GAP * (len(widths) - 1)


def terminal_text(blocks: Sequence[Block], width: int, *, color: bool = False) -> str:
    """The blocks one under the other.

    Args:
        blocks: what to show.
        width: columns that a line may have.
        color: whether to write ANSI colours.

    Returns:
        Whole lines, without spaces at their ends.
    """
    blocks = escaped(blocks)
    lines: list[str] = []
    for position, block in enumerate(blocks):
        if position and _wants_space(block, blocks[position - 1]):
            lines.append("")
        lines += _lines(block, width, color=color)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _wants_space(block: Block, before: Block) -> bool:
    if isinstance(block, Table):
        return not (isinstance(before, Heading) and before.level > 1)
    return isinstance(block, Heading) or isinstance(before, Table | Code)


def _lines(block: Block, width: int, *, color: bool) -> Iterator[str]:
    if isinstance(block, Code):
        yield from (f"  {line}" for line in block.text.splitlines())
        return
    if isinstance(block, Table):
        rows = [_titles(block), *block.rows] if _has_titles(block) else block.rows
        if table_width(block) <= width:
            yield from _aligned(rows, _column_widths(block), color=color)
        else:
            painted = [[_painted(cell, color=color) for cell in row] for row in rows]
            yield from wrapped_table(painted, block.columns, width, _GAP)
        return
    cells, indent = _running_text(block)
    text = "".join(_painted(cell, color=color) for cell in cells)
    if indent + sum(_width(cell.text) for cell in cells) <= width:
        yield " " * indent + text
    else:
        yield from wrapped_text(text, width, indent)


def _running_text(block: Heading | Paragraph) -> tuple[Sequence[Cell], int]:
    if isinstance(block, Paragraph):
        return block.cells, block.indent
    title = Cell(block.text, "title" if block.level == 1 else "heading")
    return [title, Cell(f"  {block.aside}", "dim")] if block.aside else [title], 0


def _aligned(
    rows: Sequence[Sequence[Cell]], widths: Sequence[int], *, color: bool
) -> Iterator[str]:
    for row in rows:
        yield (" " * _GAP).join(
            _painted(cell, color=color) + " " * (width - _width(cell.text))
            for cell, width in zip(row, widths, strict=True)
        )


def _painted(cell: Cell, *, color: bool) -> str:
    code = _CODES.get(cell.style)
    return f"\x1b[{code}m{cell.text}\x1b[0m" if color and code and cell.text else cell.text


def _has_titles(table: Table) -> bool:
    return any(column.title for column in table.columns)


def _titles(table: Table) -> list[Cell]:
    return [Cell(column.title, "dim") for column in table.columns]


def _column_widths(table: Table) -> list[int]:
    rows = [_titles(table), *table.rows]
    return [max(_width(cell.text) for cell in column) for column in zip(*rows, strict=True)]


def _width(text: str) -> int:
    """The columns that a text takes; East Asian signs take two."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def wrapped_text(text: str, width: int, indent: int = 0) -> list[str]:
    """Running text in lines of at most ``width`` columns.

    Args:
        text: with ANSI codes where it is coloured.
        width: columns that a line may have.
        indent: columns left free at the left edge.
    """
    return _rendered(Padding(Text.from_ansi(text), (0, 0, 0, indent), expand=False), width)


def wrapped_table(
    rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int, gap: int
) -> list[str]:
    """A table whose cells are wrapped so that it is at most ``width`` columns wide.

    Args:
        rows: the cells, with ANSI codes where they are coloured.
        columns: which of them stay on one line.
        width: columns that a line may have.
        gap: columns between two columns.
    """
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, gap, 0, 0))
    for column in columns:
        table.add_column(no_wrap=column.fixed, overflow="fold")
    for row in rows:
        table.add_row(*(Text.from_ansi(cell) for cell in row))
    return _rendered(table, width)


def _rendered(renderable: RenderableType, width: int) -> list[str]:
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        # Else a dumb terminal counts as 80 columns wide.
        _environ={},
    )
    console.print(renderable)
    return file.getvalue().splitlines()
