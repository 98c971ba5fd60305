"""Base classes of transforms with numeric parameters: numbers, or an affine map.

Parameters are buffers, so they are part of the state dict and follow the module to a device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from tdx.core.transforms.kernels import ArrayForm, ArrayKernel
from tdx.core.transforms.spec_maps import map_bounds
from tdx.core.transforms.transform import Transform
from tdx.core.transforms.validation import check_finite, check_number
from tdx.foundation.accelerators import move
from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.foundation.keys import NestedKey
from tdx.foundation.torch_internals import broadcast_shapes
from tdx.specs import TensorSpec

SMALLEST_SCALE = 1e-6


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
        """Set the value of each scalar; ``None`` if it has none."""
        self._scalars = {
            name: check_number(values[name], name, self.scalar_hint) for name in self.scalar_names
        }
        for name, value in self._scalars.items():
            self.register_buffer(name, _as_buffer(value))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.scalar_names or name not in self.__dict__.get("_buffers", {}):
            super().__setattr__(name, value)
            return
        number = check_number(value, name, self.scalar_hint)
        self._scalars = {**self._scalars, name: number}
        held = self._buffers[name]
        super().__setattr__(name, _as_buffer(number, None if held is None else held.device))
        self.notify_changed()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for name, value in self._scalars.items():
            held = self._buffers[name]
            if held is not None:
                self._buffers[name] = _as_buffer(value, held.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load the scalars, also if they have no value. An empty state keeps their values."""
        values = {name: state_dict.get(prefix + name) for name in self.scalar_names}
        if all(value is None for value in values.values()):
            held = {prefix + name: self._buffers[name] for name in self.scalar_names}
            state_dict |= {name: value for name, value in held.items() if value is not None}
        for name, value in values.items():
            if value is not None:
                setattr(self, name, value)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __repr__(self) -> str:
        values = [f"{name}={value}" for name, value in self._scalars.items()]
        values.append(f"keys={self.in_keys or self.in_keys_inv}")
        return f"{type(self).__name__}({', '.join(values)})"


def _as_buffer(value: float | None, device: torch.device | None = None) -> Tensor | None:
    """Return a number as a tensor, in float64 if the default dtype would round it."""
    if value is None:
        return None
    tensor = torch.as_tensor(value)
    if tensor.item() != value:
        tensor = torch.as_tensor(value, dtype=torch.float64)
    return move(tensor, device)


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
        """Set the map. In the standard form, ``eps`` is the smallest absolute scale."""
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
            try:
                broadcast_shapes(offset.shape, divisor.shape)
            except ValueError:
                raise ArgumentError(
                    f"loc has shape {tuple(offset.shape)} and scale {tuple(divisor.shape)}, which "
                    "do not broadcast",
                    hint="pass one number for both, or one for each element",
                ) from None
        self.standard_normal = standard_normal
        self.register_buffer("loc", offset)
        self.register_buffer("scale", divisor)

    @property
    def initialized(self) -> bool:
        """True if ``loc`` and ``scale`` are set."""
        return self._buffers["loc"] is not None

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return self._affine(tensor, standardize=self.standard_normal)

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return self._affine(tensor, standardize=not self.standard_normal)

    def _affine(self, tensor: Tensor, *, standardize: bool) -> Tensor:
        """Map a tensor by the plain or the standard form, which are inverse to each other."""
        # Directly from the buffers: attribute lookup of a module costs more than the addition.
        buffers: dict[str, Any] = self._buffers
        loc, scale = buffers["loc"], buffers["scale"]
        if loc is None:
            raise ChainError(
                f"{type(self).__name__} has no loc and scale yet",
                hint="pass them, or call init_stats(num_iter) once the transform is in its env",
            )
        return (tensor - loc) / scale if standardize else tensor * scale + loc

    def make_array_kernel(self, in_key: NestedKey, form: ArrayForm) -> ArrayKernel | None:
        if type(self)._affine is not AffineTransform._affine:
            return None
        constants = []
        for name in ("loc", "scale"):
            held = self._buffers[name]
            if held is None or held.device.type != "cpu" or held.requires_grad:
                return None
            array = held.numpy()
            fits = np.broadcast_shapes(array.shape, form.shape) == form.shape
            if not fits or array.dtype != form.dtype or form.dtype.kind != "f":
                return None
            # An operand of the same shape costs less than one that is broadcast.
            constants.append(np.broadcast_to(array, form.shape).copy())
        loc, scale = constants

        def run(value: Array, out: Array) -> None:
            multiply(value, scale, out)
            add(out, loc, out)

        def run_standard(value: Array, out: Array) -> None:
            subtract(value, loc, out)
            divide(out, scale, out)

        multiply, add, subtract, divide = np.multiply, np.add, np.subtract, np.divide
        return ArrayKernel(form, _silent(run_standard if self.standard_normal else run))

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if not self.initialized:
            return spec
        for name in ("loc", "scale"):
            held = self._buffers[name]
            if held is not None and held.ndim:
                try:
                    broadcast_shapes(held.shape, spec.shape)
                except ValueError:
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
            value = state_dict.get(prefix + name)
            if value is not None:
                self.register_buffer(name, torch.empty_like(value))
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
        values.append(f"keys={self.in_keys or self.in_keys_inv}")
        return f"{type(self).__name__}({', '.join(values)})"


def _silent(run: Callable[[Array, Array], None]) -> Callable[[Array, Array], None]:
    """Return a function that is as silent about overflow and NaN as torch."""
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        return np.errstate(all="ignore")(run)
    # NumPy keeps this setting in a context variable. To enter a context with it costs a fifth of
    # setting it in each step, which takes as long as the arithmetic.
    context = copy_context()
    context.run(np.seterr, all="ignore")
    return partial(context.run, run)  # type: ignore[call-arg]


def require_floating(spec: TensorSpec, name: str) -> None:
    """Check that an input of the env is floating."""
    if spec.dtype is not None and not spec.dtype.is_floating_point:
        raise ChainError(
            f"{name} returns floats, but the env takes {type(spec).__name__} of {spec.dtype}",
            hint="name floating inputs in in_keys_inv",
        )


def _short(value: Tensor | None) -> str:
    if value is None:
        return "None"
    return f"{value.item():.4f}" if value.numel() == 1 else f"tensor{tuple(value.shape)}"
