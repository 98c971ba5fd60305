"""Messages between the Live tab and its worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tdx.inspection.live.acting import ActionField
from tdx.inspection.overview import Problem
from tdx.pipeline.model import Pipeline
from tdx.tui.backend.messages import Request

RATES = (1, 2, 5, 10, 20, 30, 60, 100, 200, 500, None)
"""Steps a second; none for as many as there can be."""


@dataclass(frozen=True, slots=True)
class RunSession(Request[None]):
    """Step an env until told to leave; views are pushed on the way.

    What is pushed, by topic: ``facts`` (:class:`Facts`), ``state`` (:class:`LiveState`), ``view``,
    ``pictures``, ``curves``, ``episodes``, ``cells`` (of :mod:`tdx.inspection.live.views`).

    Args:
        pipeline: the env with its chain.
        allow_code: whether Python objects that it names may be imported.
        runs: whether it goes on by itself at once.
        rate: steps a second.
        source: where actions come from.
        numbers: Number of each stage in the chain pane; empty: its index.
    """

    endless: ClassVar[bool] = True
    pipeline: Pipeline
    allow_code: bool = False
    is_running: bool = False
    rate: float | None = 20
    action_source: str = "random"
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandEnvelope:
    """One command, with a number by which the answer tells that it was heard."""

    number: int
    command: Command


@dataclass(frozen=True, slots=True)
class Reset:
    """Begin new episodes."""

    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Step at the rate that is set.

    Args:
        steps: how many; any number where it is none.
        until: when to stop, in the words of the engine.
    """

    steps: int | None = None
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop after the step that is under way."""


@dataclass(frozen=True, slots=True)
class SetRate:
    """Step so often a second."""

    rate: float | None


@dataclass(frozen=True, slots=True)
class ShowTrace:
    """Show a trace; the latest, whatever comes, where it is none."""

    index: int | None = None


@dataclass(frozen=True, slots=True)
class CompareWith:
    """Compare with a trace; with the one before where it is none."""

    index: int | None = None


@dataclass(frozen=True, slots=True)
class FocusEnv:
    """Show one env of the batch; all together where it is none."""

    row: int | None


@dataclass(frozen=True, slots=True)
class SetActionSource:
    """Take the actions from a policy by its name, or by hand.

    Args:
        source: ``random``, ``zero``, ``hand``, or what names a policy.
        numbers: what is chosen by hand, by the key and place of each field.
    """

    source: str
    numbers: tuple[tuple[str, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SetPanes:
    """What the tab has room for.

    Args:
        curves: the names of the curves that are drawn.
        parts: in how many parts.
        window: how many of the latest traces; all where it is none.
        width: the most pixels of an image; none are sent where it is 0.
        height: likewise.
        episodes: the most episodes.
        cells: the most envs; 0 where nothing of the tab is seen, and nothing but the state is sent.
    """

    plots: tuple[str, ...] = ()
    parts: int = 100
    window: int | None = None
    width: int = 0
    height: int = 0
    episodes: int = 0
    cells: int = 0


@dataclass(frozen=True, slots=True)
class DumpSteps:
    """Write the steps since the reset as a dump into a new folder."""

    path: str


Command = (
    Reset
    | Run
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
    """What stays the same in a session.

    Args:
        env: name of the env.
        batch: its batch size.
        fields: what can be chosen by hand.
        max_traces: the most traces in the history.
        max_bytes: the most bytes.
    """

    env: str
    batch: tuple[int, ...]
    fields: tuple[ActionField, ...]
    max_traces: int
    max_bytes: int

    @property
    def num_envs(self) -> int:
        """How many envs there are."""
        num_envs = 1
        for size in self.batch:
            num_envs *= size
        return num_envs


@dataclass(frozen=True, slots=True)
class LiveState:
    """Where a session stands.

    Args:
        doing: whether it runs; ``ended`` is what the app says of one whose worker is gone.
        heard: the number of the last command that was heard.
        steps: how many steps were made.
        first: the first trace that is held.
        last: the latest.
        shown: the trace that is shown.
        follows: whether it is always the latest.
        against: the trace that is marked for comparison.
        row: the env in focus; none for all together.
        nbytes: the memory that the history holds.
        rate: steps a second that are wanted.
        speed: steps a second that are made.
        source: where actions come from.
        until: when a run stops.
        said: why it stopped, or what was refused.
        problem: what was raised in the trace that ended the run.
        problem_traces: traces in which something is wrong, the latest.
        episode_starts: traces with which episodes begin.
        plot_names: what can be drawn.
    """

    status: Literal["running", "paused", "ended"]
    last_command: int
    steps: int
    first: int
    last: int
    shown: int
    follows_latest: bool
    reference: int | None
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
