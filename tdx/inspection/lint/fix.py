"""The edit of a pipeline that mends a finding; loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.model import Pipeline
from tdx.pipeline.values import StageConfig

if TYPE_CHECKING:
    from tdx.pipeline.values import Value


class Editable(Protocol):
    """What an edit is made in: a pipeline file, or a pipeline in memory."""

    def insert(self, index: int, stage: StageConfig) -> None:
        """Put a stage before the one at ``index``."""

    def remove(self, index: int) -> None:
        """Take a stage out."""

    def move(self, index: int, to: int) -> None:
        """Move a stage so that it ends up at ``to``."""

    def replace(self, index: int, stage: StageConfig) -> None:
        """Put a stage in the place of another."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One step of a fix.

    Args:
        kind: what is done.
        index: to which stage; for ``insert``, before which.
        to: where it is moved to.
        stage: what is put there.
    """

    kind: Literal["insert", "remove", "move", "replace"]
    index: int
    to: int | None = None
    stage: StageConfig | None = None

    def apply(self, target: Editable) -> None:
        """Make the edit."""
        given: tuple[Any, ...] = tuple(each for each in (self.to, self.stage) if each is not None)
        getattr(target, self.kind)(self.index, *given)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        from tdx.pipeline.grammar import format_stage

        stage = None if self.stage is None else format_stage(self.stage)
        return {"kind": self.kind, "index": self.index, "to": self.to, "stage": stage}


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that mend a finding together.

    Args:
        title: what they do, such as ``"move RewardClipping behind RewardScaling"``.
        edits: the edits in order; each speaks of the chain that those before it leave.
    """

    title: str
    edits: tuple[Edit, ...]

    def apply(self, target: Editable) -> None:
        """Make the edits in a file or in a pipeline."""
        for edit in self.edits:
            edit.apply(target)

    def applied_to(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline with the edits made."""
        chain = _Chain(list(pipeline.transforms))
        self.apply(chain)
        return pipeline.with_stages(*chain.stages)


def removed(index: int, stage: StageConfig) -> Fix:
    """Take a stage out."""
    return Fix(f"remove {stage.name}", (Edit("remove", index),))


def moved(index: int, to: int, stage: StageConfig, beyond: StageConfig) -> Fix:
    """Move a stage so that it ends up at ``to``, in front of or behind another one."""
    side = "behind" if to > index else "in front of"
    return Fix(f"move {stage.name} {side} {beyond.name}", (Edit("move", index, to),))


def inserted(index: int, stage: StageConfig) -> Fix:
    """Put a stage before the one at ``index``."""
    return Fix(f"insert {stage.name}", (Edit("insert", index, stage=stage),))


def changed(index: int, stage: StageConfig, **arguments: Value) -> Fix:
    """Give a stage other arguments; ``None`` leaves one out."""
    full = name_arguments(stage)
    given = {**full.kwargs, **arguments}
    kept = {name: value for name, value in given.items() if value is not None}
    names = " and ".join(arguments)
    edit = Edit("replace", index, stage=replace(full, kwargs=kept))
    return Fix(f"change {names} of {stage.name}", (edit,))


@dataclass
class _Chain:
    """Stages in memory."""

    stages: list[StageConfig]

    def insert(self, index: int, stage: StageConfig) -> None:
        self.stages.insert(index, stage)

    def remove(self, index: int) -> None:
        del self.stages[index]

    def move(self, index: int, to: int) -> None:
        self.stages.insert(to, self.stages.pop(index))

    def replace(self, index: int, stage: StageConfig) -> None:
        self.stages[index] = stage
