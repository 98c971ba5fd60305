"""When a traced run stops: small conditions that are joined by ``|`` and ``&``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from threading import Event
from typing import TYPE_CHECKING

from torch import Tensor

from tdx.core.tracing.lies import Promises
from tdx.core.tracing.traces import StageTrace, StepTrace, ValueVersion
from tdx.errors import ArgumentError
from tdx.keys import NestedKey, format_key, split_key

if TYPE_CHECKING:
    from tdx.core.tracing.tracer import Tracer


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a run stopped.

    Args:
        condition: class name of the condition.
        message: one line that says it.
        step: the step after which, or in whose trace, it was met.
        by: the stage, env or policy that it arose in, where there is one.
        key: the key that it arose in, where there is one.
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

    def begin(self, tracer: Tracer) -> None:  # noqa: B027 - most conditions need none
        """Called once when a run begins."""

    @abstractmethod
    def check(self, trace: StepTrace) -> StopReason | None:
        """Called with each trace; gives the reason to stop, or ``None`` to go on."""

    def rows(self, trace: StepTrace) -> Tensor | None:
        """In which envs of a batch it is met, ``[rows]``; none where it is about no env alone."""
        return None

    def reason_in(self, trace: StepTrace, rows: Tensor) -> StopReason | None:
        """The reason as it is in these envs of a batch, in which it is met."""
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
    """Stops where one of several conditions does; the first of them gives the reason."""

    def __init__(self, *stops: Stop) -> None:
        self.stops = stops

    def begin(self, tracer: Tracer) -> None:
        for stop in self.stops:
            stop.begin(tracer)

    def check(self, trace: StepTrace) -> StopReason | None:
        found = [stop.check(trace) for stop in self.stops]
        return next((reason for reason in found if reason is not None), None)

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
    """Stops where several conditions hold at the same trace, of a batch in the same env."""

    def check(self, trace: StepTrace) -> StopReason | None:
        rows = self.rows(trace)
        return None if rows is not None and not bool(rows.any()) else self._joined(trace, rows)

    def rows(self, trace: StepTrace) -> Tensor | None:
        known = [rows for stop in self.stops if (rows := stop.rows(trace)) is not None]
        return reduce(and_, known) if known else None

    def reason_in(self, trace: StepTrace, rows: Tensor) -> StopReason | None:
        return self._joined(trace, rows)

    def _joined(self, trace: StepTrace, rows: Tensor | None) -> StopReason | None:
        found = [
            stop.check(trace) if rows is None else stop.reason_in(trace, rows)
            for stop in self.stops
        ]
        reasons = [reason for reason in found if reason is not None]
        if len(reasons) < len(found):
            return None
        message = " and ".join(reason.message for reason in reasons)
        return self._reason(trace, message, reasons[0].by, reasons[0].key)


class Steps(Stop):
    """Stops after a number of steps; resets do not count.

    Raises:
        ArgumentError: the number is below 1.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ArgumentError(
                f"the number of steps must be at least 1, got {count}",
                hint="stop after 1 step or more",
            )
        self.count = count
        self._made = 0

    def begin(self, tracer: Tracer) -> None:
        self._made = 0

    def check(self, trace: StepTrace) -> StopReason | None:
        self._made += trace.phase == "step"
        if self._made < self.count:
            return None
        plural = "" if self.count == 1 else "s"
        return self._reason(trace, f"{self.count} step{plural} made")


class Done(Stop):
    """Stops after a step that sets a done flag, in any row and any group.

    Args:
        flag: the name of the flag.
    """

    def __init__(self, flag: str = "done") -> None:
        self.flag = flag
        self._keys: list[NestedKey] = []

    def begin(self, tracer: Tracer) -> None:
        self._keys = [key for key in tracer.env.done_keys if split_key(key)[-1] == self.flag]

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
    """Stops at a nan or an infinity, and names the stage and key in which it first arose."""

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
    """Stops at a value that is not what its spec says, and names the stage that lies."""

    def __init__(self) -> None:
        self._promises: Promises | None = None

    def begin(self, tracer: Tracer) -> None:
        self._promises = Promises(tracer.env)

    def check(self, trace: StepTrace) -> StopReason | None:
        assert self._promises is not None
        # A spec without bounds allows nan.
        lies = [lie for lie in self._promises.lies(trace) if lie.finding.code != "nan"]
        if not lies:
            return None
        by, finding = lies[0].by, lies[0].finding
        named = "" if finding.key is None else f", key {format_key(finding.key)!r}"
        return self._reason(trace, f"{by.place}{named}: {finding.message}", by, finding.key)


class Seconds(Stop):
    """Stops when a run has taken so long.

    Args:
        budget: seconds by the tracer's clock.

    Raises:
        ArgumentError: the budget is not above 0.
    """

    def __init__(self, budget: float) -> None:
        if not budget > 0:
            raise ArgumentError(
                f"the seconds must be above 0, got {budget}",
                hint="give a number of seconds above 0",
            )
        self.budget = budget
        self._clock: Callable[[], int] = lambda: 0
        self._start = 0

    def begin(self, tracer: Tracer) -> None:
        self._clock = tracer.clock
        self._start = self._clock()

    def check(self, trace: StepTrace) -> StopReason | None:
        if self._clock() - self._start < self.budget * 1e9:
            return None
        return self._reason(trace, f"{self.budget:g} s are over")


class Cancelled(Stop):
    """Stops once an event is set, from whatever thread."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def check(self, trace: StepTrace) -> StopReason | None:
        return self._reason(trace, "cancelled") if self.event.is_set() else None
