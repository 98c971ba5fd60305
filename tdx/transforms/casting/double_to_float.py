"""Cast doubles to floats."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.errors import ChainError, Where
from tdx.keys import NestedKey, format_key, normal_key
from tdx.specs import Composite, TensorSpec
from tdx.transforms.base import TimeBehaviour, Transform

OBSERVED = ("full_observation_spec", "full_reward_spec")
GIVEN = ("full_action_spec", "full_state_spec")


class DoubleToFloat(Transform):
    """Cast float64 to float32 on the way out, and back to float64 on the way in.

    Args:
        in_keys: the entries cast on the way out; by default every float64 observation and
            reward. Where they are given, nothing else is cast.
        out_keys: the keys written; the in-keys by default.
        in_keys_inv: the env's inputs that are cast on the way in; by default every float64
            action and state, or none where ``in_keys`` are given.
        out_keys_inv: their names outside; ``in_keys_inv`` by default.

    Raises:
        ArgumentError: the numbers of keys differ.
        ChainError: an entry asked for is not float64 (when its specs are computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import DoubleToFloat
        >>> DoubleToFloat()(TensorDict(observation=torch.zeros(1).double()))["observation"].dtype
        torch.float32
    """

    time_behaviour = TimeBehaviour.POINTWISE

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self._finds_keys = in_keys is None
        self._finds_inverse_keys = in_keys is None and in_keys_inv is None
        # A state that was found in the specs need not be given at every step.
        self.set_missing_tolerance(self._finds_keys)

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.float()

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor.double()

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return spec.to(torch.float32)

    _inv_transform_spec = _transform_spec

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if self._finds_keys:
            found = _doubles(output_spec, OBSERVED)
            self._set_keys(found, found)
        else:
            _check_doubles(output_spec, self.in_keys)
        if self._finds_inverse_keys:
            found = _doubles(input_spec, GIVEN)
            self._set_inverse_keys(found, found)
        else:
            _check_doubles(input_spec, self.in_keys_inv)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Cast stored data: the in-keys, or without any every float64 entry, in place."""
        if not self._finds_keys:
            return super().forward(tensordict)
        for key, value in tensordict.items(True, True):
            if isinstance(value, Tensor) and value.dtype is torch.float64:
                tensordict.set(key, value.float())
        return tensordict


def _doubles(spec: Composite, parts: Sequence[str]) -> list[NestedKey]:
    return [
        normal_key(key)
        for part in parts
        for key, leaf in spec[part].items(True, True)
        if leaf.dtype is torch.float64
    ]


def _check_doubles(spec: Composite, keys: Sequence[NestedKey]) -> None:
    for key in keys:
        for part in spec.values():
            leaf = part.get(key, None)
            if leaf is not None and leaf.dtype is not torch.float64:
                raise ChainError(
                    f"DoubleToFloat casts float64, and {format_key(key)!r} is {leaf.dtype}",
                    hint="leave the keys out: then it casts exactly the float64 entries",
                    where=Where(key=key),
                )
