"""Objects of other libraries that a chain cannot run, although they can be called."""

from __future__ import annotations

import functools
from dataclasses import dataclass

_WRITE_ONE = "write it as a function over a TensorDict"


@dataclass(frozen=True, slots=True)
class ForeignLibrary:
    """A library whose objects a chain refuses.

    Args:
        title: Name as people write it.
        hint: What to do instead.
    """

    title: str
    hint: str


_GYM_HINT = "wrap the env before it becomes an env of tdx: GymWrapper(Wrapper(env))"
_LIBRARIES = {
    "torchrl": ForeignLibrary(
        "TorchRL",
        f"use the transform of the same name in tdx (`tdx list transforms`), or {_WRITE_ONE}",
    ),
    "gymnasium": ForeignLibrary("Gymnasium", _GYM_HINT),
    "gym": ForeignLibrary("Gym", _GYM_HINT),
    "stable_baselines3": ForeignLibrary(
        "Stable-Baselines3",
        f"use the transform of tdx that does the same (`tdx list transforms`), or {_WRITE_ONE}",
    ),
}


def foreign_library(candidate: object) -> ForeignLibrary | None:
    """Return the library that an object comes from, if it is one whose objects a chain refuses.

    An object belongs to a library if its class, or a base of it, is defined there. Nothing is
    imported to find out. Bound methods and partials belong to where their object does.

    Args:
        candidate: Any object or class.

    Example:
        >>> foreign_library(len) is None
        True
    """
    while isinstance(candidate, functools.partial):
        candidate = candidate.func
    owner = getattr(candidate, "__self__", None)
    if owner is not None and not isinstance(owner, type(functools)):
        candidate = owner
    kind = candidate if isinstance(candidate, type) else type(candidate)
    for base in kind.__mro__:
        package = str(getattr(base, "__module__", "")).partition(".")[0]
        if package in _LIBRARIES:
            return _LIBRARIES[package]
    return None
