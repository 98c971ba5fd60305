"""Where the episodes of a rollout start and end, and their returns."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import episode_end_keys
from tdx.envs import EnvBase
from tdx.foundation.errors import StorageError
from tdx.foundation.keys import NestedKey, normalize_key, split_key
from tdx.foundation.serialization import Entries, Entry, Result, to_plain
from tdx.foundation.untrusted import Fields
from tdx.rollouts.dump.encoding import DAMAGED

MAX_ROWS = 2**24
"""Largest number of batch elements that is accepted."""
_TYPES = {"row": "i", "start": "q", "length": "q", "return": "d", "terminated": "b"}
_PER_CHUNK = ("row", "length", "return", "terminated")
Columns = dict[str, NDArray[Any]]
"""Episodes by column: ``row``, ``start``, ``length``, ``return`` and ``terminated``."""


@dataclass(frozen=True, slots=True)
class Episode(Result):
    """One episode.

    Args:
        row: Index of the batch element in the flattened batch.
        start: First step in the rollout, from 0.
        length: Number of steps.
        total_reward: Sum of its rewards.
        terminated: Whether the env terminated it; otherwise it was truncated.
        finished: Whether it ended within the rollout.
    """

    json_entries: ClassVar[Entries] = (
        *("row", "start", "length", Entry("return", "total_reward"), "terminated", "finished"),
    )

    row: int
    start: int
    length: int
    total_reward: float
    terminated: bool
    finished: bool = True


class EpisodeIndex:
    """Compact columns of the episodes so far, and start and rewards of the running ones by row."""

    def __init__(self, rows: int) -> None:
        self.rows, self.steps = rows, 0
        self.starts: NDArray[np.int64] = np.zeros(rows, np.int64)
        self.sums: NDArray[np.float64] = np.zeros(rows, np.float64)
        self._columns = {name: array(kind) for name, kind in _TYPES.items()}

    def __len__(self) -> int:
        return len(self._columns["row"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EpisodeIndex):
            return NotImplemented
        pairs = [
            (self.starts, other.starts),
            (self.sums, other.sums),
            *((self.column(name), other.column(name)) for name in _TYPES),
        ]
        return (self.rows, self.steps) == (other.rows, other.steps) and all(
            # Also equal if both are NaN.
            one.tobytes() == two.tobytes()
            for one, two in pairs
        )

    __hash__ = None  # type: ignore[assignment]

    def column(self, name: str) -> NDArray[Any]:
        """Return a copy of one column of the episodes that ended, in the order of their ends."""
        values = self._columns[name]
        return np.array(values, dtype=values.typecode)

    def means(self) -> tuple[float | None, float | None]:
        """Return the mean return and length of the episodes that ended.

        ``None`` if there are none, or a return is not finite.
        """
        if not len(self):
            return None, None
        returns, lengths = self.column("return"), self.column("length")
        finite = bool(np.isfinite(returns).all())
        return float(torch.from_numpy(returns).mean()) if finite else None, float(lengths.mean())

    def add(self, rewards: Tensor, ends: Tensor, terminated: Tensor) -> Columns:
        """Add a chunk, and return the episodes that ended in it.

        All arguments are ``[rows, T]``: the sum over the reward entries (float64), where an episode
        ends, and where the env terminated it.
        """
        totals, flags = rewards.cumsum(1).numpy(), terminated.numpy()
        step, row = ends.numpy().T.nonzero()
        order = np.argsort(row, kind="stable")
        row_of, step_of = row[order], step[order]
        total_of = totals[row_of, step_of]
        first = _is_first(row_of)
        # Of the episode before it in the same row.
        before = np.where(first, 0.0, np.roll(total_of, 1))
        start_of = np.where(first, self.starts[row_of], self.steps + np.roll(step_of, 1) + 1)
        columns: Columns = {
            "row": row,
            "start": _unsorted(start_of, order),
            "length": _unsorted(self.steps + step_of + 1 - start_of, order),
            "return": _unsorted(np.where(first, self.sums[row_of], 0.0) + total_of - before, order),
            "terminated": flags[row, step],
        }
        # Of repeated rows the last assignment counts.
        ended = np.zeros(self.rows)
        ended[row_of] = total_of
        self.sums = np.where(ends.any(1).numpy(), 0.0, self.sums)
        if totals.shape[1]:
            self.sums = self.sums + (totals[:, -1] - ended)
        self.starts = self.starts.copy()
        self.starts[row_of] = self.steps + step_of + 1
        self.steps += totals.shape[1]
        self._append(columns)
        return columns

    def _append(self, columns: Columns) -> None:
        for name, kind in _TYPES.items():
            self._columns[name].frombytes(np.ascontiguousarray(columns[name], kind).tobytes())

    def __iter__(self) -> Iterator[Episode]:
        """Yield every episode that ended, then those still running."""
        for row, start, length, total, ended in zip(*self._columns.values(), strict=True):
            yield Episode(row, start, length, total, bool(ended))
        for row in np.flatnonzero(self.starts < self.steps).tolist():
            start = int(self.starts[row])
            total = float(self.sums[row])
            yield Episode(row, start, self.steps - start, total, False, finished=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; sums that are not finite as text."""
        columns: dict[str, list[Any]] = {n: column.tolist() for n, column in self._columns.items()}
        columns["terminated"] = list(map(bool, columns["terminated"]))
        columns["return"] = to_plain(columns["return"], strict=True)
        running = {"start": self.starts.tolist(), "return": self.running()}
        return {**columns, "running": running}

    def running(self) -> list[float | str]:
        """Return the rewards of the running episodes as plain data, by row."""
        rewards: list[float | str] = to_plain(self.sums.tolist(), strict=True)
        return rewards

    @classmethod
    def from_dict(cls, data: object, rows: int, steps: int) -> EpisodeIndex:
        """Parse the output of :meth:`to_dict`."""
        fields = Fields(data, "episodes", DAMAGED)
        running = fields.object("running")
        index = cls(check_row_count(rows))
        index.extend(parse_line_columns(fields), steps, running.list("return"), "episodes")
        if fields.list("start") != index.column("start").tolist():
            raise StorageError("the starts of the episodes contradict their lengths", hint=DAMAGED)
        if running.list("start") != index.starts.tolist():
            raise StorageError("the running episodes have other starts", hint=DAMAGED)
        return index

    def extend(self, columns: Columns, steps: int, running: list[Any] | None, source: str) -> None:
        """Add the episodes that ended in a chunk, as read from a file.

        ``steps`` counts up to the end of the chunk. ``running`` has the rewards of the episodes
        that run then, by row, if they are known.
        """
        row, length = columns["row"], columns["length"]
        wrong = StorageError(f"{source}: the episodes do not fit the steps", hint=DAMAGED)
        if len(row) and (row.min() < 0 or row.max() >= self.rows or length.min() < 1):
            raise wrong
        if length.astype(np.float64).sum() > 2.0**62:
            raise wrong
        order = np.argsort(row, kind="stable")
        row_of, length_of = row[order], length[order]
        first = _is_first(row_of)
        passed = np.cumsum(length_of) - length_of
        base = passed[first][np.cumsum(first) - 1] if len(row) else passed
        start = _unsorted(self.starts[row_of] + passed - base, order)
        ends = start + length
        if len(row) and (
            ends[0] <= self.steps or ends[-1] > steps or bool((np.diff(ends) < 0).any())
        ):
            raise wrong
        self._append({**columns, "start": start})
        self.starts[row_of] = ends[order]
        self.steps = steps
        if running is not None:
            self.sums = _numbers(running, source)
            if len(self.sums) != self.rows:
                raise wrong

    def split(self, steps: list[int]) -> Iterator[Columns]:
        """Yield the episodes that ended in each chunk; ``steps`` counts up to the end of each."""
        columns = {name: self.column(name) for name in _TYPES}
        places = np.searchsorted(columns["start"] + columns["length"], [0, *steps], side="right")
        for begin, end in itertools.pairwise(places.tolist()):
            yield {name: column[begin:end] for name, column in columns.items()}


