"""Connects ``_repr_html_`` of the public classes with the renderer, which is in a higher layer.

Notebooks call ``_repr_html_`` of a value. A class sets it to :func:`repr_html`, and the package
``tdx`` sets the renderer when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable

Renderer = Callable[[object], str | None]

_renderers: list[Renderer] = []


def set_html_renderer(renderer: Renderer) -> None:
    """Set the function that renders a value, or returns ``None`` if it has only text."""
    _renderers[:] = [renderer]


def repr_html(value: object) -> str | None:
    """Return a value as an HTML fragment, or ``None``: the notebook shows its text.

    A class uses it as its method ``_repr_html_``.
    """
    return _renderers[0](value) if _renderers else None
