"""Base class of all specs, and stacks of specs that differ."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from tensordict import lazy_stack
from torch import Tensor

from tdx.foundation.errors import CheckError, SpecError, SpecIndexError
from tdx.foundation.html_repr import repr_html
from tdx.foundation.keys import NestedKey
from tdx.foundation.text import dtype_name
from tdx.specs.arguments import (
    TORCH_FUNCTIONS,
    Arguments,
    Device,
    IndexPart,
    Shape,
    Value,
    View,
    as_device,
    as_dtype,
    as_size,
    cast,
    check_dimension,
    ends_with,
    expand_ellipsis,
    is_dtype,
    is_same_device,
    match_shape,
    parse_index,
    replace_unknown_sizes,
    size_from_args,
    to_array,
    to_dtype,
    to_tensor,
    view_shape,
)
from tdx.specs.spaces import Box, indent


class TensorSpec:
    """Describes a tensor, or a TensorDict (``Composite``), without holding data.

    A spec also contains values with extra leading dimensions, so ``spec.rand((4,))`` is in
    ``spec``. Setting ``shape``, ``device`` or ``dtype`` changes a spec as ``replace`` does, if its
    class remains.

    Args:
        shape: Shape of the values; -1 for an unknown size.
        device: Device of the values.
        dtype: Dtype of the values.

    Example:
        >>> from tdx.specs import Bounded
        >>> spec = Bounded(-1.0, 1.0, shape=(3,))
        >>> spec.is_in(spec.rand())
        True
    """

    _repr_html_ = repr_html
    domain: str | None = None
    _shape: torch.Size
    _device: torch.device | None
    _dtype: torch.dtype | None

    def __init__(
        self, shape: torch.Size, device: Device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        self._shape = shape
        self._device = as_device(device)
        self._dtype = dtype

    @property
    def shape(self) -> torch.Size:
        """Shape of the values."""
        return self._shape

    @shape.setter
    def shape(self, shape: Shape) -> None:
        self._become(self.replace(shape=as_size(shape)))

    @property
    def device(self) -> torch.device | None:
        """Device of the values."""
        return self._device

    @device.setter
    def device(self, device: Device | None) -> None:
        self._become(self.to(as_device(device)))

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype of the values."""
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: torch.dtype | str) -> None:
        self._become(self.to(as_dtype(dtype)))

    def _become(self, other: TensorSpec) -> None:
        """Take over the state of another spec of the same class."""
        if type(other) is not type(self):
            raise SpecError(
                f"a {type(self).__name__} cannot become a {type(other).__name__} in place",
                hint="set the entry of its composite to spec.to(dtype) or spec.replace(...)",
            )
        self.__dict__ = dict(other.__dict__)

    @property
    def space(self) -> Box | None:
        """Domain of the values; ``None`` if it is not restricted."""
        return None

    @property
    def ndim(self) -> int:
        """Number of dimensions of the values."""
        return len(self.shape)

    # Samples

    def rand(self, shape: Shape | None = ()) -> Value:
        """Sample a value from torch's global generator.

        Args:
            shape: Leading dimensions to add before the shape of the spec.
        """
        raise NotImplementedError

    def rand_at(self, unit: Tensor) -> Value | None:
        """Return the sample that follows from uniform numbers, without a generator.

        Args:
            unit: Numbers from ``[0, 1)``, float64, of the shape of the spec; may be overwritten.

        Returns:
            ``None`` if the spec can only be sampled with a generator: complex numbers, values that
            are no tensors, and a ``Choice``, which draws one of its specs for all elements.
        """
        return None

    def sample(self, shape: Shape | None = ()) -> Value:
        """Sample a value: alias of ``rand``."""
        return self.rand(shape)

    def zero(self, shape: Shape | None = ()) -> Value:
        """Return zeros, even if they are outside the space; arguments as for ``rand``."""
        return torch.zeros(self._full_shape(shape), dtype=self._dtype, device=self._device)

    def zeros(self, shape: Shape | None = ()) -> Value:
        """Return zeros: alias of ``zero``."""
        return self.zero(shape)

    def one(self, shape: Shape | None = ()) -> Value:
        """Return ones, even if they are outside the space; arguments as for ``rand``."""
        return torch.ones(self._full_shape(shape), dtype=self._dtype, device=self._device)

    def ones(self, shape: Shape | None = ()) -> Value:
        """Return ones: alias of ``one``."""
        return self.one(shape)

    def _full_shape(self, shape: Shape | None) -> torch.Size:
        own = replace_unknown_sizes(self.shape) if -1 in self.shape else self.shape
        if shape is None or shape == ():
            return own
        return torch.Size((*((shape,) if isinstance(shape, int) else shape), *own))

    # Membership

    def is_in(self, val: object) -> bool:
        """Return True if a value has the spec's dtype, device and trailing shape, and is in it."""
        return self._explain_mismatch(val) is None and self._contains(val)

    def contains(self, item: object) -> bool:
        """Return True if a value belongs to the spec: alias of ``is_in``."""
        return self.is_in(item)

    def __contains__(self, item: object) -> bool:
        return self.is_in(item)

    def why_not_in(self, val: object) -> str | None:
        """Explain briefly why a value is not in the spec; ``None`` if it is."""
        mismatch = self._explain_mismatch(val)
        if mismatch is not None:
            return mismatch
        return None if self._contains(val) else f"a value is outside {self._describe_space()}"

    def assert_is_in(self, value: object) -> None:
        """Check that a value belongs to the spec.

        Raises:
            CheckError: It does not; the message says why.
        """
        if (reason := self.why_not_in(value)) is not None:
            raise CheckError(
                f"the value is not in its {type(self).__name__} spec: {reason}",
                hint="project(value) returns the nearest value in the spec",
            )

    def type_check(self, value: Tensor, key: NestedKey | None = None) -> None:
        """Check the dtype of a value.

        Raises:
            SpecError: The dtype differs from the spec's.
        """
        if value.dtype != self._dtype:
            raise SpecError(
                f"expected dtype {self._dtype}, got {value.dtype}",
                hint=f"convert it: value.to({self._dtype})",
            ).at(key=key)

    def project(self, val: Value) -> Value:
        """Return the nearest value in the spec; a value that is in the spec itself.

        Raises:
            SpecError: The shape of the value does not end with the spec's.
        """
        if self._explain_mismatch(val) is not None:
            val = self._cast(val)
        return val if self._contains(val) else self._project(val)

    def _cast(self, val: object) -> Tensor:
        """Convert a value to the spec's dtype and device, rounding and saturating."""
        if not isinstance(val, Tensor):
            raise SpecError(
                f"expected a tensor, got a {type(val).__name__}",
                hint="encode the value first: spec.encode(value)",
            )
        if not ends_with(val.shape, self._shape):
            raise SpecError(
                f"expected a shape ending in {self._shape}, got {val.shape}",
                hint="give the value the shape of the spec",
            )
        assert self._dtype is not None
        return cast(val, self._dtype).to(self._device)

    def _explain_mismatch(self, val: object) -> str | None:
        """Compare type, dtype, shape and device of a value with the spec's."""
        if not isinstance(val, Tensor):
            return f"expected a tensor, got a {type(val).__name__}"
        if val.dtype != self._dtype:
            return f"expected dtype {self._dtype}, got {val.dtype}"
        if not ends_with(val.shape, self._shape):
            return f"expected shape {self._shape}, got {val.shape}"
        if not is_same_device(val.device, self._device):
            return f"expected device {self._device}, got {val.device}"
        return None

    def _contains(self, val: Any) -> bool:
        """Return True if a tensor of the right shape and dtype is in the space."""
        inside = self.elements_in(val)
        return inside is not None and bool(inside.all())

    def elements_in(self, val: Tensor) -> Tensor | None:
        """Return which elements of a tensor of the right shape and dtype are in the space.

        Args:
            val: Value, ``[*B, ...]``.

        Returns:
            Bools of the value's shape; elements that the space constrains together, such as a
            one-hot vector, are all in it or all outside. ``None`` if values are not one tensor.
        """
        return None

    def _project(self, val: Tensor) -> Tensor:
        """Return the value in the space nearest to a tensor of the right shape and dtype."""
        raise NotImplementedError

    def _describe_space(self) -> str:
        return f"the space {self.space}"

    # Conversion

    def encode(self, val: object, *, ignore_device: bool = False) -> Value:
        """Convert a value to a tensor with the spec's dtype, shape and device.

        Args:
            val: A number, nested lists, an array or a tensor.
            ignore_device: True to leave a tensor on its device.

        Raises:
            SpecError: The shapes differ by more than sizes of 1, or an integer does not fit.
        """
        assert self._dtype is not None
        encoded = to_dtype(to_tensor(val), self._dtype)
        if not ignore_device:
            encoded = encoded.to(self._device)
        return match_shape(encoded, self._shape)

    def to_numpy(self, val: Value, safe: bool | None = None) -> Any:
        """Convert a value of the spec to an array.

        Args:
            val: A value of the spec.
            safe: True to check first that it is one.
        """
        if safe:
            self.assert_is_in(val)
        return to_array(val)

    def index(self, index: Tensor, tensor_to_index: Tensor) -> Tensor:
        """Index the last dimension of a tensor by a value of this spec.

        Args:
            index: A value of the spec.
            tensor_to_index: Tensor to take entries from.

        Raises:
            SpecError: Values of this spec are not indices.
        """
        raise SpecError(
            f"a value of {type(self).__name__} cannot be used as an index",
            hint="use a spec of categories, such as Categorical or OneHot",
        )

    def cardinality(self) -> float:
        """Return the number of values; infinity for an infinite space."""
        return math.inf

    def enumerate(self, use_mask: bool = False) -> Value:
        """Return every value of the spec, stacked along a new first dimension.

        Args:
            use_mask: True to leave out the values that the mask forbids.

        Raises:
            SpecError: There are infinitely many.
        """
        raise SpecError(
            f"the values of {type(self).__name__} cannot be enumerated",
            hint="use a spec with finitely many values, such as Categorical",
        )

    def ndimension(self) -> int:
        """Return the number of dimensions of the values."""
        return self.ndim

    def memoize_encode(self, mode: bool = True) -> None:
        """Do nothing: encoded values are not cached."""

    def erase_memoize_cache(self) -> None:
        """Do nothing: encoded values are not cached."""

    # Shape operations: each returns the spec of the values that torch would return.

    def apply_view(self, view: View) -> Self:
        """Return the spec of ``view(value)``.

        Args:
            view: Function that reshapes or indexes a tensor and does not change its elements.

        Raises:
            SpecError: The shape does not support the view.
        """
        return self.replace(shape=self._view_shape(view))

    def _view_shape(self, view: View) -> torch.Size:
        return view_shape(view, self._shape, type(self).__name__)

    def expand(self, *shape: Shape) -> Self:
        """Return the spec of expanded values, as ``Tensor.expand``."""
        sizes = size_from_args(shape)
        return self.apply_view(lambda tensor: tensor.expand(sizes))

    def squeeze(self, dim: int | None = None) -> Self:
        """Return the spec without a dimension of size 1, or without all of them."""
        if dim is None:
            return self.apply_view(torch.squeeze)
        return self.apply_view(lambda tensor: tensor.squeeze(dim))

    def unsqueeze(self, dim: int) -> Self:
        """Return the spec with a new dimension of size 1."""
        return self.apply_view(lambda tensor: tensor.unsqueeze(dim))

    def reshape(self, *shape: Shape) -> Self:
        """Return the spec of reshaped values."""
        sizes = size_from_args(shape)
        return self.apply_view(lambda tensor: tensor.reshape(sizes))

    def view(self, *shape: Shape) -> Self:
        """Return the spec of reshaped values: alias of ``reshape``."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Return the spec with a range of dimensions merged."""
        return self.apply_view(lambda tensor: tensor.flatten(start_dim, end_dim))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Return the spec with a dimension split into several."""
        return self.apply_view(lambda tensor: tensor.unflatten(dim, tuple(sizes)))

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Return the specs along a dimension."""
        where = check_dimension(dim, self._shape)
        return tuple(self[(slice(None),) * where + (i,)] for i in range(self._shape[where]))

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Return the spec of some entries of a dimension, as ``torch.index_select``."""
        return self[(slice(None),) * check_dimension(dim, self._shape) + (index,)]

    def make_neg_dim(self, dim: int) -> Self:
        """Return the spec with the size of a dimension unknown (-1)."""
        sizes = list(self._shape)
        sizes[check_dimension(dim, self._shape)] = -1
        return self.replace(shape=torch.Size(sizes))

    def __getitem__(self, index: object) -> Any:
        parts = parse_index(index, self._shape, type(self).__name__)
        return self.apply_view(lambda tensor: tensor[parts])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))

    def __len__(self) -> int:
        return self._shape[check_dimension(0, self._shape)]

    def __bool__(self) -> bool:
        return True

    @staticmethod
    def _stack_class() -> type[SpecStack]:
        """Return the class of a stack of such specs that differ."""
        return Stacked

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        function = stack if func is torch.stack else TORCH_FUNCTIONS.get(func)
        return NotImplemented if function is None else function(*args, **(kwargs or {}))

    # Copies

    def replace(self, **changes: Any) -> Any:
        """Return a copy with constructor arguments changed, such as ``shape``."""
        return type(self)(**{**self._arguments(), **changes})

    def _arguments(self) -> Arguments:
        return {"shape": self._shape, "device": self._device, "dtype": self._dtype}

    def clone(self) -> Self:
        """Return an independent copy. Tensors, which are never modified, are shared."""
        return self._with()

    def _with(self, **state: object) -> Self:
        """Return a copy with some attributes replaced, without the checks of the constructor."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, **state)
        return copied

    def to(self, dest: torch.dtype | Device) -> Self:
        """Return the spec on a device or in a dtype; the spec itself if nothing changes."""
        if is_dtype(dest):
            dtype = as_dtype(dest)  # type: ignore[arg-type]
            return self if dtype == self._dtype else self.replace(dtype=dtype)
        device = as_device(dest)  # type: ignore[arg-type]
        return self if device == self._device else self.replace(device=device)

    def cpu(self) -> Self:
        """Return the spec on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Device | None = None) -> Self:
        """Return the spec on a CUDA device; the current one by default."""
        return self.to(f"cuda:{device}" if isinstance(device, int) else device or "cuda")

    def clear_device_(self) -> Self:
        """Clear the device of a composite; leaf specs keep theirs."""
        return self

    # Comparison and printing

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TensorSpec)
            and type(other) is type(self)
            and self._shape == other._shape
            and self._dtype == other._dtype
            and self._device == other._device
            and self._has_same_space(other)
        )

    __hash__ = None  # type: ignore[assignment]

    def _has_same_space(self, other: Self) -> bool:
        return bool(self.space == other.space)

    def __repr__(self) -> str:
        body = ",\n".join(f"{name}={value}" for name, value in self._repr_fields())
        return f"{type(self).__name__}(\n{indent(body)})"

    def _repr_fields(self) -> list[tuple[str, object]]:
        names = ("shape", "space", "device", "dtype", "domain")
        return [(name, getattr(self, name)) for name in names]


class SpecStack(TensorSpec):
    """Base class of stacks: specs of the same number of dimensions along a stack dimension.

    Values are split along that dimension, and each part belongs to its spec.

    Args:
        *specs: Specs to stack.
        dim: Stack dimension, which is new.

    Raises:
        SpecError: The list is empty, the numbers of dimensions differ, or ``dim`` is out of range.
    """

    _specs: Sequence[TensorSpec]
    _dim: int

    def __init__(self, *specs: TensorSpec, dim: int = 0) -> None:
        if not specs:
            raise SpecError("a stack needs at least one spec", hint="pass a list of specs")
        ndim = specs[0].ndim
        if any(spec.ndim != ndim for spec in specs):
            shapes = [tuple(spec.shape) for spec in specs]
            raise SpecError(
                f"specs to stack must have the same number of dimensions, got shapes {shapes}",
                hint="unsqueeze or expand the specs first",
            )
        if dim < 0:
            dim += ndim + 1
        if not 0 <= dim <= ndim:
            raise SpecError(
                f"stack dimension {dim} is out of range for specs with {ndim} dimensions",
                hint=f"use a dimension from {-ndim - 1} to {ndim}",
            )
        self._specs = list(specs)
        self._dim = dim

    @property
    def stack_dim(self) -> int:
        """Dimension along which the specs are stacked."""
        return self._dim

    @property
    def dim(self) -> int:
        """Dimension along which the specs are stacked: alias of ``stack_dim``."""
        return self._dim

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """Specs, in order."""
        return list(self._specs)

    @property
    def _shape(self) -> torch.Size:  # type: ignore[override]
        """Shape of the stack; -1 for sizes in which the specs differ."""
        merged = [
            sizes[0] if all(size == sizes[0] for size in sizes) else -1
            for sizes in zip(*(spec.shape for spec in self._specs), strict=True)
        ]
        return torch.Size([*merged[: self._dim], len(self._specs), *merged[self._dim :]])

    @property
    def _device(self) -> torch.device | None:  # type: ignore[override]
        """Device of the specs; ``None`` where they differ."""
        devices = {spec.device for spec in self._specs}
        return devices.pop() if len(devices) == 1 else None

    def _rebuild(self, members: Sequence[TensorSpec], dim: int) -> Self:
        return type(self)(*members, dim=dim)

    def clone(self) -> Self:
        return self._rebuild([spec.clone() for spec in self._specs], self._dim)

    def to(self, dest: torch.dtype | Device) -> Self:
        return self._rebuild([spec.to(dest) for spec in self._specs], self._dim)

    def expand(self, *shape: Shape) -> Self:
        sizes = list(size_from_args(shape))
        new = len(sizes) - self.ndim
        if new < 0 or sizes[new + self._dim] not in (-1, len(self._specs)):
            raise SpecError(
                f"a stack of shape {tuple(self.shape)} cannot expand to {tuple(sizes)}",
                hint="expand the leading dims only",
            )
        dim = new + self._dim
        rest = sizes[:dim] + sizes[dim + 1 :]
        members = []
        for spec in self._specs:
            own = [spec.shape[i - new] if size == -1 else size for i, size in enumerate(rest)]
            members.append(spec.expand(*own))
        return self._rebuild(members, dim)

    def unsqueeze(self, dim: int) -> Self:
        if dim < 0:
            dim += self.ndim + 1
        inner, stack_dim = (dim, self._dim + 1) if dim <= self._dim else (dim - 1, self._dim)
        return self._rebuild([spec.unsqueeze(inner) for spec in self._specs], stack_dim)

    def squeeze(self, dim: int | None = None) -> Any:
        if dim is None:
            squeezed: TensorSpec = self
            for i in reversed(range(self.ndim)):
                if squeezed.shape[i] == 1:
                    squeezed = squeezed.squeeze(i)
            return squeezed
        dim = check_dimension(dim, self.shape)
        if self.shape[dim] != 1:
            return self
        if dim == self._dim:
            return self._specs[0]
        inner, stack_dim = (dim, self._dim - 1) if dim < self._dim else (dim - 1, self._dim)
        return self._rebuild([spec.squeeze(inner) for spec in self._specs], stack_dim)

    def __getitem__(self, index: object) -> Any:
        parsed = parse_index(index, self.shape, type(self).__name__)
        parts = list(expand_ellipsis(parsed, self.ndim))
        before: list[IndexPart] = []
        taken = 0
        while parts and taken < self._dim:
            part = parts.pop(0)
            before.append(part)
            taken += part is not None
        while parts and parts[0] is None:
            before.append(parts.pop(0))
        selection, after = (parts[0], parts[1:]) if parts else (slice(None), [])
        full = (*before, *(slice(None),) * (self._dim - taken), *after)
        selected = self._select_members(selection)
        if isinstance(selected, TensorSpec):
            return selected[full] if full else selected
        members = [spec[full] if full else spec for spec in selected]
        dropped = sum(isinstance(part, int) for part in before)
        added = sum(part is None for part in before)
        return stack(members, self._dim - dropped + added)

    def _select_members(self, index: IndexPart) -> TensorSpec | list[TensorSpec]:
        """Return a member for an integer index, a list of them for a slice or a list."""
        try:
            positions = torch.arange(len(self._specs))[index]
        except IndexError as error:
            raise SpecIndexError(
                f"index {index!r} is out of range for a stack of {len(self._specs)} specs",
                hint=f"use an index below {len(self._specs)}",
            ) from error
        if positions.ndim == 0:
            return self._specs[int(positions)]
        if positions.ndim > 1:
            raise SpecIndexError(
                f"the index along the stack dimension has {positions.ndim} dimensions",
                hint="use an integer, a slice or a list of integers",
            )
        return [self._specs[i] for i in positions.tolist()]

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        if check_dimension(dim, self.shape) == self._dim:
            return tuple(self._specs)
        return super().unbind(dim)

    def make_neg_dim(self, dim: int) -> Self:
        dim = check_dimension(dim, self.shape)
        if dim == self._dim:
            raise SpecError(
                f"the size of the stack dimension {dim} cannot be unknown",
                hint="use another dimension",
            )
        inner = dim if dim < self._dim else dim - 1
        return self._rebuild([spec.make_neg_dim(inner) for spec in self._specs], self._dim)

    def _unsupported(self, *args: object, **kwargs: object) -> Self:
        raise SpecError(
            "a stack of different specs cannot be reshaped",
            hint="use indexing, expand, squeeze or unsqueeze",
        )

    reshape = _unsupported
    flatten = _unsupported
    unflatten = _unsupported
    apply_view = _unsupported

    def _split(self, val: Any) -> list[Value]:
        """Split a value, which may have leading dimensions, into one part for each spec."""
        if isinstance(val, (list, tuple)):
            parts = list(val)
        elif not hasattr(val, "unbind"):
            raise SpecError(
                f"expected a tensor, got a {type(val).__name__}",
                hint="encode the value first: spec.encode(value)",
            )
        elif isinstance(val, Tensor) and val.is_nested:
            parts = list(val.unbind(0))
        else:
            extra = len(val.shape) - self.ndim
            parts = list(val.unbind(extra + self._dim)) if extra >= 0 else []
        if len(parts) != len(self._specs):
            raise SpecError(
                f"expected {len(self._specs)} parts along dimension {self._dim}, got {len(parts)}",
                hint="give one part for each spec of the stack",
            )
        return parts

    def is_in(self, val: object) -> bool:
        return self.why_not_in(val) is None

    def why_not_in(self, val: object) -> str | None:
        """Explain why a value is not in the stack, with the index of the part."""
        try:
            parts = self._split(val)
        except SpecError as error:
            return error.message
        for i, (spec, part) in enumerate(zip(self._specs, parts, strict=True)):
            reason = spec.why_not_in(part)
            if reason is not None:
                return f"part {i}: {reason}"
        return None

    def project(self, val: Value) -> Value:
        parts = [
            spec.project(part) for spec, part in zip(self._specs, self._split(val), strict=True)
        ]
        return self._join(parts)

    def rand(self, shape: Shape | None = ()) -> Value:
        return self._join([spec.rand(shape) for spec in self._specs])

    def rand_at(self, unit: Tensor) -> Value | None:
        parts = zip(self._specs, self._split(unit), strict=True)
        values = [spec.rand_at(part) for spec, part in parts]
        return None if any(value is None for value in values) else self._join(values)

    def zero(self, shape: Shape | None = ()) -> Value:
        return self._join([spec.zero(shape) for spec in self._specs])

    def one(self, shape: Shape | None = ()) -> Value:
        return self._join([spec.one(shape) for spec in self._specs])

    def encode(self, val: object, *, ignore_device: bool = False) -> Value:
        parts = self._split(torch.as_tensor(val) if isinstance(val, np.ndarray) else val)
        return self._join(
            [
                spec.encode(part, ignore_device=ignore_device)
                for spec, part in zip(self._specs, parts, strict=True)
            ]
        )

    def to_numpy(self, val: Value, safe: bool | None = None) -> Any:
        if safe:
            self.assert_is_in(val)
        return [
            spec.to_numpy(part) for spec, part in zip(self._specs, self._split(val), strict=True)
        ]

    def _join(self, parts: list[Value]) -> Value:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SpecStack) or type(other) is not type(self):
            return False
        return self._dim == other._dim and self._specs == other._specs

    __hash__ = None


class Stacked(SpecStack):
    """A stack of leaf specs that differ in their space or in a size.

    Values are dense tensors if the shapes are equal, else nested tensors.

    Args:
        *specs: Specs of the same dtype and number of dimensions.
        dim: Stack dimension, which is new.

    Raises:
        SpecError: The dtypes or the numbers of dimensions differ.

    Example:
        >>> from tdx.specs import Categorical
        >>> spec = torch.stack([Categorical(2), Categorical(5)])
        >>> spec.is_in(torch.tensor([1, 4])), spec.is_in(torch.tensor([4, 1]))
        (True, False)
    """

    def __init__(self, *specs: TensorSpec, dim: int = 0) -> None:
        super().__init__(*specs, dim=dim)
        dtypes = [spec.dtype for spec in specs]
        if any(dtype != dtypes[0] for dtype in dtypes):
            names = ", ".join(dtype_name(dtype) for dtype in dict.fromkeys(dtypes))
            raise SpecError(
                f"specs to stack must have the same dtype, got {names}",
                hint="cast the values first: add a DTypeCastTransform to each env",
            )

    @property
    def _dtype(self) -> torch.dtype | None:  # type: ignore[override]
        """Dtype of the values."""
        return self._specs[0].dtype

    @property
    def domain(self) -> str | None:  # type: ignore[override]
        """Domain of the first spec."""
        return self._specs[0].domain

    def cardinality(self) -> float:
        return math.prod(spec.cardinality() for spec in self._specs)

    def enumerate(self, use_mask: bool = False) -> Value:
        values = [list(spec.enumerate(use_mask)) for spec in self._specs]
        return torch.stack([self._join(list(parts)) for parts in itertools.product(*values)])

    def _join(self, parts: list[Value]) -> Value:
        if any(not isinstance(part, Tensor) for part in parts):
            return lazy_stack(parts, self._dim)
        if all(part.shape == parts[0].shape for part in parts):
            extra = parts[0].ndim - (self.ndim - 1)
            return torch.stack(parts, extra + self._dim)
        if self._dim:
            raise SpecError(
                f"values of different shapes cannot be stacked along dimension {self._dim}",
                hint="stack along dimension 0, or pad the values",
            )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*nested tensors is in prototype stage")
            return torch.nested.as_nested_tensor(parts)

    def __repr__(self) -> str:
        classes = {type(spec).__name__ for spec in self._specs}
        name = f"Stacked{classes.pop()}" if len(classes) == 1 else "Stacked"
        body = f"shape={self.shape}, device={self.device}, dtype={self.dtype}, domain={self.domain}"
        return f"{name}(\n{indent(body)})"


def stack(tensors: Sequence[TensorSpec], dim: int = 0, *, out: object = None) -> TensorSpec:
    """Return the spec of stacked values.

    Args:
        tensors: Specs. Equal ones are stacked to a spec of the same class, others to a
            ``Stacked`` or a ``StackedComposite``.
        dim: Stack dimension, which is new.
        out: Not supported.

    Raises:
        SpecError: The list is empty, or the specs cannot be stacked.
    """
    specs = list(tensors)
    if out is not None:
        raise SpecError(
            "stacking specs into out is not supported", hint="leave out= out and use the result"
        )
    if not specs:
        raise SpecError("cannot stack an empty list of specs", hint="stack at least one spec")
    if dim < 0:
        dim += specs[0].ndim + 1
    if all(spec == specs[0] for spec in specs[1:]):
        first = specs[0].clone().unsqueeze(dim)
        sizes = (*specs[0].shape[:dim], len(specs), *specs[0].shape[dim:])
        return first.expand(*sizes)
    classes = {spec._stack_class() for spec in specs}
    if len(classes) > 1:
        raise SpecError(
            "composites cannot be stacked with leaf specs",
            hint="stack composites with composites, leaves with leaves",
        )
    return classes.pop()(*specs, dim=dim)