def check_row_count(rows: int) -> int:
    """Return the number of batch elements after checking it."""
    if rows > MAX_ROWS:
        raise StorageError(
            f"the batch has {rows:,} elements, the limit is {MAX_ROWS:,}", hint=DAMAGED
        )
    return rows


def line_columns(columns: Columns) -> dict[str, list[Any]]:
    """Return the episodes that ended in a chunk as plain data for the index."""
    found = {name: columns[name].tolist() for name in _PER_CHUNK}
    found["return"] = to_plain(found["return"], strict=True)
    found["terminated"] = list(map(int, found["terminated"]))
    return found


def parse_line_columns(fields: Fields) -> Columns:
    """Parse the output of :func:`line_columns`."""
    columns = {
        "row": _whole(fields, "row"),
        "length": _whole(fields, "length"),
        "return": _numbers(fields.list("return"), fields.source),
        "terminated": _whole(fields, "terminated"),
    }
    if len({len(column) for column in columns.values()}) > 1:
        raise StorageError(f"{fields.source}: the columns differ in length", hint=DAMAGED)
    if not np.isin(columns["terminated"], (0, 1)).all():
        raise fields.invalid("terminated", "a list of 0 and 1")
    return columns


def _whole(fields: Fields, name: str) -> NDArray[np.int64]:
    found = fields.list(name)
    if not set(map(type, found)) <= {int, bool}:
        raise fields.invalid(name, "a list of whole numbers")
    try:
        return np.array(found, np.int64)
    except OverflowError:
        raise fields.invalid(name, "a list of 64-bit numbers") from None


