"""Record when each call starts and ends with a monotonic clock; the pass that measures time."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from tdx.core.meter import UNATTRIBUTED, AnyFunction, Part
from tdx.profiling.result import Counts, Row

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Times of the calls of one part, int64 ``[n]``.

    ``own_ns`` is the duration without the measured calls inside, and ``steps`` the number of
    rollout steps that a call covers.
    """

    part: Part
    own_ns: Counts
    start_ns: Counts
    end_ns: Counts
    steps: Counts

    @property
    def total_ns(self) -> int:
        """Sum of the own times."""
        return int(self.own_ns.sum())


def exclude_nested_time(
    calls: Counts, inside_ns: Counts | None = None, around_ns: Counts | None = None
) -> Counts:
    """Return the duration of each call, int64 ``[n]``, without the calls inside it.

    Args:
        calls: Start and end of each call, int64 ``[n, 2]``, in any order.
        inside_ns: Cost of measuring each call between its start and its end, int64 ``[n]``.
            ``None``: 0.
        around_ns: The same before its start and after its end, in the call around it.
    """
    # By end; of calls that end together, the one that started last is innermost.
    order = np.lexsort((-calls[:, 0], calls[:, 1]))
    own = np.empty(len(calls), np.int64)
    around = [0] * len(calls) if around_ns is None else around_ns[order].tolist()
    open_calls: list[tuple[int, int]] = []
    places = zip(order.tolist(), calls[order].tolist(), around, strict=True)
    for place, (start, end), outside in places:
        inner = 0
        while open_calls and open_calls[-1][0] >= start:
            inner += open_calls.pop()[1]
        open_calls.append((start, end - start + outside))
        own[place] = end - start - inner
    # A call may take less than measuring calls usually costs.
    return own if inside_ns is None else np.maximum(own - inside_ns, 0)


