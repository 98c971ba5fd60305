"""Blocks as text for a terminal or, with unlimited width, for a pipe."""

from __future__ import annotations

import io
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tdx.cli.output.view import (
    Block,
    Cell,
    Code,
    Column,
    Heading,
    Paragraph,
    Style,
    Table,
    escape_blocks,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

UNLIMITED = 10_000
"""Columns of a pipe, where nothing is cut or wrapped."""

_GAP = 2
_COLORS: dict[Style, str] = {
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
    """Return the columns of the terminal; unlimited if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


def table_width(table: Table) -> int:
    """Return the columns of a table if no cell is wrapped."""
    widths = _column_widths(table)
    return sum(widths) + _GAP * (len(widths) - 1)


def terminal_text(blocks: Sequence[Block], width: int, *, color: bool = False) -> str:
    """Return blocks as text.

    Args:
        blocks: Blocks to show.
        width: Maximum columns of a line.
        color: If True, add ANSI colors.

    Returns:
        Complete lines without trailing spaces.
    """
    blocks = escape_blocks(blocks)
    lines: list[str] = []
    for position, block in enumerate(blocks):
        if position and _needs_blank_line(block, blocks[position - 1]):
            lines.append("")
        lines += _lines(block, width, color=color)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _needs_blank_line(block: Block, previous: Block) -> bool:
    if isinstance(block, Table):
        return not (isinstance(previous, Heading) and previous.level > 1)
    return isinstance(block, Heading) or isinstance(previous, Table | Code)


def _lines(block: Block, width: int, *, color: bool) -> Iterator[str]:
    if isinstance(block, Code):
        yield from (f"  {line}" for line in block.text.splitlines())
        return
    if isinstance(block, Table):
        rows = [_titles(block), *block.rows] if _has_titles(block) else block.rows
        if table_width(block) <= width:
            yield from _aligned_rows(rows, _column_widths(block), color=color)
        else:
            cells = [[_colored(cell, color=color) for cell in row] for row in rows]
            yield from _wrapped_table(cells, block.columns, width)
        return
    cells_of_line, indent = _running_text(block)
    text = "".join(_colored(cell, color=color) for cell in cells_of_line)
    if indent + sum(_text_width(cell.text) for cell in cells_of_line) <= width:
        yield " " * indent + text
    else:
        yield from wrap_text(text, width, indent)


def _running_text(block: Heading | Paragraph) -> tuple[Sequence[Cell], int]:
    if isinstance(block, Paragraph):
        return block.cells, block.indent
    title = Cell(block.text, "title" if block.level == 1 else "heading")
    return [title, Cell(f"  {block.aside}", "dim")] if block.aside else [title], 0


def _aligned_rows(
    rows: Sequence[Sequence[Cell]], widths: Sequence[int], *, color: bool
) -> Iterator[str]:
    for row in rows:
        yield (" " * _GAP).join(
            _colored(cell, color=color) + " " * (width - _text_width(cell.text))
            for cell, width in zip(row, widths, strict=True)
        )


def _colored(cell: Cell, *, color: bool) -> str:
    code = _COLORS.get(cell.style)
    return f"\x1b[{code}m{cell.text}\x1b[0m" if color and code and cell.text else cell.text


def _has_titles(table: Table) -> bool:
    return any(column.title for column in table.columns)


def _titles(table: Table) -> list[Cell]:
    return [Cell(column.title, "dim") for column in table.columns]


def _column_widths(table: Table) -> list[int]:
    rows = [_titles(table), *table.rows]
    return [max(_text_width(cell.text) for cell in column) for column in zip(*rows, strict=True)]


def _text_width(text: str) -> int:
    """Return the columns of a text; wide East Asian characters take two."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrap_text(text: str, width: int, indent: int = 0) -> list[str]:
    """Wrap running text with Rich.

    Args:
        text: Text, with ANSI codes if it is colored.
        width: Maximum columns of a line.
        indent: Columns of indentation.
    """
    from rich.padding import Padding
    from rich.text import Text

    return _render(Padding(Text.from_ansi(text), (0, 0, 0, indent), expand=False), width)


def _wrapped_table(
    rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int
) -> list[str]:
    """Wrap the cells of a table with Rich, except those of fixed columns.

    Args:
        rows: Cells, with ANSI codes if they are colored.
        columns: Columns of the table.
        width: Maximum columns of a line.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    for column in columns:
        table.add_column(no_wrap=column.fixed, overflow="fold")
    for row in rows:
        table.add_row(*(Text.from_ansi(cell) for cell in row))
    return _render(table, width)


def _render(renderable: RenderableType, width: int) -> list[str]:
    from rich.console import Console

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
        # Rich assumes 80 columns if TERM is dumb.
        _environ={},
    )
    console.print(renderable)
    return file.getvalue().splitlines()
