"""Times of calls, and those of worker processes as parts of the time that their parent waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tdx.core.meter import Part, WorkerCalls
from tdx.profiling.result import Counts


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Times of the calls of one part.

    Args:
        part: The part.
        own_ns: Duration of each call without the measured calls inside it, int64 ``[n]``.
        start_ns: Start of each call, int64 ``[n]``.
        end_ns: End of each call, int64 ``[n]``.
        steps: Number of rollout steps that each call covers, int64 ``[n]``.
        wall_ns: Part of the own time that the process waited for, int64 ``[n]``; less than the own
            time for calls in workers that run at the same time. ``None``: all of it.
    """

    part: Part
    own_ns: Counts
    start_ns: Counts
    end_ns: Counts
    steps: Counts
    wall_ns: Counts | None = None

    @property
    def total_ns(self) -> int:
        """Sum of the times that the process waited for."""
        return int((self.own_ns if self.wall_ns is None else self.wall_ns).sum())


def exclude_nested_time(
    calls: Counts, inside_ns: Counts | None = None, around_ns: Counts | None = None
) -> Counts:
    """Return the duration of each call without the calls inside it.

    Args:
        calls: Start and end of each call, int64 ``[n, 2]``, in any order.
        inside_ns: Cost of measuring each call between its start and its end, int64 ``[n]``.
            ``None``: 0.
        around_ns: The same before its start and after its end, in the call around it.

    Returns:
        int64 ``[n]``.
    """
    # By end; of calls that end together, the one that started last is innermost.
    order = np.lexsort((-calls[:, 0], calls[:, 1]))
    found = np.empty(len(calls), np.int64)
    around = [0] * len(calls) if around_ns is None else around_ns[order].tolist()
    open_calls: list[tuple[int, int]] = []
    places = zip(order.tolist(), calls[order].tolist(), around, strict=True)
    for place, (start, end), outside in places:
        inner = 0
        while open_calls and open_calls[-1][0] >= start:
            inner += open_calls.pop()[1]
        open_calls.append((start, end - start + outside))
        found[place] = end - start - inner
    # A call may take less than measuring calls usually costs.
    return found if inside_ns is None else np.maximum(found - inside_ns, 0)


def charge_worker_calls(
    times: Sequence[CallTimes], waiting: tuple[int, str], calls: Sequence[WorkerCalls]
) -> list[CallTimes]:
    """Add the calls of worker processes to those of the process that waited for them.

    Workers run at the same time. In each call that waits, the times of the worker that was busy
    longest count; the own time of the call is what remains: pipes, and waiting for processes.

    Args:
        times: Calls of this process.
        waiting: Index and name of the parts whose calls waited.
        calls: Calls of each part in each worker.

    Returns:
        Calls of all processes. The sum of ``total_ns`` is the same as before.
    """
    is_waiting = [(each.part.index, each.part.name) == waiting for each in times]
    windows = _Windows([each for each, chosen in zip(times, is_waiting, strict=True) if chosen])
    workers = [_WorkerTimes(found, windows) for found in _by_worker(calls)]
    if not windows.count or not workers:
        return list(times)
    slowest = np.argmax([each.busy_ns for each in workers], axis=0)
    for number, each in enumerate(workers):
        each.charge(slowest == number)
    charged = np.sum([each.charged_ns for each in workers], axis=0)
    kept = windows.deduct(charged)
    return [*(kept.get(each.part, each) for each in times), *_join(workers)]


class _Windows:
    """The calls that wait for workers, by end.

    Args:
        times: Their times; no call is inside another one.
    """

    def __init__(self, times: Sequence[CallTimes]) -> None:
        self._times = times
        start = np.concatenate([each.start_ns for each in times] or [np.zeros(0, np.int64)])
        end = np.concatenate([each.end_ns for each in times] or [np.zeros(0, np.int64)])
        self._order = np.argsort(end, kind="stable")
        self.start_ns, self.end_ns = start[self._order], end[self._order]

    @property
    def count(self) -> int:
        """Number of calls."""
        return len(self.end_ns)

    def deduct(self, charged_ns: Counts) -> dict[Part, CallTimes]:
        """Return the times with less own time.

        Args:
            charged_ns: Time to deduct from each call, ``[count]``.
        """
        deducted = np.empty_like(charged_ns)
        deducted[self._order] = charged_ns
        lengths = np.cumsum([len(each.own_ns) for each in self._times])[:-1]
        return {
            each.part: replace(each, own_ns=np.maximum(each.own_ns - part, 0))
            for each, part in zip(self._times, np.split(deducted, lengths), strict=True)
        }


