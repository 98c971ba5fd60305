"""How specs are written out: one field a line, four spaces a level."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from torch import Tensor

_STEP = "    "


def indent(text: str) -> str:
    """The text one level deeper."""
    return textwrap.indent(text, _STEP)


def describe_tensor(tensor: Tensor) -> str:
    """A tensor without its values."""
    return (
        f"Tensor(shape={tensor.shape}, device={tensor.device}, dtype={tensor.dtype}, "
        f"contiguous={tensor.is_contiguous()})"
    )


def describe_fields(name: str, fields: Iterable[tuple[str, object]]) -> str:
    """``Name(`` and a ``field=value`` on each line."""
    body = ",\n".join(f"{field}={value}" for field, value in fields)
    return f"{name}(\n{indent(body)})"


def describe_entries(name: str, entries: Iterable[tuple[str, object]], ending: str) -> str:
    """``Name(`` and a ``key: spec`` on each line, then the ending on the last one."""
    body = ",\n".join(f"{key}: {spec}" for key, spec in entries)
    return f"{name}(\n{indent(body)}, {ending})"
