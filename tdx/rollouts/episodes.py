"""Where the episodes of a rollout begin and end, and what they returned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.keys import NestedKey, key_parts

_COLUMNS = ("row", "start", "length", "return", "terminated")


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode.

    Args:
        row: of the batch, counted through all its dims.
        start: its first step in the rollout, from 0.
        length: how many steps.
        total_reward: the sum of its rewards.
        terminated: whether the env ended it; else it was cut off.
        finished: whether it came to an end in the rollout.
    """

    row: int
    start: int
    length: int
    total_reward: float
    terminated: bool
    finished: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "row": self.row,
            "start": self.start,
            "length": self.length,
            "return": _plain(self.total_reward),
            "terminated": self.terminated,
            "finished": self.finished,
        }


def _plain(number: float) -> float | str:
    return number if np.isfinite(number) else str(number)


@dataclass(slots=True)
class EpisodeIndex:
    """The episodes so far, as columns, and the one that runs in each row.

    Args:
        rows: how many rows the batch has.
    """

    rows: int
    columns: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _COLUMNS})
    starts: list[int] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        self.starts = self.starts or [0] * self.rows
        self.sums = self.sums or [0.0] * self.rows

    def __len__(self) -> int:
        return len(self.columns["row"])

    def add(self, rewards: Tensor, ends: Tensor, terminated: Tensor) -> None:
        """Take in a chunk.

        Args:
            rewards: summed over what belongs to one row, float64, ``[rows, T]``.
            ends: where an episode ends, ``[rows, T]``.
            terminated: where the env ended it, ``[rows, T]``.
        """
        totals = rewards.cumsum(1).numpy()
        before = np.zeros(self.rows)
        flags = terminated.numpy()
        for step, row in ends.T.nonzero().tolist():
            total = self.sums[row] + totals[row, step] - before[row]
            length = self.steps + step + 1 - self.starts[row]
            values = (row, self.starts[row], length, float(total), bool(flags[row, step]))
            for column, value in zip(self.columns.values(), values, strict=True):
                column.append(value)
            self.starts[row], self.sums[row] = self.steps + step + 1, 0.0
            before[row] = totals[row, step]
        self.sums = [
            kept + float(total - gone)
            for kept, total, gone in zip(self.sums, totals[:, -1], before, strict=True)
        ]
        self.steps += rewards.shape[1]

    def cut(self, steps: int, starts: list[int], sums: list[float]) -> None:
        """Go back to what was known after so many steps.

        Args:
            steps: how many.
            starts: where the episode of each row began that ran then.
            sums: its rewards until then.
        """
        spans = zip(self.columns["start"], self.columns["length"], strict=True)
        kept = [start + length <= steps for start, length in spans]
        for name, column in self.columns.items():
            self.columns[name] = [each for each, keep in zip(column, kept, strict=True) if keep]
        self.starts, self.sums, self.steps = list(starts), list(sums), steps

    def __iter__(self) -> Iterator[Episode]:
        """Every episode that ended, then those that still ran."""
        for row, start, length, total, ended in zip(*self.columns.values(), strict=True):
            yield Episode(row, start, length, float(total), ended)
        for row, (start, total) in enumerate(zip(self.starts, self.sums, strict=True)):
            if start < self.steps:
                yield Episode(row, start, self.steps - start, total, False, finished=False)

    def to_dict(self) -> dict[str, Any]:
        """As plain data; sums that are no finite numbers as text."""
        columns = {**self.columns, "return": [_plain(each) for each in self.columns["return"]]}
        running = {"start": self.starts, "return": [_plain(each) for each in self.sums]}
        return {**columns, "running": running}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], rows: int, steps: int) -> EpisodeIndex:
        """The index that :meth:`to_dict` described."""
        columns = {name: list(data[name]) for name in _COLUMNS}
        columns["return"] = [float(each) for each in columns["return"]]
        running = data["running"]
        sums = [float(each) for each in running["return"]]
        return cls(rows, columns, list(map(int, running["start"])), sums, steps)


@dataclass(frozen=True, slots=True)
class Flags:
    """Which entries say what a step was worth, and whether an episode ended.

    Args:
        rewards: the keys of the rewards.
        ends: the keys of all flags that end an episode.
    """

    rewards: tuple[NestedKey, ...]
    ends: tuple[NestedKey, ...]

    def read(self, chunk: TensorDictBase, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rewards, ends and terminations of a chunk ``[*B, T]``, each ``[rows, T]``."""
        following = chunk.get("next")
        steps = chunk.shape[dim]
        rows = chunk.batch_size[:dim].numel()

        def flat(key: NestedKey) -> Tensor:
            return following.get(key).detach().cpu().reshape(rows, steps, -1)

        rewards = torch.zeros(rows, steps, dtype=torch.float64)
        for key in self.rewards:
            rewards += flat(key).to(torch.float64).sum(-1)
        ends = torch.zeros(rows, steps, dtype=torch.bool)
        terminated = torch.zeros_like(ends)
        for key in self.ends:
            flag = flat(key).any(-1)
            ends |= flag
            if key_parts(key)[-1] == "terminated":
                terminated |= flag
        return rewards, ends, terminated
