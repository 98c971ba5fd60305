"""State that stages keep across episodes: which of it is a statistic, and how it differs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from tdx.compare.codes import DifferenceKind
from tdx.compare.model import StageRecord, StateRecord
from tdx.compare.report import Difference
from tdx.compare.values import Tolerance, compare_tensors, digest, format_number

if TYPE_CHECKING:
    from torch import Tensor

_PAIRS = ({"mean", "var"}, {"loc", "var"}, {"loc", "scale"}, {"sum", "ssq"}, {"statistics"})
_REWARD = re.compile(r"(^|[._/])(ret|return|returns|reward)([._/]|_rms|$)")
_EPISODE = re.compile(r"(^|[._/])(returns|discounted_reward|accumulated_reward)$")
FRESH_COUNT = 1.0
"""Number of values up to which statistics count as fresh."""


def find_statistics(names: Collection[str], pairs: Iterable[Collection[str]] = _PAIRS) -> set[str]:
    """Return the tensors of a stage that are running statistics, without their counts.

    Args:
        names: All tensors of the stage.
        pairs: Words that occur together in the names of statistics.

    Example:
        >>> sorted(find_statistics(["obs_rms.mean", "obs_rms.var", "obs_rms.count", "epsilon"]))
        ['obs_rms.mean', 'obs_rms.var']
    """
    words = {name: set(re.split(r"[._/]", name.casefold())) for name in names}
    for pair in pairs:
        members = {name for name in words if not words[name].isdisjoint(pair)}
        is_complete = set(pair) <= set().union(*(words[name] for name in members))
        if is_complete and len(members) >= len(pair):
            return members
    return set()


def is_statistic(name: str, names: Collection[str]) -> bool:
    """Return True if a tensor of the state is a part of running statistics.

    Args:
        name: Name of the tensor.
        names: All tensors of the stage.
    """
    statistics = find_statistics(names)
    return bool(statistics) and (name in statistics or _is_count(name))


def is_changed(old: Tensor | None, new: Tensor | None) -> bool:
    """Return True if a tensor of the state changed, or was created or removed; NaN equals NaN."""
    if old is None or new is None:
        return old is not new
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


_TOLERANCE = Tolerance(1e-6, 1e-12)


def compare_states(
    a: StageRecord,
    b: StageRecord,
    *,
    evaluation: bool,
    in_rows: tuple[bool, bool] = (False, False),
) -> Iterator[Difference]:
    """Yield how the state of a target's stage differs from that of the contract.

    Statistics of rewards are left out: a policy does not read them.

    Args:
        a: Stage of the contract.
        b: Stage of the target.
        evaluation: The target is used for evaluation: its statistics must not change.
        in_rows: Whether each sub-env has the stage, so that the first dim of its state is that of
            the sub-envs. Those that both have are compared.
    """
    ours, theirs = (
        {record.name: record for record in stage.state if not is_of_reward(record.name)}
        for stage in (a, b)
    )
    if any(in_rows):
        ours, theirs = _common_rows(ours, theirs, in_rows)
    key = next((name.partition(" ")[2] for name in (*a.writes, *b.writes)), None)

    def difference(kind: DifferenceKind, text: str, hint: str) -> Difference:
        return Difference(kind, b.index, a.index, b.name, key, text, None, hint)

    values = [
        {name: record.value for name, record in side.items() if record.value is not None}
        for side in (ours, theirs)
    ]
    counts, own_counts = map(read_counts, values)
    trained = max(counts.values(), default=None)
    present = max(own_counts.values(), default=None)
    # The statistics exist only after the first step.
    is_missing = not values[1] and bool(not theirs or values[0])
    if ours and (trained is None or trained > FRESH_COUNT) and is_missing:
        text = f"it has no statistics, the contract has {', '.join(list(ours)[:3])}"
        if trained is not None:
            text += f" of {format_number(trained)} values"
        yield difference("state missing", text, f"load the state of the training into {b.name}")
    elif trained is not None and present is not None and present <= FRESH_COUNT < trained:
        name = max(own_counts, key=own_counts.__getitem__)
        text = (
            f"its statistics are fresh: its count ({name}) is {format_number(present)}, in the "
            f"contract {format_number(trained)}"
        )
        yield difference("state fresh", text, f"load the statistics of the training into {b.name}")
    elif a.name == b.name:
        yield from islice(_other_values(a, b, ours, theirs, key), 1)
    learning = [record.name for record in theirs.values() if record.changes]
    is_frozen = ours and not any(record.changes for record in ours.values())
    if learning and (evaluation or is_frozen):
        text = f"its statistics change with every step ({', '.join(learning[:3])})"
        if not evaluation:
            text += ", those of the contract do not"
        yield difference("state still learning", text, _STOP)


_STOP = (
    "stop the updates: training = False in Stable-Baselines3, update_running_mean = False in "
    "Gymnasium, freeze() in TorchRL and tdx"
)


def _other_values(
    a: StageRecord,
    b: StageRecord,
    ours: Mapping[str, StateRecord],
    theirs: Mapping[str, StateRecord],
    key: str | None,
) -> Iterator[Difference]:
    for name, one in ours.items():
        other = theirs.get(name)
        if other is None:
            if one.changes:
                text = f"it has no state {name}"
                yield Difference("state missing", b.index, a.index, b.name, key, text)
        elif one.shape != other.shape:
            text = f"{name} has the shape {list(other.shape)} instead of {list(one.shape)}"
            yield Difference("spec", b.index, a.index, b.name, key, text)
        elif one.digest != other.digest and one.value is not None and other.value is not None:
            change = compare_tensors(one.value.double(), other.value.double(), _TOLERANCE)
            if change is not None and change.size is not None:
                text = f"{name} differs by up to {format_number(change.size)}"
                hint = f"load the state of the training into {b.name}"
                if not one.changes:
                    hint = f"give {b.name} the {name} of the training, or load its state"
                yield Difference("value", b.index, a.index, b.name, name, text, change.size, hint)


def _common_rows(
    ours: dict[str, StateRecord], theirs: dict[str, StateRecord], in_rows: tuple[bool, bool]
) -> tuple[dict[str, StateRecord], dict[str, StateRecord]]:
    """Return both states with one row for each sub-env that both have."""
    rows = min(
        (
            record.shape[0] if batched else 1
            for side, batched in zip((ours, theirs), in_rows, strict=True)
            for record in side.values()
            if record.shape or not batched
        ),
        default=1,
    )

    def cut(state: dict[str, StateRecord], *, batched: bool) -> dict[str, StateRecord]:
        kept: dict[str, StateRecord] = {}
        for name, record in state.items():
            value = record.value
            if value is not None:
                value = value[:rows] if batched else value[None]
            shape = (rows, *(record.shape[1:] if batched else record.shape))
            code = record.digest if value is None else digest(value)
            kept[name] = replace(record, shape=shape, digest=code, value=value)
        return kept

    return cut(ours, batched=in_rows[0]), cut(theirs, batched=in_rows[1])
