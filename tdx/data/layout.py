"""What a stored step looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import Tensor

from tdx.errors import ArgumentError, Where
from tdx.keys import format_key, normalize_key

Path = tuple[str, ...]
Leaves = dict[Path, Tensor]
"""Tensors by the parts of their keys; a bare tensor has the empty path."""


@dataclass(frozen=True)
class Layout:
    """What a step looks like.

    Args:
        dtypes: of every leaf.
        shapes: of every leaf in one step.
        groups: the batch dims that a nested TensorDict has in one step, by its path; that of the
            step itself at the empty path. Empty for a bare tensor.
        names: the names of the step's batch dims.
    """

    dtypes: Mapping[Path, torch.dtype]
    shapes: Mapping[Path, torch.Size]
    groups: Mapping[Path, torch.Size]
    names: tuple[str | None, ...] = ()

    @classmethod
    def of(cls, data: Any, leaves: Leaves, ndim: int) -> Layout:
        """The layout of data whose first ``ndim`` dims count steps."""
        groups: dict[Path, torch.Size] = {}
        names: tuple[str | None, ...] = ()
        if isinstance(data, TensorDictBase):
            _collect_groups(data, (), ndim, groups)
            names = tuple(data.names[ndim:])
        return cls(
            {path: leaf.dtype for path, leaf in leaves.items()},
            {path: leaf.shape[ndim:] for path, leaf in leaves.items()},
            groups,
            names,
        )

    def require(self, layout: Layout) -> None:
        """Check that data has this layout.

        Raises:
            ArgumentError: it has other keys, shapes or dtypes.
        """
        if layout.shapes.keys() != self.shapes.keys():
            raise _other_keys(layout, self)
        for path, shape in self.shapes.items():
            found = (layout.shapes[path], layout.dtypes[path])
            if found != (shape, self.dtypes[path]):
                raise ArgumentError(
                    f"the data has shape {tuple(found[0])} and dtype {_name(found[1])} in a step, "
                    f"the storage {tuple(shape)} and {_name(self.dtypes[path])}",
                    hint="a storage keeps the shapes and dtypes of the first data that it got",
                    where=Where(key=normalize_key(path)) if path else None,
                )


def _collect_groups(
    data: TensorDictBase, path: Path, ndim: int, groups: dict[Path, torch.Size]
) -> None:
    groups[path] = data.batch_size[ndim:]
    for key, value in data.items():
        if isinstance(value, TensorDictBase):
            _collect_groups(value, (*path, key), ndim, groups)


def leaves_of(data: Any, ndim: int) -> Leaves:
    """Every tensor of the data by its path.

    Args:
        data: a tensor or a TensorDict, ``[*B, ...]``.
        ndim: how many dims count steps.

    Raises:
        ArgumentError: it is something else, or has too few batch dims.
    """
    hint = "ListStorage keeps objects of any kind"
    if isinstance(data, Tensor):
        leaves: Leaves = {(): data.detach()}
    elif isinstance(data, TensorDictBase):
        leaves = {}
        _collect_leaves(data, (), leaves)
    else:
        raise ArgumentError(
            f"the storage holds tensors and TensorDicts, got {type(data).__name__}", hint=hint
        )
    dims = data.ndim
    if dims < ndim:
        raise ArgumentError(
            f"the storage counts steps along {ndim} dims, the data has {dims}",
            hint="add() takes a single step, extend() takes several",
        )
    return leaves


def _collect_leaves(data: TensorDictBase, path: Path, leaves: Leaves) -> None:
    for key, value in data.items():
        if isinstance(value, TensorDictBase) and not is_non_tensor(value):
            _collect_leaves(value, (*path, key), leaves)
        elif isinstance(value, Tensor):
            leaves[*path, key] = value.detach()
        else:
            raise ArgumentError(
                f"the storage holds tensors, and this is {type(value).__name__}",
                hint="ListStorage keeps objects of any kind",
                where=Where(key=normalize_key((*path, key))),
            )


def nested(leaves: Mapping[Path, Any], groups: Mapping[Path, torch.Size]) -> dict[str, Any]:
    """The leaves as nested dicts, with those groups that hold none."""
    tree: dict[str, Any] = {}
    for path in groups:
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
    for path, leaf in leaves.items():
        if path:
            branch = tree
            for part in path[:-1]:
                branch = branch[part]
            branch[path[-1]] = leaf
    return tree


def _other_keys(layout: Layout, known: Layout) -> ArgumentError:
    parts = []
    for verb, paths in (
        ("lacks", known.shapes.keys() - layout.shapes.keys()),
        ("also has", layout.shapes.keys() - known.shapes.keys()),
    ):
        if paths:
            names = (repr(format_key(path)) if path else "a bare tensor" for path in paths)
            parts.append(f"{verb} {', '.join(sorted(names))}")
    return ArgumentError(
        f"the keys are not those of the storage: the data {' and '.join(parts)}",
        hint="a storage keeps the keys of the first data that it got: select() them",
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
