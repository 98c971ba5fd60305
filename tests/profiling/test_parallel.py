"""Attribution of the waiting time of a parent to calls in its workers."""

from __future__ import annotations

import numpy as np

from tdx.core.meter import Part, WorkerCalls
from tdx.profiling.parallel import CallTimes, charge_worker_calls

CORE = Part("wrapper", 1, "Vector", "step")
OUTER, INNER = Part("wrapper", 0, "Outer", "step"), Part("env", -1, "Inner", "step")


def core_times(*spans: tuple[int, int]) -> CallTimes:
    start, end = np.array(spans, np.int64).T
    return CallTimes(CORE, end - start, start, end, np.ones(len(spans), np.int64))


def stamps(*spans: tuple[int, int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(spans, np.int64).reshape(-1)


def wall_times(times: CallTimes) -> list[int]:
    assert times.wall_ns is not None
    return [int(each) for each in times.wall_ns]


def charge(times: CallTimes, *calls: WorkerCalls) -> dict[Part, CallTimes]:
    return {each.part: each for each in charge_worker_calls([times], (1, "Vector"), calls)}


def test_only_the_slowest_worker_of_each_step_counts() -> None:
    found = charge(
        core_times((0, 100), (200, 300)),
        WorkerCalls(OUTER, 0, stamps((10, 90), (210, 230))),
        WorkerCalls(INNER, 0, stamps((20, 50), (215, 220))),
        WorkerCalls(OUTER, 1, stamps((10, 30), (210, 290))),
        WorkerCalls(INNER, 1, stamps((15, 25), (240, 250))),
    )
    assert found[OUTER].own_ns.tolist() == [50, 15, 10, 70]
    assert wall_times(found[OUTER]) == [50, 0, 0, 70]
    assert found[INNER].total_ns == 30 + 10
    assert found[CORE].own_ns.tolist() == [20, 20]
    assert sum(each.total_ns for each in found.values()) == 200


def test_work_before_the_parent_waits_does_not_count() -> None:
    found = charge(
        core_times((100, 150)),
        WorkerCalls(OUTER, 0, stamps((50, 130))),
        WorkerCalls(OUTER, 1, stamps((20, 90))),
    )
    assert wall_times(found[OUTER]) == [30, 0]
    assert found[CORE].own_ns.tolist() == [20]


def test_calls_after_the_parent_stops_waiting_do_not_count() -> None:
    found = charge(core_times((100, 150)), WorkerCalls(OUTER, 0, stamps((160, 170))))
    assert found[OUTER].total_ns == 0
    assert found[CORE].total_ns == 50
