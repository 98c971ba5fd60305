"""Entries of a rollout: what a dump can store, their specs, and violations of specs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypedDict, cast

import numpy as np
import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import Tensor

from tdx.data.layout import LeavesByPath, build_tensordict, nest_leaves, tensor_leaves
from tdx.envs import EnvBase
from tdx.foundation.errors import ArgumentError, Where
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key
from tdx.foundation.serialization import to_plain
from tdx.foundation.text import dtype_name
from tdx.foundation.untrusted import Fields
from tdx.specs import Binary, Bounded, Composite, OneHot, TensorSpec, Unbounded
from tdx.specs.arguments import as_dtype
from tdx.specs.non_tensor import holds_objects
from tdx.specs.violations import Phase, find_violations

Parts = tuple[str, ...]
"""Key of an entry as a tuple of names."""
Bound: TypeAlias = "float | str | list[Bound] | None"
"""Bound of a spec as plain data: an infinity is text; bounds that differ by element are lists."""


class SpecEntry(TypedDict):
    """Spec of an entry, as a manifest has it."""

    part: str
    key: list[str]
    kind: str
    shape: list[int]
    dtype: str
    low: Bound
    high: Bound


LEAVE_OUT = "exclude it: --keys names the entries to store"
_MAX_BOUNDS = 256
_PARTS = ("observation", "action", "reward", "done", "state")


class NotStoredWarning(UserWarning):
    """A dump excludes entries that are not tensors."""


class NotFiniteWarning(UserWarning):
    """Recorded entries hold NaN or infinity."""


class FiniteCheck:
    """Warns of the entries of a recording that hold NaN or infinity, once for each of them."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._reported: set[Parts] = set()

    def check(self, chunk: TensorDictBase, start: int) -> None:
        """Check the stored tensors of a chunk ``[*B, T]``, which begins with step ``start``."""
        lines = []
        for path, value in flatten_tensors(chunk).items():
            text = None if path in self._reported else self._describe(value, start)
            if text is not None:
                self._reported.add(path)
                lines.append(f"{format_key(normalize_key(path))!r} holds {text}")
        if lines:
            last = start + chunk.shape[self._dim] - 1
            message = f"not finite: {'; '.join(lines)} (in steps {start} to {last})"
            hint = "`tdx verify` reports nan and inf where a spec has bounds"
            warnings.warn(f"{message}; {hint}", NotFiniteWarning, stacklevel=3)

    def _describe(self, value: Tensor, start: int) -> str | None:
        if not (value.is_floating_point() or value.is_complex()):
            return None
        if value.dtype.itemsize == 1:
            # torch does not add up float8.
            value = value.to(torch.float32)
        # The sum of non-finite numbers is not finite; it needs one pass and no copy.
        if bool(value.sum().isfinite()) or bool(value.isfinite().all()):
            return None
        nans, odd = value.isnan(), ~value.isfinite()
        counts = {"nan": int(nans.sum()), "inf": int((odd & ~nans).sum())}
        by_step = odd.movedim(self._dim, 0).reshape(odd.shape[self._dim], -1).any(1)
        found = " and ".join(f"{count} {name}" for name, count in counts.items() if count)
        return f"{found}, first at step {start + int(by_step.int().argmax())}"


def flatten_tensors(data: TensorDictBase) -> LeavesByPath:
    """Return every entry by its path."""
    return tensor_leaves(data, LEAVE_OUT)


def unflatten_tensors(
    leaves: Mapping[Parts, Tensor], batch: Iterable[int], groups: Mapping[Parts, tuple[int, ...]]
) -> TensorDictBase:
    """Return a TensorDict ``batch`` of entries by their path.

    ``groups`` has the batch dimensions that nested TensorDicts have in addition, by path.
    """
    outer = {path[:size]: () for path in (*leaves, *groups) for size in range(len(path))}
    all_groups = {(): (), **outer, **groups}
    tree = nest_leaves(leaves, sorted(all_groups))
    return build_tensordict(tree, all_groups, torch.Size(batch), torch.device("cpu"))