class ClockMeter:
    """Records when calls start and end; see :class:`~tdx.core.meter.Meter`."""

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self._clock = clock
        self._logs: dict[Part, _CallLog] = {}
        self._sequences: dict[tuple[Part, ...], list[int]] = {}
        # Part and unmeasured function of each measured one.
        self._timed: WeakKeyDictionary[Function, tuple[Part, Function]] = WeakKeyDictionary()

    def timed(
        self, part: Part, function: AnyFunction, steps: Callable[..., int] | None = None
    ) -> AnyFunction:
        if function in self._timed:
            return function
        log = self._logs.setdefault(part, _CallLog())
        timed_function: Any
        if steps is not None:
            timed_function = _time_and_count(function, self._clock, log, steps)
        else:
            wrap = _BY_ARITY.get(_arity(function), _time_any_arguments)
            timed_function = wrap(function, self._clock, log.stamps.append)
        self._timed[timed_function] = part, function
        return cast(AnyFunction, timed_function)

    def in_turn(self, functions: Sequence[AnyFunction]) -> Sequence[AnyFunction]:
        """See :class:`~tdx.core.meter.Meter`; the end of one call is the start of the next."""
        known = [self._timed.get(function) for function in functions]
        given = [entry for entry in known if entry is not None]
        if not given or len(given) < len(known):
            return functions
        stamps = self._sequences.setdefault(tuple(part for part, _ in given), [])
        timed_functions: list[Any] = [
            _time_in_sequence(inside, self._clock, stamps.append, len(given) - place, not place)
            for place, (_, inside) in enumerate(given)
        ]
        return timed_functions

    def collect(self) -> list[CallTimes]:
        """Return the calls since the last call of this method, by part."""
        for log in self._logs.values():
            # Ctrl-C may have interrupted the last call between its time stamps.
            _drop_unfinished(log.stamps, 2)
            if log.steps:
                del log.stamps[2 * len(log.steps) :]
                del log.steps[len(log.stamps) // 2 :]
        # The time stamps of sequences of calls come after those of other calls.
        for sequence, marks in self._sequences.items():
            every = len(sequence) + 1
            _drop_unfinished(marks, every)
            for place, part in enumerate(sequence):
                self._logs[part].in_sequence += len(marks) // every
                own_stamps = self._logs[part].stamps
                for start, end in zip(marks[place::every], marks[place + 1 :: every], strict=True):
                    own_stamps += (start, end)
            marks.clear()
        parts = [part for part, log in self._logs.items() if log.stamps]
        logs = [self._logs[part] for part in parts]
        stamps = [np.array(log.stamps, np.int64).reshape(-1, 2) for log in logs]
        steps = [
            np.array(log.steps or [1] * len(stamp), np.int64)
            for log, stamp in zip(logs, stamps, strict=True)
        ]
        cost = measure_clock_cost(self._clock)
        costs = []
        for log, stamp in zip(logs, stamps, strict=True):
            inside_and_around = np.empty((len(stamp), 2), np.int64)
            inside_and_around[:] = cost.inside_ns, cost.around_ns
            inside_and_around[len(stamp) - log.in_sequence :] = cost.sequence_ns, 0
            costs.append(inside_and_around)
            log.clear()
        if not parts:
            return []
        owned = exclude_nested_time(np.concatenate(stamps), *np.concatenate(costs).T)
        lengths = np.cumsum([len(stamp) for stamp in stamps])[:-1]
        return [
            CallTimes(part, own, spans[:, 0], spans[:, 1], covered)
            for part, own, spans, covered in zip(
                parts, np.split(owned, lengths), stamps, steps, strict=True
            )
        ]


@dataclass(frozen=True, slots=True)
class ClockCost:
    """What measuring a call costs in ns.

    Args:
        inside_ns: Between the time stamps of the call.
        around_ns: Before and after them, in the part that makes the call.
        sequence_ns: Of a call whose start is the end of the call before it.
    """

    inside_ns: int
    around_ns: int
    sequence_ns: int


@cache
def measure_clock_cost(clock: Clock) -> ClockCost:
    """Measure empty calls with and without a clock; takes a few milliseconds, once.

    A clock that a test advances costs nothing.
    """
    if clock is not time.perf_counter_ns:
        return ClockCost(0, 0, 0)
    stamps: list[int] = []

    def empty(entries: Any, fields: Any) -> None:
        pass

    timed = _time_two_arguments(empty, clock, stamps.append)
    in_sequence = _time_in_sequence(empty, clock, stamps.append, 1, False)
    rounds = []
    for _ in range(_CALIBRATION_ROUNDS):
        bare, all_of_timed = _time_calls(empty, clock), _time_calls(timed, clock)
        inside = float(np.median(np.diff(np.array(stamps).reshape(-1, 2))))
        stamps.clear()
        rounds.append((bare, all_of_timed, inside, _time_calls(in_sequence, clock)))
        stamps.clear()
    # Other programs only slow calls down.
    bare, all_of_timed, inside, of_sequence = np.min(rounds, axis=0).tolist()
    inside = max(inside - bare, 0)
    around = max(all_of_timed - bare - inside, 0)
    return ClockCost(round(inside), round(around), round(max(of_sequence - bare, 0)))


_CALIBRATION_ROUNDS, _CALIBRATION_CALLS = 7, 500


def _time_calls(function: Function, clock: Clock) -> float:
    """Return the nanoseconds of a call."""
    start = clock()
    for _ in range(_CALIBRATION_CALLS):
        function(None, None)
    return (clock() - start) / _CALIBRATION_CALLS


@dataclass(slots=True)
class _CallLog:
    """Alternating start and end of each call of one part, and the steps it covers."""

    stamps: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    in_sequence: int = 0

    def clear(self) -> None:
        """Remove all calls."""
        self.stamps.clear()
        self.steps.clear()
        self.in_sequence = 0


def _drop_unfinished(stamps: list[int], every: int) -> None:
    del stamps[len(stamps) - len(stamps) % every :]


# The functions below run in each step. They differ in their signatures: forwarding a variable
# number of arguments costs as much as reading the clock.

Append = Callable[[int], None]
Function = Callable[..., Any]


def _arity(function: Any) -> int | None:
    """Return the number of arguments of a function; ``None`` if it varies."""
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None or plain.__defaults__ or code.co_kwonlyargcount:
        return None
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return None
    return int(code.co_argcount) - (plain is not function)


def _time_one_argument(function: Function, clock: Clock, add: Append) -> Function:
    def run(tensordict: Any) -> Any:
        start = clock()
        try:
            return function(tensordict)
        finally:
            add(start)
            add(clock())

    return run


def _time_two_arguments(function: Function, clock: Clock, add: Append) -> Function:
    def run(tensordict: Any, next_tensordict: Any) -> Any:
        start = clock()
        try:
            return function(tensordict, next_tensordict)
        finally:
            add(start)
            add(clock())

    return run


def _time_in_sequence(
    function: Function, clock: Clock, add: Append, left: int, is_first: bool
) -> Function:
    """Measure one of several consecutive calls, ``left`` of which have not ended yet."""

    def run(entries: Any, fields: Any) -> None:
        try:
            function(entries, fields)
        except BaseException:
            for _ in range(left):
                add(clock())
            raise
        add(clock())

    if not is_first:
        return run

    def begin(entries: Any, fields: Any) -> None:
        add(clock())
        run(entries, fields)

    return begin


def _time_any_arguments(function: Function, clock: Clock, add: Append) -> Function:
    def run(*args: Any, **kwargs: Any) -> Any:
        start = clock()
        try:
            return function(*args, **kwargs)
        finally:
            add(start)
            add(clock())

    return run


_BY_ARITY: dict[int | None, Callable[[Function, Clock, Append], Function]] = {
    1: _time_one_argument,
    2: _time_two_arguments,
}


def _time_and_count(
    function: Function, clock: Clock, log: _CallLog, steps: Callable[..., int]
) -> Function:
    """Measure calls that cover several steps."""

    def run(*args: Any) -> Any:
        covered = steps(*args)
        start = clock()
        try:
            return function(*args)
        finally:
            log.stamps += (start, clock())
            log.steps.append(covered)

    return run


_WORK_ORDER = {"policy": 0, "env": 1, "wrapper": 2, "stage": 3, "engine": 4}
_LANE_ORDER = ("reset", "inverse", "step", "forward", "specs")


def make_rows(repeats: Sequence[Sequence[CallTimes]], began_ns: Sequence[int]) -> tuple[Row, ...]:
    """Make one row for each part, in the order of the chain."""
    found: dict[Part, list[tuple[int, int, CallTimes]]] = {}
    for number, (times, began) in enumerate(zip(repeats, began_ns, strict=True)):
        for calls in times:
            found.setdefault(calls.part, []).append((number, began, calls))

    def place(part: Part) -> tuple[int, int, int, str]:
        # Policy, env and chain in the order of data flow, then the engine.
        last = part.name == UNATTRIBUTED
        return _WORK_ORDER[part.work] + last, part.index, _LANE_ORDER.index(part.lane), part.name

    def joined(columns: Iterable[Counts]) -> Counts:
        return np.concatenate(list(columns))

    return tuple(
        Row(
            part=part,
            times_ns=joined(times.own_ns for _, _, times in found[part]),
            starts_ns=joined(times.start_ns - began for _, began, times in found[part]),
            spans_ns=joined(times.end_ns - times.start_ns for _, _, times in found[part]),
            steps=joined(times.steps for _, _, times in found[part]),
            repeats=joined(np.full(len(times.own_ns), number) for number, _, times in found[part]),
        )
        for part in sorted(found, key=place)
    )
