"""Base class of transforms whose parameters are Python numbers with a place in the state dict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tdx.core.transforms.transform import Transform
from tdx.core.transforms.validation import check_number


class ScalarTransform(Transform):
    """Keeps numbers that kernels read in each step, and that are saved as buffers.

    A kernel reads ``_scalars``: Python numbers, which keep the dtype of a tensor and need no
    module lookup. The buffers of the same names put them into the state dict; an assignment to
    one of them, a loaded state and a move to another device keep both consistent. Casting the
    module does not change them.
    """

    scalar_names: ClassVar[tuple[str, ...]]
    """Names of the numbers: arguments of the constructor."""

    scalar_hint: ClassVar[str] = "for example -1.0, or None for no bound"
    """Hint of the error for a value that is not a number."""

    def _set_scalars(self, **values: float | None) -> None:
        """Set the value of each scalar; ``None`` if it has none.

        Raises:
            ArgumentError: A value is not a number, or NaN.
        """
        self._scalars = {
            name: check_number(values[name], name, self.scalar_hint) for name in self.scalar_names
        }
        for name, value in self._scalars.items():
            self.register_buffer(name, _to_tensor(value))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.scalar_names or name not in self.__dict__.get("_buffers", {}):
            super().__setattr__(name, value)
            return
        number = check_number(value, name, self.scalar_hint)
        self._scalars = {**self._scalars, name: number}
        held = self._buffers[name]
        super().__setattr__(name, _to_tensor(number, None if held is None else held.device))
        self._notify_changed()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for name, value in self._scalars.items():
            held = self._buffers[name]
            if held is not None:
                self._buffers[name] = _to_tensor(value, held.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load the scalars, also if they have no value. An empty state keeps their values."""
        found = {name: state_dict.get(prefix + name) for name in self.scalar_names}
        if all(value is None for value in found.values()):
            held = {prefix + name: self._buffers[name] for name in self.scalar_names}
            state_dict |= {name: value for name, value in held.items() if value is not None}
        for name, value in found.items():
            if value is not None:
                setattr(self, name, value)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _to_tensor(value: float | None, device: torch.device | None = None) -> Tensor | None:
    """Return a number as a tensor, in float64 if the default dtype would round it."""
    if value is None:
        return None
    tensor = torch.as_tensor(value)
    if tensor.item() != value:
        tensor = torch.as_tensor(value, dtype=torch.float64)
    return tensor if device is None else tensor.to(device)