def list_keys(tensordict: TensorDictBase) -> list[NestedKey]:
    """Return the keys of all entries."""
    keys = tensordict.keys(True, True, is_leaf=lambda kind: not issubclass(kind, TensorDictBase))
    return list(map(normalize_key, keys))


def key_names(key: NestedKey) -> tuple[str, ...]:
    """Return the names that select an entry: ``next.reward`` is also ``reward``."""
    parts = split_key(key)
    whole = format_key(key)
    return (whole, format_key(parts[1:])) if parts[0] == "next" and parts[1:] else (whole,)


def select_entries(chunk: TensorDictBase, names: Iterable[str]) -> TensorDictBase:
    """Return the entries of these names, each at the root and below ``next``."""
    wanted = set(names)
    return chunk.select(*[key for key in list_keys(chunk) if wanted & set(key_names(key))])


def space_kind(leaf: TensorSpec) -> str:
    """Return the kind of space that a spec represents.

    Example:
        >>> from tdx import NonTensor
        >>> space_kind(NonTensor())
        'NonTensor'
    """
    return str(getattr(leaf, "space_kind", None) or type(leaf).__name__)


def find_unstorable(env: EnvBase) -> dict[NestedKey, str]:
    """Return the kind of space, such as ``Text``, of each entry of an env that is not a tensor.

    It is ``NonTensor`` if no Gymnasium space is known.
    """
    found: dict[NestedKey, str] = {}
    for part in _PARTS:
        spec = getattr(env, f"full_{part}_spec")
        for key, leaf in spec.items(True, True):
            if holds_objects(leaf):
                found[normalize_key(key)] = space_kind(leaf)
    return found


def check_storable(env: EnvBase, names: Iterable[str] | None) -> None:
    """Warn of entries that a dump excludes; refuse those of ``--keys`` that cannot be stored."""
    entries = find_unstorable(env)
    if names is None:
        if entries:
            listed = ", ".join(f"{format_key(key)!r} ({kind})" for key, kind in entries.items())
            message = f"not stored, because values of their space are not tensors: {listed}"
            warnings.warn(message, NotStoredWarning, stacklevel=2)
        return
    wanted = {name.removeprefix("next.") for name in names}
    for key, kind in entries.items():
        if format_key(key) in wanted:
            raise ArgumentError(
                f"it cannot be stored: values of a {kind} space are not tensors",
                hint="leave it out of --keys",
                where=Where(key=key),
            )


def select_storable(data: TensorDictBase) -> TensorDictBase:
    """Return the entries of ``data`` that are tensors; ``data`` itself if all are."""
    excluded = list(_unstorable_paths(data, ()))
    return data.exclude(*excluded) if excluded else data


def _unstorable_paths(data: TensorDictBase, path: Parts) -> Iterator[Parts]:
    for name in data.keys():
        value, here = data.get(name), (*path, name)
        if isinstance(value, Tensor):
            continue
        if not isinstance(value, TensorDictBase) or is_non_tensor(value):
            yield here
            continue
        excluded = list(_unstorable_paths(value, here))
        # A group that would be empty is excluded as a whole.
        yield from [here] if excluded and not _has_tensors(value) else excluded


def _has_tensors(data: TensorDictBase) -> bool:
    return any(
        isinstance(value, Tensor)
        or (isinstance(value, TensorDictBase) and not is_non_tensor(value) and _has_tensors(value))
        for value in map(data.get, data.keys())
    )


def select_storable_spec(spec: Composite) -> Composite:
    """Return a copy of a spec without the leaves that are not tensors."""
    copied: Any = spec.clone()
    for key, leaf in list(spec.items(True, True)):
        if holds_objects(leaf):
            del copied[key]
    result: Composite = copied
    return result


def list_skipped(specs: Iterable[SpecEntry]) -> dict[NestedKey, str]:
    """Return the entries that a dump excludes, with the kind of their space."""
    return {
        normalize_key(tuple(entry["key"])): entry["kind"]
        for entry in specs
        if entry["dtype"] == "object"
    }


