"""Step an env interactively, and keep the recent traces."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tdx.core.tracing import (
    Probe,
    StepTrace,
    Stop,
    TraceChecker,
    TraceHistory,
    Tracer,
    list_passages,
    parse_stop,
)
from tdx.core.tracing.stop_parser import keys_of
from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, did_you_mean
from tdx.foundation.keys import format_key
from tdx.inspection.live.arrays import find_images
from tdx.inspection.live.histories import (
    ChangeCounter,
    EpisodeTracker,
    Recording,
    SeriesBuffer,
    build_plot,
    has_number,
    number_names,
    read_number,
)
from tdx.inspection.live.readings import ReadingRecorder
from tdx.inspection.live.stack_env import LiveStackTracer, StackEnv, stack_rollout
from tdx.inspection.live.trace_view import describe_problem, find_problems, view_trace
from tdx.inspection.live.views import (
    TRACED_NUMBERS,
    EnvCell,
    EpisodeView,
    ImageView,
    PlotView,
    StageNumbers,
    TraceView,
)

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.envs import EnvBase
    from tdx.foundation.keys import NestedKey

LiveTracer = Tracer | LiveStackTracer
MAX_TRACES = 5_000
MAX_BYTES = 256 * 2**20
_MAX_TRACKED = 4_000_000
_MAX_KEYED = 4
REWARD, RETURN, TIME = "reward", "return", "ms per step"
"""Plots that do not belong to a key; a stack without rewards has only the last one."""
_MAX_DEFAULT_PLOTS = 4


def parse_known_stop(text: str, tracer: LiveTracer) -> Stop:
    """Parse a stop condition and check that its keys exist.

    Raises:
        ArgumentError: The condition is invalid.
        KeyNotFoundError: A key does not exist; the hint contains the nearest one.
    """
    stop = parse_stop(text)
    keys = dict.fromkeys(_known_keys(tracer))
    for each in keys_of(stop):
        each.check_key(keys)
    return stop


def _known_keys(tracer: LiveTracer) -> Iterator[NestedKey]:
    """Yield the keys of the specs and of the latest trace."""
    env, last = tracer.env, tracer.last
    for spec in (env.full_observation_spec, env.full_reward_spec, env.full_done_spec):
        yield from spec.keys(True, True)
    for spec in (env.full_action_spec, env.full_state_spec):
        yield from spec.keys(True, True)
    if last is not None:
        yield from last.env_tensordict.keys(True, True)
        yield from last.tensordict.keys(True, True)


class LiveSession:
    """An env that is stepped interactively, with its recent traces.

    Args:
        env: Env with its chain, or a stack of another library. The caller closes it.
        probe: Called around each hook; around the whole step of a stack of another library.
    """

    def __init__(
        self,
        env: EnvBase | StackEnv,
        *,
        max_traces: int = MAX_TRACES,
        clock: Callable[[], int] = time.perf_counter_ns,
        numbers: StageNumbers = TRACED_NUMBERS,
        probe: Probe | None = None,
    ) -> None:
        self.env, self.numbers = env, numbers
        self.history = TraceHistory(max_traces, MAX_BYTES)
        self.tracer: LiveTracer
        if isinstance(env, StackEnv):
            self.tracer = LiveStackTracer(env, self.history, clock, probe)
        else:
            self.tracer = Tracer(env, history=self.history, clock=clock, probe=probe)
        self.recording = Recording(max_traces)
        self._action_keys = list(env.full_action_spec.keys(True, True))
        self.promises = TraceChecker(env)
        self.episode_tracker = EpisodeTracker(env)
        self.changes = ChangeCounter()
        self.readings = ReadingRecorder(self.promises)
        self.problems: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        capacity = max(100, min(max_traces, _MAX_TRACKED // self.episode_tracker.rows))
        names = (REWARD, RETURN) if self.episode_tracker.has_rewards else ()
        self._builtin = {name: SeriesBuffer(capacity, self.episode_tracker.rows) for name in names}
        self._builtin[TIME] = SeriesBuffer(capacity)
        self._key_buffers: OrderedDict[tuple[str, int | None], SeriesBuffer] = OrderedDict()
        self._stop: Stop | None = None
        self._reset_index = 0

    def reset(self, *, seed: int | None = None) -> StepTrace:
        """Start a new episode in every env.

        Raises:
            TdxError: The env or a stage raised an error; the partial trace is in the history.
        """
        self._reset_index = self.tracer.traces
        trace = self._record(lambda: self.tracer.reset(seed=seed))
        self.recording.add(trace.index, None)
        return trace

    def advance(self, action: TensorDictBase | None = None) -> StepTrace:
        """Record one trace: the first reset, a reset that is due, or a step.

        Raises:
            TdxError: The env, a stage or the policy raised an error; the partial trace is in the
                history.
        """
        if self.tracer.current is None:
            return self.reset()
        if self.tracer.reset_due:
            return self._record(self.tracer.reset_done)
        trace = self._record(lambda: self.tracer.step(action))
        self.recording.add(trace.index, trace.tensordict.select(*self._action_keys).clone())
        return trace

    def _record(self, call: Any) -> StepTrace:
        before = self.tracer.traces
        try:
            call()
        finally:
            last = self.tracer.last
            if last is not None and self.tracer.traces > before:
                self._add_trace(last)
        assert last is not None
        return last

    def _add_trace(self, trace: StepTrace) -> None:
        self.episode_tracker.add(trace, is_start=trace.index == self._reset_index)
        passages = list_passages(trace)
        self.changes.add(trace, passages)
        is_step = trace.phase == "step" and trace.error is None
        if self.episode_tracker.has_rewards:
            self._builtin[REWARD].append(self.episode_tracker.rewards if is_step else math.nan)
            self._builtin[RETURN].append(self.episode_tracker.totals if is_step else math.nan)
        self._builtin[TIME].append(trace.time_ns / 1e6)
        for (name, row), track in self._key_buffers.items():
            track.append(read_number(trace, name, row))
        problems: tuple[str, ...]
        if trace.error is not None:
            problems = (trace.error.message,)
        else:
            found = find_problems(trace, self.promises)
            problems = tuple(describe_problem(*each, self.numbers) for each in found)
            if is_step:
                at_fault = {stage.index for stage, _ in found if stage.kind == "stage"}
                self.readings.add(trace, passages, at_fault)
        if problems:
            self.problems[trace.index] = problems
        first = self.first
        while self.problems and next(iter(self.problems)) < first:
            self.problems.popitem(last=False)

    def set_stop(self, text: str | None) -> None:
        """Set the stop condition, in the syntax of :func:`~tdx.core.tracing.parse_stop`.

        Raises:
            ArgumentError: The condition is invalid.
            KeyNotFoundError: A key does not exist. The previous condition stays in effect.
        """
        stop = None if text is None else parse_known_stop(text, self.tracer)
        if stop is not None:
            stop.begin(self.tracer)
        self._stop = stop

    def stop_reason(self, trace: StepTrace) -> str | None:
        """Return why to stop after a trace; ``None`` to continue.

        Raises:
            KeyNotFoundError: A key of the condition does not exist.
        """
        reason = None if self._stop is None else self._stop.check(trace)
        if reason is None or reason.by is None or reason.by.kind != "stage":
            return None if reason is None else reason.message
        title = self.numbers.title(reason.by.index, reason.by.name)
        return reason.message.replace(reason.by.place, title)

    def rollout(self) -> TensorDictBase:
        """Return the steps since :meth:`reset` that are in the history, ``[*B, T]``.

        Raises:
            ArgumentError: There are no steps, or those of another library do not fit together.
        """
        traces = [trace for trace in self.history if trace.index >= self._reset_index]
        if isinstance(self.env, StackEnv):
            return stack_rollout(self.env, traces)
        steps = [
            trace.tensordict for trace in traces if trace.phase == "step" and trace.error is None
        ]
        if not steps:
            raise ArgumentError("no steps since the reset", hint="make a step first")
        return torch.stack(steps, len(self.env.batch_size))

    @property
    def first(self) -> int:
        """Index of the oldest trace in the history."""
        return self.tracer.traces - len(self.history)

    @property
    def last(self) -> int:
        """Index of the latest trace; -1 before the first."""
        return self.tracer.traces - 1

    def view(
        self,
        index: int | None = None,
        *,
        against: int | None = None,
        earlier: StepTrace | None = None,
        row: int | None = None,
    ) -> TraceView:
        """Return a view of a trace.

        The default is the latest trace, compared with the previous one; ``earlier`` is a trace of
        an earlier session to compare with instead. A trace that is not in the history is replaced
        by the nearest one.
        """
        trace = self._trace(index)
        other = self.history.find(trace.index - 1 if against is None else against)
        return view_trace(
            trace,
            against=earlier or other,
            is_earlier=earlier is not None,
            row=row,
            promises=self.promises,
            numbers=self.numbers,
            changes=self.changes,
        )

    def images(
        self,
        index: int | None = None,
        *,
        row: int | None = None,
        zoom: float = 1.0,
    ) -> tuple[ImageView, ...]:
        """Return every image in a trace; see :func:`~tdx.inspection.live.arrays.find_images`."""
        trace = self._trace(index)
        return tuple(find_images(trace, row=row, zoom=zoom, numbers=self.numbers))

    def _trace(self, index: int | None) -> StepTrace:
        at = self.last if index is None else max(self.first, min(index, self.last))
        trace = self.history.find(at)
        if trace is None:
            raise ArgumentError("no traces yet", hint="reset or step first")
        return trace

    def episodes(self, row: int | None = None, most: int = 200) -> tuple[EpisodeView, ...]:
        """Return the latest episodes in the history, the newest last."""
        first = self.first
        episodes = self.episode_tracker.episodes(row, most)
        return tuple(each for each in episodes if each.last >= first)

    def cells(self, most: int = 256) -> tuple[EnvCell, ...]:
        """Return the state of each env of the batch after the latest step."""
        return self.episode_tracker.cells(most)

    def plot(
        self,
        name: str,
        *,
        row: int | None = None,
        parts: int = 200,
        window: tuple[int, int] | None = None,
    ) -> PlotView:
        """Plot a number over the traces in the history, or over those in a window, in bins.

        A name is ``"reward"``, ``"return"`` (of the episode so far), ``"ms per step"``, a key, or
        an element of one: ``"observation[0]"``. A key with several numbers is plotted as their
        mean. The default row is the first for rewards and returns, and the mean of all rows for
        keys.

        Raises:
            KeyNotFoundError: The key does not exist.
        """
        first, numbers = self.series(name, row)
        plot = build_plot(name, first, numbers, parts=parts, window=window)
        return replace(plot, latest=self.latest_number(name, row))

    def latest_number(
        self, name: str, row: int | None = None, *, last: int | None = None
    ) -> float | None:
        """Return the number in the latest trace that has one; ``None`` if no trace has.

        ``last`` is the latest trace to look at.
        A series has NaN for traces without a number, such as a reset, and for numbers that are NaN.
        """
        own = self._builtin.get(name)
        latest = self.last if last is None else min(self.last, last)
        for index in range(latest, self.first - 1, -1):
            trace = self.history.find(index)
            if trace is None:
                break
            if own is None and has_number(trace, name, row):
                return read_number(trace, name, row)
            # A failed step has a time, but no reward.
            if own is not None and (
                name == TIME or (trace.phase == "step" and trace.error is None)
            ):
                return own.at(index, 0 if name == TIME else row or 0)
        return None

    def series(self, name: str, row: int | None = None) -> tuple[int, Array]:
        """Return the first trace of a plot, and one number per trace; see :meth:`plot`."""
        own = self._builtin.get(name)
        if own is not None:
            first, numbers = own.column(0 if name == TIME else row or 0)
        else:
            track = self._key_buffers.get((name, row))
            if track is None:
                track = self._key_buffers[name, row] = SeriesBuffer(self.history.max_traces)
                track.count = self.first
                for trace in self.history:
                    track.append(read_number(trace, name, row))
                if len(self._key_buffers) > _MAX_KEYED:
                    self._key_buffers.popitem(last=False)
            first, numbers = track.column(0)
            if self.last >= 0 and np.isnan(numbers).all():
                names = self.plot_names()
                if name not in names:
                    del self._key_buffers[name, row]
                    hint = did_you_mean(name, names, otherwise=f"there are {', '.join(names[:8])}")
                    raise KeyNotFoundError(f"unknown key {name!r}", hint=hint)
        held = max(first, self.first)
        return held, numbers[held - first :]

    def plot_names(self, row: int | None = None) -> tuple[str, ...]:
        """Return the names that :meth:`plot` accepts for the latest trace."""
        if self.last < 0:
            return tuple(self._builtin)
        names = (*self._builtin, *number_names(self._trace(None), row))
        return tuple(dict.fromkeys(names))

    @property
    def default_plots(self) -> tuple[str, ...]:
        """Reward and return; without rewards, the first features of observations and actions."""
        if self.episode_tracker.has_rewards:
            return REWARD, RETURN
        features: list[list[str]] = []
        for spec in (self.env.full_observation_spec, self.env.full_action_spec):
            for key, leaf in spec.items(True, True):
                row_shape = leaf.shape[len(self.env.batch_size) :]
                if len(row_shape) < 3:  # an image has no features
                    count = row_shape.numel()
                    name = format_key(key)
                    places = range(min(count, _MAX_DEFAULT_PLOTS))
                    features.append([f"{name}[{at}]" for at in places] if count > 1 else [name])
        # The first feature of each key comes before the second one of any.
        ranked = [name for names in zip_longest(*features) for name in names if name is not None]
        return tuple(ranked[:_MAX_DEFAULT_PLOTS])
