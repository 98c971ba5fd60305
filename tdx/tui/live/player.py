"""The worker's side: steps an env as it is told, and sends what there is to see."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tdx.core.chain_specs import stage_count
from tdx.errors import KeyNotFoundError, TdxError, Where
from tdx.inspection.live.actions import action_fields, build_action, target_row
from tdx.inspection.live.session import LiveSession
from tdx.inspection.live.views import PlotView, StageNumbers
from tdx.inspection.overview import Problem, find_user_line, format_traceback
from tdx.tui.backend.job import Job
from tdx.tui.live.requests import (
    Act,
    Command,
    Compare,
    Facts,
    Focus,
    Keep,
    LiveState,
    Panes,
    Pause,
    Play,
    Rate,
    Reset,
    Run,
    Show,
    Told,
)
from tdx.tui.problems import for_app

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.envs import EnvBase

VIEW_INTERVAL = 1 / 15
CURVE_INTERVAL = 1 / 8
VIEW_SHARE = 6
"""How many times as long as views took to be made there are none: steps go first."""
EVERY_STEP = 30
"""The most steps a second of which each is shown."""
IDLE = 0.02
_MOST_MARKS = 400
Push = Callable[[str, Any], None]


def play(request: Play, job: Job) -> None:
    """Step an env until the request is cancelled."""
    from tdx.pipeline import build_env

    env = build_env(request.pipeline, request.allow_code)
    try:
        player = Player(env, request, job.push)
        while not job.cancelled:
            wait = player.turn(job.told())
            if wait > 0:
                job.wait(wait)
    finally:
        env.close()


class Player:
    """Makes one trace after the other, at a rate, and pushes views of them now and then.

    Args:
        env: the env with its chain.
        request: how to begin.
        push: sends something to the app, by topic.
        clock: gives nanoseconds.
    """

    def __init__(
        self,
        env: EnvBase,
        request: Play,
        push: Push,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.env, self._push = env, push
        self._clock: Callable[[], float] = lambda: clock() / 1e9
        self._allow_code, self._pipeline = request.allow_code, request.pipeline
        inner = stage_count(env) - len(request.pipeline.transforms)
        self._numbers = StageNumbers(request.numbers, inner)
        self.session = LiveSession(env, clock=clock, numbers=self._numbers)
        self.runs = request.runs
        self.rate = request.rate
        self.source = "random"
        self.panes = Panes()
        self.shown: int | None = None
        self.against: int | None = None
        self.row: int | None = 0 if env.batch_size.numel() > 1 else None
        self._until: str | None = None
        self._left: int | None = None
        self._said = ""
        self._problem: Problem | None = None
        self._action: TensorDictBase | None = None
        self._heard = 0
        self._due = 0.0
        self._pushed = self._drawn = -1.0
        self._interval = VIEW_INTERVAL
        self._stale = True
        self._times: deque[float] = deque(maxlen=100)
        self._push_facts(request.pipeline.env.id)
        self._try(lambda: self._act(Act(request.source)))
        self._try(self.session.reset)

    def turn(self, told: list[Told]) -> float:
        """Do what there is to do now.

        Args:
            told: the commands that have come since the last turn.

        Returns:
            for how many seconds there is nothing to do.
        """
        for each in told:
            self._heard = each.number
            command = each.command
            self._try(lambda command=command: self._obey(command))  # type: ignore[misc]
            self._stale = True
        now = self._clock()
        if self.runs and now >= self._due:
            self._go_on(now)
        self._show(self._clock())
        if not self.runs:
            return IDLE
        return max(0.0, min(self._due - self._clock(), IDLE))

    # What it is told

    def _obey(self, command: Command) -> None:
        if isinstance(command, Reset):
            self._halt("")
            self.shown = None
            self.session.reset(seed=command.seed)
        elif isinstance(command, Run):
            self._begin(command)
        elif isinstance(command, Pause):
            self._halt("")
        elif isinstance(command, Rate):
            self.rate = command.rate
            self._due = self._clock()
        elif isinstance(command, Act):
            self._act(command)
        elif isinstance(command, Keep):
            self._keep(command)
        else:
            self._look(command)

    def _look(self, command: Show | Compare | Focus | Panes) -> None:
        if isinstance(command, Show):
            latest = command.index is None or command.index >= self.session.last
            self.shown = None if latest else command.index
        elif isinstance(command, Compare):
            self.against = command.index
        elif isinstance(command, Focus):
            rows = self.session.episode_tracker.rows
            self.row = None if command.row is None else max(0, min(command.row, rows - 1))
        else:
            self.panes = command

    def _begin(self, command: Run) -> None:
        self.session.set_stop(command.until)
        pending = self._left if self.runs and command.until == self._until else None
        steps = command.steps
        # Presses that queued up while the env was slow: each is worth its steps.
        self._left = steps if steps is None or pending is None else pending + steps
        self._until = command.until
        self._problem, self._said = None, ""
        self.shown = None
        self.runs = True
        self._due = self._clock()
        self._times.clear()

    def _act(self, command: Act) -> None:
        from tdx.rollouts.policies.policy import PolicyRequest, check_policy, load_policy

        if command.source == "hand":
            numbers = {(key, place): number for key, place, number in command.numbers}
            self._action = build_action(self.env, numbers)
        else:
            typed = None if command.source == self._pipeline.policy else command.source
            request = PolicyRequest.of(self._pipeline, typed, self._allow_code)
            policy = load_policy(request, self.env)
            check_policy(policy, self.env)
            self.session.tracer.follow(policy.start_at(0))
            self._action = None
        self.source = command.source

    def _keep(self, command: Keep) -> None:
        from tdx.rollouts import keep_rollout

        try:
            rollout = self.session.rollout()
            kept = keep_rollout(rollout, self.env, self._pipeline, command.path, policy="live")
        except TdxError as error:
            self._said = error.message
        else:
            shortest = min(command.path, os.path.relpath(command.path), key=len)
            self._said = f"{kept.steps:,} steps are in {shortest}"

    # What it does

    def _go_on(self, now: float) -> None:
        """Make a trace; resets are made at once, and only steps take their time."""
        try:
            # A tensor that is given twice would not be seen as written anew.
            hand = self._action
            action = None if hand is None else target_row(self.env, hand, self.row)
            trace = self.session.advance(action)
            reason = self.session.stop_reason(trace)
        except Exception as error:
            self._failed(error)
            return
        self._stale = True
        if trace.phase == "step":
            self._times.append(now)
            pause = 0.0 if self.rate is None else 1 / self.rate
            # A step that took too long is not made up for by a rush of others.
            self._due = max(self._due + pause, now - 0.1)
            if self._left is not None:
                self._left -= 1
        if reason is not None:
            self._halt(reason)
        elif self._left == 0:
            self._halt("")

    def _halt(self, said: str) -> None:
        self.runs = False
        self._said, self._problem = said, None

    def _try(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Say it and stay as it is; the history is kept."""
        self.runs = False
        self._stale = True
        self._said = ""
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
        self._problem = for_app(problem)

    # What it sends

    def _push_facts(self, name: str) -> None:
        history = self.session.history
        self._push(
            "facts",
            Facts(
                name,
                tuple(self.env.batch_size),
                action_fields(self.env),
                history.max_traces,
                history.max_bytes,
            ),
        )

    def _show(self, now: float) -> None:
        """Send what changed; while it runs only so often."""
        seldom = self.runs and (self.rate is None or self.rate > EVERY_STEP)
        if not self._stale or (seldom and now - self._pushed < self._interval):
            return
        self._stale = False
        self._pushed = now
        try:
            self._push_views(now)
        except TdxError as error:
            self._failed(error)
            self._stale = False
        self._push("state", self.state())
        self._interval = max(VIEW_INTERVAL, VIEW_SHARE * (self._clock() - now))

    def _push_views(self, now: float) -> None:
        session, panes = self.session, self.panes
        if session.last < 0 or not panes.cells:
            return
        self._push("view", session.view(self.shown, against=self.against, row=self.row))
        if panes.width and panes.height:
            size = {"width": panes.width, "height": panes.height}
            self._push("pictures", session.images(self.shown, row=self.row, **size))
        self._push("cells", session.cells(panes.cells))
        if self.runs and now - self._drawn < CURVE_INTERVAL:
            self._stale = True
            return
        self._drawn = now
        if panes.episodes:
            self._push("episodes", session.episodes(most=panes.episodes))
        if panes.curves:
            self._push("curves", tuple(self._curves()))

    def _curves(self) -> Iterator[PlotView]:
        """The curves that are wanted; a key that a chain has no longer is left out."""
        session, panes = self.session, self.panes
        first = None if panes.window is None else session.last - panes.window + 1
        window = None if first is None else (first, session.last)
        for name in panes.curves:
            with suppress(KeyNotFoundError):
                yield session.plot(name, row=self.row, parts=panes.parts, window=window)

    def state(self) -> LiveState:
        """Where it stands."""
        session = self.session
        shown = session.last if self.shown is None else max(self.shown, session.first)
        return LiveState(
            doing="running" if self.runs else "paused",
            heard=self._heard,
            steps=session.tracer.steps,
            first=session.first,
            last=session.last,
            shown=shown,
            follows=self.shown is None,
            against=self.against,
            row=self.row,
            nbytes=session.history.nbytes,
            rate=self.rate,
            speed=self._speed(),
            source=self.source,
            until=self._until if self.runs else None,
            said=self._said,
            problem=self._problem,
            troubled=tuple(session.problems)[-_MOST_MARKS:],
            starts=tuple(span.first for span in session.history.episodes())[-_MOST_MARKS:],
            curve_names=session.plot_names(self.row),
        )

    def _speed(self) -> float:
        times = self._times
        if not self.runs or len(times) < 2 or times[-1] == times[0]:
            return 0.0
        return (len(times) - 1) / (times[-1] - times[0])
