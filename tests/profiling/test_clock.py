"""The clock meter: own times, nesting, calls that raise, and sequences of calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tdx.core.meter import Part
from tdx.profiling.clock import (
    CallTimes,
    ClockCost,
    ClockMeter,
    exclude_nested_time,
    measure_clock_cost,
)
from tests.profiling.fake_clock import FakeClock

OUTER, INNER = Part("engine", -1, "outer", "step"), Part("stage", 0, "Inner", "forward")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def by_part(meter: ClockMeter) -> dict[Part, CallTimes]:
    return {times.part: times for times in meter.collect()}


def test_own_time_excludes_inner_parts(clock: FakeClock) -> None:
    meter = ClockMeter(clock)
    inner = meter.timed(INNER, clock.spend)

    def work(value: int) -> None:
        clock.spend(5)
        inner(value)
        inner(value)
        clock.spend(2)

    outer = meter.timed(OUTER, work)
    outer(10)
    outer(20)
    found = by_part(meter)
    assert found[OUTER].own_ns.tolist() == [7, 7]
    assert found[INNER].own_ns.tolist() == [10, 10, 20, 20]
    assert (found[OUTER].end_ns - found[OUTER].start_ns).tolist() == [27, 47]


def test_clock_cost_is_subtracted(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = ClockCost(inside_ns=3, around_ns=4, sequence_ns=6)
    monkeypatch.setattr("tdx.profiling.clock.measure_clock_cost", lambda _: cost)
    meter = ClockMeter(clock)
    inner = meter.timed(INNER, clock.spend)

    def work(value: int) -> None:
        clock.spend(20)
        inner(value)
        inner(1)

    meter.timed(OUTER, work)(10)
    found = by_part(meter)
    # A call that takes less time than its measurement counts as 0.
    assert found[INNER].own_ns.tolist() == [7, 0]
    assert found[OUTER].own_ns.tolist() == [20 - 2 * 4 - 3]


def test_clock_cost_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count().__next__
    monkeypatch.setattr("tdx.profiling.clock.time", SimpleNamespace(perf_counter_ns=clock))
    # Each reading takes a nanosecond: a call costs one inside its readings and one around them.
    assert measure_clock_cost(clock) == ClockCost(inside_ns=1, around_ns=1, sequence_ns=1)
    reading = clock()
    assert measure_clock_cost(clock) == ClockCost(1, 1, 1)
    assert clock() == reading + 1


def test_fake_clock_has_no_cost(clock: FakeClock) -> None:
    assert measure_clock_cost(clock) == ClockCost(0, 0, 0)


def test_collect_clears_the_log(clock: FakeClock) -> None:
    meter = ClockMeter(clock)
    timed = meter.timed(INNER, clock.spend)
    timed(3)
    assert len(meter.collect()) == 1
    assert meter.collect() == []
    timed(4)
    assert by_part(meter)[INNER].own_ns.tolist() == [4]


@pytest.mark.parametrize("arity", [0, 1, 2, 3])
def test_arguments_and_results_pass_through(clock: FakeClock, arity: int) -> None:
    functions: list[Callable[..., Any]] = [
        lambda: (),
        lambda a: (a,),
        lambda a, b: (a, b),
        lambda a, b, c=7: (a, b, c),
    ]
    timed = ClockMeter(clock).timed(INNER, functions[arity])
    assert timed(*range(arity)) == tuple(range(arity))


def test_keywords_pass_through(clock: FakeClock) -> None:
    def reset(tensordict: Any = None, **kwargs: Any) -> Any:
        return tensordict, kwargs

    timed = ClockMeter(clock).timed(OUTER, reset)
    assert timed(tensordict=1, seed=2) == (1, {"seed": 2})


@pytest.mark.parametrize("arity", [1, 2, 3])
def test_call_that_raises_is_timed(clock: FakeClock, arity: int) -> None:
    def fail(*args: int) -> None:
        clock.spend(9)
        raise ValueError("no")

    functions: list[Callable[..., None]] = [
        lambda a: fail(a),
        lambda a, b: fail(a, b),
        lambda *args: fail(*args),
    ]
    meter = ClockMeter(clock)
    timed = meter.timed(INNER, functions[arity - 1])
    with pytest.raises(ValueError, match="no"):
        timed(*range(arity))
    assert by_part(meter)[INNER].own_ns.tolist() == [9]


def test_calls_record_the_steps_they_cover(clock: FakeClock) -> None:
    meter = ClockMeter(clock)

    def spend_each(rows: list[int]) -> None:
        clock.spend(len(rows))

    timed = meter.timed(INNER, spend_each, steps=len)
    timed([1, 2, 3])
    timed([1])
    found = by_part(meter)[INNER]
    assert found.steps.tolist() == [3, 1]
    assert found.own_ns.tolist() == [3, 1]


def test_timed_function_is_not_wrapped_again(clock: FakeClock) -> None:
    meter = ClockMeter(clock)
    timed = meter.timed(INNER, clock.spend)
    assert meter.timed(INNER, timed) is timed


def in_turn(meter: ClockMeter, clock: FakeClock, costs: list[int]) -> tuple[list[Part], list[Any]]:
    def costing(cost: int) -> Callable[[Any, Any], None]:
        def run(entries: Any, fields: Any) -> None:
            clock.spend(cost)
            if fields == cost:
                raise ValueError(str(cost))

        return run

    parts = [Part("stage", index, "Some", "forward") for index in range(len(costs))]
    timed = [meter.timed(part, costing(cost)) for part, cost in zip(parts, costs, strict=True)]
    return parts, list(meter.in_turn(timed))


def test_sequential_calls_share_time_stamps(clock: FakeClock) -> None:
    meter = ClockMeter(clock)
    parts, functions = in_turn(meter, clock, [3, 5, 7])
    for _ in range(2):
        clock.spend(100)
        for function in functions:
            function(None, None)
    found = by_part(meter)
    assert [found[part].own_ns.tolist() for part in parts] == [[3, 3], [5, 5], [7, 7]]


def test_calls_after_an_error_in_a_sequence_take_no_time(clock: FakeClock) -> None:
    meter = ClockMeter(clock)
    parts, functions = in_turn(meter, clock, [3, 5, 7])
    functions[0](None, None)
    with pytest.raises(ValueError, match="5"):
        functions[1](None, 5)
    for function in functions:
        function(None, None)
    found = by_part(meter)
    assert [found[part].own_ns.tolist() for part in parts] == [[3, 3], [5, 5], [0, 7]]


def test_nested_times_are_excluded_in_any_order() -> None:
    # [0, 100] contains [10, 40] and [40, 90]; the latter contains two adjacent calls.
    calls = np.array([[0, 100], [10, 40], [40, 90], [40, 60], [60, 90], [200, 230]])
    for order in itertools.islice(itertools.permutations(range(6)), 0, 720, 7):
        shuffled = exclude_nested_time(calls[list(order)])
        found = dict(zip(order, shuffled.tolist(), strict=True))
        assert [found[index] for index in range(6)] == [20, 30, 0, 20, 30, 30]
