"""What the operating system reports of a thread's use of the processor, beside the wall time."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_SCHEDULER = Path("/proc/thread-self/schedstat")
MIN_LOST_SHARE = 0.02
"""Share of the wall time from which a loss of the processor is reported."""


class ProcessorReading(NamedTuple):
    """Counters of the current thread; ``None`` where the system does not have one.

    It was preempted ``preemptions`` times, and could have run for ``ready_ns``, while other threads
    had the processor. It gave the processor up itself ``waits`` times.
    """

    wall_ns: int
    cpu_ns: int
    ready_ns: int | None
    preemptions: int | None
    waits: int | None


def read_processor() -> ProcessorReading:
    """Read the counters of the current thread."""
    preemptions = waits = None
    if resource is not None:
        # Without a counter per thread, as on macOS, that of the process has to do.
        which = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
        usage = resource.getrusage(which)
        preemptions, waits = usage.ru_nivcsw, usage.ru_nvcsw
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    ready = None
    with suppress(OSError, ValueError, IndexError):
        # The second number of Linux' schedstat: the time on a run queue.
        ready = int(_SCHEDULER.read_text().split()[1])
    return ProcessorReading(wall, cpu, ready, preemptions, waits)


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """Use of the processor by the measuring thread in one repeat.

    Args:
        wall_ns: Wall time.
        cpu_ns: CPU time; less than the wall time if the thread waited or was preempted.
        lost_ns: Time that it was ready to run and other programs had the processor. ``None``:
            the system does not tell it apart from waiting.
        preemptions: How often the processor was taken away. ``None``: the system does not count it.
    """

    wall_ns: int
    cpu_ns: int
    lost_ns: int | None
    preemptions: int | None


def processor_use(before: ProcessorReading, after: ProcessorReading) -> ProcessorUse:
    """Return what happened between two readings of one thread."""
    wall, cpu = after.wall_ns - before.wall_ns, after.cpu_ns - before.cpu_ns
    preemptions = _difference(before.preemptions, after.preemptions)
    lost = _difference(before.ready_ns, after.ready_ns)
    if lost is None and preemptions is not None and not _difference(before.waits, after.waits):
        # A thread that never waited was either running or ready to run.
        lost = max(wall - cpu, 0) if preemptions else 0
    return ProcessorUse(wall, cpu, lost, preemptions)


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def describe_preemption(uses: tuple[ProcessorUse, ...]) -> str | None:
    """Return how much time was lost to other programs; ``None`` if it is negligible or unknown."""
    wall = sum(use.wall_ns for use in uses)
    lost = sum(use.lost_ns or 0 for use in uses)
    if not wall or lost < MIN_LOST_SHARE * wall:
        return None
    counts = [use.preemptions for use in uses if use.preemptions is not None]
    often = f", taken away {sum(counts):,} times" if counts and sum(counts) else ""
    cpu = sum(use.cpu_ns for use in uses)
    return (
        f"other programs had the processor for {lost / wall:.1%} of the time{often} "
        f"({cpu / 1e9:.2f} s CPU time in {wall / 1e9:.2f} s): means include it, medians hardly do"
    )
