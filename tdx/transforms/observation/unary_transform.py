"""Map entries by a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensordict import NonTensorData, NonTensorStack, TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.spec_maps import map_leaves
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import read
from tdx.specs import Composite, NonTensor, TensorSpec, Unbounded


class UnaryTransform(Transform):
    """Map entries of the env's output or input by a function.

    The function gets an entry ``[*B, ...]``; of an entry that is not a tensor, such as a string,
    it gets the value itself. It may return a tensor ``[*B, ...]``, a TensorDict or any other
    value. The specs are those of what it returns for the zeros of the entry's spec.

    Args:
        in_keys: Entries of the env's output to read.
        out_keys: Keys to write, one per in-key.
        in_keys_inv: Entries of the env's input to write. Default: no keys.
        out_keys_inv: Keys that the policy writes; ``in_keys_inv`` by default.
        fn: Function of one entry, which it must not change.
        inv_fn: Function for the env's input. ``None``: ``fn``.
        use_raw_nontensor: Pass entries that are not tensors as ``NonTensorData`` or
            ``NonTensorStack``.

    Raises:
        ArgumentError: ``fn`` or ``inv_fn`` is not a function, or the numbers of keys differ.
        KeyNotFoundError: An entry is missing.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import UnaryTransform
        >>> exponential = UnaryTransform(["a"], ["b"], fn=torch.exp)
        >>> exponential(TensorDict(a=torch.zeros(1)))["b"]
        tensor([1.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.CONTROL
    _requires_keys = True

    def __init__(
        self,
        in_keys: Sequence[NestedKey],
        out_keys: Sequence[NestedKey],
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
        *,
        fn: Callable[[Any], Any],
        inv_fn: Callable[[Any], Any] | None = None,
        use_raw_nontensor: bool = False,
    ) -> None:
        for name, function in (("fn", fn), ("inv_fn", inv_fn)):
            if not callable(function) and (name == "fn" or function is not None):
                raise ArgumentError(
                    f"{name} must be a function of an entry, got {function!r}",
                    hint="for example fn=torch.exp",
                )
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.fn, self.inv_fn = fn, inv_fn
        self.use_raw_nontensor = use_raw_nontensor

    # Data

    def _apply_transform(self, tensor: Any) -> Any:
        return self.fn(self._plain(tensor))

    def _inv_apply_transform(self, tensor: Any) -> Any:
        return (self.fn if self.inv_fn is None else self.inv_fn)(self._plain(tensor))

    def _plain(self, value: Any) -> Any:
        """Return the Python value of an entry that is not a tensor."""
        if self.use_raw_nontensor or not isinstance(value, (NonTensorData, NonTensorStack)):
            return value
        if isinstance(value, NonTensorData) and not value.batch_size:
            return value.data
        return value.tolist()

    def _map(
        self, tensordict: TensorDictBase, pairs: Any, function: Callable[[Any], Any], strict: bool
    ) -> TensorDictBase:
        for source, target in pairs:
            value = read(tensordict, source)
            if value is not None:
                tensordict.set(target, function(value))
            elif strict and not self._missing_tolerance:
                raise self._missing_key(source, tensordict)
        return tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._map(next_tensordict, self._pairs, self._apply_transform, strict=True)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._map(tensordict_reset, self._pairs, self._apply_transform, strict=False)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._invert(tensordict, strict=True)

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._invert(tensordict, strict=False)

    def _invert(self, tensordict: TensorDictBase, strict: bool) -> TensorDictBase:
        pairs = [(outer, inner) for inner, outer in self._inverse_pairs]
        return self._map(tensordict, pairs, self._inv_apply_transform, strict)

    @property
    def invertible(self) -> bool:
        """True if the env's input is mapped."""
        return bool(self._inverse_pairs)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map stored data ``[*B]``, in place."""
        return self._call(tensordict)

    # Specs

    def _mapped_spec(self, spec: TensorSpec) -> TensorSpec:
        return _spec_of(self._apply_transform(spec.zero()), spec)

    def _map_spec(self, spec: Composite) -> Composite:
        return map_leaves(spec, self._pairs, self._mapped_spec)

    def _map_inverse_spec(self, spec: Composite) -> Composite:
        return map_leaves(spec, self._inverse_pairs, self._mapped_spec, rename=True)

    def __repr__(self) -> str:
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        return f"{type(self).__name__}(fn={name}, keys={self.in_keys})"


def _spec_of(value: Any, before: TensorSpec) -> TensorSpec:
    """Return the spec of a value that an entry of a spec is mapped to."""
    if isinstance(value, Tensor):
        return Unbounded(value.shape, before.device, value.dtype)
    if isinstance(value, (NonTensorData, NonTensorStack)):
        return NonTensor(value.batch_size, before.device, example_data=value.tolist())
    if isinstance(value, TensorDictBase):
        entries = {key: _spec_of(each, before) for key, each in value.items()}
        return Composite(entries, shape=value.batch_size, device=before.device)
    return NonTensor((), before.device, example_data=value)
