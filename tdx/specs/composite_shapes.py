"""Shape operations of composites, and the names of their batch dimensions.

An operation changes the batch size; the entries' own dimensions stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tdx.foundation.errors import SpecError
from tdx.specs.arguments import Names, expand_ellipsis, index_names, parse_index, size_from_args


def index(spec: Any, position: Any) -> Any:
    """Return a composite indexed along its batch dimensions."""
    parts = parse_index(position, spec.shape, type(spec).__name__)
    lead = spec._view_shape(lambda tensor: tensor[parts])
    full = expand_ellipsis(parts, spec.ndim)
    return spec._map(lambda entry: entry[full], lead, names=index_names(spec.names, parts))


def expand(spec: Any, shape: tuple[Any, ...]) -> Any:
    """Return a composite with its batch size expanded."""
    sizes = size_from_args(shape)
    lead = spec._view_shape(lambda tensor: tensor.expand(sizes))
    ndim = spec.ndim
    names = [*[None] * (len(lead) - ndim), *spec.names]
    return spec._map(lambda entry: entry.expand(*lead, *entry.shape[ndim:]), lead, names=names)


def squeeze(spec: Any, dim: int | None) -> Any:
    """Return a composite without a batch dimension of size 1, or without all of them."""
    if dim is None:
        squeezed = spec.clone()
        for i in reversed(range(spec.ndim)):
            squeezed = squeezed.squeeze(i)
        return squeezed
    lead = spec._view_shape(lambda tensor: tensor.squeeze(dim))
    if lead == spec.shape:
        return spec.clone()
    where = dim % spec.ndim
    names = [name for i, name in enumerate(spec.names) if i != where]
    return spec._map(lambda entry: entry.squeeze(where), lead, names=names)


def unsqueeze(spec: Any, dim: int) -> Any:
    """Return a composite with a new batch dimension of size 1."""
    lead = spec._view_shape(lambda tensor: tensor.unsqueeze(dim))
    where = dim % len(lead)
    names = [*spec.names[:where], None, *spec.names[where:]]
    return spec._map(lambda entry: entry.unsqueeze(where), lead, names=names)


def reshape(spec: Any, shape: tuple[Any, ...]) -> Any:
    """Return a composite with its batch size reshaped; the names are dropped."""
    sizes = size_from_args(shape)
    lead = spec._view_shape(lambda tensor: tensor.reshape(sizes))
    ndim = spec.ndim
    return spec._map(lambda entry: entry.reshape(*lead, *entry.shape[ndim:]), lead)


def make_neg_dim(spec: Any, dim: int) -> Any:
    """Return a composite with the size of a batch dimension unknown (-1)."""
    where = dim % spec.ndim
    sizes = [-1 if i == where else size for i, size in enumerate(spec.shape)]
    return spec._map(lambda entry: entry.make_neg_dim(where), torch.Size(sizes), names=spec.names)


def check_names(names: Sequence[str | None], ndim: int) -> Names:
    """Check that there is a name for each batch dimension, and return them as a list.

    Raises:
        SpecError: The number of names differs from the number of dimensions.
    """
    if len(names) != ndim:
        raise SpecError(
            f"expected {ndim} names, got {len(names)}: {list(names)}",
            hint="give one name for each batch dimension, None for no name",
        )
    return list(names)


def refine_names(current: Names, names: tuple[Any, ...]) -> Names:
    """Return names for dimensions; an ellipsis stands for the current names in its place.

    Raises:
        SpecError: A dimension has another name already.
    """
    refined = list(names)
    if Ellipsis in names:
        at = names.index(Ellipsis)
        unchanged = current[at : len(current) - (len(names) - at - 1)]
        refined = [*names[:at], *unchanged, *names[at + 1 :]]
    for old, new in zip(current, check_names(refined, len(current)), strict=True):
        if old not in (None, new):
            raise SpecError(
                f"a dimension named {old!r} cannot be refined to {new!r}",
                hint="rename it: spec.names = [...]",
            )
    return refined
