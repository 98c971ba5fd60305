"""What an env promises of each entry, as plain data for a manifest."""

from __future__ import annotations

from typing import Any

import torch

from tdx.envs import EnvBase
from tdx.keys import split_key
from tdx.rollouts.storable import kind_of
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
            found.append({"part": part, "key": list(split_key(key)), **_entry(leaf)})
    return found


def _entry(leaf: TensorSpec) -> dict[str, Any]:
    dtype = leaf.dtype
    return {
        "kind": kind_of(leaf),
        "shape": list(leaf.shape),
        "dtype": str(dtype).removeprefix("torch.") if dtype is not None else "object",
        "low": _end(leaf, "low", torch.amin),
        "high": _end(leaf, "high", torch.amax),
    }


def _end(leaf: TensorSpec, name: str, widest: Any) -> Any:
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
