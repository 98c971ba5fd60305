"""Blocks whose text a terminal shows instead of acting on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tdx.cli.output.view import Block, Cell, Code, Heading, Paragraph, Table
from tdx.text import escape_control_characters


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
