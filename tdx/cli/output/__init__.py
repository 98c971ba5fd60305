"""From a view to text on stdout: one layer for every command and every format."""

from __future__ import annotations

from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Table, View

__all__ = ["Block", "Cell", "Column", "Heading", "Paragraph", "Table", "View"]
