"""Blocks as GitHub-flavored Markdown, and labels of Mermaid diagrams."""

from __future__ import annotations

from collections.abc import Sequence

from tdx.cli.output.view import Block, Cell, Code, Heading, Paragraph, Table, escape_blocks
from tdx.text import escape_control_characters


def markdown(blocks: Sequence[Block]) -> str:
    """Return blocks as Markdown.

    Args:
        blocks: Blocks with the layout for unlimited width.

    Returns:
        Complete lines.
    """
    return "\n\n".join(_block(block) for block in escape_blocks(blocks)) + "\n"


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
    for character in "\\`*_<":
        text = text.replace(character, f"\\{character}")
    return text


def mermaid_label(text: str) -> str:
    """Escape text for a Mermaid label in double quotes.

    Args:
        text: One line.
    """
    return escape_control_characters(text).replace("#", "#35;").replace('"', "#quot;")
