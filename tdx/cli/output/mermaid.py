"""Texts in Mermaid diagrams."""

from __future__ import annotations

from tdx.text import escape_control_characters


def mermaid_label(text: str) -> str:
    """A text that Mermaid shows as it is, between double quotes.

    Args:
        text: one line.
    """
    return escape_control_characters(text).replace("#", "#35;").replace('"', "#quot;")
