"""Replace ``step`` and ``reset`` of single instances, and remove the replacement again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

from tdx.foundation.errors import ArgumentError
from tdx.stacks.sources import instance_dict

METHODS = ("reset", "step")
Wrap = Callable[[Any, str, Callable[..., Any]], Callable[..., Any]]
"""Returns the replacement of a method: owner, name of the method, the method itself."""
_MISSING: Any = object()


class _Hook:
    """One replaced method of one instance.

    Args:
        owner: The instance.
        own: Its ``__dict__``.
        name: Name of the method.
        wrap: Returns the function to call instead.
    """

    def __init__(self, owner: Any, own: dict[str, Any], name: str, wrap: Wrap) -> None:
        self._own, self._name = own, name
        self._before = own.get(name, _MISSING)
        original = getattr(owner, name)
        # Other code may keep the replacement, for example if it wraps it: it then passes through.
        self._call = [wrap(owner, name, original)]
        self._original = original
        call = self._call

        def hook(this: Any, *args: Any, **kwargs: Any) -> Any:
            if this is owner:
                return call[0](*args, **kwargs)
            # A copy of the env has this function too, bound to the copy.
            return getattr(type(this), name)(this, *args, **kwargs)

        # Pickle stores a bound method by this name.
        hook.__name__ = name
        hook.is_stack_hook = True  # type: ignore[attr-defined]
        self._bound = MethodType(hook, owner)
        own[name] = self._bound

    def remove(self) -> None:
        self._call[0] = self._original
        if self._own.get(self._name) is not self._bound:
            return
        if self._before is _MISSING:
            del self._own[self._name]
        else:
            self._own[self._name] = self._before


def is_attached(owner: Any, names: Sequence[str] = METHODS) -> bool:
    """Return True if a method of an instance is replaced."""
    own = instance_dict(owner) or {}
    return any(
        getattr(getattr(own.get(name), "__func__", None), "is_stack_hook", False) for name in names
    )


@contextmanager
def replaced_methods(
    owners: Iterable[tuple[Any, Wrap]], names: Sequence[str] = METHODS
) -> Iterator[None]:
    """Replace methods of instances in a block.

    Instances without a ``__dict__`` cannot be replaced and are skipped.

    Args:
        owners: Each instance, and the function that returns its replacements.
        names: Names of the methods.

    Raises:
        ArgumentError: A method is replaced already.
    """
    listed = list(owners)
    for owner, _ in listed:
        if is_attached(owner, names):
            raise ArgumentError(
                f"the {type(owner).__name__} is being traced or profiled already",
                hint="end the other `with` block first",
            )
    hooks: list[_Hook] = []
    try:
        for owner, wrap in listed:
            own = instance_dict(owner)
            if own is not None:
                for name in names:
                    hook = _Hook(owner, own, name, wrap)
                    hooks.append(hook)
        yield
    finally:
        for hook in reversed(hooks):
            hook.remove()
