"""Stop conditions of a traced run; they combine with ``|`` and ``&``."""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from threading import Event
from typing import Any, Protocol, Self

from torch import Tensor

from tdx.core.envs.env_base import EnvBase
from tdx.core.tracing.spec_violations import TraceChecker
from tdx.core.tracing.traces import StageTrace, StepTrace, ValueVersion
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, did_you_mean
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key


class StoppableRun(Protocol):
    """What a condition may read when a run starts; a :class:`~tdx.Tracer` is one."""

    @property
    def env(self) -> EnvBase: ...

    @property
    def clock(self) -> Callable[[], int]: ...


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a run stopped.

    Args:
        condition: Class name of the condition.
        message: One line for the user.
        step: Number of the step that met it.
        by: The stage, env or policy that caused it, if there is one.
        key: Key that caused it, if there is one.
    """

    condition: str
    message: str
    step: int
    by: StageTrace | None = None
    key: NestedKey | None = None


class Stop(ABC):
    """A condition that ends a run.

    A subclass implements :meth:`check`, and :meth:`begin` where it counts.
    """

    def begin(self, run: StoppableRun) -> None:  # noqa: B027 - most conditions need none
        """Prepare for a run; called once when it starts."""

    @abstractmethod
    def check(self, trace: StepTrace) -> StopReason | None:
        """Return the reason to stop after a trace, or ``None`` to continue."""

    def rows(self, trace: StepTrace) -> Tensor | None:
        """Return the rows that meet it, ``[rows]``; ``None`` if it does not depend on a row."""
        return None

    def reason_in(self, trace: StepTrace, rows: Tensor) -> StopReason | None:
        """Return the reason for the given rows, which meet it."""
        return self.check(trace)

    def __or__(self, other: Stop) -> AnyOf:
        return AnyOf(self, other)

    def __and__(self, other: Stop) -> AllOf:
        return AllOf(self, other)

    def _reason(
        self,
        trace: StepTrace,
        message: str,
        by: StageTrace | None = None,
        key: NestedKey | None = None,
    ) -> StopReason:
        return StopReason(type(self).__name__, message, trace.step, by, key)


class AnyOf(Stop):
    """Stops if any of several conditions is met; the first of them gives the reason."""

    def __init__(self, *stops: Stop) -> None:
        self.stops = stops

    def begin(self, run: StoppableRun) -> None:
        for stop in self.stops:
            stop.begin(run)

    def check(self, trace: StepTrace) -> StopReason | None:
        checked = [stop.check(trace) for stop in self.stops]
        return next((reason for reason in checked if reason is not None), None)

    def rows(self, trace: StepTrace) -> Tensor | None:
        met = [stop.rows(trace) for stop in self.stops if stop.check(trace) is not None]
        known = [rows for rows in met if rows is not None]
        return reduce(or_, known) if known and len(known) == len(met) else None

    def reason_in(self, trace: StepTrace, rows: Tensor) -> StopReason | None:
        for stop in self.stops:
            own = stop.rows(trace)
            if stop.check(trace) is not None and (own is None or bool((own & rows).any())):
                return stop.reason_in(trace, rows if own is None else own & rows)
        return self.check(trace)


class AllOf(AnyOf):
    """Stops if several conditions are met by the same trace, in a batch by the same row."""

    def check(self, trace: StepTrace) -> StopReason | None:
        rows = self.rows(trace)
        return None if rows is not None and not bool(rows.any()) else self._joined(trace, rows)

    def rows(self, trace: StepTrace) -> Tensor | None:
        known = [rows for stop in self.stops if (rows := stop.rows(trace)) is not None]
        return reduce(and_, known) if known else None

    def reason_in(self, trace: StepTrace, rows: Tensor) -> StopReason | None:
        return self._joined(trace, rows)

    def _joined(self, trace: StepTrace, rows: Tensor | None) -> StopReason | None:
        checked = [
            stop.check(trace) if rows is None else stop.reason_in(trace, rows)
            for stop in self.stops
        ]
        reasons = [reason for reason in checked if reason is not None]
        if len(reasons) < len(checked):
            return None
        message = " and ".join(reason.message for reason in reasons)
        return self._reason(trace, message, reasons[0].by, reasons[0].key)


class Steps(Stop):
    """Stops after a number of steps; resets do not count.

    Raises:
        ArgumentError: The number is below 1.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ArgumentError(
                f"the number of steps must be at least 1, got {count}",
                hint="pass 1 or more steps",
            )
        self.count = count
        self._count_so_far = 0

    def begin(self, run: StoppableRun) -> None:
        self._count_so_far = 0

    def check(self, trace: StepTrace) -> StopReason | None:
        self._count_so_far += trace.phase == "step"
        if self._count_so_far < self.count:
            return None
        plural = "" if self.count == 1 else "s"
        return self._reason(trace, f"{self.count} step{plural} made")


