"""Running statistics and other state of stages, by the names of their tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_RUNNING = (
    *({"mean", "var"}, {"loc", "var"}, {"sum", "ssq"}, {"statistics"}),
    *({"mean", "std"}, {"mean", "m2"}, {"mu", "sigma"}, {"mean", "s"}),
)
"""Words in the names of running statistics, in lower case: of Gymnasium, TorchRL, tdx, and usual
ones."""
_FIXED = ({"loc", "scale"},)
"""Those of statistics that a stage was given."""
_REWARD = re.compile(r"(^|[._/])(ret|return|returns|reward)([._/]|_rms|$)")
_EPISODE = re.compile(r"(^|[._/])(returns|discounted_reward|accumulated_reward)$")
FRESH_COUNT = 1.0
"""Number of values up to which statistics count as fresh."""


def find_statistics(names: Collection[str], *, running: bool = False) -> set[str]:
    """Return the tensors of a stage that are statistics, without their counts.

    ``running``: leave out statistics that a stage was given and never updates.

    Example:
        >>> sorted(find_statistics(["obs_rms.mean", "obs_rms.var", "obs_rms.count", "epsilon"]))
        ['obs_rms.mean', 'obs_rms.var']
    """
    words = {name: set(re.split(r"[._/]", name.casefold())) for name in names}
    for pair in _RUNNING if running else (*_RUNNING, *_FIXED):
        members = {name for name in words if not words[name].isdisjoint(pair)}
        is_complete = pair <= set().union(*(words[name] for name in members))
        if is_complete and len(members) >= len(pair):
            return members
    return set()


def is_statistic(name: str, names: Collection[str]) -> bool:
    """Return True if a tensor of the state is a part of statistics."""
    statistics = find_statistics(names)
    return bool(statistics) and (name in statistics or _is_count(name))


def is_changed(old: Tensor | None, new: Tensor | None) -> bool:
    """Return True if a tensor of the state changed, or was created or removed; NaN equals NaN."""
    if old is None or new is None:
        return old is not new
    # The app imports this module without torch.
    from tdx.compare.values import compare_tensors

    return compare_tensors(old, new) is not None


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


def read_counts(state: Mapping[str, Tensor]) -> dict[str, float]:
    """Return how many values the statistics of a stage have counted, by name."""
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
