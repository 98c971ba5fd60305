"""Running statistics in the state of a stage, in the names of any library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PAIRS = ({"mean", "var"}, {"loc", "var"}, {"loc", "scale"}, {"sum", "ssq"}, {"statistics"})
_REWARD = re.compile(r"(^|[._/])(ret|return|returns|reward)([._/]|_rms|$)")
_EPISODE = re.compile(r"(^|[._/])(returns|discounted_reward|accumulated_reward)$")
FRESH_COUNT = 1.0
"""Number of values up to which statistics count as fresh."""


def is_statistic(name: str, names: Mapping[str, Any]) -> bool:
    """Return True if a tensor of the state is a part of running statistics.

    Args:
        name: Name of the tensor.
        names: All tensors of the stage by name.
    """
    parts = {each: set(re.split(r"[._/]", each)) for each in names}
    for pair in _PAIRS:
        found = {each for each, words in parts.items() if words & pair}
        if all(any(part in parts[each] for each in found) for part in pair):
            return name in found or _is_count(name)
    return False


def is_of_reward(name: str) -> bool:
    """Return True if a tensor belongs to statistics of rewards.

    Example:
        >>> is_of_reward("ret_rms.mean"), is_of_reward("obs_rms.mean")
        (True, False)
    """
    return _REWARD.search(name) is not None


def is_of_episode(name: str) -> bool:
    """Return True for a sum of rewards that begins again with each episode."""
    return _EPISODE.search(name) is not None


def _is_count(name: str) -> bool:
    return "count" in re.split(r"[._/]", name)


def read_counts(state: Mapping[str, Any]) -> dict[str, float]:
    """Return how many values the statistics of a stage have counted, by name.

    Args:
        state: Tensors of the stage by name.
    """
    counts: dict[str, float] = {}
    for name, value in state.items():
        if not is_statistic(name, state):
            continue
        if _is_count(name):
            counts[name] = float(value.double().max())
        elif name.startswith("statistics/") and value.ndim and len(value) == 3:
            # Moments of tdx: sum, sum of squares, count.
            counts[name] = float(value[2].double().max())
    return counts
