"""What is asked of the worker that dumps a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tdx.pipeline.model import Pipeline
from tdx.tui.backend.messages import Request

PROGRESS = "progress"


@dataclass(frozen=True, slots=True)
class DumpProgress:
    """How far it is.

    Args:
        steps: made by each env.
        episodes: that ended.
        goal_steps: how many steps there shall be; none where episodes are counted.
        goal_episodes: how many episodes, otherwise.
    """

    steps: int
    episodes: int
    goal_steps: int | None
    goal_episodes: int | None

    @property
    def share(self) -> float:
        """How much is done, from 0 to 1."""
        if self.goal_steps is not None:
            return min(1.0, self.steps / max(self.goal_steps, 1))
        return min(1.0, self.episodes / max(self.goal_episodes or 1, 1))

    @property
    def text(self) -> str:
        """In words."""
        steps = f"{self.steps:,}" + (f" of {self.goal_steps:,}" if self.goal_steps else "")
        of = f" of {self.goal_episodes:,}" if self.goal_episodes else ""
        return f"{steps} steps, {self.episodes:,}{of} episodes"


@dataclass(frozen=True, slots=True)
class DumpDone:
    """What is in the dump in the end.

    Args:
        path: its folder.
        progress: how far it went.
        complete: whether it reached its goal.
        seed: with which it can be made again.
    """

    path: str
    progress: DumpProgress
    complete: bool
    seed: int


@dataclass(frozen=True, slots=True)
class RecordDump(Request[DumpDone]):
    """Roll the pipeline out into a folder; pushes :class:`DumpProgress` after each chunk."""

    handler: ClassVar[str] = "tdx.tui.files.dump_answers:record"
    pipeline: Pipeline
    path: str
    steps: int | None = None
    episodes: int | None = None
    seed: int | None = None
    policy: str | None = None
    force: bool = False
    allow_code: bool = False
