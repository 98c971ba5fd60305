"""Specs of entries as plain data, and stored values that violate them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tdx.envs import EnvBase
from tdx.keys import key_parts
from tdx.rollouts.dump.entries import kind_of
from tdx.specs import TensorSpec

_MOST_ENDS = 256


_PARTS = ("observation", "action", "reward", "done", "state")


def spec_entries(env: EnvBase) -> list[dict[str, Any]]:
    """A dict for each entry of a step: part, key, kind, shape, dtype, and the range of values.

    Ends that differ by element are listed where there are few, else the widest stand for all.
    """
    found = []
    for part in _PARTS:
        spec = getattr(env, f"full_{part}_spec")
        for key, leaf in spec.items(True, True):
            found.append({"part": part, "key": list(key_parts(key)), **_entry(leaf)})
    return found


def _entry(leaf: TensorSpec) -> dict[str, Any]:
    dtype = leaf.dtype
    return {
        "kind": kind_of(leaf),
        "shape": list(leaf.shape),
        "dtype": str(dtype).removeprefix("torch.") if dtype is not None else "object",
        "low": _bound_entry(leaf, "low", torch.amin),
        "high": _bound_entry(leaf, "high", torch.amax),
    }


def _bound_entry(leaf: TensorSpec, name: str, widest: Any) -> Any:
    end = getattr(getattr(leaf, "space", None), name, None)
    if not isinstance(end, torch.Tensor) or type(leaf).__name__.startswith("Unbounded"):
        return None
    if end.numel() and bool((end == end.flatten()[0]).all()):
        return _finite(end.flatten()[0].item())
    if end.numel() > _MOST_ENDS:
        return _finite(widest(end).item())
    return _nested(end.tolist())


def _nested(value: Any) -> Any:
    return [_nested(each) for each in value] if isinstance(value, list) else _finite(value)


def _finite(number: float) -> float | str:
    return number if abs(number) != float("inf") and number == number else str(number)


_ONE_HOT = ("OneHot", "MultiOneHot")


def spec_violation(values: Tensor, spec: Mapping[str, Any], start: int = 0) -> str | None:
    """Describe the first way in which values break their spec.

    Args:
        values: Stored values of one entry, ``[T, *shape]``.
        spec: Spec of the entry as in a manifest: ``kind``, ``dtype``, ``shape``, ``low``, ``high``.
        start: Step of the first value, to name the step in the sentence.

    Returns:
        A sentence that continues the name of the entry; ``None``: the values fit.

    Example:
        >>> spec = dict(kind="Bounded", dtype="float32", shape=[1], low=0.0, high=1.0)
        >>> spec_violation(torch.tensor([[0.5], [float("nan")], [2.0]]), spec)
        'has 1 value that is nan where its spec has bounds, first at step 1'
        >>> spec_violation(torch.tensor([[0.5], [2.0]]), spec)
        'has 1 value above its spec, first at step 1'
    """
    dtype = str(values.dtype).removeprefix("torch.")
    if dtype != spec["dtype"] or list(values.shape[1:]) != list(spec["shape"]):
        return f"is {dtype} {list(values.shape[1:])}, its spec says {spec['dtype']} {spec['shape']}"
    low, high = spec.get("low"), spec.get("high")
    if values.is_floating_point() and (low is not None or high is not None):
        problem = _count_violations(
            values.isnan(), start, "that {verb} nan where its spec has bounds"
        )
        if problem is not None:
            return problem
    if low is not None:
        problem = _count_violations(values < _bound_tensor(low, values), start, "below its spec")
        if problem is not None:
            return problem
    if high is not None:
        problem = _count_violations(values > _bound_tensor(high, values), start, "above its spec")
        if problem is not None:
            return problem
    if spec.get("kind") in (*_ONE_HOT, "Binary"):
        problem = _count_violations(
            (values != 0) & (values != 1), start, "that {verb} neither 0 nor 1"
        )
        if problem is not None:
            return problem
    if spec.get("kind") == "OneHot" and values.ndim > 1:
        odd = values.to(torch.int64).sum(-1) != 1
        return _count_violations(odd, start, "without exactly one category", "vector")
    return None


def _count_violations(wrong: Tensor, start: int, what: str, noun: str = "value") -> str | None:
    count = int(wrong.sum())
    if not count:
        return None
    step = start + int(wrong.reshape(len(wrong), -1).any(-1).to(torch.int64).argmax())
    verb = "is" if count == 1 else "are"
    plural = noun if count == 1 else f"{noun}s"
    return f"has {count} {plural} {what.format(verb=verb)}, first at step {step}"


def _bound_tensor(end: Any, values: Tensor) -> Tensor:
    """A bound as it is in a manifest, where an infinity is a string."""
    if not values.is_floating_point() and isinstance(end, int):
        return torch.tensor(end, dtype=torch.int64)
    made = torch.tensor(_floats(end), dtype=torch.float64)
    return made.to(values.dtype) if values.is_floating_point() else made


def _floats(node: Any) -> Any:
    return [_floats(each) for each in node] if isinstance(node, list) else float(node)
