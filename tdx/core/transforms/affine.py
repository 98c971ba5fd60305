"""Base class of transforms that map by ``value * scale + loc``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdx.core.transforms.spec_maps import map_bounds
from tdx.core.transforms.transform import Transform
from tdx.core.transforms.validation import check_finite
from tdx.errors import ArgumentError, ChainError
from tdx.specs import TensorSpec

SMALLEST_SCALE = 1e-6


class AffineTransform(Transform):
    """Maps values by ``loc`` and ``scale``, which are buffers.

    The plain form is ``value * scale + loc``. The standard form, ``(value - loc) / scale``,
    yields zero mean and unit variance if ``loc`` and ``scale`` are the mean and the standard
    deviation of the values.
    """

    loc: Tensor | None
    scale: Tensor | None
    standard_normal: bool
    _saves_form = True
    """True if ``standard_normal`` is part of the state dict, since it defines the map."""

    def _set_affine(
        self,
        loc: float | Tensor | None,
        scale: float | Tensor | None,
        standard_normal: bool,
        eps: float = SMALLEST_SCALE,
    ) -> None:
        """Set the map. In the standard form, ``eps`` is the smallest absolute scale.

        Raises:
            ArgumentError: A value is not finite, the shapes do not broadcast, or the scale is
                zero (in the standard form, only if ``eps`` is zero).
        """
        divisor = None if scale is None else check_finite(scale, "scale")
        if divisor is not None and standard_normal:
            divisor = torch.where(divisor.abs() < eps, torch.full_like(divisor, eps), divisor)
        offset = None if loc is None else check_finite(loc, "loc")
        if divisor is not None and bool((divisor == 0).any()):
            raise ArgumentError(
                "scale must not be zero: every value would become the same",
                hint="remove the transform, or pass the standard deviation of the data",
            )
        if offset is not None and divisor is not None:
            _check_broadcast(offset, divisor)
        self.standard_normal = standard_normal
        self.register_buffer("loc", offset)
        self.register_buffer("scale", divisor)

    @property
    def initialized(self) -> bool:
        """True if ``loc`` and ``scale`` are set."""
        return self._buffers["loc"] is not None

    def _require_initialized(self) -> None:
        if not self.initialized:
            raise ChainError(
                f"{type(self).__name__} has no loc and scale yet",
                hint="pass them, or call init_stats(num_iter) once the transform is in its env",
            )

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        # Directly from the buffers: attribute lookup of a module costs more than the addition.
        buffers: dict[str, Any] = self._buffers
        loc, scale = buffers["loc"], buffers["scale"]
        if loc is None:
            self._require_initialized()
        return (tensor - loc) / scale if self.standard_normal else tensor * scale + loc

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        self._require_initialized()
        buffers: dict[str, Any] = self._buffers
        loc, scale = buffers["loc"], buffers["scale"]
        return tensor * scale + loc if self.standard_normal else (tensor - loc) / scale

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if not self.initialized:
            return spec
        for name in ("loc", "scale"):
            held = self._buffers[name]
            if held is not None and held.ndim:
                try:
                    torch.broadcast_shapes(held.shape, spec.shape)
                except RuntimeError:
                    raise ChainError(
                        f"{name} has shape {tuple(held.shape)}, which does not fit the entry's "
                        f"{tuple(spec.shape)}",
                        hint="pass one number, or one for each element",
                    ) from None
        return map_bounds(spec, self._apply_transform)

    def _inv_transform_spec(self, spec: TensorSpec) -> TensorSpec:
        require_floating(spec, type(self).__name__)
        # The policy's value is mapped by the inverse, so its bounds are those of the forward map.
        return self._transform_spec(spec)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load ``loc`` and ``scale``, also if they have no value or another shape."""
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

    def __repr__(self) -> str:
        values = [
            f"{name}={_short(self._buffers[name])}"
            for name in ("loc", "scale")
            if self._buffers.get(name) is not None
        ]
        return f"{type(self).__name__}({', '.join([*values, f'keys={self.in_keys}'])})"


def _check_broadcast(loc: Tensor, scale: Tensor) -> None:
    try:
        torch.broadcast_shapes(loc.shape, scale.shape)
    except RuntimeError:
        raise ArgumentError(
            f"loc has shape {tuple(loc.shape)} and scale {tuple(scale.shape)}, which do not "
            "broadcast",
            hint="pass one number for both, or one for each element",
        ) from None


def require_floating(spec: TensorSpec, name: str) -> None:
    """Check that an input of the env is floating.

    Args:
        spec: Spec of the env's input.
        name: Class name of the transform, for the message.

    Raises:
        ChainError: Its dtype is not floating.
    """
    if spec.dtype is not None and not spec.dtype.is_floating_point:
        raise ChainError(
            f"{name} returns floats, but the env takes {type(spec).__name__} of {spec.dtype}",
            hint="name floating inputs in in_keys_inv",
        )


def _short(value: Tensor | None) -> str:
    if value is None:
        return "None"
    return f"{value.item():.4f}" if value.numel() == 1 else f"tensor{tuple(value.shape)}"
