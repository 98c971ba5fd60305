"""Keys of a transform, and maps of specs from in-keys to out-keys, always on a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from tdx.foundation.errors import (
    ArgumentError,
    ChainError,
    KeyNotFoundError,
    SpecError,
    Where,
    find_similar_names,
)
from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.foundation.torch_internals import broadcast_shapes
from tdx.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    StackedComposite,
    TensorSpec,
    Unbounded,
)
from tdx.specs.bounded import clamp_spec

_NARROW_FLOATS = frozenset({torch.float16, torch.bfloat16})

# Keys

KeyPairs = tuple[tuple[NestedKey, NestedKey], ...]
AnySpec = TypeVar("AnySpec", Composite, TensorSpec)


def normalize_keys(keys: Sequence[NestedKey] | NestedKey | None, argument: str) -> list[NestedKey]:
    """Return keys, one or several, in their normal form."""
    if keys is None:
        return []
    if isinstance(keys, str):
        return [keys]
    try:
        return [normalize_key(key) for key in keys]
    except TypeError as error:
        raise ArgumentError(
            f"{argument}: {error}", hint=f'for example {argument}=["observation"]'
        ) from None


def pair_keys(in_keys: list[NestedKey], out_keys: list[NestedKey], names: str) -> KeyPairs:
    """Pair in-keys with out-keys."""
    if in_keys and len(in_keys) != len(out_keys):
        raise ArgumentError(
            f"{names}: {len(in_keys)} in-keys and {len(out_keys)} out-keys",
            hint="give one out-key for each in-key",
        )
    return tuple(zip(in_keys, out_keys, strict=False))


def missing_key_error(
    key: NestedKey, known: Sequence[NestedKey], place: str, advice: str = ""
) -> KeyNotFoundError:
    """Return the error for a missing key: similar keys, then all, most similar first.

    ``advice`` says where the key comes from, by default ``in_keys`` unless there is a similar one.
    """
    by_name = {format_key(key): key for key in known}
    name = format_key(key)
    close = find_similar_names(name, by_name)
    ordered = [*close, *(key for key in sorted(by_name) if key not in close)]
    if name in by_name:
        hint = f"a nested key is a tuple: {by_name[name]}"
    else:
        shown = [key if "." not in key else str(by_name[key]) for key in ordered]
        near = f"did you mean {' or '.join(shown[: len(close)])}? " if close else ""
        hint = f"{near}existing keys: {', '.join(shown) or 'none'}"
        advice = advice or ("" if close or not known else "select one with in_keys")
        hint += f"; {advice}" if advice else ""
    return KeyNotFoundError(f"{place} has no key {name!r}", hint=hint, where=Where(key=key))


def require_keys(spec: Composite, keys: Sequence[NestedKey], place: str) -> None:
    """Check that every key is in a part of an env's input or output spec."""
    for key in keys:
        if all(part.get(key, None) is None for part in spec.values()):
            raise missing_key_error(key, output_keys(spec), place)


def output_keys(output_spec: Composite) -> list[NestedKey]:
    """Return the key of every leaf that an env with this output spec writes."""
    return [
        normalize_key(key)
        for part in output_spec.values()
        if isinstance(part, Composite)
        for key in part.keys(True, True)
    ]


def require_some_keys(
    name: str, in_keys: Sequence[NestedKey] | None, in_keys_inv: Sequence[NestedKey] | None
) -> Sequence[NestedKey]:
    """Return the in-keys of a transform without default ones: none, if there are inverse ones."""
    if in_keys is None and in_keys_inv is None:
        raise ArgumentError(
            f"{name} needs in_keys or in_keys_inv", hint='for example in_keys=["observation"]'
        )
    return [] if in_keys is None else in_keys


# Composites


def require_composite(spec: TensorSpec) -> None:
    """Raise a ``SpecError`` for the spec of a lone entry, which has no keys to add or remove."""
    if not isinstance(spec, Composite):
        raise SpecError(
            f"the transform adds or removes keys of a Composite, got a {type(spec).__name__}",
            hint='pass the spec with its key, such as Composite({"observation": spec})',
        )


