"""Base class of all specs: shape, dtype, device and space of values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from tdx.foundation.errors import CheckError, SpecError
from tdx.foundation.html_repr import repr_html
from tdx.foundation.keys import NestedKey
from tdx.specs.arguments import (
    TORCH_FUNCTIONS,
    Device,
    View,
    as_device,
    as_dtype,
    as_size,
    check_dimension,
    ends_with,
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
from tdx.specs.intervals import cast
from tdx.specs.spaces import Box, indent


class TensorSpec:
    """Describes a tensor, or a TensorDict (``Composite``), without holding data.

    A spec also contains values with extra leading dimensions, so ``spec.rand((4,))`` is in
    ``spec``. Setting ``shape``, ``device`` or ``dtype`` changes a spec as ``replace`` does.

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
    def shape(self, shape: Any) -> None:
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
        """Take over the state of another spec of the same family."""
        self.__class__, self.__dict__ = type(other), dict(other.__dict__)

    @property
    def space(self) -> Box | None:
        """Domain of the values; ``None`` if it is not restricted."""
        return None

    @property
    def ndim(self) -> int:
        """Number of dimensions of the values."""
        return len(self.shape)

    # Samples

    def rand(self, shape: Any = ()) -> Any:
        """Sample a value from torch's global generator.

        Args:
            shape: Leading dimensions to add before the shape of the spec.
        """
        raise NotImplementedError

    def sample(self, shape: Any = ()) -> Any:
        """Sample a value: alias of ``rand``."""
        return self.rand(shape)

    def zero(self, shape: Any = ()) -> Any:
        """Return zeros, even if they are outside the space; arguments as for ``rand``."""
        return torch.zeros(self._full_shape(shape), dtype=self._dtype, device=self._device)

    def zeros(self, shape: Any = ()) -> Any:
        """Return zeros: alias of ``zero``."""
        return self.zero(shape)

    def one(self, shape: Any = ()) -> Any:
        """Return ones, even if they are outside the space; arguments as for ``rand``."""
        return torch.ones(self._full_shape(shape), dtype=self._dtype, device=self._device)

    def ones(self, shape: Any = ()) -> Any:
        """Return ones: alias of ``one``."""
        return self.one(shape)

    def _full_shape(self, shape: Any) -> torch.Size:
        own = replace_unknown_sizes(self.shape) if -1 in self.shape else self.shape
        if shape is None or shape == ():
            return own
        return torch.Size((*((shape,) if isinstance(shape, int) else shape), *own))

    # Membership

    def is_in(self, val: Any) -> bool:
        """Return True if a value has the spec's dtype, device and trailing shape, and is in it."""
        return self._explain_mismatch(val) is None and self._contains(val)

    def contains(self, item: Any) -> bool:
        """Return True if a value belongs to the spec: alias of ``is_in``."""
        return self.is_in(item)

    def __contains__(self, item: Any) -> bool:
        return self.is_in(item)

    def why_not_in(self, val: Any) -> str | None:
        """Explain briefly why a value is not in the spec; ``None`` if it is."""
        mismatch = self._explain_mismatch(val)
        if mismatch is not None:
            return mismatch
        return None if self._contains(val) else f"a value is outside {self._describe_space()}"

    def assert_is_in(self, value: Any) -> None:
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

    def project(self, val: Any) -> Any:
        """Return the nearest value in the spec; a value that is in the spec itself.

        Raises:
            SpecError: The shape of the value does not end with the spec's.
        """
        if self._explain_mismatch(val) is not None:
            val = self._cast(val)
        return val if self._contains(val) else self._project(val)

    def _cast(self, val: Any) -> Tensor:
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

    def _explain_mismatch(self, val: Any) -> str | None:
        """Compare type, dtype, shape and device of a value with the spec's."""
        if not isinstance(val, Tensor):
            return f"expected a tensor, got a {type(val).__name__}"
        if val.dtype != self._dtype:
            return f"expected dtype {self._dtype}, got {val.dtype}"
        if not ends_with(val.shape, self._shape):
            return f"expected shape {self._shape}, got {val.shape}"
        if self._device is not None and not is_same_device(val.device, self._device):
            return f"expected device {self._device}, got {val.device}"
        return None

    def _contains(self, val: Tensor) -> bool:
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

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """Convert a value to a tensor with the spec's dtype, shape and device.

        Args:
            val: A number, nested lists, an array or a tensor.
            ignore_device: True to leave a tensor on its device.

        Raises:
            SpecError: The shapes differ by more than sizes of 1, or an integer does not fit.
        """
        assert self._dtype is not None
        found = to_dtype(to_tensor(val), self._dtype)
        if not ignore_device:
            found = found.to(self._device)
        return match_shape(found, self._shape)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """Convert a value of the spec to an array.

        Args:
            val: A value of the spec.
            safe: True to check first that it is one.
        """
        if safe:
            self.assert_is_in(val)
        return to_array(val)

    def index(self, index: Any, tensor_to_index: Any) -> Any:
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

    def enumerate(self, use_mask: bool = False) -> Any:
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

    def apply_view(self, view: View) -> Any:
        """Return the spec of ``view(value)``.

        Args:
            view: Function that reshapes or indexes a tensor and does not change its elements.

        Raises:
            SpecError: The shape does not support the view.
        """
        return self.replace(shape=self._view_shape(view))

    def _view_shape(self, view: View) -> torch.Size:
        return view_shape(view, self._shape, type(self).__name__)

    def expand(self, *shape: Any) -> Any:
        """Return the spec of expanded values, as ``Tensor.expand``."""
        sizes = size_from_args(shape)
        return self.apply_view(lambda tensor: tensor.expand(sizes))

    def squeeze(self, dim: int | None = None) -> Any:
        """Return the spec without a dimension of size 1, or without all of them."""
        if dim is None:
            return self.apply_view(torch.squeeze)
        return self.apply_view(lambda tensor: tensor.squeeze(dim))

    def unsqueeze(self, dim: int) -> Any:
        """Return the spec with a new dimension of size 1."""
        return self.apply_view(lambda tensor: tensor.unsqueeze(dim))

    def reshape(self, *shape: Any) -> Any:
        """Return the spec of reshaped values."""
        sizes = size_from_args(shape)
        return self.apply_view(lambda tensor: tensor.reshape(sizes))

    def view(self, *shape: Any) -> Any:
        """Return the spec of reshaped values: alias of ``reshape``."""
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Return the spec with a range of dimensions merged."""
        return self.apply_view(lambda tensor: tensor.flatten(start_dim, end_dim))

    def unflatten(self, dim: int, sizes: Any) -> Any:
        """Return the spec with a dimension split into several."""
        return self.apply_view(lambda tensor: tensor.unflatten(dim, tuple(sizes)))

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """Return the specs along a dimension."""
        where = check_dimension(dim, self._shape)
        return tuple(self[(slice(None),) * where + (i,)] for i in range(self._shape[where]))

    def index_select(self, dim: int, index: Any) -> Any:
        """Return the spec of some entries of a dimension, as ``torch.index_select``."""
        return self[(slice(None),) * check_dimension(dim, self._shape) + (index,)]

    def make_neg_dim(self, dim: int) -> Any:
        """Return the spec with the size of a dimension unknown (-1)."""
        sizes = list(self._shape)
        sizes[check_dimension(dim, self._shape)] = -1
        return self.replace(shape=torch.Size(sizes))

    def __getitem__(self, index: Any) -> Any:
        parts = parse_index(index, self._shape, type(self).__name__)
        return self.apply_view(lambda tensor: tensor[parts])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))

    def __len__(self) -> int:
        return self._shape[check_dimension(0, self._shape)]

    def __bool__(self) -> bool:
        return True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        function = TORCH_FUNCTIONS.get(func)
        return NotImplemented if function is None else function(*args, **(kwargs or {}))

    # Copies

    def replace(self, **changes: Any) -> Any:
        """Return a copy with constructor arguments changed, such as ``shape``."""
        return type(self)(**{**self._arguments(), **changes})

    def _arguments(self) -> dict[str, Any]:
        return {"shape": self._shape, "device": self._device, "dtype": self._dtype}

    def clone(self) -> Self:
        """Return an independent copy. Tensors, which are never modified, are shared."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def to(self, dest: torch.dtype | Device) -> Any:
        """Return the spec on a device or in a dtype; the spec itself if nothing changes."""
        if is_dtype(dest):
            dtype = as_dtype(dest)  # type: ignore[arg-type]
            return self if dtype == self._dtype else self.replace(dtype=dtype)
        device = as_device(dest)  # type: ignore[arg-type]
        return self if device == self._device else self.replace(device=device)

    def cpu(self) -> Any:
        """Return the spec on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Device | None = None) -> Any:
        """Return the spec on a CUDA device; the current one by default."""
        return self.to(f"cuda:{device}" if isinstance(device, int) else device or "cuda")

    def clear_device_(self) -> TensorSpec:
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

    def _has_same_space(self, other: Any) -> bool:
        return bool(self.space == other.space)

    def __repr__(self) -> str:
        body = ",\n".join(f"{name}={value}" for name, value in self._repr_fields())
        return f"{type(self).__name__}(\n{indent(body)})"

    def _repr_fields(self) -> list[tuple[str, object]]:
        names = ("shape", "space", "device", "dtype", "domain")
        return [(name, getattr(self, name)) for name in names]
