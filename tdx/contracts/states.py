"""Find running statistics in the state of a stage, and compare the state of two stages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tdx.contracts.model import StageRecord, StateRecord
from tdx.contracts.report import Difference
from tdx.contracts.values import format_number

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


_RTOL = 1e-6


def compare_states(a: StageRecord, b: StageRecord, *, evaluation: bool) -> Iterator[Difference]:
    """Yield how the state of a target's stage differs from that of the contract.

    Statistics of rewards are left out: a policy does not read them.

    Args:
        a: Stage of the contract.
        b: Stage of the target.
        evaluation: The target is used for evaluation: its statistics must not change.
    """
    ours, theirs = _compared(a), _compared(b)
    key = next((name.partition(" ")[2] for name in (*a.writes, *b.writes)), None)
    found = _missing_or_fresh(a, b, ours, theirs, key)
    if found is None and a.name == b.name:
        found = _other_values(a, b, ours, theirs, key)
    if found is not None:
        yield found
    learns = [each.name for each in theirs.values() if each.changes]
    learned = [each.name for each in ours.values() if each.changes]
    if learns and (evaluation or (ours and not learned)):
        text = f"its statistics change with every step ({', '.join(learns[:3])})"
        if not evaluation:
            text += ", those of the contract do not"
        yield Difference("state still learning", b.index, a.index, b.name, key, text, None, _STOP)


_STOP = (
    "stop the updates: training = False in Stable-Baselines3, update_running_mean = False in "
    "Gymnasium, freeze() in TorchRL and tdx"
)


def _compared(stage: StageRecord) -> dict[str, StateRecord]:
    return {each.name: each for each in stage.state if not is_of_reward(each.name)}


def _missing_or_fresh(
    a: StageRecord,
    b: StageRecord,
    ours: Mapping[str, StateRecord],
    theirs: Mapping[str, StateRecord],
    key: str | None,
) -> Difference | None:
    counts = _counts(ours), _counts(theirs)
    trained = max(counts[0].values(), default=None)
    if ours and (trained is None or trained > FRESH_COUNT) and _is_missing(ours, theirs):
        text = f"it has no statistics, the contract has {', '.join(list(ours)[:3])}"
        if trained is not None:
            text += f" of {format_number(trained)} values"
        hint = f"load the state of the training into {b.name}"
        return Difference("state missing", b.index, a.index, b.name, key, text, None, hint)
    present = max(counts[1].values(), default=None)
    if trained is not None and present is not None and present <= FRESH_COUNT < trained:
        name = max(counts[1], key=lambda each: counts[1][each])
        text = (
            f"its statistics are fresh: its count ({name}) is {format_number(present)}, in the "
            f"contract {format_number(trained)}"
        )
        hint = f"load the statistics of the training into {b.name}"
        return Difference("state fresh", b.index, a.index, b.name, key, text, None, hint)
    return None


def _is_missing(ours: Mapping[str, StateRecord], theirs: Mapping[str, StateRecord]) -> bool:
    if not theirs:
        return True
    # The statistics exist only after the first step.
    return all(each.value is None for each in theirs.values()) and any(
        each.value is not None for each in ours.values()
    )


def _counts(state: Mapping[str, StateRecord]) -> dict[str, float]:
    return read_counts({name: each.value for name, each in state.items() if each.value is not None})


def _other_values(
    a: StageRecord,
    b: StageRecord,
    ours: Mapping[str, StateRecord],
    theirs: Mapping[str, StateRecord],
    key: str | None,
) -> Difference | None:
    for name, one in ours.items():
        other = theirs.get(name)
        if other is None:
            if not one.changes:
                continue
            text = f"it has no state {name}"
            return Difference("state missing", b.index, a.index, b.name, key, text)
        if one.shape != other.shape:
            text = f"{name} has the shape {list(other.shape)} instead of {list(one.shape)}"
            return Difference("spec", b.index, a.index, b.name, key, text)
        if one.digest == other.digest or one.value is None or other.value is None:
            continue
        size = _distance(one.value, other.value)
        if size is not None:
            text = f"{name} differs by up to {format_number(size)}"
            hint = f"load the state of the training into {b.name}"
            if not one.changes:
                hint = f"give {b.name} the {name} of the training, or load its state"
            return Difference("value", b.index, a.index, b.name, name, text, size, hint)
    return None


def _distance(one: Any, other: Any) -> float | None:
    """Return the largest difference; ``None`` if the values agree."""
    a, b = one.double(), other.double()
    apart = (a - b).abs() > _RTOL * a.abs().maximum(b.abs()) + 1e-12
    return float((a - b).abs().max()) if bool(apart.any()) else None
