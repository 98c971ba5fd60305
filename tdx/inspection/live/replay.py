"""Repeat the rollout of an earlier session with another chain, and compare the values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tdx.compare.values import compare_entries
from tdx.foundation.errors import ArgumentError, KeyNotFoundError
from tdx.foundation.keys import format_key
from tdx.inspection.live.histories import build_plot
from tdx.inspection.live.session import LiveSession
from tdx.inspection.live.views import PlotView

if TYPE_CHECKING:
    from tdx.core.tracing import StepTrace


class Replay:
    """Repeats the resets and actions of an earlier session in a new one.

    The caller seeds both envs in the same way.

    Args:
        earlier: Session to repeat.
        session: New session, without traces.
        last: Trace of the earlier session to stop at. Defaults to its end.

    Attributes:
        differences: First trace in which the output of the chain differs, by key.
        is_branch: True if the end of the earlier session is not repeated.

    Raises:
        ArgumentError: The actions do not fit the action spec of the new session.

    Example:
        >>> from tdx import PendulumEnv, RewardScaling, TransformedEnv
        >>> from tdx.inspection.live.session import LiveSession
        >>> def start(scale):
        ...     env = TransformedEnv(PendulumEnv(), RewardScaling(0.0, scale))
        ...     _ = env.set_seed(0)
        ...     return LiveSession(env)
        >>> earlier, session = start(1.0), start(0.5)
        >>> _ = [earlier.advance() for _ in range(3)]
        >>> replay = Replay(earlier, session)
        >>> while not replay.is_done:
        ...     _ = replay.advance()
        >>> replay.steps, replay.differences
        (2, {'reward': 1})
    """

    def __init__(self, earlier: LiveSession, session: LiveSession, last: int | None = None) -> None:
        self.earlier, self.session = earlier, session
        recording = earlier.recording
        self.total = len(recording.actions)
        self.is_branch, self._has_last_reset = last is not None, False
        if last is not None:
            at, after = recording.find(last)
            self.total, self._has_last_reset = at + 1, after == 1
        self.done = 0
        self.differences: dict[str, int] = {}
        action = next((action for action in recording.actions if action is not None), None)
        if action is not None:
            given, taken = (
                {key: (value.shape, value.dtype) for key, value in side.items(True, True)}
                for side in (action, session.env.full_action_spec)
            )
            if given != taken:
                raise ArgumentError(
                    "the actions of the earlier rollout do not fit the action spec of this chain",
                    hint="run it again",
                )

    @property
    def is_done(self) -> bool:
        """True if everything is repeated."""
        is_reset_due = self._has_last_reset and self.session.tracer.reset_due
        return self.done >= self.total and not is_reset_due

    @property
    def steps(self) -> int:
        """Number of steps that are repeated."""
        return sum(action is not None for action in self.earlier.recording.actions[: self.total])

    def advance(self) -> StepTrace:
        """Repeat one reset or step, or make a reset that is due before it.

        Raises:
            TdxError: The env or a stage raised an error.
        """
        session, tracer = self.session, self.session.tracer
        actions = self.earlier.recording.actions
        action = actions[self.done] if self.done < self.total else None
        is_given = action is not None or self.done >= self.total
        if tracer.current is not None and tracer.reset_due and is_given:
            trace = session.advance()
        elif action is None:
            self.done += 1
            trace = session.reset()
        else:
            self.done += 1
            trace = session.advance(action.clone())
        self.compare(trace)
        return trace

    def compare(self, trace: StepTrace) -> None:
        """Compare the output of the chain with the earlier session; note new differences."""
        other = self.counterpart(trace)
        if other is None:
            return
        old, new = _output_values(other), _output_values(trace)
        shared = [
            key
            for key, value in new.items()
            if key in old
            and key not in self.differences
            # Objects without an equality are other ones in each session.
            and value.__class__.__eq__ is not object.__eq__
        ]
        before, after = ({key: values[key] for key in shared} for values in (old, new))
        for key, change in compare_entries(before, after).items():
            if change is not None:
                self.differences[key] = trace.index

    def counterpart(self, trace: StepTrace) -> StepTrace | None:
        """Return the trace of the earlier session after the same resets and steps, if kept."""
        theirs = self.earlier.recording.traces
        at, after = self.session.recording.find(trace.index)
        if not 0 <= at < len(theirs) or after > 1:
            return None
        other = self.earlier.history.find(theirs[at] + after)
        return None if other is None or other.phase != trace.phase else other

    def find_earlier(self, index: int | None) -> StepTrace | None:
        """Return the counterpart of a trace. ``None``: of the latest one."""
        trace = self.session.history.find(self.session.last if index is None else index)
        return None if trace is None else self.counterpart(trace)

    def describe(self) -> str:
        """Return how many steps were repeated, and which keys differ from where."""
        head = f"repeated {self.steps:,} step{'' if self.steps == 1 else 's'}"
        if self.is_branch:
            head = f"branch at step {self.steps:,}"
            if not self.differences:
                return f"{head}: continue with other actions, or edit the chain"
            head = f"{head}: the env does not repeat exactly"
        if not self.differences:
            return f"{head} with the same seed and actions: no differences"
        keys = []
        for key, at in self.differences.items():
            trace = self.session.history.find(at)
            place = f"trace {at}"
            if trace is not None:
                step = trace.step + (trace.phase == "step")
                place = "the reset" if at == 0 else f"step {step}"
            keys.append(f"{key} from {place}")
        more = f", {len(keys) - 3} more" if len(keys) > 3 else ""
        return f"{head}; differs: {', '.join(keys[:3])}{more}"

    def plot(
        self, name: str, *, row: int | None, parts: int, window: tuple[int, int] | None
    ) -> PlotView:
        """Plot a number of both sessions over the same traces, see :meth:`LiveSession.plot`."""
        series = [self.session.series(name, row)]
        try:
            series.append(self.earlier.series(name, row))
        except KeyNotFoundError:
            return self.session.plot(name, row=row, parts=parts, window=window)
        start = min(first for first, _ in series)
        end = max(first + len(numbers) for first, numbers in series)
        plots = []
        for first, numbers in series:
            padded = np.full(end - start, np.nan, dtype=np.float32)
            padded[first - start : first - start + len(numbers)] = numbers
            plots.append(build_plot(name, start, padded, parts=parts, window=window))
        now, earlier = (
            replace(plot, latest=session.latest_number(name, row))
            for plot, session in zip(plots, (self.session, self.earlier), strict=True)
        )
        return replace(now, earlier=earlier)


def _output_values(trace: StepTrace) -> Mapping[str, Any]:
    """Return the last value of each key in the forward direction; none that was overwritten."""
    versions = {version.key: version for version in trace.versions() if version.lane == "forward"}
    return {format_key(key): version.value for key, version in versions.items() if not version.lost}