def describe_specs(env: EnvBase) -> list[SpecEntry]:
    """Describe each entry of a step: part, key, kind, shape, dtype, and range of values.

    Bounds that differ by element are listed if there are few; otherwise the widest are given.
    """
    return [
        SpecEntry(
            part=part,
            key=list(split_key(key)),
            kind=space_kind(leaf),
            shape=list(leaf.shape),
            dtype=dtype_name(leaf.dtype),
            low=_describe_bound(leaf, "low", torch.amin),
            high=_describe_bound(leaf, "high", torch.amax),
        )
        for part in _PARTS
        for key, leaf in getattr(env, f"full_{part}_spec").items(True, True)
    ]


def _describe_bound(leaf: TensorSpec, name: str, widest: Callable[[Tensor], Tensor]) -> Bound:
    bound = getattr(getattr(leaf, "space", None), name, None)
    if not isinstance(bound, Tensor) or type(leaf).__name__.startswith("Unbounded"):
        return None
    if bound.numel() and bool((bound == bound.flatten()[0]).all()):
        return to_plain(bound.flatten()[0].item(), strict=True)
    if bound.numel() > _MAX_BOUNDS:
        return to_plain(widest(bound).item(), strict=True)
    return to_plain(bound.tolist(), strict=True)


def parse_spec_entries(fields: Fields) -> list[SpecEntry]:
    """Validate and return the field ``specs`` of a manifest."""
    found = []
    for spec in fields.objects("specs"):
        for name in ("part", "kind", "dtype"):
            spec.text(name)
        spec.shape("shape")
        if not spec.texts("key"):
            raise spec.invalid("key", "a key")
        for name in ("low", "high"):
            if isinstance(spec.value(name), dict):
                raise spec.invalid(name, "a bound")
        found.append(cast("SpecEntry", dict(spec.data)))
    return found


def describe_violation(values: Tensor, spec: SpecEntry, start: int = 0) -> str | None:
    """Describe the first violation of a spec by stored values ``[T, *shape]`` of its entry.

    ``start`` is the step of the first value. ``None``: the values fit.

    Raises:
        TdxError: The entry describes no spec.

    Example:
        >>> spec = SpecEntry(part="state", key=["x"], kind="Bounded", dtype="float32",
        ...     shape=[1], low=0.0, high=1.0)
        >>> describe_violation(torch.tensor([[0.5], [float("nan")], [2.0]]), spec)
        'it holds nan, outside [0, 1], first at step 1, in 2 values'
    """
    shape = (len(values), *spec["shape"])
    # A manifest may state any shape: nothing of that shape is allocated before it is compared.
    leaf: TensorSpec = Unbounded(shape, dtype=spec["dtype"])
    differences = (violation.code for violation in find_violations({"": values}, {"": leaf}, _HERE))
    if set(differences) <= {"nan"}:
        leaf = _parse_leaf(spec).expand(*shape)
    for violation in find_violations({"": values}, {"": leaf}, _HERE):
        if violation.code == "bounds" and violation.index is not None:
            count = f"in {violation.count} value{'s' if violation.count > 1 else ''}"
            return f"{violation.message}, first at step {start + violation.index[0]}, {count}"
        if violation.code != "nan":
            return violation.message
    return None


_HERE: Phase = "recording"


def _parse_leaf(spec: SpecEntry) -> TensorSpec:
    kind, shape, dtype = spec["kind"], spec["shape"], spec["dtype"]
    if kind == "OneHot" and shape:
        return OneHot(shape[-1], shape, dtype=dtype)
    if kind in ("OneHot", "MultiOneHot", "Binary"):
        return Binary(shape=shape, dtype=dtype)
    low, high = spec["low"], spec["high"]
    if low is None and high is None:
        return Unbounded(shape, dtype=dtype)
    # Also parses the text of an infinity.
    parsed = np.float64 if as_dtype(dtype).is_floating_point else None
    lowest = None if low is None else np.asarray(low, parsed)
    highest = None if high is None else np.asarray(high, parsed)
    return Bounded(lowest, highest, shape, dtype=dtype)
