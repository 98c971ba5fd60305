"""Renders the view of a command in each output format."""

from __future__ import annotations

from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Table, View

__all__ = ["Block", "Cell", "Column", "Heading", "Paragraph", "Table", "View"]