class _WorkerTimes:
    """Calls of one worker, and the calls of its parent that waited for them.

    Args:
        calls: Calls of each part.
        windows: The calls that waited.
    """

    def __init__(self, calls: Sequence[WorkerCalls], windows: _Windows) -> None:
        self._windows = windows
        self.parts = [each.part for each in calls]
        stamps = [each.stamps.reshape(-1, 2) for each in calls]
        self.lengths = [len(each) for each in stamps]
        self.stamps = np.concatenate(stamps)
        self.own_ns = exclude_nested_time(self.stamps)
        self.wall_ns = np.zeros_like(self.own_ns)
        self.charged_ns = np.zeros(windows.count, np.int64)
        roots = _outermost(self.stamps)
        self._root = np.searchsorted(roots[:, 0], self.stamps[:, 0], side="right") - 1
        self._window = np.searchsorted(windows.end_ns, roots[:, 1])
        # A worker that starts before the parent waits works meanwhile for nothing that is measured.
        inside = self._window < windows.count
        known = np.minimum(self._window, max(windows.count - 1, 0))
        start = np.maximum(roots[:, 0], windows.start_ns[known]) if windows.count else roots[:, 0]
        clipped = np.where(inside, np.maximum(roots[:, 1] - start, 0), 0)
        self._share = clipped / np.maximum(roots[:, 1] - roots[:, 0], 1)
        self.busy_ns = np.bincount(
            self._window[inside], weights=clipped[inside], minlength=windows.count
        )

    def charge(self, is_slowest: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        """Count the times of the windows in which this worker was the slowest.

        Args:
            is_slowest: Bool ``[windows]``.
        """
        window = np.minimum(self._window[self._root], self._windows.count - 1)
        share = np.where(is_slowest[window], self._share[self._root], 0.0)
        self.wall_ns = (self.own_ns * share).astype(np.int64)
        self.charged_ns = np.bincount(
            window, weights=self.wall_ns, minlength=self._windows.count
        ).astype(np.int64)


def _by_worker(calls: Sequence[WorkerCalls]) -> list[list[WorkerCalls]]:
    found: dict[int, list[WorkerCalls]] = {}
    for each in calls:
        if len(each.stamps):
            found.setdefault(each.worker, []).append(each)
    return list(found.values())


def _outermost(stamps: Counts) -> Counts:
    """Return the calls that are in no other call, by start, int64 ``[m, 2]``."""
    ordered = stamps[np.lexsort((-stamps[:, 1], stamps[:, 0]))]
    before = np.maximum.accumulate(ordered[:, 1])
    return ordered[np.concatenate([[True], ordered[1:, 0] >= before[:-1]])]


def _join(workers: Sequence[_WorkerTimes]) -> list[CallTimes]:
    """Return the calls of all workers by part."""
    columns: dict[Part, list[tuple[Counts, Counts, Counts]]] = {}
    for each in workers:
        splits = np.cumsum(each.lengths)[:-1]
        arrays = (each.own_ns, each.stamps, each.wall_ns)
        for part, *found in zip(each.parts, *(np.split(a, splits) for a in arrays), strict=True):
            columns.setdefault(part, []).append((found[0], found[1], found[2]))
    joined = []
    for part, parts in columns.items():
        own, stamps, wall = (np.concatenate(each) for each in zip(*parts, strict=True))
        ones = np.ones(len(own), np.int64)
        joined.append(CallTimes(part, own, stamps[:, 0], stamps[:, 1], ones, wall))
    return joined