def unlocked_copy(spec: Composite) -> Composite:
    """Return a copy that can be written to."""
    require_composite(spec)
    result = spec.clone()
    result.unlock_()
    return result


def _copy_with_shared_leaves(spec: Composite) -> Composite:
    """Return a copy whose entries can be replaced. Its leaves are those of the original."""
    if isinstance(spec, StackedComposite) or not isinstance(spec, Composite):
        return unlocked_copy(spec)
    result = spec.clone(recurse=False)
    for key, inner in list(result.items()):
        if isinstance(inner, Composite):
            result[key] = _copy_with_shared_leaves(inner)
    return result


def with_entries(spec: Composite, entries: Mapping[NestedKey, TensorSpec]) -> Composite:
    """Return a copy with these entries set."""
    result = _copy_with_shared_leaves(spec)
    for key, entry in entries.items():
        result[key] = entry
    return result


def without_keys(spec: Composite, keys: Iterable[NestedKey]) -> Composite:
    """Return a copy without these entries; missing ones are ignored."""
    keys = list(keys)
    if keys:
        require_composite(spec)
    present = [key for key in keys if spec.get(key, None) is not None]
    if not present:
        return spec
    result = _copy_with_shared_leaves(spec)
    for key in present:
        if result.get(key, None) is not None:
            del result[key]
    return result


def map_leaves(
    spec: AnySpec,
    pairs: Iterable[tuple[NestedKey, NestedKey]],
    function: Callable[[Any], Any],
    name: str | None = None,
    *,
    rename: bool = False,
) -> AnySpec:
    """Return a copy with a function of each source entry written under its target key.

    Args:
        spec: Composite, returned unchanged if it has none of the sources; or the spec of a lone
            entry, of which the function is returned.
        pairs: Source key and target key of each entry.
        function: Function of the spec of a source.
        name: Class name of a transform that maps tensors and no groups. ``None``: maps both.
        rename: Remove a source whose target is another key.
    """
    if not isinstance(spec, Composite):
        return function(spec)
    present = [pair for pair in pairs if spec.get(pair[0], None) is not None]
    if not present:
        return spec
    result = _copy_with_shared_leaves(spec)
    for source, target in present:
        if name is not None:
            require_leaf(spec[source], source, name)
        mapped = function(spec[source])
        if rename and target != source:
            del result[source]
        result[target] = mapped
    return result


def map_parts(
    spec: Composite, hooks: Mapping[str, Callable[[Composite], Composite]], *, trusted: bool
) -> Composite:
    """Return a copy whose parts, such as ``full_reward_spec``, are mapped by the hook for each.

    Each hook gets a part that it may write to: custom hooks often do so, and return their argument.
    ``trusted`` hooks never change a leaf in place, so leaves need not be copied.
    """
    result = _copy_with_shared_leaves(spec) if trusted else unlocked_copy(spec)
    for part, hook in hooks.items():
        before = result.get(part, None)
        if before is not None:
            result[part] = hook(before)
    return result


def require_leaf(spec: TensorSpec, key: NestedKey, name: str) -> None:
    """Check that an entry is a tensor and not a group."""
    if isinstance(spec, Composite):
        inner = normalize_key((key, next(iter(spec.keys(True, True)), "...")))
        raise ChainError(
            f"{format_key(key)!r} is a group of entries, and {name} maps tensors",
            hint=f"name its entries, such as {inner!r}",
            where=Where(key=key),
        )


def require_uniform(output_spec: Composite, keys: Iterable[NestedKey]) -> None:
    """Check that entries have the same shape in every env of a batch."""
    stacked = [part for part in output_spec.values() if isinstance(part, StackedComposite)]
    for part in stacked:
        for key in keys:
            spec = part.get(key, None)
            if spec is not None and -1 in spec.shape:
                raise ChainError(
                    "its shape differs between the envs of the batch",
                    hint="put the transform into the envs, where each has a shape",
                    where=Where(key=key),
                )


