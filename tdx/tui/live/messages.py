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
    """What a session begins with."""

    pipeline: Pipeline
    allow_code: bool = False
    is_running: bool = False  # step continuously from the start, or after the repetition
    rate: float | None = 20  # steps per second; ``None``: as many as possible
    action_source: str = "random"  # where actions come from
    numbers: tuple[int, ...] = ()  # number of each stage in the chain pane; empty: its index
    repeat: bool = False  # repeat the resets and actions of the last session, with the same seed
    until: int | None = None  # trace of the last session to stop at; ``None``: its end
    samples: str | None = None  # file or folder with the samples of a stack without an env


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
    """Step at the current rate."""

    steps: int | None = None  # number of steps; ``None``: unlimited
    until: str | None = None  # condition that ends the run; ``None``: no condition


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
    """Compare with a trace. ``None``: with the previous one."""

    index: int | None = None  # the trace
    is_earlier: bool = False  # compare with the same step of the earlier rollout instead


@dataclass(frozen=True, slots=True)
class FocusEnv:
    """Show one env of the batch. ``None``: the whole batch."""

    row: int | None


@dataclass(frozen=True, slots=True)
class SetActionSource:
    """Take actions from a policy, or set them by hand."""

    source: str  # ``random``, ``zero``, ``manual``, or a policy
    # Manual action, by key and place of each field
    numbers: tuple[tuple[str, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SetPanes:
    """What the panes have room for."""

    plots: tuple[str, ...] = ()  # names of the plots
    parts: int = 100  # number of points of a plot
    window: int | None = None  # number of latest traces in a plot; ``None``: all of them
    zoom: float = 0.0  # scale of the images; 0: no images
    episodes: int = 0  # maximum number of episodes
    cells: int = 0  # maximum number of envs; 0: the tab is hidden, so that only the state is sent


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
    num_envs: int
    fields: tuple[ActionField, ...]
    plots: tuple[str, ...]
    max_bytes: int


@dataclass(frozen=True, slots=True)
class LateTrace:
    """A trace that was not shown when it was made, pushed while a later step does not end."""

    view: TraceView
    images: tuple[ImageView, ...]


@dataclass(frozen=True, slots=True)
class LiveState:
    """State of a session."""

    # ``running`` or ``paused``; the app uses ``ended`` after the worker is gone
    status: Literal["running", "paused", "ended"]
    last_command: int  # number of the last executed command
    steps: int
    first: int  # oldest trace in the history
    last: int
    shown: int
    follows_latest: bool  # true if the latest trace is always shown
    reference: int | None  # trace that is marked for comparison; ``None``: the previous one
    is_earlier: bool  # true if traces are compared with those of the earlier rollout
    # First trace that differs from the earlier rollout, by key; ``None`` if nothing was
    # repeated
    differences: tuple[tuple[str, int], ...] | None
    row: int | None  # env in focus; ``None``: the whole batch
    nbytes: int  # size of the history in bytes
    rate: float | None
    speed: float  # measured steps per second
    action_source: str  # where actions come from
    stop_condition: str | None  # condition that ends the run
    # Why the run has stopped, why a command was rejected, or how the shown rollout differs from
    # the earlier one
    message: str
    problem: Problem | None  # error that ended the run
    problem_traces: tuple[int, ...]  # latest traces with problems
    episode_starts: tuple[int, ...]  # traces in which episodes start
    plot_names: tuple[str, ...]  # keys and figures that can be plotted
    readings: tuple[StageReading, ...] = ()  # what each stage did in the latest step
