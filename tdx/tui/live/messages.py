"""Messages between the Live tab and its worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tdx.inspection.live.actions import ActionField
from tdx.inspection.live.views import ImageView, StageReading, TraceView
from tdx.inspection.overview import Problem
from tdx.pipeline.model import Pipeline

RATES = (1, 2, 5, 10, 20, 30, 60, 100, 200, 500, None)
"""Steps per second. ``None``: as many as possible."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session begins with.

    Args:
        pipeline: Env with its chain.
        allow_code: Allow the pipeline to import Python objects.
        rate: Steps per second. ``None``: as many as possible.
        numbers: Number of each stage in the chain pane; empty: its index.
        is_running: Step continuously from the start, or after the repetition.
        action_source: Where actions come from.
        repeat: Repeat the resets and actions of the last session, with the same seed.
        until: Trace of the last session to stop at. ``None``: its end.
        samples: File or folder with the samples of a stack without an env.
    """

    pipeline: Pipeline
    allow_code: bool = False
    is_running: bool = False
    rate: float | None = 20
    action_source: str = "random"
    numbers: tuple[int, ...] = ()
    repeat: bool = False
    until: int | None = None
    samples: str | None = None


@dataclass(frozen=True, slots=True)
class CommandEnvelope:
    """A command with a number, which :class:`LiveState` repeats when it is executed."""

    number: int
    command: Command


@dataclass(frozen=True, slots=True)
class Reset:
    """Start new episodes."""

    seed: int | None = None


@dataclass(frozen=True, slots=True)
class RunSteps:
    """Step at the current rate.

    Args:
        steps: Number of steps. ``None``: unlimited.
        until: Condition that ends the run. ``None``: no condition.
    """

    steps: int | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop after the current step."""


@dataclass(frozen=True, slots=True)
class SetRate:
    """Set the number of steps per second. ``None``: as many as possible."""

    rate: float | None


@dataclass(frozen=True, slots=True)
class ShowTrace:
    """Show a trace. ``None``: follow the latest one."""

    index: int | None = None


@dataclass(frozen=True, slots=True)
class CompareWith:
    """Compare with a trace. ``None``: with the previous one.

    Args:
        index: The trace.
        is_earlier: Compare with the same step of the earlier rollout instead.
    """

    index: int | None = None
    is_earlier: bool = False


@dataclass(frozen=True, slots=True)
class FocusEnv:
    """Show one env of the batch. ``None``: the whole batch."""

    row: int | None


@dataclass(frozen=True, slots=True)
class SetActionSource:
    """Take actions from a policy, or set them by hand.

    Args:
        source: ``random``, ``zero``, ``manual``, or a policy.
        numbers: Manual action, by key and place of each field.
    """

    source: str
    numbers: tuple[tuple[str, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SetPanes:
    """What the panes have room for.

    Args:
        parts: Number of points of a plot.
        window: Number of latest traces in a plot. ``None``: all of them.
        zoom: Scale of the images; 0: no images.
        episodes: Maximum number of episodes.
        cells: Maximum number of envs; 0: the tab is hidden, so that only the state is sent.
        plots: Names of the plots.
    """

    plots: tuple[str, ...] = ()
    parts: int = 100
    window: int | None = None
    zoom: float = 0.0
    episodes: int = 0
    cells: int = 0


@dataclass(frozen=True, slots=True)
class DumpSteps:
    """Write the steps since the reset as a dump to a new folder."""

    path: str


Command = (
    Reset
    | RunSteps
    | Pause
    | SetRate
    | ShowTrace
    | CompareWith
    | FocusEnv
    | SetActionSource
    | SetPanes
    | DumpSteps
)


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Facts about a session that do not change."""

    env: str
    batch: tuple[int, ...]
    fields: tuple[ActionField, ...]
    plots: tuple[str, ...]
    max_traces: int
    max_bytes: int

    @property
    def num_envs(self) -> int:
        """Number of envs in the batch."""
        num_envs = 1
        for size in self.batch:
            num_envs *= size
        return num_envs


@dataclass(frozen=True, slots=True)
class LateTrace:
    """A trace that was not shown when it was made, pushed while a later step does not end."""

    view: TraceView
    images: tuple[ImageView, ...]


@dataclass(frozen=True, slots=True)
class LiveState:
    """State of a session.

    Args:
        steps: Number of steps made.
        first: Oldest trace in the history.
        last: Latest trace.
        shown: Trace that is shown.
        row: Env in focus. ``None``: the whole batch.
        nbytes: Size of the history in bytes.
        rate: Requested steps per second.
        speed: Measured steps per second.
        problem: Error that ended the run.
        problem_traces: Latest traces with problems.
        episode_starts: Traces in which episodes start.
        plot_names: Keys and figures that can be plotted.
        readings: What each stage did in the latest step.
        status: ``running`` or ``paused``; the app uses ``ended`` after the worker is gone.
        last_command: Number of the last executed command.
        follows_latest: True if the latest trace is always shown.
        reference: Trace that is marked for comparison. ``None``: the previous one.
        is_earlier: True if traces are compared with those of the earlier rollout.
        differences: First trace that differs from the earlier rollout, by key; ``None`` if nothing
            was repeated.
        action_source: Where actions come from.
        stop_condition: Condition that ends the run.
        message: Why the run has stopped, why a command was rejected, or how the shown rollout
            differs from the earlier one.
    """

    status: Literal["running", "paused", "ended"]
    last_command: int
    steps: int
    first: int
    last: int
    shown: int
    follows_latest: bool
    reference: int | None
    is_earlier: bool
    differences: tuple[tuple[str, int], ...] | None
    row: int | None
    nbytes: int
    rate: float | None
    speed: float
    action_source: str
    stop_condition: str | None
    message: str
    problem: Problem | None
    problem_traces: tuple[int, ...]
    episode_starts: tuple[int, ...]
    plot_names: tuple[str, ...]
    readings: tuple[StageReading, ...] = ()
