"""What every spec is: a description of values by shape, dtype, device and space."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from tdx.errors import CheckError, SpecError
from tdx.keys import NestedKey
from tdx.specs.arguments import Device, as_device, as_dtype, is_dtype, safe_size
from tdx.specs.bounds import cast
from tdx.specs.boxes import Box
from tdx.specs.encoding import to_array, to_dtype, to_tensor
from tdx.specs.printing import describe_fields
from tdx.specs.shaping import ShapeOperations


class TensorSpec(ShapeOperations):
    """Describes a tensor, or with ``Composite`` a TensorDict, without holding one.

    A leaf is a value: nothing changes it after it was made, except ``update_mask`` and
    ``set_provisional_n``. Values with extra leading dimensions belong to a spec too, so that
    ``spec.rand((4,))`` lies in ``spec``.

    Args:
        shape: shape of the values; -1 for a size that is not known.
        device: device of the values.
        dtype: dtype of the values.

    Example:
        >>> from tdx.specs import Bounded
        >>> spec = Bounded(-1.0, 1.0, shape=(3,))
        >>> spec.is_in(spec.rand())
        True
    """

    domain: str | None = None
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

    @property
    def device(self) -> torch.device | None:
        """Device of the values."""
        return self._device

    @property
    def dtype(self) -> torch.dtype | None:
        """Dtype of the values."""
        return self._dtype

    @property
    def space(self) -> Box | None:
        """What values are let through; ``None`` where there is nothing to say."""
        return None

    @property
    def ndim(self) -> int:
        """How many dimensions the values have."""
        return len(self.shape)

    def ndimension(self) -> int:
        """How many dimensions the values have."""
        return self.ndim

    # values

    def rand(self, shape: Any = ()) -> Any:
        """A random value, from torch's global generator.

        Args:
            shape: leading dimensions before the spec's own.
        """
        raise NotImplementedError

    def sample(self, shape: Any = ()) -> Any:
        """A random value: another name of ``rand``."""
        return self.rand(shape)

    def zero(self, shape: Any = ()) -> Any:
        """A value of zeros, whether or not the space has it.

        Args:
            shape: leading dimensions before the spec's own.
        """
        return torch.zeros(self._sizes(shape), dtype=self._dtype, device=self._device)

    def zeros(self, shape: Any = ()) -> Any:
        """A value of zeros: another name of ``zero``."""
        return self.zero(shape)

    def one(self, shape: Any = ()) -> Any:
        """A value of ones, whether or not the space has it.

        Args:
            shape: leading dimensions before the spec's own.
        """
        return torch.ones(self._sizes(shape), dtype=self._dtype, device=self._device)

    def ones(self, shape: Any = ()) -> Any:
        """A value of ones: another name of ``one``."""
        return self.one(shape)

    def _sizes(self, shape: Any) -> torch.Size:
        own = safe_size(self.shape)
        if shape is None or shape == ():
            return own
        return torch.Size((*((shape,) if isinstance(shape, int) else shape), *own))

    # membership

    def is_in(self, val: Any) -> bool:
        """Whether a value belongs to the spec: its trailing shape, dtype, device and numbers."""
        return self._misfit(val) is None and self._contains(val)

    def contains(self, item: Any) -> bool:
        """Whether a value belongs to the spec: another name of ``is_in``."""
        return self.is_in(item)

    def __contains__(self, item: Any) -> bool:
        return self.is_in(item)

    def why_not_in(self, val: Any) -> str | None:
        """What keeps a value out of the spec, in a few words; ``None`` for one that is in."""
        misfit = self._misfit(val)
        if misfit is not None:
            return misfit
        return None if self._contains(val) else f"a value lies outside {self._describe_space()}"

    def assert_is_in(self, value: Any) -> None:
        """Check that a value belongs to the spec.

        Raises:
            CheckError: it does not; the message says why.
        """
        reason = self.why_not_in(value)
        if reason is not None:
            raise CheckError(
                f"the value is not in its {type(self).__name__} spec: {reason}",
                hint="project(value) gives the nearest one that is",
            )

    def type_check(self, value: Tensor, key: NestedKey | None = None) -> None:
        """Check the dtype of a value.

        Raises:
            SpecError: it has another dtype.
        """
        if value.dtype != self._dtype:
            raise SpecError(
                f"expected dtype {self._dtype}, got {value.dtype}",
                hint=f"convert it: value.to({self._dtype})",
            ).at(key=key)

    def project(self, val: Any) -> Any:
        """The value where it is in the spec, else the nearest one that is. Draws nothing.

        Raises:
            SpecError: its shape does not end in the spec's.
        """
        if self._misfit(val) is not None:
            val = self._moved(val)
        return val if self._contains(val) else self._project(val)

    def _moved(self, val: Any) -> Tensor:
        if not isinstance(val, Tensor):
            raise SpecError(
                f"expected a tensor, got a {type(val).__name__}",
                hint="encode the value first: spec.encode(value)",
            )
        if not self._ends_in_shape(val.shape):
            raise SpecError(
                f"expected a shape ending in {self._shape}, got {val.shape}",
                hint="give the value the shape of the spec",
            )
        assert self._dtype is not None
        return cast(val, self._dtype).to(self._device)

    def _misfit(self, val: Any) -> str | None:
        if not isinstance(val, Tensor):
            return f"expected a tensor, got a {type(val).__name__}"
        if val.dtype != self._dtype:
            return f"expected dtype {self._dtype}, got {val.dtype}"
        if not self._ends_in_shape(val.shape):
            return f"expected shape {self._shape}, got {val.shape}"
        if val.device != self._device:
            return f"expected device {self._device}, got {val.device}"
        return None

    def _ends_in_shape(self, shape: torch.Size) -> bool:
        own = self._shape
        if shape == own:
            return True
        ndim = len(own)
        if len(shape) < ndim:
            return False
        return all(
            mine in (-1, theirs)
            for mine, theirs in zip(own, shape[len(shape) - ndim :], strict=True)
        )

    def _contains(self, val: Tensor) -> bool:
        raise NotImplementedError

    def _project(self, val: Tensor) -> Tensor:
        raise NotImplementedError

    def _describe_space(self) -> str:
        return f"the spec's space {self.space}"

    # conversion

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """A value as the spec's tensor: of its dtype, shape and device.

        Args:
            val: a number, nested lists, an array or a tensor.
            ignore_device: leave a tensor where it is.

        Raises:
            SpecError: the shape differs by more than dimensions of size 1, or a number does not
                fit the dtype.
        """
        assert self._dtype is not None
        found = to_dtype(to_tensor(val), self._dtype)
        if not ignore_device:
            found = found.to(self._device)
        return self._shaped(found)

    def _shaped(self, value: Tensor) -> Tensor:
        if value.shape == self._shape or self._ends_in_shape_exactly(value.shape):
            return value
        wanted = safe_size(self._shape)
        if [n for n in value.shape if n != 1] == [n for n in wanted if n != 1]:
            return value.reshape(wanted)
        raise SpecError(
            f"expected a value of shape {self._shape}, got {value.shape}",
            hint="reshape the value; only dims of size 1 are added or removed",
        )

    def _ends_in_shape_exactly(self, shape: torch.Size) -> bool:
        return len(shape) == len(self._shape) and self._ends_in_shape(shape)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """A value as an array.

        Args:
            val: a value of the spec.
            safe: whether to check first that it is one.
        """
        if safe:
            self.assert_is_in(val)
        return to_array(val)

    def index(self, index: Any, tensor_to_index: Any) -> Any:
        """The entries of a tensor that a value of this spec stands for.

        Args:
            index: a value of the spec.
            tensor_to_index: what to take entries from, along its last dimension.

        Raises:
            SpecError: values of this spec are no indices.
        """
        raise SpecError(
            f"a value of {type(self).__name__} is no index",
            hint="use a spec of categories, such as Categorical or OneHot",
        )

    def cardinality(self) -> float:
        """How many rows ``enumerate`` has; infinite where it has none."""
        return math.inf

    def enumerate(self, use_mask: bool = False) -> Any:
        """Every value of the spec, along a new first dimension.

        Args:
            use_mask: leave out what the mask forbids.

        Raises:
            SpecError: there are infinitely many.
        """
        raise SpecError(
            f"the values of {type(self).__name__} cannot be enumerated",
            hint="use a spec with finitely many values, such as Categorical",
        )

    def memoize_encode(self, mode: bool = True) -> None:
        """Does nothing: encoding is not memoised."""

    def erase_memoize_cache(self) -> None:
        """Does nothing: encoding is not memoised."""

    # copies

    def replace(self, **changes: Any) -> Any:
        """A copy with some of its constructor's arguments changed.

        Args:
            **changes: arguments of the constructor, such as ``shape``, ``device`` and ``dtype``.
        """
        return type(self)(**{**self._arguments(), **changes})

    def _sized(self, shape: torch.Size) -> TensorSpec:
        return self.replace(shape=shape)

    def _arguments(self) -> dict[str, Any]:
        return {"shape": self._shape, "device": self._device, "dtype": self._dtype}

    def clone(self) -> Self:
        """A copy that changes of this one do not reach; tensors that nobody changes are shared."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def to(self, dest: torch.dtype | Device) -> Any:
        """The spec on a device, or in a dtype; itself where nothing changes."""
        if is_dtype(dest):
            dtype = as_dtype(dest)  # type: ignore[arg-type]
            return self if dtype == self._dtype else self.replace(dtype=dtype)
        device = as_device(dest)  # type: ignore[arg-type]
        return self if device == self._device else self.replace(device=device)

    def cpu(self) -> Any:
        """The spec on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Device | None = None) -> Any:
        """The spec on a CUDA device, the current one where none is given."""
        if device is None:
            return self.to("cuda")
        return self.to(f"cuda:{device}" if isinstance(device, int) else device)

    def clear_device_(self) -> TensorSpec:
        """Forget the device, where a spec can be without one; leaves keep theirs."""
        return self

    # comparison and printing

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec) or type(other) is not type(self):
            return False
        return (
            self._shape == other._shape
            and self._dtype == other._dtype
            and self._device == other._device
            and self._equals(other)
        )

    __hash__ = None  # type: ignore[assignment]

    def _equals(self, other: Any) -> bool:
        return bool(self.space == other.space)

    def __repr__(self) -> str:
        return describe_fields(type(self).__name__, self._fields())

    def _fields(self) -> list[tuple[str, object]]:
        return [
            ("shape", self.shape),
            ("space", self.space),
            ("device", self.device),
            ("dtype", self.dtype),
            ("domain", self.domain),
        ]
