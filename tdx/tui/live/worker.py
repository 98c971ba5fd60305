"""Worker side of the Live tab: steps an env on command and pushes views of its history.

:func:`run_session` answers a request. :class:`Rollouts` keeps the latest two sessions, each with a
:class:`LivePlayer`. :class:`StepWatch` reports while a call takes long.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tdx.core.chain import chain_stages
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, TdxError, Where, find_user_line
from tdx.foundation.keys import format_key
from tdx.inspection.live.actions import action_fields, build_action, target_row
from tdx.inspection.live.replay import Replay
from tdx.inspection.live.session import LiveSession
from tdx.inspection.live.stack_env import LiveStackTracer, StackEnv
from tdx.inspection.live.views import ImageView, PlotView, StageNumbers
from tdx.inspection.overview import Problem, format_traceback
from tdx.rollouts.samples import read_samples
from tdx.stacks.building import build_stack
from tdx.tui.backend.activity import ActivityRecord
from tdx.tui.backend.messages import Job, with_app_hint
from tdx.tui.live.messages import (
    Command,
    CommandEnvelope,
    CompareWith,
    DumpSteps,
    FocusEnv,
    LateTrace,
    LiveState,
    Pause,
    Reset,
    RunSteps,
    SessionInfo,
    SessionSettings,
    SetActionSource,
    SetPanes,
    SetRate,
    ShowTrace,
)

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.core.tracing import Place
    from tdx.core.tracing.traces import Direction, Hook
    from tdx.envs import EnvBase


VIEW_INTERVAL = 1 / 15
PLOT_INTERVAL = 1 / 8
VIEW_COST_FACTOR = 6
"""Minimum time between two views, as a multiple of the time a view takes."""
MAX_RATE_PER_STEP_VIEWS = 30
"""Maximum rate in steps per second at which each step is shown."""
MAX_LATE_TRACES = 100
"""Maximum number of traces that are pushed while a call takes long."""
_MAX_MARKS = 400
_WATCH_INTERVAL = 0.1
Push = Callable[[str, object], None]


class LivePlayer:
    """Steps an env at a rate, and pushes views of its history from time to time.

    The clock returns nanoseconds. With an earlier session, its steps are repeated up to the trace
    in the request.
    """

    def __init__(
        self,
        env: EnvBase | StackEnv,
        request: SessionSettings,
        push: Push,
        clock: Callable[[], int] = time.perf_counter_ns,
        earlier: LiveSession | None = None,
        activity: ActivityRecord | None = None,
    ) -> None:
        self.env, self._push = env, push
        self._clock: Callable[[], float] = lambda: clock() / 1e9
        self._allow_code, self._pipeline = request.allow_code, request.pipeline
        if isinstance(env, StackEnv):
            self._numbers = StageNumbers()
        else:
            # The chain pane lists the stages that a factory creates, and no other ones.
            hidden = len(chain_stages(env)) - len(request.pipeline.transforms)
            inner = 0 if request.pipeline.is_factory else hidden
            pipeline = request.pipeline
            name = "" if pipeline.is_factory else pipeline.env.id
            self._numbers = StageNumbers(request.numbers, inner, name)
        self.watch = StepWatch(self, activity or ActivityRecord())
        self.session = LiveSession(env, clock=clock, numbers=self._numbers, probe=self.watch)
        self.is_running = request.is_running
        self.rate = request.rate
        self.action_source = "random"
        self.panes = SetPanes()
        self.shown: int | None = None
        self.reference: int | None = None
        self.row: int | None = 0 if env.batch_size.numel() > 1 else None
        self._stop_condition: str | None = None
        self._steps_left: int | None = None
        self._message = self._comparison = ""
        self._problem: Problem | None = None
        self._manual_action: TensorDictBase | None = None
        self._last_command = 0
        self._due_time = 0.0
        self._view_time = self._plot_time = -1.0
        self._interval = VIEW_INTERVAL
        self._stale = True
        self._pushed_late: set[int] = set()
        self._displayed: int | None = None
        self._step_times: deque[float] = deque(maxlen=100)
        self.replay: Replay | None = None
        self._is_replaying = self.is_earlier = False
        self._push_info()
        self._try(lambda: self._set_action_source(SetActionSource(request.action_source)))
        if earlier is None:
            self._try(self.session.reset)
            return
        try:
            self.replay = Replay(earlier, self.session, request.until)
        except ArgumentError as error:
            self._try(self.session.reset)
            self._message = f"{error.message}: {error.hint}"
        else:
            self._is_replaying = self.is_earlier = True

    @property
    def is_worth_keeping(self) -> bool:
        """True if steps were made, and all steps of an earlier session were repeated."""
        is_complete = self.replay is None or self.replay.is_done
        return bool(self.session.tracer.steps) and is_complete

    def resume(self, request: SessionSettings, push: Push) -> None:
        """Continue after another session was shown."""
        self._push = push
        self._pushed_late.clear()
        self._last_command = 0
        self.panes, self._stale = SetPanes(), True
        self._due_time, self._view_time = self._clock(), -1.0
        self._message = f"back to the rollout before the edit, at step {self.session.tracer.steps}"
        self._push_info()
        self.rate, self.is_running = request.rate, request.is_running
        if request.action_source != self.action_source:
            self._try(lambda: self._set_action_source(SetActionSource(request.action_source)))

    def run_once(self, envelopes: list[CommandEnvelope]) -> float | None:
        """Execute commands, make a step if one is due, and push what has changed.

        Return the seconds in which there is nothing to do; ``None``: until the next command.
        """
        for envelope in envelopes:
            self._last_command = envelope.number
            self._try(partial(self._execute, envelope.command))
            self._stale = True
        now = self._clock()
        if self._is_replaying:
            self._try(lambda: self._repeat(now + VIEW_INTERVAL))
        elif self.is_running and now >= self._due_time:
            self._advance(now)
        self._push_changes(self._clock())
        if self._is_replaying:
            return 0.0
        if not self.is_running:
            return None
        return max(0.0, self._due_time - self._clock())

    def _execute(self, command: Command) -> None:
        if isinstance(command, Reset):
            self._pause("")
            self.shown = None
            self.session.reset(seed=command.seed)
        elif isinstance(command, RunSteps):
            self._run(command)
        elif isinstance(command, Pause):
            self._pause("")
        elif isinstance(command, SetRate):
            self.rate = command.rate
            self._due_time = self._clock()
        elif isinstance(command, SetActionSource):
            self._set_action_source(command)
        elif isinstance(command, DumpSteps):
            self._dump(command)
        elif isinstance(command, ShowTrace):
            latest = command.index is None or command.index >= self.session.last
            self.shown = None if latest else command.index
        elif isinstance(command, CompareWith):
            self.reference, self.is_earlier = command.index, command.is_earlier
        elif isinstance(command, FocusEnv):
            rows = self.session.episode_tracker.rows
            self.row = None if command.row is None else max(0, min(command.row, rows - 1))
        else:
            self.panes = command

    def _run(self, command: RunSteps) -> None:
        self.session.set_stop(command.until)
        pending = (
            self._steps_left if self.is_running and command.until == self._stop_condition else None
        )
        steps = command.steps
        # Commands that queued up while the env was slow each add their steps.
        self._steps_left = steps if steps is None or pending is None else pending + steps
        self._stop_condition = command.until
        self._problem, self._message = None, ""
        self.shown = None
        self.is_running = True
        self._due_time = self._clock()
        self._step_times.clear()

    def _set_action_source(self, command: SetActionSource) -> None:
        if command.source == "manual":
            numbers = {(key, place): number for key, place, number in command.numbers}
            self._manual_action = build_action(self.env, numbers)
        elif command.source == "zero" and isinstance(self.env, StackEnv):
            self._manual_action = build_action(self.env, {})
        else:
            from tdx.rollouts.policies.policy import load_actor

            tracer = self.session.tracer
            typed = None if command.source == self._pipeline.policy else command.source
            target = tracer.env.stack if isinstance(tracer, LiveStackTracer) else tracer.env
            actor = load_actor(self._pipeline, target, name=typed, allow_code=self._allow_code)
            tracer.follow(actor)
            self._manual_action = None
        self.action_source = command.source

    def _dump(self, command: DumpSteps) -> None:
        from tdx.rollouts import keep_rollout

        # A dump takes the specs and the names of flags and rewards, which a `StackEnv` has too.
        env: Any = self.env
        try:
            rollout = self.session.rollout()
            kept = keep_rollout(rollout, env, self._pipeline, command.path, policy="live")
        except TdxError as error:
            key = error.where.key
            self._message = f"{'' if key is None else f'{format_key(key)}: '}{error.message}"
        else:
            shortest = min(command.path, os.path.relpath(command.path), key=len)
            self._message = f"dumped {kept.steps:,} steps to {shortest}"

    def _repeat(self, until: float) -> None:
        """Repeat steps of the earlier session for a moment."""
        replay = self.replay
        assert replay is not None
        self._stale = True
        while not replay.is_done:
            replay.advance()
            if self._clock() >= until:
                self._message = f"repeating step {self.session.tracer.steps} of {replay.steps}"
                return
        self._is_replaying = False
        self._message, self._comparison = "", replay.describe()
        self._due_time = self._clock()

    def _advance(self, now: float) -> None:
        """Make a trace; a reset does not count against the rate."""
        try:
            # Copy the action: the tracer detects writes by tensor identity.
            manual = self._manual_action
            action = None if manual is None else target_row(self.env, manual, self.row)
            trace = self.session.advance(action)
            reason = self.session.stop_reason(trace)
            if self.replay is not None:
                self.replay.compare(trace)
        except Exception as error:
            self._fail(error)
            return
        self._stale = True
        if trace.phase == "step":
            self._step_times.append(now)
            pause = 0.0 if self.rate is None else 1 / self.rate
            # Do not catch up after a slow step.
            self._due_time = max(self._due_time + pause, now - 0.1)
            if self._steps_left is not None:
                self._steps_left -= 1
        if reason is not None:
            self._pause(reason)
        elif self._steps_left == 0:
            self._pause("")

    def _pause(self, message: str) -> None:
        self.is_running = self._is_replaying = False
        self._message, self._problem = message, None

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Pause and report an error; the history remains."""
        self.is_running = self._is_replaying = False
        self._stale = True
        self._message = ""
        if isinstance(error, TdxError):
            problem = Problem.of(error)
        else:
            first = (str(error).splitlines() or [""])[0]
            message = f"{type(error).__name__}: {first}"
            place = Where(), find_user_line(error), format_traceback(error)
            problem = Problem("TDX000", message, None, *place)
        stage = problem.where.stage
        if stage is not None:
            number = self._numbers.number(stage)
            where = replace(problem.where, stage=number if number >= 0 else None)
            problem = replace(problem, where=where)
        self._problem = with_app_hint(problem)

    @property
    def steps(self) -> int:
        """Number of completed steps."""
        return self.session.tracer.steps

    def describe_call(self, place: Place, hook: Hook) -> str:
        """Return a hook of the current step in words: ``env.step of step 15``."""
        if place.kind == "env":
            what = f"env.{hook}"
        elif place.kind == "stage":
            what = f"stage {self._numbers.title(place.index, place.name)}"
        else:
            what = place.name if place.kind == "given" else f"policy {place.name}"
        return f"{what} {'before' if hook == 'reset' else 'of'} step {self.steps + 1}"

    def push_completed(self) -> bool:
        """Push the state, or a trace that the app does not have; return False if it has all."""
        if self._stale:
            self._view_time = self._plot_time = -math.inf
            self._push_changes(self._clock())
            return True
        session, panes = self.session, self.panes
        if not panes.cells:
            return False
        recent = range(max(session.first, session.last + 1 - MAX_LATE_TRACES), session.last + 1)
        self._pushed_late.intersection_update(recent)
        # The app gets the latest view of a topic only, so earlier ones may not have arrived.
        missing = set(recent) - self._pushed_late - {self._displayed}
        if not missing:
            return False
        index = max(missing)
        self._pushed_late.add(index)
        images: tuple[ImageView, ...] = ()
        if panes.zoom:
            images = session.images(index, row=self.row, zoom=panes.zoom)
        view = session.view(index, against=self.reference, row=self.row)
        self._push(f"late {index}", LateTrace(view, images))
        return True

    def _push_info(self) -> None:
        info = SessionInfo(
            self._pipeline.env.id,
            self.env.batch_size.numel(),
            action_fields(self.env),
            self.session.default_plots,
            self.session.history.max_bytes,
        )
        self._push("info", info)

    def _push_changes(self, now: float) -> None:
        """Push what has changed, but not too often while running fast."""
        is_throttled = self.is_running and (
            self.rate is None or self.rate > MAX_RATE_PER_STEP_VIEWS
        )
        if not self._stale or (is_throttled and now - self._view_time < self._interval):
            return
        self._stale = False
        self._view_time = now
        try:
            self._push_views(now)
        except TdxError as error:
            self._fail(error)
            self._stale = False
        self._push("state", self.state())
        self._interval = max(VIEW_INTERVAL, VIEW_COST_FACTOR * (self._clock() - now))

    def _push_views(self, now: float) -> None:
        session, panes = self.session, self.panes
        if session.last < 0 or not panes.cells:
            return
        replay = self.replay if self.is_earlier else None
        earlier = None if replay is None else replay.find_earlier(self.shown)
        view = session.view(self.shown, against=self.reference, earlier=earlier, row=self.row)
        self._push("trace", view)
        self._displayed = view.index
        if panes.zoom:
            source = session if replay is None else replay
            self._push("images", source.images(self.shown, row=self.row, zoom=panes.zoom))
        self._push("cells", session.cells(panes.cells))
        if self.is_running and now - self._plot_time < PLOT_INTERVAL:
            self._stale = True
            return
        self._plot_time = now
        if panes.episodes:
            self._push("episodes", session.episodes(most=panes.episodes))
        if panes.plots:
            self._push("plots", tuple(self._plots()))

    def _plots(self) -> Iterator[PlotView]:
        """Yield the requested plots; skip keys that the chain no longer has."""
        session, panes = self.session, self.panes
        source = session if self.replay is None or not self.is_earlier else self.replay
        first = None if panes.window is None else session.last - panes.window + 1
        window = None if first is None else (first, session.last)
        for name in panes.plots:
            with suppress(KeyNotFoundError):
                yield source.plot(name, row=self.row, parts=panes.parts, window=window)

    def state(self) -> LiveState:
        """Return the current state."""
        session = self.session
        shown = session.last if self.shown is None else max(self.shown, session.first)
        times, speed = self._step_times, 0.0
        if self.is_running and len(times) > 1 and times[-1] > times[0]:
            speed = (len(times) - 1) / (times[-1] - times[0])
        return LiveState(
            status="running" if self.is_running or self._is_replaying else "paused",
            last_command=self._last_command,
            steps=session.tracer.steps,
            first=session.first,
            last=session.last,
            shown=shown,
            follows_latest=self.shown is None,
            reference=self.reference,
            is_earlier=self.is_earlier,
            differences=None if self.replay is None else tuple(self.replay.differences.items()),
            row=self.row,
            nbytes=session.history.nbytes,
            rate=self.rate,
            speed=speed,
            action_source=self.action_source,
            stop_condition=self._stop_condition if self.is_running else None,
            message=self._message or (self._comparison if self.is_earlier else ""),
            problem=self._problem,
            problem_traces=tuple(session.problems)[-_MAX_MARKS:],
            episode_starts=tuple(span.first for span in session.history.episodes())[-_MAX_MARKS:],
            plot_names=session.plot_names(self.row),
            readings=session.readings.readings(self._numbers),
        )


