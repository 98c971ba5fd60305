"""A plain function as a transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tensordict import TensorDictBase

from tdx.core.envs import EnvBase
from tdx.core.transforms.foreign import foreign_library
from tdx.core.transforms.transform import Transform
from tdx.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn

TensorDictFunction = Callable[[TensorDictBase], TensorDictBase]


class CallableTransform(Transform):
    """Applies a function to what the env returns from ``reset`` and ``step``, and offline.

    Args:
        function: takes a TensorDict ``[*B]`` and returns it, written to, or another one.

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
                f"the function returned {type(result).__name__}, it must return a TensorDict",
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


def as_transform(candidate: nn.Module | TensorDictFunction) -> Transform:
    """Return the transform itself, or a plain function made into one.

    Raises:
        ArgumentError: It is neither, a class, or an object of a library whose transforms and
            wrappers cannot run in this chain.
    """
    if isinstance(candidate, Transform):
        return candidate
    library = foreign_library(candidate)
    if library is not None:
        raise ArgumentError(
            f"{_name(candidate)} is from {library.title}, and a chain takes transforms of tdx "
            "and functions",
            hint=library.hint,
        )
    if isinstance(candidate, type):
        raise ArgumentError(
            f"{candidate.__name__} is a class, not a transform",
            hint=f"make one: {candidate.__name__}(...)",
        )
    if callable(candidate) and not isinstance(candidate, EnvBase):
        return CallableTransform(candidate)
    raise ArgumentError(
        f"a chain takes transforms and functions, got {type(candidate).__name__}",
        hint="for example Compose(StepCounter(), lambda td: td)",
    )


def _name(candidate: object) -> str:
    return candidate.__name__ if isinstance(candidate, type) else type(candidate).__name__
