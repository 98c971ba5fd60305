"""Layout and form of stored steps, and which steps continue the step before them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase, is_non_tensor, is_tensorclass
from torch import Tensor

from tdx.foundation.errors import ArgumentError, Where
from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.foundation.tensordicts import group_dims, new_tensordict
from tdx.foundation.text import dtype_name
from tdx.foundation.torch_internals import TreeSpec, tree_flatten, tree_map, tree_unflatten
from tdx.specs.arguments import Value

Path = tuple[str, ...]
LeavesByPath = dict[Path, Tensor]
"""Tensors by path: the parts of their keys. A bare tensor has the empty path."""

StateDict = dict[str, Any]
"""State of a part of a buffer: plain data and tensors, by name."""
Info = dict[NestedKey, Any]
"""What a sampler says about a batch: tensors by key, and a tuple of them for several dims."""
Index = int | slice | range | Sequence[Any] | Tensor | NDArray[Any] | EllipsisType | None
"""Index into stored data, in each of its dims with a tuple."""


@dataclass(frozen=True)
class Layout:
    """Keys, shapes and dtypes of a stored step, by the path of each leaf."""

    dtypes: Mapping[Path, torch.dtype]
    shapes: Mapping[Path, torch.Size]
    groups: Mapping[Path, torch.Size]
    names: tuple[str | None, ...] = ()

    @classmethod
    def of(cls, data: object, leaves: LeavesByPath, ndim: int) -> Layout:
        """Return the layout of data whose first ``ndim`` dims count steps."""
        groups: dict[Path, torch.Size] = {}
        names: tuple[str | None, ...] = ()
        if isinstance(data, TensorDictBase):
            groups = group_dims(data, ndim)
            names = tuple(data.names[ndim:])
        return cls(
            {path: leaf.dtype for path, leaf in leaves.items()},
            {path: leaf.shape[ndim:] for path, leaf in leaves.items()},
            groups,
            names,
        )

    def require(self, layout: Layout) -> None:
        """Check that another layout has the same keys, shapes and dtypes."""
        if layout.shapes.keys() != self.shapes.keys():
            differences = []
            for verb, paths in (
                ("lacks", self.shapes.keys() - layout.shapes.keys()),
                ("also has", layout.shapes.keys() - self.shapes.keys()),
            ):
                keys = (repr(format_key(path)) if path else "a bare tensor" for path in paths)
                if paths:
                    differences.append(f"{verb} {', '.join(sorted(keys))}")
            raise ArgumentError(
                f"the keys differ from those of the storage: the data {' and '.join(differences)}",
                hint="the first data defines the keys of a storage: select() them",
            )
        for path, shape in self.shapes.items():
            actual = (layout.shapes[path], layout.dtypes[path])
            if actual != (shape, self.dtypes[path]):
                names = [dtype_name(dtype) for dtype in (actual[1], self.dtypes[path])]
                raise ArgumentError(
                    f"the data has shape {tuple(actual[0])} and dtype {names[0]} in a "
                    f"step, the storage {tuple(shape)} and {names[1]}",
                    hint="the first data defines the shapes and dtypes of a storage",
                    where=Where(key=normalize_key(path)) if path else None,
                )


def leaves_of(data: object, ndim: int) -> LeavesByPath:
    """Return every tensor of data ``[*B, ...]`` by path; ``ndim`` of the dims count steps."""
    hint = "use ListStorage for other objects"
    if isinstance(data, Tensor):
        leaves: LeavesByPath = {(): data.detach()}
    elif isinstance(data, TensorDictBase):
        leaves = tensor_leaves(data, hint)
    else:
        raise ArgumentError(
            f"the storage takes tensors and TensorDicts, got {type(data).__name__}", hint=hint
        )
    dims = data.ndim
    if dims < ndim:
        raise ArgumentError(
            f"the storage has {ndim} dims of steps, the data has {dims}",
            hint="add() takes a single step, extend() takes several",
        )
    return leaves


def tensor_leaves(data: TensorDictBase, hint: str, path: Path = ()) -> LeavesByPath:
    """Return every tensor of a TensorDict by path; ArgumentError with ``hint`` for other values."""
    leaves: LeavesByPath = {}
    for key, value in data.items():
        if isinstance(value, Tensor):
            leaves[*path, key] = value.detach()
        elif isinstance(value, TensorDictBase) and not is_non_tensor(value):
            leaves |= tensor_leaves(value, hint, (*path, key))
        else:
            raise ArgumentError(
                f"only tensors can be stored, got {type(value).__name__}",
                hint=hint,
                where=Where(key=normalize_key((*path, key))),
            )
    return leaves


def nest_leaves(leaves: Mapping[Path, object], groups: Iterable[Path]) -> dict[str, Any]:
    """Return leaves, in their order, and empty groups as nested dicts."""
    tree: dict[str, Any] = {}

    def branch_at(path: Path) -> dict[str, Any]:
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        return branch

    for path, leaf in leaves.items():
        if path:
            branch_at(path[:-1])[path[-1]] = leaf
    for path in groups:
        branch_at(path)
    return tree


def build_tensordict(
    tree: Mapping[str, Any],
    groups: Mapping[Path, tuple[int, ...]],
    batch: torch.Size,
    device: torch.device,
    names: list[str | None] | None = None,
    values: Sequence[Tensor] = (),
    path: Path = (),
) -> TensorDict:
    """Return a TensorDict of nested dicts, without checks.

    The leaves of ``tree`` are tensors, or their numbers in ``values``; the nested TensorDict at
    each path of ``groups`` has the dims ``[*batch, *groups[path]]``. Missing names are ``None``.
    """
    fields = {}
    for key, node in tree.items():
        if type(node) is int:
            fields[key] = values[node]
        elif type(node) is dict:
            inner = (*path, key)
            fields[key] = build_tensordict(node, groups, batch, device, names, values, inner)
        else:
            fields[key] = node
    size = torch.Size((*batch, *groups[path]))
    if names is not None and len(names) != len(size):
        names = [*names, *[None] * (len(size) - len(names))]
    return new_tensordict(fields, size, device, names)


# Value that describe a step and not its state.
NOT_STATES = frozenset({"reward", "action", "done", "terminated", "truncated", "_reset"})
MOST_BYTES = 1024


class Continuity:
    """Marks the steps that do not continue the previous row, bool ``[rows, width]``.

    A step continues the previous row if its root equals the ``next`` of that row. This separates
    rollouts that were cut without a done flag, or that were written one after another.
    """

    def __init__(
        self, shapes: Mapping[Path, torch.Size] | None = None, rows: int = 0, width: int = 1
    ) -> None:
        self.begins = torch.zeros(rows, width, dtype=torch.bool)
        self._pairs = compared_leaves({} if shapes is None else shapes)
        self._incoming: Tensor | None = None

    def compare(
        self,
        incoming: Mapping[Path, Tensor],
        stored: Mapping[Path, Tensor],
        newest: int | None,
        size: tuple[int, int],
    ) -> None:
        """Compare incoming rows ``[rows, *B, ...]`` with each other, and the first with the newest.

        ``newest`` is the row that was written last, ``size`` the numbers of incoming rows and of
        steps in each.
        """
        begins = torch.zeros(size, dtype=torch.bool)
        for root, following in self._pairs:
            now, after = incoming[root], incoming[following]
            if size[0] > 1:
                begins[1:] |= _differ(after[:-1], now[1:], (size[0] - 1, size[1]))
            if newest is not None:
                begins[:1] |= _differ(stored[following][newest : newest + 1], now[:1], (1, size[1]))
        self._incoming = begins

    def write(self, at: int, first: int, count: int) -> None:
        """Store the marks of ``count`` incoming rows from ``first`` at row ``at``."""
        assert self._incoming is not None
        self.begins[at : at + count] = self._incoming[first : first + count]

    def clear(self, index: object) -> None:
        """Clear the marks of rows that were replaced by assignment."""
        self.begins[index] = False  # type: ignore[index]

    def empty(self) -> None:
        """Clear all marks."""
        self.begins.zero_()


def compared_leaves(shapes: Mapping[Path, torch.Size]) -> tuple[tuple[Path, Path], ...]:
    """Return the smallest leaves that are both at the root and in ``next``, up to a total size."""
    pairs = [
        (path, ("next", *path))
        for path in shapes
        if path and path[-1] not in NOT_STATES and ("next", *path) in shapes
    ]
    chosen: list[tuple[Path, Path]] = []
    elements = 0
    for root, following in sorted(pairs, key=lambda pair: math.prod(shapes[pair[0]])):
        size = math.prod(shapes[root])
        if shapes[root] != shapes[following]:
            continue
        if chosen and elements + size > MOST_BYTES:
            break
        chosen.append((root, following))
        elements += size
    return tuple(chosen)


def _differ(before: Tensor, after: Tensor, size: tuple[int, int]) -> Tensor:
    after = after.to(before.device)
    return (before != after).reshape(*size, -1).any(-1).cpu()


@dataclass(frozen=True)
class TensorClassForm:
    """Turns entries into an object of a tensorclass."""

    kind: type[TensorDictBase]

    def __call__(self, entries: TensorDictBase) -> Any:
        """Return the object of some entries."""
        return self.kind.from_tensordict(entries)


@dataclass(frozen=True)
class TreeForm:
    """Turns the entries ``"0"``, ``"1"``, … into nested dicts, lists and tuples."""

    tree: TreeSpec

    def __call__(self, entries: TensorDictBase) -> Any:
        """Return the tree of some entries."""
        leaves = [entries.get(str(i)) for i in range(self.tree.num_leaves)]
        return tree_unflatten(leaves, self.tree)


Form = TensorClassForm | TreeForm


def as_entries(data: Any, ndim: int) -> tuple[Value, Form | None]:
    """Return data as a tensor or TensorDict, and the form that turns it back.

    Raises:
        ArgumentError: The data has another type, or its tensors differ in the first ``ndim`` dims.
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


