"""Data other than TensorDicts: tensorclasses, and nested dicts, lists and tuples of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_tensorclass
from torch import Tensor

from tdx.foundation.errors import ArgumentError
from tdx.foundation.torch_internals import TreeSpec, tree_flatten, tree_map, tree_unflatten


@dataclass(frozen=True)
class TensorClassForm:
    """Turns entries into an object of a tensorclass.

    Args:
        kind: Class.
    """

    kind: Any

    def __call__(self, entries: Any) -> Any:
        """Return the object of some entries."""
        return self.kind.from_tensordict(entries)


@dataclass(frozen=True)
class TreeForm:
    """Turns entries into nested dicts, lists and tuples.

    Args:
        tree: Structure; its leaves are the entries ``"0"``, ``"1"``, ….
    """

    tree: TreeSpec

    def __call__(self, entries: Any) -> Any:
        """Return the tree of some entries."""
        leaves = [entries.get(str(i)) for i in range(self.tree.num_leaves)]
        return tree_unflatten(leaves, self.tree)


Form = TensorClassForm | TreeForm


def as_entries(data: Any, ndim: int) -> tuple[Any, Form | None]:
    """Return data as a tensor or TensorDict, and the form that turns it back.

    Args:
        data: Tensor, TensorDict, tensorclass, or nested dicts, lists and tuples of tensors.
        ndim: Number of dims that count steps.

    Raises:
        ArgumentError: The data has another type, or its tensors differ in those dims.
    """
    if isinstance(data, (Tensor, TensorDictBase)):
        return data, None
    if is_tensorclass(data):
        return data.to_tensordict(), TensorClassForm(type(data))
    leaves, tree = tree_flatten(data)
    if not isinstance(data, (dict, list, tuple)) or not leaves:
        raise ArgumentError(
            f"the storage takes tensors and TensorDicts, got {type(data).__name__}",
            hint="use ListStorage for other objects",
        )
    try:
        tensors = {str(i): torch.as_tensor(leaf) for i, leaf in enumerate(leaves)}
        return TensorDict(tensors, tensors["0"].shape[:ndim]), TreeForm(tree)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"the storage takes {type(data).__name__}s of tensors with the same number of steps",
            hint="use ListStorage for other objects",
        ) from error


def map_tree(function: Callable[[Any], Any], data: Any) -> Any:
    """Apply a function to each leaf of nested dicts, lists and tuples."""
    return tree_map(function, data)


def split_steps(data: Any) -> list[Any]:
    """Return each step of nested dicts, lists and tuples of tensors ``[T, ...]``."""
    leaves, tree = tree_flatten(data)
    steps = zip(*(torch.as_tensor(leaf).unbind(0) for leaf in leaves), strict=True)
    return [tree_unflatten(list(step), tree) for step in steps]


def stack_trees(items: list[Any]) -> Any:
    """Stack nested dicts, lists and tuples of the same structure; return others as they are."""
    if not items or not isinstance(items[0], (dict, tuple, list)):
        return items
    flat = [tree_flatten(item) for item in items]
    leaves, tree = flat[0]
    if not leaves or any(each != tree for _, each in flat[1:]):
        return items
    columns = list(zip(*(each for each, _ in flat), strict=True))
    if not all(isinstance(leaf, (Tensor, bool, int, float)) for each in columns for leaf in each):
        return items
    stacked = [torch.stack([torch.as_tensor(leaf) for leaf in each]) for each in columns]
    return tree_unflatten(stacked, tree)
