"""Where a wrapper is in the chain, and helpers that write its counterpart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tdx.pipeline import StageConfig
from tdx.pipeline.values import Value

ROUNDING = 1e-5
"""Tolerance of arithmetic that Gymnasium computes in another dtype or order."""


@dataclass(slots=True)
class Place:
    """Where a wrapper is in the chain.

    Args:
        key: Key of the observation below it; ``None`` if it has several entries.
        limit: Step limit with which its env is registered.
        only_defaults: True if only wrappers of ``gymnasium.make`` are below it.
        has_limit: True if the ``TimeLimit`` of ``gymnasium.make`` is below it.
        taken: Keys that the stages below it write.
    """

    key: str | None
    limit: int | None
    only_defaults: bool
    has_limit: bool = False
    taken: list[str] = field(default_factory=list)

    def new_key(self, name: str) -> str:
        """Return a key that no stage writes yet, and take it."""
        count = sum(each == name or each.startswith(f"{name}_") for each in self.taken)
        key = name if not count else f"{name}_{count + 1}"
        self.taken.append(key)
        return key


def make_stage(_name: str, *args: Value, **kwargs: Value) -> StageConfig:
    """Return a stage from a name and arguments.

    Example:
        >>> make_stage("StepCounter", max_steps=5).kwargs
        {'max_steps': 5}
    """
    return StageConfig(_name, args, kwargs)


def numbers(array: Any) -> Value:
    """Return an array as a nested tuple, or as one number if all elements are equal.

    Example:
        >>> numbers(np.array([2.0, 2.0])), numbers(np.array([[1.0], [2.0]]))
        (2.0, ((1.0,), (2.0,)))
    """
    array = np.asarray(array)
    if array.size and bool((array == array.flat[0]).all()):
        return array.flat[0].item()
    return as_tuple(array.tolist())


def as_tuple(value: Any) -> Value:
    """Return a nested list as a nested tuple."""
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


def make_pair(loc: Any, scale: Any) -> tuple[Value, Value]:
    """Return both as numbers, or both as nested tuples."""
    pair = numbers(loc), numbers(scale)
    if any(isinstance(each, tuple) for each in pair):
        return as_tuple(np.asarray(loc).tolist()), as_tuple(np.asarray(scale).tolist())
    return pair
