"""What a live session keeps of all steps: numbers for plots, actions, and the episodes."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from tdx.core.envs.done_flags import episode_ends
from tdx.foundation.array_files import Array
from tdx.foundation.keys import NestedKey, format_key
from tdx.inspection.live.arrays import RowSelector, as_array
from tdx.inspection.live.stack_env import StackEnv
from tdx.inspection.live.views import EnvCell, EpisodeView, PlotView

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.core.tracing import StepTrace
    from tdx.core.tracing.passages import Passage, PassageId
    from tdx.envs import EnvBase


_ELEMENT = re.compile(r"(?P<key>.+)\[(?P<place>\d+)\]")
_MAX_ELEMENTS = 8


class SeriesBuffer:
    """Ring buffer with one row of numbers per trace."""

    def __init__(self, capacity: int, width: int = 1) -> None:
        self._ring = np.full((capacity, width), np.nan, dtype=np.float32)
        self.count = 0

    def append(self, numbers: Array | float) -> None:
        """Append the row of the next trace; NaN for missing numbers."""
        self._ring[self.count % len(self._ring)] = numbers
        self.count += 1

    def column(self, at: int) -> tuple[int, Array]:
        """Return the first trace in the buffer, and one number per trace from there."""
        size = len(self._ring)
        if self.count <= size:
            return 0, self._ring[: self.count, at]
        return self.count - size, np.roll(self._ring[:, at], -(self.count % size))

    def at(self, index: int, column: int = 0) -> float:
        """Return the number of a trace; NaN if it is not in the buffer."""
        held = max(0, self.count - len(self._ring)) <= index < self.count
        return float(self._ring[index % len(self._ring), column]) if held else math.nan

    @property
    def nbytes(self) -> int:
        """Allocated memory in bytes."""
        return int(self._ring.nbytes)


def build_plot(
    name: str, first: int, numbers: Array, *, parts: int, window: tuple[int, int] | None = None
) -> PlotView:
    """Divide numbers, one per trace from ``first`` on, into at most ``parts`` bins.

    ``window``: the first and the last trace to include. NaN stands for a missing number.
    """
    if window is not None:
        low, high = max(window[0], first), min(window[1], first + len(numbers) - 1)
        numbers, first = numbers[low - first : max(high + 1 - first, 0)], low
    count = len(numbers)
    known = numbers[~np.isnan(numbers)]
    latest = float(known[-1]) if known.size else None
    if count == 0:
        return PlotView(name, first, first, (), (), None)
    starts = np.unique((np.arange(min(parts, count)) * count) // min(parts, count))
    lows, highs = np.fmin.reduceat(numbers, starts), np.fmax.reduceat(numbers, starts)
    low_ends, high_ends = (
        tuple(number if math.isfinite(number) else None for number in ends.tolist())
        for ends in (lows, highs)
    )
    return PlotView(name, first, first + count - 1, low_ends, high_ends, latest)


def read_number(trace: StepTrace, name: str, row: int | None) -> float:
    """Return the number with a name; the mean of several, NaN if there is none.

    A name is a key with dots, or an element of one: ``"observation[0]"``.
    """
    numbers = _find_numbers(trace, name, row)
    if numbers is None:
        return math.nan
    return float(numbers.reshape(-1)[0] if numbers.size == 1 else numbers.mean())


def has_number(trace: StepTrace, name: str, row: int | None) -> bool:
    """Return True if a trace has a number with a name, which may be NaN."""
    return _find_numbers(trace, name, row) is not None


def _find_numbers(trace: StepTrace, name: str, row: int | None) -> Array | None:
    element = _ELEMENT.fullmatch(name)
    key = element["key"] if element else name
    value = None
    for level in (trace.env_tensordict, *((trace.tensordict,) if trace.phase == "step" else ())):
        # A key of a checkpoint has dots itself, and is no path of a nested one.
        for candidate in (key, tuple(key.split("."))):
            value = level.get(candidate, None) if value is None else value
    numbers = as_array(RowSelector(tuple(trace.tensordict.batch_size), row).of(value))
    if numbers is not None and element:
        place = int(element["place"])
        numbers = numbers.reshape(-1)[place : place + 1]
    return None if numbers is None or numbers.size == 0 else numbers


def number_names(trace: StepTrace, row: int | None) -> Iterator[str]:
    """Yield the names that :func:`read_number` accepts for a trace; some occur twice."""
    rows = RowSelector(tuple(trace.tensordict.batch_size), row)
    for level in (trace.env_tensordict, trace.tensordict):
        for key in level.keys(True, True):
            parts = (key,) if isinstance(key, str) else tuple(key)
            numbers = as_array(rows.of(level.get(key))) if parts[0] != "next" else None
            if numbers is not None and numbers.size:
                name = format_key(key)
                yield name
                if 1 < numbers.size <= _MAX_ELEMENTS:
                    yield from (f"{name}[{n}]" for n in range(numbers.size))


@dataclass(slots=True)
class Recording:
    """Requested resets and actions of a session, from its start.

    Args:
        capacity: Maximum number of them; later ones are not recorded.
        actions: Action of each step, ``[*B]``; ``None`` for a reset that was requested.
    """

    capacity: int
    actions: list[TensorDictBase | None] = field(default_factory=list)
    traces: list[int] = field(default_factory=list)

    def add(self, trace: int, action: TensorDictBase | None) -> None:
        """Record a reset or step."""
        if len(self.actions) < self.capacity:
            self.actions.append(action)
            self.traces.append(trace)

    def find(self, trace: int) -> tuple[int, int]:
        """Return the position of the reset or step of a trace, and the traces since then.

        A reset of done rows has no entry: it is one trace after a step.
        """
        at = bisect_right(self.traces, trace) - 1
        return at, trace - self.traces[at] if at >= 0 else 0


class ChangeCounter:
    """Counts in how many resets or steps of a session each stage changed each key."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, PassageId], dict[NestedKey, list[int]]] = {}

    def add(self, trace: StepTrace, passages: Sequence[Passage]) -> None:
        """Add a trace with what passed its stages."""
        for passage in passages:
            if passage.stage.kind in ("stage", "kept"):
                counts = self._counts.setdefault((trace.phase, passage.identity), {})
                for key in passage.entries:
                    count = counts.setdefault(key, [0, 0])
                    count[0] += key in passage.changed
                    count[1] += 1

    def counts(self, phase: str, place: PassageId) -> dict[NestedKey, tuple[int, int]]:
        """Return the keys that a stage changed at least once in resets, or in steps.

        Their values are the number of resets or steps in which it did, and of those with the key.
        """
        counts = self._counts.get((phase, place), {})
        return {key: (changed, present) for key, (changed, present) in counts.items() if changed}


