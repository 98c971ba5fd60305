"""A spec of TensorDicts: a nested mapping from keys to specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch

from tdx.errors import SpecError
from tdx.keys import NestedKey
from tdx.specs.arguments import Device, as_device, as_size, is_dtype, size_from
from tdx.specs.composite_values import CompositeValues
from tdx.specs.mapping import SpecMapping
from tdx.specs.printing import describe_entries
from tdx.specs.shaping import without_ellipsis


class Composite(CompositeValues):
    """Describes a TensorDict: which keys it has, and the spec of each.

    Args:
        *args: one mapping from keys to specs. Values may be dicts, which become nested
            composites; keys may be tuples, which reach into them; a spec may be ``None``.
        shape: batch size; every entry's shape begins with it.
        device: device of every entry; ``None`` where they may differ.
        data_cls: class of the TensorDicts to make, where it is another one.
        step_mdp_static: marks entries that a step leaves as they are.
        names: names of the batch dimensions.
        **kwargs: entries by keyword.

    Raises:
        SpecError: an entry's shape does not begin with ``shape``, or it is on another device.

    Example:
        >>> from tdx.specs import Unbounded
        >>> spec = Composite(observation=Unbounded(3), agents={"reward": Unbounded(1)})
        >>> spec["agents", "reward"].shape
        torch.Size([1])
        >>> spec.zero()["observation"]
        tensor([0., 0., 0.])
    """

    def __init__(
        self,
        *args: Any,
        shape: Any = None,
        device: Device | None = None,
        data_cls: type | None = None,
        step_mdp_static: bool = False,
        names: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> None:
        self._shape = as_size(() if shape is None else shape)
        self._device = None if device is None else as_device(device)
        self._dtype = None
        self._specs = {}
        self.data_cls = data_cls
        self.step_mdp_static = step_mdp_static
        self._names = None if names is None else list(names)
        if len(args) > 1:
            raise SpecError(
                "a Composite takes one mapping, and entries by keyword",
                hint="write Composite({'key': spec}), or Composite(key=spec)",
            )
        for source in (*args, kwargs):
            for key, spec in source.items():
                self.set(key, spec)

    def _like(self, entries: dict[str, Any], shape: torch.Size, **changes: Any) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.__dict__.pop("_lock_parents", None)
        made._locked = False
        made._specs = entries
        if shape != made._shape:
            made._names = None
        made._shape = shape
        made.__dict__.update(changes)
        return made

    def _child(self, entries: Mapping[Any, Any]) -> SpecMapping:
        return Composite(entries, shape=self._shape, device=self._device)

    def _reshaped_batch(self, shape: torch.Size) -> SpecMapping:
        copied = self.clone(recurse=False)
        copied.shape = shape
        return copied

    @property
    def shape(self) -> torch.Size:
        """The batch size, which every entry's shape begins with."""
        return self._shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        self._check_unlocked()
        new = as_size(shape)
        entries = {}
        for key, spec in self._specs.items():
            if isinstance(spec, SpecMapping) and spec.ndim < len(new):
                spec = spec._reshaped_batch(new)
            if spec is not None and spec.shape[: len(new)] != new:
                raise SpecError(
                    f"its shape {tuple(spec.shape)} does not begin with {tuple(new)}",
                    hint="expand the entry first, or use a shape that all entries begin with",
                ).at(key=key)
            entries[key] = spec
        self._specs, self._shape = entries, new

    @property
    def batch_size(self) -> torch.Size:
        """The batch size: another name of ``shape``."""
        return self.shape

    @batch_size.setter
    def batch_size(self, shape: Any) -> None:
        self.shape = shape

    @property
    def device(self) -> torch.device | None:
        """Device of every entry; ``None`` where they may differ."""
        return self._device

    @device.setter
    def device(self, device: Device | None) -> None:
        self._check_unlocked()
        if device is None:
            self.clear_device_()
            return
        moved = self.to(device)
        self._specs, self._device = moved._specs, moved._device

    def clear_device_(self) -> Self:
        """Forget the device, here and in nested composites."""
        self._device = None
        for spec in self._composites():
            spec.clear_device_()
        return self

    @property
    def names(self) -> list[str | None]:
        """Names of the batch dimensions."""
        return [None] * len(self._shape) if self._names is None else list(self._names)

    @names.setter
    def names(self, names: Sequence[str | None] | None) -> None:
        self._names = None if names is None else list(names)

    def refine_names(self, *names: Any) -> Self:
        """Name the batch dimensions; an ellipsis keeps what is there."""
        if Ellipsis in names:
            at = names.index(Ellipsis)
            kept = self.names[at : len(self._shape) - (len(names) - at - 1)]
            names = (*names[:at], *kept, *names[at + 1 :])
        self._names = list(names)
        return self

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._specs[index] if index in self._specs else self.get(index)
        if (
            isinstance(index, tuple)
            and index
            and all(isinstance(part, (str, tuple)) for part in index)
        ):
            return self.get(index)
        lead = self._viewed_shape(lambda tensor: tensor[index])
        full = without_ellipsis(index, len(self._shape))
        return self._mapped(lambda spec: spec[full], lead)

    def _mapped(
        self, change: Callable[[Any], Any], shape: torch.Size | None = None, **changes: Any
    ) -> Self:
        entries = {key: None if spec is None else change(spec) for key, spec in self._specs.items()}
        return self._like(entries, self._shape if shape is None else shape, **changes)

    # shapes

    def expand(self, *shape: Any) -> Self:
        """The spec with the batch size expanded; the entries' own dimensions stay."""
        sizes = size_from(shape)
        lead = self._viewed_shape(lambda tensor: tensor.expand(sizes))
        ndim = len(self._shape)
        return self._mapped(lambda spec: spec.expand(*lead, *spec.shape[ndim:]), lead)

    def squeeze(self, dim: int | None = None) -> Self:
        """The spec without a batch dimension of size 1, or without all of them."""
        if dim is None:
            kept = self
            for i in reversed(range(len(self._shape))):
                if self._shape[i] == 1:
                    kept = kept.squeeze(i)
            return kept if kept is not self else self.clone()
        lead = self._viewed_shape(lambda tensor: tensor.squeeze(dim))
        if lead == self._shape:
            return self.clone()
        where = dim % len(self._shape)
        return self._mapped(lambda spec: spec.squeeze(where), lead)

    def unsqueeze(self, dim: int) -> Self:
        """The spec with a new batch dimension of size 1."""
        lead = self._viewed_shape(lambda tensor: tensor.unsqueeze(dim))
        where = dim % len(lead)
        return self._mapped(lambda spec: spec.unsqueeze(where), lead)

    def reshape(self, *shape: Any) -> Self:
        """The spec with the batch size reshaped; the entries' own dimensions stay."""
        sizes = size_from(shape)
        lead = self._viewed_shape(lambda tensor: tensor.reshape(sizes))
        ndim = len(self._shape)
        return self._mapped(lambda spec: spec.reshape(*lead, *spec.shape[ndim:]), lead)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """The spec with the batch dimensions from one to another made one."""
        return self.reshape(self._viewed_shape(lambda tensor: tensor.flatten(start_dim, end_dim)))

    def unflatten(self, dim: int, sizes: Any) -> Self:
        """The spec with a batch dimension split into several."""
        return self.reshape(self._viewed_shape(lambda tensor: tensor.unflatten(dim, tuple(sizes))))

    def make_neg_dim(self, dim: int) -> Self:
        """The spec with a batch dimension of unknown size."""
        where = dim % len(self._shape)
        sizes = [-1 if i == where else size for i, size in enumerate(self._shape)]
        return self._mapped(lambda spec: spec.make_neg_dim(where), torch.Size(sizes))

    # copies

    def clone(self, recurse: bool = True) -> Self:
        """A copy that changes of this one do not reach, unlocked.

        Args:
            recurse: ``False`` to share the entries, nested composites among them.
        """
        entries = dict(self._specs)
        if recurse:
            entries = {key: None if spec is None else spec.clone() for key, spec in entries.items()}
        return self._like(entries, self._shape)

    def empty(self) -> Self:
        """The composite without its entries."""
        return self._like({}, self._shape)

    def separates(self, *keys: NestedKey, default: Any = None) -> Composite | None:
        """Take some entries out into a composite of their own.

        Args:
            *keys: which; those that are not there are left out.
            default: what to return where none is there.
        """
        found = {key: self.pop(key) for key in keys if key in self}
        return self.empty().update(found) if found else default

    def select(self, *keys: NestedKey) -> Self:
        """A copy with only some entries."""
        return self.empty().update({key: _cloned(self.get(key)) for key in keys})

    def exclude(self, *keys: NestedKey) -> Self:
        """A copy without some entries; keys that are not there are ignored."""
        kept = self.clone()
        for key in keys:
            kept.pop(key, None)
        return kept

    def replace(self, **changes: Any) -> Composite:
        """A copy with some of ``shape``, ``device`` and ``names`` changed."""
        arguments: dict[str, Any] = {
            "shape": self._shape,
            "device": self._device,
            "data_cls": self.data_cls,
            "step_mdp_static": self.step_mdp_static,
        }
        return Composite(self._specs, **{**arguments, **changes})

    def to(self, dest: torch.dtype | Device) -> Self:
        """The spec with every entry on a device, or in a dtype; itself where it is there."""
        if is_dtype(dest):
            return self._mapped(lambda spec: spec.to(dest))
        device = as_device(dest)  # type: ignore[arg-type]
        if device == self._device:
            return self
        return self._mapped(lambda spec: spec.to(device), _device=device)

    # comparison and printing

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Composite) or type(other) is not type(self):
            return False
        return (
            self._shape == other._shape
            and self._device == other._device
            and self.data_cls is other.data_cls
            and self._specs == other._specs
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        ending = f"device={self._device}, shape={self._shape}"
        return describe_entries(type(self).__name__, self._specs.items(), ending)


def _cloned(spec: Any) -> Any:
    return None if spec is None else spec.clone()


def is_key(index: Any) -> bool:
    """Whether an index is a key rather than a place in the batch."""
    if isinstance(index, tuple):
        return bool(index) and all(is_key(part) for part in index)
    return isinstance(index, str)
