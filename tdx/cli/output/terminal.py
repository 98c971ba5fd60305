"""Blocks as text for a terminal, or for a pipe that looks like a very wide one."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text
from rich.theme import Theme

from tdx.cli.output.view import Block, Cell, Heading, Table

UNLIMITED = 10_000
"""Columns of a pipe: nothing is cut or wrapped there."""

_GAP = 2
_THEME = Theme(
    {
        "added": "green",
        "changed": "yellow",
        "gone": "red",
        "dim": "dim",
        "name": "bold",
        "good": "bold green",
        "bad": "bold red",
        "title": "bold",
        "heading": "bold cyan",
        "column": "dim",
    },
    inherit=False,
)


def terminal_width() -> int:
    """The columns of the terminal behind stdout; unlimited where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED


def table_width(table: Table) -> int:
    """The columns that a table takes if nothing in it is wrapped."""
    cells = [[column.title for column in table.columns]]
    cells += [[cell.text for cell in row] for row in table.rows]
    widths = [max(map(cell_len, texts)) for texts in zip(*cells, strict=True)]
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
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        theme=_THEME,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for position, block in enumerate(blocks):
        if position and _wants_space(block, blocks[position - 1]):
            console.print()
        console.print(_renderable(block))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def _wants_space(block: Block, before: Block) -> bool:
    if isinstance(block, Table):
        return not (isinstance(before, Heading) and before.level > 1)
    return isinstance(block, Heading) or isinstance(before, Table)


def _renderable(block: Block) -> RenderableType:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Heading):
        return _heading(block)
    return Padding(_text(block.cells), (0, 0, 0, block.indent), expand=False)


def _heading(heading: Heading) -> Text:
    text = Text(heading.text, style="title" if heading.level == 1 else "heading")
    return text.append(f"  {heading.aside}", style="not bold dim") if heading.aside else text


def _text(cells: Sequence[Cell]) -> Text:
    text = Text()
    for cell in cells:
        text.append(cell.text, style=cell.style or None)
    return text


def _table(table: Table) -> RichTable:
    rich_table = RichTable(
        box=None,
        show_header=any(column.title for column in table.columns),
        header_style="column",
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
    )
    for column in table.columns:
        rich_table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=column.fixed,
            overflow="fold",
        )
    for row in table.rows:
        rich_table.add_row(*(_text([cell]) for cell in row))
    return rich_table
