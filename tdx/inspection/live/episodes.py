"""Episodes of each env of a batch: length, return and how they ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tdx.inspection.live.views import EnvCell, EpisodeView
from tdx.keys import NestedKey, split_key

if TYPE_CHECKING:
    from tdx.core.tracing import StepTrace
    from tdx.envs import EnvBase
    from tdx.inspection.live.stack_env import StackEnv

Array = np.ndarray[Any, Any]
_ENDS = ("terminated", "truncated", "done")


@dataclass(slots=True)
class _OpenEpisode:
    """The current episode of an env."""

    number: int
    first: int
    last: int
    steps: int = 0
    total: float = 0.0
    end: str = ""


class EpisodeTracker:
    """Counts episodes from traces.

    Args:
        env: Env with its chain, or a stack of another library.
        max_finished: Maximum number of finished episodes to keep.
    """

    def __init__(self, env: EnvBase | StackEnv, max_finished: int = 1000) -> None:
        self.rows = max(1, env.batch_size.numel())
        self._rewards: list[NestedKey] = list(env.reward_keys)
        self._flags = {
            end: [key for key in env.done_keys if split_key(key)[-1] == end] for end in _ENDS
        }
        self._open = [_OpenEpisode(-1, 0, 0) for _ in range(self.rows)]
        self._finished: deque[EpisodeView] = deque(maxlen=max_finished)
        self.finished = 0
        self.rewards: Array = np.full(self.rows, np.nan, dtype=np.float32)

    @property
    def totals(self) -> Array:
        """Sum of the rewards of the current episode of each env, ``[rows]``."""
        return np.array([each.total for each in self._open], dtype=np.float32)

    def add(self, trace: StepTrace) -> None:
        """Add a trace. A reset starts an episode in the envs that are done, or in all."""
        if trace.error is not None:
            return
        if trace.phase == "reset":
            ended = [each for each in self._open if each.end]
            for row, each in enumerate(self._open):
                if each.end or not ended:
                    self._begin(row, trace.index)
            self.rewards = np.full(self.rows, np.nan, dtype=np.float32)
            return
        self.rewards = self._reward_sums(trace)
        ends = self._ends(trace)
        for row in range(self.rows):
            if self._open[row].end:
                # A vector env of another library has reset this env itself.
                self._begin(row, trace.index)
            each = self._open[row]
            each.last = trace.index
            each.steps += 1
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
        self._open[row] = _OpenEpisode(before.number + 1, index, index)

    def _reward_sums(self, trace: StepTrace) -> Array:
        found = np.zeros(self.rows, dtype=np.float32)
        for key in self._rewards:
            value = trace.env_tensordict.get(key, None)
            if value is not None and value.shape.numel() % self.rows == 0:
                numbers = value.detach().cpu().float().numpy()
                found += numbers.reshape(self.rows, -1).sum(axis=1)
        return found

    def _ends(self, trace: StepTrace) -> dict[int, str]:
        found: dict[int, str] = {}
        for end, keys in self._flags.items():
            for key in keys:
                value = trace.env_tensordict.get(key, None)
                if value is not None and bool(value.any()):
                    rows = value.detach().cpu().numpy().reshape(self.rows, -1).any(axis=1)
                    for row in np.flatnonzero(rows).tolist():
                        found.setdefault(row, end)
        return found

    def _view(self, row: int) -> EpisodeView:
        each = self._open[row]
        return EpisodeView(
            row, each.number, each.first, each.last, each.steps, each.total, each.end
        )

    def episodes(self, row: int | None = None, limit: int = 200) -> tuple[EpisodeView, ...]:
        """Return the latest episodes, the newest last; running episodes come after finished ones.

        Args:
            row: Row of the batch. ``None``: all rows.
            limit: Maximum number of episodes.
        """
        rows: Sequence[int] = range(min(self.rows, limit)) if row is None else (row,)
        running = [self._view(at) for at in rows if self._is_running(at)]
        remaining = max(limit - len(running), 0)
        latest = list(_take(remaining, self._finished_episodes(row)))
        return (*reversed(latest), *running)

    def _is_running(self, row: int) -> bool:
        return self._open[row].number >= 0 and not self._open[row].end

    def _finished_episodes(self, row: int | None) -> Iterator[EpisodeView]:
        return (each for each in reversed(self._finished) if row is None or each.row == row)

    def cells(self, limit: int = 256) -> tuple[EnvCell, ...]:
        """Return the state of each env after the latest step."""
        return tuple(
            EnvCell(row, each.steps, float(self.rewards[row]), each.total, each.end)
            for row, each in enumerate(self._open[:limit])
        )


def _take(count: int, views: Iterator[EpisodeView]) -> Iterator[EpisodeView]:
    for _, view in zip(range(count), views, strict=False):
        yield view
