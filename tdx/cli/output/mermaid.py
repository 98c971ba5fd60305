"""Texts in Mermaid diagrams."""

from __future__ import annotations


def mermaid_label(text: str) -> str:
    """A text that Mermaid shows as it is, between double quotes.

    Args:
        text: one line.
    """
    return text.replace("#", "#35;").replace('"', "#quot;")