def split_steps(data: object) -> list[Any]:
    """Return each step of nested dicts, lists and tuples of tensors ``[T, ...]``."""
    leaves, tree = tree_flatten(data)
    steps = zip(*(torch.as_tensor(leaf).unbind(0) for leaf in leaves), strict=True)
    return [tree_unflatten(list(step), tree) for step in steps]


def stack_trees(items: Sequence[object]) -> Any:
    """Stack nested dicts, lists and tuples of the same structure; return others as they are."""
    if not items or not isinstance(items[0], (dict, tuple, list)):
        return items
    flat = [tree_flatten(item) for item in items]
    leaves, tree = flat[0]
    if not leaves or any(other != tree for _, other in flat[1:]):
        return items
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
    if not all(
        isinstance(leaf, (Tensor, bool, int, float)) for column in columns for leaf in column
    ):
        return items
    stacked = [torch.stack([torch.as_tensor(leaf) for leaf in column]) for column in columns]
    return tree_unflatten(stacked, tree)


def to_time_first(data: Any, dim: int) -> Any:
    """Move the time dim of tensors and TensorDicts to the front; other data is not changed."""
    if dim == 0:
        return data
    if isinstance(data, (dict, tuple)):
        return tree_map(lambda leaf: to_time_first(leaf, dim), data)
    if not hasattr(data, "permute") or data.ndim <= dim:
        return data
    return data.permute(dim, *(other for other in range(data.ndim) if other != dim))


def to_written_order(stored: Any, dim: int) -> Any:
    """Move the first dim of stored data back to where it was when it was written."""
    if dim == 0:
        return stored
    if not hasattr(stored, "permute"):
        return tree_map(lambda leaf: to_written_order(leaf, dim), stored)
    return stored.permute(*range(1, dim + 1), 0, *range(dim + 1, stored.ndim))