class Done(Stop):
    """Stops after a step that sets a done flag, in any row and any group.

    Args:
        flag: Name of the flag.
    """

    def __init__(self, flag: str = "done") -> None:
        self.flag = flag
        self._keys: list[NestedKey] = []

    def begin(self, run: StoppableRun) -> None:
        self._keys = [key for key in run.env.done_keys if split_key(key)[-1] == self.flag]

    def check(self, trace: StepTrace) -> StopReason | None:
        if trace.phase == "reset":
            return None
        for key in self._keys:
            value = trace.env_tensordict.get(key, None)
            if isinstance(value, Tensor) and bool(value.any()):
                by = trace.writer(key)
                return self._reason(trace, f"{format_key(key)} is set", by, key)
        return None

    def rows(self, trace: StepTrace) -> Tensor | None:
        count = trace.tensordict.batch_size.numel()
        values = [trace.env_tensordict.get(key, None) for key in self._keys]
        flags = [value.reshape(count, -1).any(1) for value in values if isinstance(value, Tensor)]
        return reduce(or_, flags) if flags and trace.phase == "step" else None


class Truncated(Done):
    """Stops after a step that truncates an episode."""

    def __init__(self) -> None:
        super().__init__("truncated")


class NotFinite(Stop):
    """Stops at NaN or infinity, and names the stage and key where it first occurred."""

    def check(self, trace: StepTrace) -> StopReason | None:
        for stage in trace.stages:
            for version in stage.written.values():
                what = _not_finite(version)
                if what is not None:
                    message = f"{version.name} holds {what}, written by {stage.place}"
                    return self._reason(trace, message, stage, version.key)
        return None


def _not_finite(version: ValueVersion) -> str | None:
    values = version.value if isinstance(version.value, list) else [version.value]
    for value in values:
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            continue
        if not bool(value.isfinite().all()):
            return "nan" if bool(value.isnan().any()) else "inf"
    return None


class OutOfSpec(Stop):
    """Stops at a value that violates its spec, and names the stage that wrote it."""

    def __init__(self) -> None:
        self._checker: TraceChecker | None = None

    def begin(self, run: StoppableRun) -> None:
        self._checker = TraceChecker(run.env)

    def check(self, trace: StepTrace) -> StopReason | None:
        assert self._checker is not None
        violations = self._checker.check(trace)
        if not violations:
            return None
        by, violation = violations[0].by, violations[0].violation
        location = "" if violation.key is None else f", key {format_key(violation.key)!r}"
        message = f"{by.place}{location}: {violation.message}"
        return self._reason(trace, message, by, violation.key)


Compare = Callable[[Any, Any], Any]
_OPERATORS: dict[str, Compare] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON = re.compile(
    r"\s*(?P<key>[^\s<>=!()]+)\s*(?P<op>>=|<=|==|!=|>|<)\s*"
    r"(?P<number>[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan))\s*"
)


