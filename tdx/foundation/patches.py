"""Replace attributes and methods of single instances in a block, and restore them afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import get_ident
from types import MethodType
from typing import Any, Self

from tdx.foundation.errors import ArgumentError

_MISSING: object = object()


def instance_dict(owner: object) -> dict[str, object] | None:
    """Return the ``__dict__`` of an object itself; ``None`` if it has none."""
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    return own if isinstance(own, dict) else None


class Patches:
    """Replaces attributes of instances until the end of its block.

    Instances without a ``__dict__`` stay as they are.

    Args:
        changes: Instance, name and value of attributes to set when the block begins.

    Example:
        >>> from types import SimpleNamespace
        >>> owner = SimpleNamespace(size=1)
        >>> with Patches() as patches:
        ...     patches.put(owner, "size", 2)
        ...     owner.size
        2
        >>> owner.size
        1
    """

    def __init__(self, changes: Iterable[tuple[Any, str, Any]] = ()) -> None:
        self._changes = changes
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        for owner, name, value in self._changes:
            self.put(owner, name, value)
        return self

    def __exit__(self, *raised: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Restore everything, last change first."""
        while self._undo:
            self._undo.pop()()

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of an instance."""
        own = instance_dict(owner)
        if own is not None:
            before = own.get(name, _MISSING)
            self._undo.append(lambda: _restore(own, name, before))
            own[name] = value

    def keep(self, owner: Any) -> None:
        """Restore all attributes that an instance has now at the end of the block."""
        own = instance_dict(owner)
        for name, value in (own or {}).items():
            self.put(owner, name, value)

    def hook(
        self,
        owner: object,
        name: str,
        wrap: Callable[[Callable[..., object]], Callable[..., object] | None],
    ) -> None:
        """Call what ``wrap`` returns for a method of an instance instead of it; ``None``: it stays.

        A copy of the instance calls the method of its class. Code that keeps the replacement, for
        example because it wraps it, calls the method itself after the block.

        Raises:
            ArgumentError: Another block has replaced the method.
        """
        own = instance_dict(owner)
        if own is None:
            return
        if _is_hook(own.get(name)):
            raise ArgumentError(
                f"the {type(owner).__name__} is being traced or profiled already",
                hint="end the other `with` block first",
            )
        before, original = own.get(name, _MISSING), getattr(owner, name)
        replacement = wrap(original)
        if replacement is None:
            return
        call = [replacement]

        def hook(this: object, *args: object, **kwargs: object) -> object:
            if this is owner:
                return call[0](*args, **kwargs)
            # A copy of the instance has this function too, bound to the copy.
            return getattr(type(this), name)(this, *args, **kwargs)

        # Pickle stores a bound method by this name.
        hook.__name__ = name
        hook.is_hook = True  # type: ignore[attr-defined]
        bound = own[name] = MethodType(hook, owner)

        def remove() -> None:
            call[0] = original
            if own.get(name) is bound:
                _restore(own, name, before)

        self._undo.append(remove)


def _restore(own: dict[str, Any], name: str, before: Any) -> None:
    if before is _MISSING:
        own.pop(name, None)
    else:
        own[name] = before


def without_hooks(attributes: dict[str, object]) -> dict[str, object]:
    """Return the attributes of an instance for a copy of it, without replaced methods."""
    return {name: value for name, value in attributes.items() if not _is_hook(value)}


def _is_hook(value: object) -> bool:
    return type(value) is MethodType and hasattr(value.__func__, "is_hook")


def recording_thread(function: Callable[..., object], threads: set[int]) -> Callable[..., object]:
    """Return a function that adds the thread of each call to ``threads``, and calls another one."""

    def record_thread(*args: object, **kwargs: object) -> object:
        threads.add(get_ident())
        return function(*args, **kwargs)

    return record_thread
