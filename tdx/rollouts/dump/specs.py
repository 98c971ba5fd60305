"""Specs of entries as plain data, and stored values that violate them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tdx.envs import EnvBase
from tdx.keys import split_key
from tdx.rollouts.dump.entries import space_kind
from tdx.rollouts.dump.json_fields import Fields
from tdx.serialization import to_plain
from tdx.specs import TensorSpec

_MAX_BOUNDS = 256
_PARTS = ("observation", "action", "reward", "done", "state")


def describe_specs(env: EnvBase) -> list[dict[str, Any]]:
    """Describe each entry of a step: part, key, kind, shape, dtype, and range of values.

    Bounds that differ by element are listed if there are few; otherwise the widest are given.
    """
    found = []
    for part in _PARTS:
        spec = getattr(env, f"full_{part}_spec")
        for key, leaf in spec.items(True, True):
            found.append({"part": part, "key": list(split_key(key)), **_describe(leaf)})
    return found


def _describe(leaf: TensorSpec) -> dict[str, Any]:
    dtype = leaf.dtype
    return {
        "kind": space_kind(leaf),
        "shape": list(leaf.shape),
        "dtype": str(dtype).removeprefix("torch.") if dtype is not None else "object",
        "low": _describe_bound(leaf, "low", torch.amin),
        "high": _describe_bound(leaf, "high", torch.amax),
    }


def _describe_bound(leaf: TensorSpec, name: str, widest: Callable[[Tensor], Tensor]) -> Any:
    bound = getattr(getattr(leaf, "space", None), name, None)
    if not isinstance(bound, Tensor) or type(leaf).__name__.startswith("Unbounded"):
        return None
    if bound.numel() and bool((bound == bound.flatten()[0]).all()):
        return to_plain(bound.flatten()[0].item(), strict=True)
    if bound.numel() > _MAX_BOUNDS:
        return to_plain(widest(bound).item(), strict=True)
    return to_plain(bound.tolist(), strict=True)


def parse_spec_entries(fields: Fields) -> list[dict[str, Any]]:
    """Validate and return the field ``specs`` of a manifest.

    Raises:
        StorageError: An entry is invalid.
    """
    found = []
    for each in fields.objects("specs"):
        for name in ("part", "kind", "dtype"):
            each.text(name)
        each.shape("shape")
        if not each.texts("key"):
            raise each.invalid("key", "a key")
        for name in ("low", "high"):
            if isinstance(each.value(name), dict):
                raise each.invalid(name, "a bound")
        found.append(each.data)
    return found


def describe_violation(values: Tensor, spec: Mapping[str, Any], start: int = 0) -> str | None:
    """Describe the first way in which values violate their spec.

    Args:
        values: Stored values of one entry, ``[T, *shape]``.
        spec: Spec of the entry as in a manifest: ``kind``, ``dtype``, ``shape``, ``low``, ``high``.
        start: Step of the first value.

    Returns:
        A sentence that continues the name of the entry; ``None``: the values fit.

    Example:
        >>> spec = dict(kind="Bounded", dtype="float32", shape=[1], low=0.0, high=1.0)
        >>> describe_violation(torch.tensor([[0.5], [float("nan")], [2.0]]), spec)
        'has 1 value that is nan where its spec has bounds, first at step 1'
        >>> describe_violation(torch.tensor([[0.5], [2.0]]), spec)
        'has 1 value above its spec, first at step 1'
    """
    dtype = str(values.dtype).removeprefix("torch.")
    if dtype != spec["dtype"] or list(values.shape[1:]) != list(spec["shape"]):
        return (
            f"is {dtype} {list(values.shape[1:])}, its spec declares "
            f"{spec['dtype']} {spec['shape']}"
        )
    for violations, what, noun in _find_violations(values, spec):
        count = int(violations.sum())
        if count:
            step = start + int(violations.reshape(len(violations), -1).any(-1).int().argmax())
            what = what.format(verb="is" if count == 1 else "are")
            plural = noun if count == 1 else f"{noun}s"
            return f"has {count} {plural} {what}, first at step {step}"
    return None


def _find_violations(values: Tensor, spec: Mapping[str, Any]) -> Iterator[tuple[Tensor, str, str]]:
    """Yield a mask, a description, and the noun of what the mask counts."""
    low, high, kind = spec.get("low"), spec.get("high"), spec.get("kind")
    if values.is_floating_point() and (low is not None or high is not None):
        yield values.isnan(), "that {verb} nan where its spec has bounds", "value"
    if low is not None:
        yield values < _bound_tensor(low, values), "below its spec", "value"
    if high is not None:
        yield values > _bound_tensor(high, values), "above its spec", "value"
    if kind in ("OneHot", "MultiOneHot", "Binary"):
        yield (values != 0) & (values != 1), "that {verb} neither 0 nor 1", "value"
    if kind == "OneHot" and values.ndim > 1:
        yield values.to(torch.int64).sum(-1) != 1, "without exactly one category", "vector"


def _bound_tensor(bound: Any, values: Tensor) -> Tensor:
    """Return a bound of a manifest, where an infinity is text, as a tensor."""
    if not values.is_floating_point() and isinstance(bound, int):
        return torch.tensor(bound, dtype=torch.int64)
    numbers = torch.tensor(_parse_floats(bound), dtype=torch.float64)
    return numbers.to(values.dtype) if values.is_floating_point() else numbers


def _parse_floats(node: Any) -> Any:
    return [_parse_floats(each) for each in node] if isinstance(node, list) else float(node)
