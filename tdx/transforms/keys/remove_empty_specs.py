"""Drop groups without entries."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.kernels import ChunkKernel
from tdx.core.transforms.spec_maps import without_keys
from tdx.foundation.keys import split_key
from tdx.specs import Composite


class RemoveEmptySpecs(Transform):
    """Drop groups without entries, such as those of agents without observations.

    Groups of groups without entries are dropped as well, from the env's output, from its specs
    and from stored data. In the env's input the empty groups of its state spec are added, since
    the policy does not write them.

    Example:
        >>> from tensordict import TensorDict
        >>> from tdx import RemoveEmptySpecs
        >>> stored = TensorDict({"blind": {"camera": {}}, "seeing": {"steps": 3}})
        >>> list(RemoveEmptySpecs()(stored).keys())
        ['seeing']
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(self) -> None:
        super().__init__()
        self._input_groups: list[tuple[str, ...]] = []

    @property
    def invertible(self) -> bool:
        """True if the env inside takes groups without entries."""
        return bool(self._input_groups)

    # Data

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        for key in _empty_groups(next_tensordict):
            # A group inside one that is dropped is gone.
            next_tensordict.pop(key, None)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for key in self._input_groups:
            if tensordict.get(key, None) is None:
                tensordict.set(key, tensordict.empty(recurse=False))
        return tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Drop the groups without entries of stored data, in place."""
        return self._call(tensordict)

    def make_chunk_kernel(self) -> ChunkKernel | None:
        # A chunk has entries only: groups without any are not among its columns.
        return None

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._input_groups = _empty_groups(input_spec["full_state_spec"])

    def _map_spec(self, spec: Any) -> Any:
        return without_keys(spec, _empty_groups(spec)) if isinstance(spec, Composite) else spec

    def _map_inverse_spec(self, spec: Any) -> Any:
        return self._map_spec(spec)

    def __repr__(self) -> str:
        return "RemoveEmptySpecs()"


def _empty_groups(nested: Any) -> list[tuple[str, ...]]:
    """Return the keys of all groups without entries, outer ones first."""
    entries = [split_key(key) for key in nested.keys(True, True)]
    used = {entry[:depth] for entry in entries for depth in range(1, len(entry) + 1)}
    groups = {split_key(key) for key in nested.keys(True)} - used
    return sorted(groups, key=len)
