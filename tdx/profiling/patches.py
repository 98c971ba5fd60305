"""Attributes that objects have for a while only."""

from __future__ import annotations

from typing import Any

_MISSING: Any = object()


class Patches:
    """Attributes of objects that stand in the place of others for a while."""

    def __init__(self) -> None:
        self._before: list[tuple[dict[str, Any], str, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Give one object an attribute of its own."""
        own = owner.__dict__
        self._before.append((own, name, own.get(name, _MISSING)))
        own[name] = value

    def keep(self, owner: Any) -> None:
        """Remember all attributes of one object, whatever becomes of them."""
        own = owner.__dict__
        self._before += [(own, name, value) for name, value in own.items()]

    def undo(self) -> None:
        """Take all of them away, the last one first."""
        for own, name, before in reversed(self._before):
            if before is _MISSING:
                own.pop(name, None)
            else:
                own[name] = before
        self._before.clear()
