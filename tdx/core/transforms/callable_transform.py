"""Functions as transforms, and the other libraries whose objects a chain refuses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from tensordict import TensorDictBase

from tdx.core.transforms.transform import Transform
from tdx.foundation.errors import ArgumentError

TensorDictFunction = Callable[[TensorDictBase], TensorDictBase]


class CallableTransform(Transform):
    """Applies a function to the output of ``reset`` and ``step``, and to stored data.

    Args:
        function: Takes a TensorDict ``[*B]``, and returns the same one after writing to it, or
            another one.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> transform = CallableTransform(lambda td: td.set("twice", td["a"] * 2))
        >>> transform(TensorDict(a=torch.ones(1)))["twice"]
        tensor([2.])
    """

    def __init__(self, function: TensorDictFunction) -> None:
        super().__init__()
        self.function = function

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        result = self.function(next_tensordict)
        if not isinstance(result, TensorDictBase):
            raise ArgumentError(
                f"the function returned {type(result).__name__} instead of a TensorDict",
                hint="end the function with `return tensordict`",
            )
        return result

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the function to stored data."""
        return self._call(tensordict)

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return f"{type(self).__name__}({name})"


# Other libraries

_WRITE_ONE = "write it as a function of a TensorDict"


@dataclass(frozen=True, slots=True)
class ForeignLibrary:
    """A library whose objects a chain refuses, and what to use instead."""

    title: str
    hint: str


_GYM_HINT = "wrap the env before you pass it to tdx: GymWrapper(Wrapper(env))"
_LIBRARIES = {
    "torchrl": ForeignLibrary(
        "TorchRL",
        "use the tdx transform with the same name (`tdx list transforms`), or make it a stage: "
        "tdx.from_torchrl_transform(transform)",
    ),
    "gymnasium": ForeignLibrary("Gymnasium", _GYM_HINT),
    "gym": ForeignLibrary("Gym", _GYM_HINT),
    "stable_baselines3": ForeignLibrary(
        "Stable-Baselines3",
        f"use the tdx transform that does the same (`tdx list transforms`), or {_WRITE_ONE}",
    ),
}


def foreign_library(candidate: object) -> ForeignLibrary | None:
    """Return the library of an object, if a chain refuses objects of that library.

    An object belongs to a library if its class or a base class is defined there. Bound methods and
    partials belong to the library of their object. Nothing is imported.

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
