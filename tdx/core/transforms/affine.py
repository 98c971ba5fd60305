"""The affine map ``value * scale + loc`` on tensors and on specs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tdx.core.transforms.key_pairs import flat_pairs
from tdx.core.transforms.transform import Entries, RowStep, Transform
from tdx.errors import ArgumentError, ChainError
from tdx.specs import Bounded, TensorSpec, Unbounded

SMALLEST_SCALE = 1e-6


class AffineTransform(Transform):
    """A transform that maps by ``loc`` and ``scale``, which it keeps as buffers.

    The plain form is ``value * scale + loc``. The standard form, ``(value - loc) / scale``, is
    what statistics of the data are for: with their mean as ``loc`` and their standard deviation
    as ``scale`` it yields zero mean and unit variance.
    """

    loc: Tensor | None
    scale: Tensor | None
    standard_normal: bool
    _saves_form = True
    """Whether ``standard_normal`` is part of the state, since it says how the buffers are used."""

    def _set_affine(
        self,
        loc: float | Tensor | None,
        scale: float | Tensor | None,
        standard_normal: bool,
        eps: float = SMALLEST_SCALE,
    ) -> None:
        """Set the map; a divisor closer to zero than ``eps`` counts as ``eps``.

        Raises:
            ArgumentError: one of them is no finite number or tensor, they do not broadcast, or
                the scale is zero (in the standard form, only if ``eps`` is).
        """
        divisor = None if scale is None else finite_tensor(scale, "scale")
        if divisor is not None and standard_normal:
            divisor = torch.where(divisor.abs() < eps, torch.full_like(divisor, eps), divisor)
        offset = None if loc is None else finite_tensor(loc, "loc")
        if divisor is not None and bool((divisor == 0).any()):
            raise ArgumentError(
                "scale must not be zero: every value would become the same",
                hint="leave the transform out, or give the standard deviation of the data",
            )
        if offset is not None and divisor is not None:
            _refuse_shapes(offset, divisor)
        self.standard_normal = standard_normal
        self.register_buffer("loc", offset)
        self.register_buffer("scale", divisor)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take over ``loc`` and ``scale``, also where there were none or of another shape."""
        form = state_dict.pop(prefix + "standard_normal", None) if self._saves_form else None
        if form is not None:
            self.standard_normal = bool(form)
        for name in ("loc", "scale"):
            found = state_dict.get(prefix + name)
            if found is not None:
                self.register_buffer(name, torch.empty_like(found))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._saves_form:
            loc = self._buffers["loc"]
            device = None if loc is None else loc.device
            form = torch.tensor(self.standard_normal, device=device)
            destination[prefix + "standard_normal"] = form

    def _affine_row_step(self) -> RowStep | None:
        """The map over a step's dict, without the calls that lead to it."""
        pairs, missing = flat_pairs(self._pairs), self._missing
        if pairs is None or self._missing_tolerance or self.standard_normal:
            return None
        buffers: dict[str, Any] = self._buffers

        def step(tensordict: Entries, fields: dict[str, Any]) -> None:
            for in_key, out_key in pairs:
                value = fields.get(in_key)
                if value is None:
                    raise missing(in_key, fields)
                fields[out_key] = value * buffers["scale"] + buffers["loc"]

        return step

    def _affine(self, value: Tensor) -> Tensor:
        # Straight from the buffers: a module's attribute lookup costs more than the addition.
        buffers: dict[str, Any] = self._buffers
        if self.standard_normal:
            return (value - buffers["loc"]) / buffers["scale"]
        return value * buffers["scale"] + buffers["loc"]

    def _affine_spec(self, spec: TensorSpec) -> TensorSpec:
        """The spec of what the map makes of a value of this spec.

        Raises:
            ChainError: ``loc`` and ``scale`` do not broadcast with it.
        """
        for name in ("loc", "scale"):
            held = self._buffers[name]
            if held is not None and held.ndim:
                try:
                    torch.broadcast_shapes(held.shape, spec.shape)
                except RuntimeError:
                    raise ChainError(
                        f"{name} has shape {tuple(held.shape)}, which does not fit the entry's "
                        f"{tuple(spec.shape)}",
                        hint="give one number, or one for each element",
                    ) from None
        return mapped_spec(spec, self._affine)

    def _affine_inverse(self, value: Tensor) -> Tensor:
        buffers: dict[str, Any] = self._buffers
        if self.standard_normal:
            return value * buffers["scale"] + buffers["loc"]
        return (value - buffers["loc"]) / buffers["scale"]

    def _key_repr(self) -> str:
        """The keys as the representation shows them."""
        return f"keys={self.in_keys}"

    def __repr__(self) -> str:
        values = [
            f"{name}={_short(self._buffers[name])}"
            for name in ("loc", "scale")
            if self._buffers.get(name) is not None
        ]
        return f"{type(self).__name__}({', '.join([*values, self._key_repr()])})"


def _refuse_shapes(loc: Tensor, scale: Tensor) -> None:
    try:
        torch.broadcast_shapes(loc.shape, scale.shape)
    except RuntimeError:
        raise ArgumentError(
            f"loc has shape {tuple(loc.shape)} and scale {tuple(scale.shape)}, which do not "
            "broadcast",
            hint="give both one number, or one for each element",
        ) from None


def mapped_spec(spec: TensorSpec, function: Callable[[Tensor], Tensor]) -> TensorSpec:
    """The spec of an elementwise affine function's result: its bounds mapped, and put in order.

    Args:
        spec: of what goes in.
        function: the map.
    """
    if not isinstance(spec, Bounded):
        probe = function(torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device))
        return Unbounded(shape=probe.shape, dtype=probe.dtype, device=probe.device)
    ends = function(spec.low), function(spec.high)
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    return Bounded(low, high, shape=low.shape, dtype=low.dtype, device=low.device)


def refuse_integers(spec: TensorSpec, name: str) -> None:
    """Raise where an env takes integers, which no affine map of floats gives.

    Args:
        spec: of what the env takes.
        name: the transform's.

    Raises:
        ChainError: its dtype is no floating one.
    """
    if spec.dtype is not None and not spec.dtype.is_floating_point:
        raise ChainError(
            f"{name} gives fractions, and the env takes {type(spec).__name__} of {spec.dtype}",
            hint="name inputs with a range of floats in in_keys_inv",
        )


def finite_tensor(value: Any, name: str) -> Tensor:
    """The argument as a float tensor.

    Args:
        value: a number, a sequence of numbers or a tensor.
        name: the argument's name, for the message.

    Raises:
        ArgumentError: it is none of these, or holds NaN or infinity.
    """
    if isinstance(value, (bool, str)):
        raise ArgumentError(
            f"{name} must be a number or a tensor, got {value!r}",
            hint="for example 0.5, or torch.tensor([0.5, 2.0])",
        )
    try:
        result = value if isinstance(value, Tensor) else torch.tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            f"{name} must be a number or a tensor, got {value!r}",
            hint="for example 0.5, or torch.tensor([0.5, 2.0])",
        ) from None
    if not result.is_floating_point():
        result = result.to(torch.get_default_dtype())
    if not bool(result.isfinite().all()):
        raise ArgumentError(
            f"{name} must be finite, got {value!r}", hint="leave NaN and infinity out of it"
        )
    return result


def _short(value: Tensor | None) -> str:
    if value is None:
        return "None"
    return f"{value.item():.4f}" if value.numel() == 1 else f"tensor{tuple(value.shape)}"