_MAX_FINISHED = 1000
"""Number of finished episodes that are kept."""


@dataclass(slots=True)
class _OpenEpisode:
    """The current episode of an env."""

    number: int
    first: int
    last: int
    steps: int = 0
    total: float | None = 0.0
    end: str = ""


class EpisodeTracker:
    """Counts episodes from traces."""

    def __init__(self, env: EnvBase | StackEnv) -> None:
        self.rows = max(1, env.batch_size.numel())
        self._rewards: list[NestedKey] = list(env.reward_keys)
        self._done_keys = list(env.done_keys)
        self._ends_with_last_agent = isinstance(env, StackEnv) and env.ends_with_last_agent
        self.has_rewards = bool(self._rewards)
        self._open = [self._new_episode(-1, 0) for _ in range(self.rows)]
        self._finished: deque[EpisodeView] = deque(maxlen=_MAX_FINISHED)
        self.finished = 0
        self.rewards: Array = np.full(self.rows, np.nan, dtype=np.float32)

    @property
    def totals(self) -> Array:
        """Sum of the rewards of the current episode of each env, ``[rows]``."""
        totals = [math.nan if each.total is None else each.total for each in self._open]
        return np.array(totals, dtype=np.float32)

    def add(self, trace: StepTrace, is_start: bool) -> None:
        """Add a trace; ``is_start``: it is a reset of all envs, not only of those that are done."""
        if trace.error is not None:
            return
        if trace.phase == "reset":
            # Only the rows whose episode has ended are reset; a caller may reset an agent alone.
            for row, episode in enumerate(self._open):
                if is_start or episode.end:
                    self._begin(row, trace.index)
            self.rewards = np.full(self.rows, np.nan, dtype=np.float32)
            return
        self.rewards = np.zeros(self.rows, dtype=np.float32)
        for key in self._rewards:
            value = trace.env_tensordict.get(key, None)
            if value is not None and value.shape.numel() % self.rows == 0:
                numbers = value.detach().cpu().float().numpy()
                self.rewards += numbers.reshape(self.rows, -1).sum(axis=1)
        ends = episode_ends(
            trace.env_tensordict, self._done_keys, self.rows, self._ends_with_last_agent
        )
        for row in range(self.rows):
            if self._open[row].end:
                # A vector env of another library has reset this env itself.
                self._begin(row, trace.index)
            each = self._open[row]
            each.last = trace.index
            each.steps += 1
            if each.total is not None:
                each.total += float(self.rewards[row])
            if row in ends:
                each.end = ends[row]
                self.finished += 1
                self._finished.append(self._view(row))

    def _begin(self, row: int, index: int) -> None:
        before = self._open[row]
        if before.number >= 0 and not before.end and before.steps:
            before.end = "reset"
            self._finished.append(self._view(row))
        self._open[row] = self._new_episode(before.number + 1, index)

    def _new_episode(self, number: int, index: int) -> _OpenEpisode:
        return _OpenEpisode(number, index, index, total=0.0 if self.has_rewards else None)

    def _view(self, row: int) -> EpisodeView:
        each = self._open[row]
        return EpisodeView(
            row, each.number, each.first, each.last, each.steps, each.total, each.end
        )

    def episodes(self, row: int | None = None, limit: int = 200) -> tuple[EpisodeView, ...]:
        """Return the latest episodes, the newest last; running ones come after finished ones."""
        rows: Sequence[int] = range(min(self.rows, limit)) if row is None else (row,)
        running = [
            self._view(at) for at in rows if self._open[at].number >= 0 and not self._open[at].end
        ]
        ended = (each for each in reversed(self._finished) if row is None or each.row == row)
        latest = list(islice(ended, max(limit - len(running), 0)))
        return (*reversed(latest), *running)

    def cells(self, limit: int = 256) -> tuple[EnvCell, ...]:
        """Return the state of each env after the latest step."""
        return tuple(
            EnvCell(row, each.steps, each.total, each.end)
            for row, each in enumerate(self._open[:limit])
        )
