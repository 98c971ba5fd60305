"""What a class declares about itself, and how long such a declaration holds for subclasses."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

_NO_CODE = {"__dict__", "__weakref__", "__annotate__", "__annotate_func__", "_abc_impl"}


def declares(kind: type, capability: str) -> bool:
    """Return True if a class declares a capability and no subclass has added code since.

    A declaration holds for the class that makes it and for subclasses without methods of their
    own. A subclass that overrides or adds a method has to declare the capability again, so it is
    never inherited by code that nobody checked.

    Args:
        kind: Class of the object.
        capability: Name of the class attribute that declares it.

    Example:
        >>> class Base:
        ...     is_checked = True
        ...     def run(self): ...
        >>> class Renamed(Base):
        ...     name = "renamed"
        >>> class Changed(Base):
        ...     def run(self): ...
        >>> [declares(each, "is_checked") for each in (Base, Renamed, Changed)]
        [True, True, False]
    """
    return _declares(kind, capability)


@cache
def _declares(kind: Any, capability: str) -> bool:
    for base in kind.__mro__:
        members = vars(base)
        if capability in members:
            return members[capability] is True
        if any(_is_code(name, value) for name, value in members.items()):
            return False
    return False


def _is_code(name: str, value: object) -> bool:
    return name not in _NO_CODE and (callable(value) or hasattr(type(value), "__get__"))


def implements_together(kind: type, form: str, hooks: tuple[str, ...]) -> bool:
    """Return True if no subclass overrides a hook below the class that implements a form of it.

    A faster form of a hook is valid as long as it and the hook come from the same class, or the
    form from a subclass.

    Args:
        kind: Class of the transform.
        form: Name of the method that implements the faster form.
        hooks: Names of the methods that it stands for.
    """
    return all(issubclass(owner(kind, form), owner(kind, hook)) for hook in hooks)


def owner(kind: type, name: str) -> type:
    """Return the class in the MRO that defines an attribute."""
    return next(base for base in kind.__mro__ if name in vars(base))


def is_public_class(kind: type, namespace: ModuleType | None) -> bool:
    """Return True if a library exports exactly this class, not a subclass of it.

    Args:
        kind: The class.
        namespace: Module of the library. ``None``: the library is not loaded.

    Example:
        >>> from torch import nn
        >>> class Mine(nn.Linear): ...
        >>> is_public_class(nn.Linear, nn), is_public_class(Mine, nn)
        (True, False)
    """
    return namespace is not None and getattr(namespace, kind.__name__, None) is kind