class KeyIs(Stop):
    """Stops if the comparison of a key with a number is true for any element.

    The key is looked up in the output of the chain first, then in its input.

    Args:
        key: The key.
        op: One of ``>``, ``>=``, ``<``, ``<=``, ``==``, ``!=``.
        number: Right-hand side of the comparison.

    Raises:
        ArgumentError: ``op`` is unknown.

    Example:
        >>> KeyIs.parse("agents.reward > 0.5").key
        ('agents', 'reward')
    """

    def __init__(self, key: NestedKey, op: str, number: float) -> None:
        if op not in _OPERATORS:
            raise ArgumentError(
                f"unknown comparison {op!r}", hint=f"use one of {' '.join(_OPERATORS)}"
            )
        self.key, self.op, self.number = normalize_key(key), op, number

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a condition ``key op number``, such as ``"reward > 0.5"``.

        Raises:
            ArgumentError: ``text`` is not such a condition.
        """
        match = _COMPARISON.fullmatch(text)
        parts = match["key"].split(".") if match else []
        if match is None or not all(parts):
            raise ArgumentError(
                f"cannot parse the condition {text!r}",
                hint="write a key, a comparison and a number: 'reward > 0.5', 'agents.count == 3'",
            )
        return cls(normalize_key(tuple(parts)), match["op"], float(match["number"]))

    def check(self, trace: StepTrace) -> StopReason | None:
        value = self._value(trace)
        return None if value is None else self._reason_for(trace, value, self._compare(value))

    def rows(self, trace: StepTrace) -> Tensor | None:
        value, count = self._value(trace), trace.tensordict.batch_size.numel()
        if value is None or value.shape[: trace.tensordict.ndim] != trace.tensordict.batch_size:
            return None
        return self._compare(value).reshape(count, -1).any(1)

    def reason_in(self, trace: StepTrace, rows: Tensor) -> StopReason | None:
        value = self._value(trace)
        if value is None or self.rows(trace) is None:
            return self.check(trace)
        value = value.reshape(len(rows), -1)[rows]
        return self._reason_for(trace, value, self._compare(value))

    def _compare(self, value: Tensor) -> Tensor:
        met: Tensor = _OPERATORS[self.op](value, self.number)
        return met

    def _reason_for(self, trace: StepTrace, value: Tensor, met: Tensor) -> StopReason | None:
        if not bool(met.any()):
            return None
        first = value[met].reshape(-1)[0].item()
        name = format_key(self.key)
        message = f"{name} is {first:g}, {name} {self.op} {self.number:g}"
        return self._reason(trace, message, trace.writer(self.key), self.key)

    def _value(self, trace: StepTrace) -> Tensor | None:
        for level in (trace.env_tensordict, trace.tensordict):
            value = level.get(self.key, None)
            if isinstance(value, Tensor):
                return value
        if trace.phase == "reset":
            # Rewards, for example, exist from the first step on.
            return None
        self.check_key(normalize_key(key) for key in trace.env_tensordict.keys(True, True))
        return None

    def check_key(self, keys: Iterable[NestedKey]) -> None:
        """Check that the key exists.

        Raises:
            KeyNotFoundError: It does not; the hint names the nearest key.
        """
        known = [format_key(key) for key in keys]
        name = format_key(self.key)
        if name not in known:
            hint = did_you_mean(name, known, otherwise=f"the keys are {', '.join(known)}")
            raise KeyNotFoundError(f"unknown key {name!r} in the stop condition", hint=hint)


class Seconds(Stop):
    """Stops when a run has taken a number of seconds.

    Args:
        budget: Seconds, by the clock of the run.

    Raises:
        ArgumentError: The budget is not above 0.
    """

    def __init__(self, budget: float) -> None:
        if not budget > 0:
            raise ArgumentError(
                f"the seconds must be above 0, got {budget}",
                hint="pass a number of seconds above 0",
            )
        self.budget = budget
        self._clock: Callable[[], int] = lambda: 0
        self._start = 0

    def begin(self, run: StoppableRun) -> None:
        self._clock = run.clock
        self._start = self._clock()

    def check(self, trace: StepTrace) -> StopReason | None:
        if self._clock() - self._start < self.budget * 1e9:
            return None
        return self._reason(trace, f"{self.budget:g} s have passed")


class Cancelled(Stop):
    """Stops once an event is set, from any thread."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def check(self, trace: StepTrace) -> StopReason | None:
        return self._reason(trace, "cancelled") if self.event.is_set() else None
