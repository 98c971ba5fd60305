"""What does not fit into the width of the terminal, wrapped by Rich."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tdx.cli.output.view import Column


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
