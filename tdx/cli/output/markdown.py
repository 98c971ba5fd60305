"""Blocks as GitHub-flavoured Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tdx.cli.output.view import Block, Cell, Code, Heading, Paragraph, Table, escaped
from tdx.text import escape_control_characters


def markdown(blocks: Sequence[Block]) -> str:
    """The blocks as Markdown.

    Args:
        blocks: what to show, laid out for unlimited width.

    Returns:
        Whole lines.
    """
    return "\n\n".join(_block(block) for block in escaped(blocks)) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading():
            aside = f" {_escape(block.aside)}" if block.aside else ""
            return f"{'#' * block.level} {_escape(block.text)}{aside}"
        case Paragraph():
            return "".join(_escape(cell.text) for cell in block.cells)
        case Code():
            return f"```python\n{block.text}\n```"
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    titles = [column.title for column in table.columns]
    lines = [_row(titles), _row(["---"] * len(titles))]
    lines += [_row([_cell(cell) for cell in row]) for row in table.rows]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    return _escape(cell.text).replace("|", r"\|").replace("\n", "<br>")


def _escape(text: str) -> str:
    for sign in "\\`*_<":
        text = text.replace(sign, f"\\{sign}")
    return text


def mermaid_label(text: str) -> str:
    """A text that Mermaid shows as it is, between double quotes.

    Args:
        text: one line.
    """
    return escape_control_characters(text).replace("#", "#35;").replace('"', "#quot;")