class StepWatch:
    """Probe of a tracer that keeps the app up to date while a hook does not return.

    A worker that is killed takes its history with it, so the completed steps are sent before. The
    thread that sends them reads the history during a hook only: then nothing else changes it, and
    the hook cannot return before the thread has finished.
    """

    def __init__(self, player: LivePlayer, activity: ActivityRecord) -> None:
        self._player, self._activity = player, activity
        self._lock = threading.Lock()
        self._is_inside = False
        self._calls = 0
        self._called = threading.Event()

    def before(self, place: Place, direction: Direction, hook: Hook) -> None:
        """Record that a hook begins."""
        player = self._player
        self._activity.begin(player.describe_call(place, hook), player.steps)
        self._calls += 1
        self._is_inside = True
        if not self._called.is_set():
            self._called.set()

    def after(self, place: Place, direction: Direction, hook: Hook) -> None:
        """Record that a hook has returned."""
        with self._lock:
            self._is_inside = False
        self._activity.end()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Push completed steps in a thread, during a block."""
        done = threading.Event()
        thread = threading.Thread(target=self._run, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            self._called.set()
            thread.join()

    def _run(self, done: threading.Event) -> None:
        seen = 0
        while not done.wait(_WATCH_INTERVAL):
            # A hook that was running at the last look already takes long.
            if self._calls == seen:
                while self._push(seen) and not done.is_set():
                    pass
                self._called.clear()
                # A hook that has begun before the event was cleared has not set it again.
                if self._calls == seen and not self._is_inside and not done.is_set():
                    self._called.wait()
            seen = self._calls

    def _push(self, call: int) -> bool:
        with self._lock:
            return self._is_inside and self._calls == call and self._player.push_completed()


OpenEnv = Callable[[SessionSettings, int, ExitStack], "EnvBase | StackEnv"]
_KEPT = 2


def run_session(request: SessionSettings, job: Job) -> None:
    """Step an env until the request is cancelled."""
    job.activity.begin(f"building {request.pipeline.env.id}", 0)
    player = job.get_cached("rollouts", lambda: Rollouts(activity=job.activity)).open(
        request, job.push
    )
    job.activity.end()
    tracer = player.session.tracer
    attached = tracer.attached() if isinstance(tracer, LiveStackTracer) else nullcontext()
    with attached, player.watch.running():
        while not job.is_cancelled:
            seconds = player.run_once(job.receive())
            if seconds != 0:
                job.wait(seconds)


def open_env(request: SessionSettings, seed: int, closing: ExitStack) -> EnvBase | StackEnv:
    """Build and seed the env with its chain.

    The seed is that of the env and of the global generators, if the pipeline has none.
    """
    recorded = None if request.samples is None else read_samples(request.samples)
    stack = build_stack(request.pipeline, request.allow_code, recorded)
    closing.callback(stack.close)
    env = stack.chain_env
    own_seed = request.pipeline.env.seed
    if env is None:
        closing.enter_context(stack.seeded(seed if own_seed is None else own_seed))
        return StackEnv(stack)
    if own_seed is None:  # a chain of tdx is seeded when it is built
        env.set_seed(seed)
    torch.manual_seed(seed)
    return env


@dataclass(frozen=True, slots=True)
class Rollout:
    """A session with its env."""

    request: SessionSettings
    seed: int
    player: LivePlayer
    closing: ExitStack


class Rollouts:
    """The current session and the one before it.

    A session of an edited chain can repeat the current one. Undoing the edit continues the one
    before it where it was left.
    """

    def __init__(
        self,
        open_env: OpenEnv = open_env,
        clock: Callable[[], int] = time.perf_counter_ns,
        activity: ActivityRecord | None = None,
    ) -> None:
        self._open_env, self._clock, self._activity = open_env, clock, activity
        self._kept: list[Rollout] = []

    def open(self, request: SessionSettings, push: Push) -> LivePlayer:
        """Continue or start a session; if the env cannot be built, the kept sessions remain."""
        is_whole = request.repeat and request.until is None
        for kept in self._kept:
            chain = kept.request.pipeline, kept.request.numbers, kept.request.samples
            # The edit was undone.
            if is_whole and chain == (request.pipeline, request.numbers, request.samples):
                self._keep(kept)
                kept.player.resume(request, push)
                return kept.player
        earlier = next((kept for kept in self._kept if kept.player.is_worth_keeping), None)
        repeated = earlier if request.repeat else None
        seed = random.SystemRandom().randrange(2**31) if repeated is None else repeated.seed
        closing = ExitStack()
        try:
            env = self._open_env(request, seed, closing)
            session = None if repeated is None else repeated.player.session
            player = LivePlayer(env, request, push, self._clock, session, self._activity)
        except BaseException:
            closing.close()
            raise
        self._keep(Rollout(request, seed, player, closing))
        return player

    def close(self) -> None:
        """Close all envs."""
        while self._kept:
            self._kept.pop().closing.close()

    def _keep(self, current: Rollout) -> None:
        others = [rollout for rollout in self._kept if rollout is not current]
        kept = [rollout for rollout in others if rollout.player.is_worth_keeping][: _KEPT - 1]
        for rollout in others:
            if rollout not in kept:
                rollout.closing.close()
        self._kept = [current, *kept]
