"""Stepping an env while somebody looks: a tracer, its history, and views of both."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdx.core.tracing import StepTrace, Stop, TraceChecker, TraceHistory, Tracer
from tdx.errors import ArgumentError, KeyNotFoundError, did_you_mean
from tdx.inspection.live.ledger import Ledger
from tdx.inspection.live.named import names_of, number_of
from tdx.inspection.live.numbering import TRACED, StageNumbers
from tdx.inspection.live.pictures import pictures
from tdx.inspection.live.reading import troubles, view_trace
from tdx.inspection.live.stopping import checked_stop
from tdx.inspection.live.track import Array, Track, curve
from tdx.inspection.live.views import Curve, EnvCell, EpisodeView, Picture, TraceView

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.core.envs.services import Policy
    from tdx.envs import EnvBase

MAX_TRACES = 5_000
MAX_BYTES = 256 * 2**20
_MOST_TRACKED = 4_000_000
_MOST_KEYED = 4
REWARD, RETURN, TIME = "reward", "return", "ms per step"
OWN_CURVES = (REWARD, RETURN, TIME)
"""What can be drawn besides keys."""


class LiveSession:
    """An env that is reset and stepped one by one, with all that happened lately.

    Args:
        env: the env with its chain; it is the caller's and is not closed.
        policy: gives the actions; random by default.
        max_traces: the most resets and steps in the history.
        max_bytes: the most memory of their tensors.
        clock: gives nanoseconds.
        numbers: Shown numbers of the stages; their indices by default.

    Raises:
        TdxError: a stage cannot take the specs before it.

    Example:
        >>> from tdx import PendulumEnv, StepCounter, TransformedEnv
        >>> session = LiveSession(TransformedEnv(PendulumEnv(), StepCounter(3)))
        >>> for _ in range(5):
        ...     _ = session.advance()
        >>> [(episode.steps, episode.end) for episode in session.episodes()]
        [(3, 'truncated'), (0, '')]
        >>> session.view().phase
        'reset'
    """

    def __init__(
        self,
        env: EnvBase,
        policy: Policy | None = None,
        *,
        max_traces: int = MAX_TRACES,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], int] = time.perf_counter_ns,
        numbers: StageNumbers = TRACED,
    ) -> None:
        self.env, self.numbers = env, numbers
        self.history = TraceHistory(max_traces, max_bytes)
        self.tracer = Tracer(env, policy, history=self.history, clock=clock)
        self.promises = TraceChecker(env)
        self.ledger = Ledger(env)
        self.troubled: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        capacity = max(100, min(max_traces, _MOST_TRACKED // self.ledger.rows))
        self._own = {
            REWARD: Track(capacity, self.ledger.rows),
            RETURN: Track(capacity, self.ledger.rows),
            TIME: Track(capacity),
        }
        self._keyed: OrderedDict[tuple[str, int | None], Track] = OrderedDict()
        self._stop: Stop | None = None
        self._begun = 0

    # What happens

    def reset(self, *, seed: int | None = None) -> StepTrace:
        """Begin a new episode in every env.

        Raises:
            TdxError: the env or a stage raised; the trace until then is in the history.
        """
        self._begun = self.tracer.traces
        return self._made(lambda: self.tracer.reset(seed=seed))

    def advance(self, action: TensorDictBase | None = None) -> StepTrace:
        """Make one trace: the first reset, a reset that is due, or a step.

        Args:
            action: for a step; the policy gives it by default.

        Raises:
            TdxError: the env, a stage or the policy raised; the trace until then is in the history.
        """
        if self.tracer.current is None:
            return self.reset()
        if self.tracer.reset_due:
            return self._made(self.tracer.reset_done)
        return self._made(lambda: self.tracer.step(action))

    def _made(self, call: Any) -> StepTrace:
        before = self.tracer.traces
        try:
            call()
        finally:
            last = self.tracer.last
            if last is not None and self.tracer.traces > before:
                self._take_in(last)
        assert last is not None
        return last

    def _take_in(self, trace: StepTrace) -> None:
        self.ledger.add(trace)
        is_step = trace.phase == "step" and trace.error is None
        self._own[REWARD].append(self.ledger.rewards if is_step else math.nan)
        self._own[RETURN].append(self.ledger.totals if is_step else math.nan)
        self._own[TIME].append(trace.time_ns / 1e6)
        for (name, row), track in self._keyed.items():
            track.append(number_of(trace, name, row))
        found = (
            troubles(trace, self.promises, self.numbers)
            if trace.error is None
            else (trace.error.message,)
        )
        if found:
            self.troubled[trace.index] = found
        first = self.first
        while self.troubled and next(iter(self.troubled)) < first:
            self.troubled.popitem(last=False)

    def until(self, text: str | None) -> None:
        """Set when to stop, in the words of :func:`~tdx.core.tracing.parse_stop`.

        Raises:
            ArgumentError: it is no condition.
            KeyNotFoundError: it is on a key that is not there; the one before goes on to count.
        """
        stop = None if text is None else checked_stop(text, self.tracer)
        if stop is not None:
            stop.begin(self.tracer)
        self._stop = stop

    def met(self, trace: StepTrace) -> str | None:
        """Why to stop after a trace; ``None`` to go on.

        Raises:
            KeyNotFoundError: the condition is on a key that is not there.
        """
        reason = None if self._stop is None else self._stop.check(trace)
        if reason is None or reason.by is None or reason.by.kind != "stage":
            return None if reason is None else reason.message
        title = self.numbers.title(reason.by.index, reason.by.name)
        return reason.message.replace(reason.by.place, title)

    def rollout(self) -> TensorDictBase:
        """The steps since :meth:`reset` that the history holds, ``[*B, T]``.

        Raises:
            ArgumentError: there is none.
        """
        steps = [
            trace.tensordict
            for trace in self.history
            if trace.index >= self._begun and trace.phase == "step" and trace.error is None
        ]
        if not steps:
            raise ArgumentError("no step was made since the reset", hint="step first")
        return torch.stack(steps, len(self.env.batch_size))

    # What there is to see

    @property
    def first(self) -> int:
        """The first trace that is held."""
        return self.tracer.traces - len(self.history)

    @property
    def last(self) -> int:
        """The latest trace; -1 before the first."""
        return self.tracer.traces - 1

    def view(
        self, index: int | None = None, *, against: int | None = None, row: int | None = None
    ) -> TraceView:
        """What there is to see of a trace.

        Args:
            index: the trace; the latest by default, and the nearest where it is not held.
            against: the trace to compare it with; the one before by default.
            row: one env of a batch only.

        Raises:
            ArgumentError: there is no trace yet.
        """
        trace = self._trace(index)
        other = self.history.find(trace.index - 1 if against is None else against)
        return view_trace(
            trace, against=other, row=row, promises=self.promises, numbers=self.numbers
        )

    def pictures(
        self,
        index: int | None = None,
        *,
        row: int | None = None,
        width: int = 64,
        height: int = 64,
    ) -> tuple[Picture, ...]:
        """Every image in a trace; see :func:`~tdx.inspection.live.pictures.pictures`."""
        trace = self._trace(index)
        return tuple(pictures(trace, row=row, width=width, height=height, numbers=self.numbers))

    def _trace(self, index: int | None) -> StepTrace:
        at = self.last if index is None else max(self.first, min(index, self.last))
        found = self.history.find(at)
        if found is None:
            raise ArgumentError("there is no trace yet", hint="reset or step first")
        return found

    def episodes(self, row: int | None = None, most: int = 200) -> tuple[EpisodeView, ...]:
        """The latest episodes that are held, the newest last."""
        first = self.first
        found = self.ledger.episodes(row, most)
        return tuple(each for each in found if each.last >= first)

    def cells(self, most: int = 256) -> tuple[EnvCell, ...]:
        """Each env of the batch after the latest step."""
        return self.ledger.cells(most)

    def curve(
        self,
        name: str,
        *,
        row: int | None = None,
        parts: int = 200,
        window: tuple[int, int] | None = None,
    ) -> Curve:
        """A number over the traces that are held.

        Args:
            name: ``"reward"``, ``"return"`` (of the episode so far), ``"ms per step"``, a key, or
                an element of one: ``"observation[0]"``. Of a key with several numbers the mean.
            row: of one env of a batch; of rewards and returns the first by default, of a key the
                mean of all.
            parts: the most parts.
            window: the first and the last trace; all that are held by default.

        Raises:
            KeyNotFoundError: there is no such key.
        """
        own = self._own.get(name)
        if own is not None:
            first, numbers = own.column(0 if name == TIME else row or 0)
        else:
            first, numbers = self._of_key(name, row)
        held = max(first, self.first)
        return curve(name, held, numbers[held - first :], parts=parts, window=window)

    def _of_key(self, name: str, row: int | None) -> tuple[int, Array]:
        track = self._keyed.get((name, row))
        if track is None:
            track = self._keyed[name, row] = self._caught_up(name, row)
            if len(self._keyed) > _MOST_KEYED:
                self._keyed.popitem(last=False)
        first, numbers = track.column(0)
        if self.last >= 0 and np.isnan(numbers).all():
            names = self.curve_names()
            if name not in names:
                del self._keyed[name, row]
                hint = did_you_mean(name, names, otherwise=f"there are {', '.join(names[:8])}")
                raise KeyNotFoundError(f"no key {name!r} to draw", hint=hint)
        return first, numbers

    def _caught_up(self, name: str, row: int | None) -> Track:
        """The numbers of a key in all traces that are held."""
        track = Track(self.history.max_traces)
        track.count = self.first
        for trace in self.history:
            track.append(number_of(trace, name, row))
        return track

    def curve_names(self, row: int | None = None) -> tuple[str, ...]:
        """What :meth:`curve` can draw of the latest trace."""
        if self.last < 0:
            return OWN_CURVES
        found = dict.fromkeys((*OWN_CURVES, *names_of(self._trace(None), row)))
        return tuple(found)
