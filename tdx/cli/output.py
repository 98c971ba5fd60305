"""Renders views in each output format, and writes them and other text."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tdx.cli.options import Format, OutputOptions
from tdx.cli.runtime import SCHEMA_VERSION, json_text
from tdx.cli.views import (
    GAP,
    UNLIMITED,
    Block,
    Cell,
    Code,
    Column,
    Heading,
    Paragraph,
    Style,
    Table,
    TextBlock,
    View,
    text_blocks,
)
from tdx.foundation.container import make_folders
from tdx.foundation.files import check_replaceable, report_write_errors, write_atomically
from tdx.foundation.text import display_width, escape_control_characters, escape_json

if TYPE_CHECKING:
    from rich.console import RenderableType


STDOUT = "-"
"""Path that stands for stdout."""


def write_view(view: View, options: OutputOptions) -> None:
    """Write a view to stdout."""
    sys.stdout.write(render_view(view, options))


def render_view(view: View, options: OutputOptions, width: int | None = None) -> str:
    """Return a view as text.

    Without a width, it is that of the terminal, and unlimited in a pipe.
    """
    match options.format:
        case Format.JSON | Format.SARIF:
            return _json(view.kind, view.data(), indent=2)
        case Format.JSONL:
            return "".join(_json(view.kind, record) for record in view.rows())
        case Format.CSV:
            records = list(view.rows())
            names = list(dict.fromkeys(name for row in [view.names, *records] for name in row))
            text = io.StringIO()
            if names:
                writer = csv.DictWriter(text, names, lineterminator="\n")
                for record in [dict(zip(names, names, strict=True)), *records]:
                    writer.writerow({key: _csv_value(value) for key, value in record.items()})
            return text.getvalue()
        case Format.MD:
            return markdown(view.blocks())
        case Format.TABLE | Format.MERMAID | Format.SVG:
            columns = terminal_width() if width is None else width
            return terminal_text(view.blocks(), columns, color=options.color.is_enabled(sys.stdout))


def _json(kind: str, data: Mapping[str, Any], indent: int | None = None) -> str:
    document = {"schema_version": SCHEMA_VERSION, "kind": kind, **data}
    return json_text(document, sys.stdout, indent)


_FORMULA_STARTS = (*"=+-@\t\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The last four are the wide forms of the first four."""