def _numbers(values: list[Any], source: str) -> NDArray[np.float64]:
    try:
        return np.array([float(value) for value in values], np.float64)
    except (TypeError, ValueError, OverflowError):
        raise StorageError(f"{source}: a return is not a number", hint=DAMAGED) from None


def _is_first(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the sorted row numbers that differ from the preceding one."""
    first = np.ones(len(rows), np.bool_)
    first[1:] = rows[1:] != rows[:-1]
    return first


def _unsorted(values: NDArray[Any], order: NDArray[np.intp]) -> NDArray[Any]:
    back = np.empty_like(values)
    back[order] = values
    return back


def _split_keys(keys: tuple[NestedKey, ...]) -> list[tuple[str, ...]]:
    return [split_key(key) for key in keys]


@dataclass(frozen=True, slots=True)
class EpisodeKeys(Result):
    """Keys of the rewards and done flags, which are below ``next`` in a rollout.

    Args:
        rewards: Keys of the rewards.
        ends: Keys of the done flags that end an episode.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("rewards", convert=_split_keys), Entry("ends", convert=_split_keys)),
    )

    rewards: tuple[NestedKey, ...]
    ends: tuple[NestedKey, ...]

    @classmethod
    def of(cls, env: EnvBase) -> EpisodeKeys:
        """Return the keys of an env."""
        return cls(tuple(env.reward_keys), tuple(episode_end_keys(env.done_keys)))

    def fits(self, env: EnvBase) -> bool:
        """Return True if a rollout of an env can continue with these keys.

        Dumps of earlier versions count the end of each agent as well, and keep doing so.
        """
        return self in (self.of(env), EpisodeKeys(tuple(env.reward_keys), tuple(env.done_keys)))

    def read(self, chunk: TensorDictBase, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return rewards, ends and terminations of a chunk ``[*B, T]``, each ``[rows, T]``."""
        following = chunk.get("next")
        steps = chunk.shape[dim]
        rows = chunk.batch_size[:dim].numel()

        def flat(key: NestedKey) -> Tensor:
            return following.get(key).detach().cpu().reshape(rows, steps, -1)

        return self.read_flat(flat, rows, steps)

    def read_flat(
        self, flat: Callable[[NestedKey], Tensor], rows: int, steps: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rewards, ends and terminations, each ``[rows, steps]``.

        ``flat`` returns an entry below ``next`` as ``[rows, steps, n]``.
        """
        rewards = torch.zeros(rows, steps, dtype=torch.float64)
        for key in self.rewards:
            rewards += flat(key).to(torch.float64).sum(-1)
        ends = torch.zeros(rows, steps, dtype=torch.bool)
        terminated = torch.zeros_like(ends)
        for key in self.ends:
            flag = flat(key).any(-1)
            ends |= flag
            if split_key(key)[-1] == "terminated":
                terminated |= flag
        return rewards, ends, terminated

    @classmethod
    def from_fields(cls, fields: Fields) -> EpisodeKeys:
        """Parse the output of :meth:`to_dict`."""
        return cls(_keys(fields, "rewards"), _keys(fields, "ends"))


def _keys(fields: Fields, name: str) -> tuple[NestedKey, ...]:
    found = fields.list(name)
    for key in found:
        if not isinstance(key, list) or not key or not all(isinstance(p, str) for p in key):
            raise fields.invalid(name, "a list of keys")
    return tuple(normalize_key(tuple(key)) for key in found)
