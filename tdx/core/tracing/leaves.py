"""The entries of a TensorDict as they are held, so that the same entry is the same object."""

from __future__ import annotations

from typing import Any

from tensordict import LazyStackedTensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from tdx.core.envs.spec_findings import entry_at
from tdx.keys import NestedKey
from tdx.tensordicts import read, unstack_parts


class Leaves:
    """Reads the leaves of TensorDicts.

    A lazy stack makes a new tensor whenever one is read. Here the same parts give the same one.
    """

    __slots__ = ("_stacks",)

    def __init__(self) -> None:
        self._stacks: dict[tuple[int, ...], tuple[list[Any], Any]] = {}

    def of(self, tensordict: TensorDictBase) -> dict[NestedKey, Any]:
        """Every leaf by its key, without copies; ``next`` is left out."""
        found: dict[NestedKey, Any] = {}
        self._collect(tensordict, (), found)
        return found

    def _collect(
        self, level: TensorDictBase, outer: tuple[str, ...], found: dict[NestedKey, Any]
    ) -> None:
        if isinstance(level, LazyStackedTensorDict):
            self._collect_stack(level, outer, found)
            return
        for name, value in level.items():
            if type(value) is Tensor:
                found[(*outer, name) if outer else name] = value
            elif is_tensor_collection(value) and not getattr(type(value), "_is_non_tensor", False):
                if outer or name != "next":
                    self._collect(value, (*outer, name), found)
            else:
                found[(*outer, name) if outer else name] = value

    def _collect_stack(
        self, level: LazyStackedTensorDict, outer: tuple[str, ...], found: dict[NestedKey, Any]
    ) -> None:
        for key in level.keys(True, True):
            parts = (key,) if isinstance(key, str) else tuple(key)
            if not outer and parts[0] == "next":
                continue
            rows = [read(row, key) for row in unstack_parts(level)]
            token = tuple(map(id, rows))
            known = self._stacks.get(token)
            if known is None:
                # The rows are held as well: an id is free for another object once its own is gone.
                known = self._stacks[token] = (rows, entry_at(level, key))
            names = (*outer, *parts)
            found[names if len(names) > 1 else names[0]] = known[1]


def in_place_count(value: Any) -> int | None:
    """How often a tensor was written in place; ``None`` where that is not counted."""
    if not isinstance(value, Tensor):
        return None
    try:
        return value._version
    except RuntimeError:
        # Tensors made in inference mode do not count.
        return None
