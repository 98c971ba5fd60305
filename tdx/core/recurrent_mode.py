"""Mode of recurrent modules: single steps or whole sequences."""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Literal, Self

from tdx.foundation.errors import UnknownNameError, did_you_mean

RecurrentMode = bool | Literal["recurrent", "sequential"] | None

_MODES: dict[str, bool] = {"recurrent": True, "sequential": False}
_current: ContextVar[bool | None] = ContextVar("recurrent_mode", default=None)


def recurrent_mode() -> bool | None:
    """Return the mode set by :class:`set_recurrent_mode`; ``None``: each module uses its own.

    Example:
        >>> from tdx import recurrent_mode, set_recurrent_mode
        >>> with set_recurrent_mode(True):
        ...     print(recurrent_mode())
        True
        >>> print(recurrent_mode())
        None
    """
    return _current.get()


class set_recurrent_mode(ContextDecorator):  # noqa: N801 - used like a function
    """Sets the mode of all recurrent modules, as a context manager or a decorator.

    In recurrent mode the last batch dim of a TensorDict is time; otherwise each element is one
    step.

    Args:
        mode: ``True`` or "recurrent" for whole sequences, ``False`` or "sequential" for single
            steps. ``None``: each module uses its own mode.

    Raises:
        UnknownNameError: The mode is unknown.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import GRUModule, set_recurrent_mode
        >>> gru = GRUModule(3, 4, in_key="observation", out_key="features")
        >>> data = TensorDict(
        ...     observation=torch.randn(2, 5, 3), is_init=torch.zeros(2, 5, 1, dtype=torch.bool),
        ...     batch_size=[2, 5],
        ... )
        >>> with set_recurrent_mode(True):
        ...     print(gru(data)["features"].shape)
        torch.Size([2, 5, 4])
    """

    def __init__(self, mode: RecurrentMode = True) -> None:
        if isinstance(mode, str):
            if mode not in _MODES:
                raise UnknownNameError(
                    f"unknown recurrent mode {mode!r}",
                    hint=did_you_mean(mode, _MODES, f"one of {', '.join(_MODES)}"),
                )
            mode = _MODES[mode]
        self.mode: bool | None = mode
        self._before: list[bool | None] = []

    def __enter__(self) -> Self:
        self._before.append(_current.get())
        _current.set(self.mode)
        return self

    def __exit__(self, *exc: object) -> None:
        _current.set(self._before.pop())