def require_free_key(spec: Composite, key: NestedKey) -> None:
    """Check that a composite has no entry under a key that a transform adds."""
    require_composite(spec)
    if spec.get(key, None) is not None:
        raise ChainError(
            f"this transform writes the key {format_key(key)!r}, which already exists",
            hint="give this stage another key, or remove the stage that writes it",
            where=Where(key=key),
        )


def clamped(spec: TensorSpec, low: float | None, high: float | None) -> TensorSpec:
    """Return the spec of values clamped to a range; ``None``: unbounded on that side."""
    try:
        return clamp_spec(spec, low, high)
    except SpecError as error:
        raise ChainError(
            f"no value of {spec.dtype} is within the bounds ({low}, {high})",
            hint="choose bounds that the values can reach, or cast them with DTypeCastTransform",
        ) from error


def broadcasts_to(shape: torch.Size, wanted: torch.Size) -> bool:
    """Return True if a tensor of a shape can be expanded to another shape."""
    try:
        return broadcast_shapes(shape, wanted) == wanted
    except ValueError:
        return False


# Leaves


def map_bounds(spec: TensorSpec, function: Callable[[Tensor], Tensor]) -> TensorSpec:
    """Return the spec of an elementwise monotonic function: its bounds mapped and sorted.

    Args:
        spec: Spec of the argument.
        function: Function of a tensor; may decrease.
    """
    if not isinstance(spec, Bounded):
        probe = function(torch.zeros(spec.shape, dtype=spec.dtype, device=spec.device))
        return Unbounded(shape=probe.shape, dtype=probe.dtype, device=probe.device)
    ends = function(spec.low), function(spec.high)
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    return Bounded(low, high, shape=low.shape, dtype=low.dtype, device=low.device)


# Sums


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of a dtype are summed.

    Integers and bools are summed in int64, float16 and bfloat16 in float32. Other floating
    dtypes keep theirs.

    Example:
        >>> sum_dtype(torch.int8), sum_dtype(torch.float16), sum_dtype(torch.float64)
        (torch.int64, torch.float32, torch.float64)
    """
    if dtype in _NARROW_FLOATS:
        return torch.float32
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


def sum_spec(spec: TensorSpec, most: int) -> TensorSpec:
    """Return the spec of a sum of 1 to ``most`` values of a spec."""
    dtype = sum_dtype(spec.dtype or torch.get_default_dtype())
    bounds = _discrete_range(spec)
    if bounds is None:
        return Unbounded(shape=spec.shape, dtype=dtype, device=spec.device)
    first_low, first_high = (bound.to(dtype).expand(spec.shape) for bound in bounds)
    if dtype.is_floating_point:
        low, high = first_low, first_high
        for _ in range(most - 1):
            # In the order of the sum itself, so that rounding leaves sums within the bounds.
            low, high = low + first_low, high + first_high
    else:
        low, high = (_saturating_product(bound, most) for bound in (first_low, first_high))
    low, high = torch.minimum(low, first_low), torch.maximum(high, first_high)
    return Bounded(low, high, shape=spec.shape, dtype=dtype, device=spec.device)


def _discrete_range(spec: TensorSpec) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the smallest and the largest value of a spec, or ``None`` for an unbounded one."""
    if isinstance(spec, Bounded):
        return spec.low, spec.high
    zero = torch.zeros((), dtype=torch.int64, device=spec.device)
    if isinstance(spec, (Binary, OneHot, MultiOneHot)):
        return zero, zero + 1
    if isinstance(spec, MultiCategorical):
        return zero, spec.nvec.to(zero) - 1
    if isinstance(spec, Categorical):
        return zero, zero + spec.n - 1
    return None


def _saturating_product(value: torch.Tensor, factor: int) -> torch.Tensor:
    """Multiply int64 values by a positive factor, limited to the range of int64."""
    limits = torch.iinfo(torch.int64)
    product = value * factor
    product = torch.where(value > limits.max // factor, limits.max, product)
    return torch.where(value < -(limits.max // factor), limits.min, product)