def _csv_value(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        return escape_json(json.dumps(value, ensure_ascii=False))
    if isinstance(value, str):
        text = escape_control_characters(value, keep="\n\t")
        if len(text) < 2 or not text.startswith(_FORMULA_STARTS):
            return text
        try:
            float(text)
        except ValueError:
            # A spreadsheet would take it for a formula.
            return f"'{text}"
        return text
    return value


def write_file(
    path: str | Path, text: str, *, force: bool = False, create_folder: bool = False
) -> None:
    """Write text to a file atomically, or to stdout, a device or a pipe.

    ``-`` is stdout.
    """
    if str(path) == STDOUT:
        sys.stdout.write(text)
        return
    check_target(path, force=force)
    sys.stdout.flush()
    with report_write_errors(path, "choose another path"):
        if create_folder:
            make_folders(Path(path).parent)
        write_atomically(path, text)


def check_target(path: str | Path, *, force: bool = False) -> None:
    """Check that a file may be written."""
    if str(path) != STDOUT:
        check_replaceable(path, force=force)


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


def terminal_text(blocks: Iterable[Block], width: int, *, color: bool = False) -> str:
    """Return blocks as text."""
    shown = text_blocks(blocks, width)
    lines: list[str] = []
    for position, block in enumerate(shown):
        previous = shown[position - 1] if position else None
        if isinstance(block, Table):
            is_apart = not (isinstance(previous, Heading) and previous.level > 1)
        else:
            is_excerpt = isinstance(previous, Code) and previous.excerpt
            is_apart = isinstance(block, Heading) or (
                isinstance(previous, Table | Code) and not is_excerpt
            )
        if previous is not None and is_apart:
            lines.append("")
        lines += _lines(block, width, color=color)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _lines(block: TextBlock, width: int, *, color: bool) -> Iterator[str]:
    if isinstance(block, Code):
        yield from (f"  {line}" for line in block.text.splitlines())
        return
    if isinstance(block, Table):
        table = block.narrowed(width)
        titles = [Cell(column.title, "dim") for column in table.columns]
        rows = [titles, *table.rows] if any(title.text for title in titles) else table.rows
        colored = [[_color_cell(cell, color=color) for cell in row] for row in rows]
        if table.width > width:
            yield from _wrapped_table(colored, table.columns, width)
            return
        widths = table.widths
        for row, texts in zip(rows, colored, strict=True):
            aligned = []
            for cell, text, column, size in zip(row, texts, table.columns, widths, strict=True):
                space = " " * (size - display_width(cell.text))
                aligned.append(f"{space}{text}" if column.is_number else f"{text}{space}")
            yield (" " * GAP).join(aligned)
        return
    if isinstance(block, Paragraph):
        cells, indent = block.cells, block.indent
    else:
        cells = [Cell(block.text, "title" if block.level == 1 else "heading")]
        cells += [Cell(f"  {block.aside}", "dim")] if block.aside else []
        indent = 0
    text = "".join(_color_cell(cell, color=color) for cell in cells)
    if indent + sum(display_width(cell.text) for cell in cells) <= width:
        yield " " * indent + text
    else:
        yield from wrap_text(text, width, indent)


def _color_cell(cell: Cell, *, color: bool) -> str:
    code = _COLORS.get(cell.style)
    return f"\x1b[{code}m{cell.text}\x1b[0m" if color and code and cell.text else cell.text


def wrap_text(text: str, width: int, indent: int = 0) -> list[str]:
    """Wrap running text with Rich."""
    from rich.padding import Padding
    from rich.text import Text

    return _render(Padding(Text.from_ansi(text), (0, 0, 0, indent), expand=False), width)


def _wrapped_table(
    rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int
) -> list[str]:
    """Wrap the cells of a table with Rich, except those of fixed columns."""
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(no_wrap=column.fixed, overflow="fold", justify=justify)
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


def markdown(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown."""
    return "\n\n".join(_block(block) for block in text_blocks(blocks, UNLIMITED)) + "\n"


def _block(block: TextBlock) -> str:
    match block:
        case Heading():
            aside = f" {_escape(block.aside)}" if block.aside else ""
            return f"{'#' * block.level} {_escape(block.text)}{aside}"
        case Paragraph():
            return _escape("".join(cell.text for cell in block.cells))
        case Code():
            longest = max(map(len, re.findall("`+", block.text)), default=0)
            fence = "`" * max(3, longest + 1)
            return f"{fence}{block.language}\n{block.text}\n{fence}"
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    titles = [_cell(Cell(column.title)) for column in table.columns]
    lines = [_row(titles), _row(["--:" if column.is_number else "---" for column in table.columns])]
    lines += [_row([_cell(cell) for cell in row]) for row in table.rows]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    return _escape(cell.text).replace("|", r"\|").replace("\n", "<br>")


_MARKUP = re.compile(r"[\\`*_<]|&(?=#?\w+;)|\](?=[(\[:])")
"""Emphasis, HTML, character references, links and images; ``[3]`` is none of them."""
_AUTOMATIC_LINK = re.compile(
    r"((?<!\w)@|@(?=[\w-]+\.\w)|#(?=\d)|:(?=//)|\bwww(?=\.)|\bGH-(?=\d))", re.IGNORECASE
)
"""What a code host links without any markup: people, issues and addresses; not ``reward@1``."""


def _escape(text: str) -> str:
    """Escape what Markdown, or a code host that shows it, would act on.

    A comment of HTML separates what no backslash does: a mention would notify somebody.
    """
    return _AUTOMATIC_LINK.sub(r"\1<!-- -->", _MARKUP.sub(r"\\\g<0>", text))


def mermaid_label(text: str) -> str:
    """Escape text for a Mermaid label in double quotes."""
    return escape_control_characters(text).replace("#", "#35;").replace('"', "#quot;")
