"""The values of a ``Composite``: TensorDicts made, checked, projected and converted."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from tdx.errors import SpecError
from tdx.keys import NestedKey, format_key, key_parts
from tdx.specs.mapping import SpecMapping, inside


class CompositeValues(SpecMapping):
    """What a composite does with values: each entry by its spec."""

    data_cls: Any = None
    _names: list[str | None] | None = None

    def _made(self, method: str, shape: Any) -> Any:
        fields = {
            key: getattr(spec, method)(shape)
            for key, spec in self._specs.items()
            if spec is not None
        }
        return self._collected(fields, shape, self._device)

    def _collected(self, fields: dict[str, Any], shape: Any, device: torch.device | None) -> Any:
        """A TensorDict of these entries, in the class asked for."""
        sizes = self._sizes(shape)
        names = None if self._names is None else [*[None] * (len(sizes) - self.ndim), *self._names]
        made = TensorDict(fields, batch_size=sizes, device=device, names=names)
        return made if self.data_cls is None else self.data_cls.from_tensordict(made)

    def rand(self, shape: Any = ()) -> Any:
        """A TensorDict of random values, drawn entry by entry in order.

        Args:
            shape: leading dimensions before the batch size.
        """
        return self._made("rand", shape)

    def zero(self, shape: Any = ()) -> Any:
        """A TensorDict of zeros.

        Args:
            shape: leading dimensions before the batch size.
        """
        return self._made("zero", shape)

    def one(self, shape: Any = ()) -> Any:
        """A TensorDict of ones.

        Args:
            shape: leading dimensions before the batch size.
        """
        return self._made("one", shape)

    def rand_update(self, val: TensorDictBase) -> TensorDictBase:
        """Put random values into a TensorDict, in place."""
        return self._fill(val, "rand")

    def zeros_update(self, val: TensorDictBase) -> TensorDictBase:
        """Put zeros into a TensorDict, in place."""
        return self._fill(val, "zero")

    def ones_update(self, val: TensorDictBase) -> TensorDictBase:
        """Put ones into a TensorDict, in place."""
        return self._fill(val, "one")

    def _fill(self, val: TensorDictBase, method: str) -> TensorDictBase:
        lead = val.batch_size[: len(val.batch_size) - len(self._shape)]
        return val.update(getattr(self, method)(lead))

    # membership

    def is_in(self, val: Any) -> bool:
        """Whether a TensorDict or a dict has every key, with a value of its spec; others may be."""
        for key, spec in self._specs.items():
            if spec is None:
                continue
            entry = _entry(val, key)
            if entry is None:
                if isinstance(spec, CompositeValues) and spec.is_empty(recurse=True):
                    continue
                return False
            if not spec.is_in(entry):
                return False
        return True

    def why_not_in(self, val: Any) -> str | None:
        """What keeps a TensorDict out of the spec, with the key; ``None`` for one that is in."""
        for key, spec in self.items(include_nested=True, leaves_only=True):
            if spec is None:
                continue
            name = format_key(key)
            entry = _entry(val, key)
            if entry is None:
                return f"key {name!r} is missing"
            reason = spec.why_not_in(entry)
            if reason is not None:
                return f"key {name!r}: {reason}"
        return None

    def project(self, val: Any) -> Any:
        """A TensorDict with every entry in its spec; the one given stays as it is.

        Raises:
            SpecError: a key is missing, or the shape of a value does not end in its spec's.
        """
        projected = val.copy()
        for key, spec in self._specs.items():
            if spec is None:
                continue
            entry = _entry(val, key)
            if entry is None:
                raise SpecError("it is missing", hint="add the entry to the value").at(key=key)
            try:
                projected[key] = spec.project(entry)
            except SpecError as error:
                raise inside(key, error) from None
        return projected

    def type_check(self, value: Any, selected_keys: Any = None) -> None:
        """Check the dtypes of a TensorDict's entries.

        Args:
            value: the TensorDict.
            selected_keys: a key, or several; all where it is left out.

        Raises:
            SpecError: an entry has another dtype; it names the key.
        """
        if selected_keys is None:
            keys = list(self.keys(True, True))
        else:
            keys = [selected_keys] if isinstance(selected_keys, (str, tuple)) else selected_keys
        for key in keys:
            spec = self.get(key)
            if spec is not None:
                spec.type_check(_entry(value, key), key)

    # conversion

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """A mapping as a TensorDict, every entry as its spec encodes it.

        Args:
            val: a dict or a TensorDict; it may leave out keys.
            ignore_device: leave tensors where they are.

        Raises:
            KeyNotFoundError: it has a key that the spec has not.
            SpecError: an entry cannot be encoded; it names the key.
        """
        fields = {}
        for key, entry in val.items():
            try:
                fields[key] = self[key].encode(entry, ignore_device=ignore_device)
            except SpecError as error:
                raise inside(key, error) from None
        device = None if ignore_device else self._device
        return self._collected(fields, (), device)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """A TensorDict as a nested dict of arrays."""
        if safe:
            self.assert_is_in(val)
        return {key: self[key].to_numpy(entry) for key, entry in val.items()}

    def cardinality(self) -> float:
        """The product over the entries."""
        count: float = 1
        for spec in self._specs.values():
            count *= 1 if spec is None else spec.cardinality()
        return count

    def enumerate(self, use_mask: bool = False) -> Any:
        """Every combination of the entries' values along a new first dimension."""
        named = [(key, spec) for key, spec in self._specs.items() if spec is not None]
        rows = [spec.enumerate(use_mask) for _, spec in named]
        counts = [len(row) for row in rows]
        if not rows:
            return self.zero((1,))
        picks = torch.cartesian_prod(*(torch.arange(count) for count in counts))
        picks = picks.reshape(-1, len(rows))
        fields = {
            key: row[picks[:, i].to(row.device)] if row.device else row[picks[:, i]]
            for i, ((key, _), row) in enumerate(zip(named, rows, strict=True))
        }
        return TensorDict(fields, batch_size=(len(picks), *self._shape), device=self._device)


def _entry(val: Any, key: NestedKey) -> Any:
    for part in key_parts(key):
        if not hasattr(val, "get"):
            return None
        val = val.get(part, None)
    return val
