"""Drafts: pipelines that are being edited, with undo history and descriptions of changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from tdx.foundation.errors import ArgumentError
from tdx.pipeline.editing.forms import list_env_fields
from tdx.pipeline.model import DisabledStage, EnvConfig, Pipeline, RolloutConfig
from tdx.pipeline.values import StageConfig


@dataclass(frozen=True, slots=True)
class DraftStage:
    """A stage of a draft.

    Args:
        number: Identifies the stage within the draft, also after it is moved.
        config: The stage.
        enabled: Whether it is part of the pipeline; a disabled stage only keeps its position.
    """

    number: int
    config: StageConfig
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Draft:
    """A pipeline that is being edited; every edit returns a new draft.

    Args:
        env: The env. ``None``: not chosen yet.
        stages: Stages in order, including disabled ones.
        policy: Policy of the pipeline.
        rollout: Rollout defaults of the pipeline.
        file: File it was read from; not compared.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> draft = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter"))
        >>> [stage.name for stage in draft.toggle(0).pipeline().transforms]
        ['StepCounter']
    """

    env: EnvConfig | None = None
    stages: tuple[DraftStage, ...] = ()
    policy: str | None = None
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    file: str | None = field(default=None, compare=False)

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        """Create a draft of a pipeline, with its disabled stages at their positions."""
        ranked = [(n + 1, True, config) for n, config in enumerate(pipeline.transforms)]
        ranked += [(each.before, False, each.stage) for each in pipeline.off]
        # A disabled stage follows the enabled one before it; several keep their order.
        ranked.sort(key=lambda each: (each[0], not each[1]))
        stages = tuple(DraftStage(n, config, on) for n, (_, on, config) in enumerate(ranked))
        return cls(pipeline.env, stages, pipeline.policy, pipeline.rollout, pipeline.file)

    def pipeline(self) -> Pipeline:
        """Return the pipeline; the enabled stages form its chain.

        Raises:
            ArgumentError: No env is chosen.
        """
        if self.env is None:
            raise ArgumentError("no env is chosen", hint="choose one first")
        configs = tuple(stage.config for stage in self.stages if stage.enabled)
        places = self.positions
        off = tuple(
            DisabledStage(sum(each < place for each in places), stage.config)
            for place, stage in enumerate(self.stages)
            if not stage.enabled
        )
        return Pipeline(self.env, configs, self.policy, self.rollout, file=self.file, off=off)

    @property
    def positions(self) -> tuple[int, ...]:
        """Position in the draft of each stage of the pipeline."""
        return tuple(place for place, stage in enumerate(self.stages) if stage.enabled)

    def find_place(self, number: int) -> int | None:
        """Return the position of a stage by its number; ``None`` if it does not exist."""
        numbers = [stage.number for stage in self.stages]
        return numbers.index(number) if number in numbers else None

    def insert(self, place: int, configs: Iterable[StageConfig]) -> Self:
        """Return a draft with stages inserted before ``place``."""
        self._check(place, len(self.stages) + 1)
        first = self._next_number()
        new = (DraftStage(first + n, config) for n, config in enumerate(configs))
        return self._with([*self.stages[:place], *new, *self.stages[place:]])

    def remove(self, place: int) -> Self:
        """Return a draft without a stage."""
        self._check(place)
        return self._with([*self.stages[:place], *self.stages[place + 1 :]])

    def duplicate(self, place: int) -> Self:
        """Return a draft with a copy of a stage after it."""
        self._check(place)
        copy = replace(self.stages[place], number=self._next_number())
        return self._with([*self.stages[: place + 1], copy, *self.stages[place + 1 :]])

    def move(self, place: int, to: int) -> Self:
        """Return a draft with a stage moved to the position ``to``."""
        self._check(place)
        self._check(to)
        stages = list(self.stages)
        stages.insert(to, stages.pop(place))
        return self._with(stages)

    def toggle(self, place: int) -> Self:
        """Return a draft with a stage enabled or disabled."""
        self._check(place)
        stage = self.stages[place]
        return self._put(place, replace(stage, enabled=not stage.enabled))

    def replace(self, place: int, config: StageConfig) -> Self:
        """Return a draft with a stage replaced."""
        self._check(place)
        return self._put(place, replace(self.stages[place], config=config))

    def with_env(self, env: EnvConfig) -> Self:
        """Return a draft with another env."""
        return replace(self, env=env)

    def _put(self, place: int, stage: DraftStage) -> Self:
        return self._with([*self.stages[:place], stage, *self.stages[place + 1 :]])

    def _with(self, stages: Sequence[DraftStage]) -> Self:
        return replace(self, stages=tuple(stages))

    def _next_number(self) -> int:
        return 1 + max((stage.number for stage in self.stages), default=-1)

    def _check(self, place: int, length: int | None = None) -> None:
        count = len(self.stages)
        if not 0 <= place < (count if length is None else length):
            raise ArgumentError(
                f"stage {place} does not exist", hint=f"the chain has {count} stages"
            )


class IndexedDraft:
    """Edits a draft by the indices of its pipeline, so that lint fixes apply to it.

    Args:
        draft: Draft to edit; disabled stages keep their positions.
        excluded: Numbers of stages without an index, such as stages that fail.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> indexed = IndexedDraft(Draft.of(Pipeline.of("A-v0", "B", "C", "D")), {1})
        >>> indexed.remove(1)
        >>> [stage.config.name for stage in indexed.draft.stages]
        ['B', 'C']
    """

    def __init__(self, draft: Draft, excluded: Collection[int] = ()) -> None:
        self.draft = draft
        self._excluded = frozenset(excluded)

    def insert(self, index: int, stage: StageConfig) -> None:
        """Insert a stage before the one at ``index`` of the pipeline."""
        self.draft = self.draft.insert(self._place(index), [stage])

    def remove(self, index: int) -> None:
        """Remove a stage."""
        self.draft = self.draft.remove(self._places()[index])

    def move(self, index: int, to: int) -> None:
        """Move a stage to the index ``to`` of the pipeline."""
        places = self._places()
        self.draft = self.draft.move(places[index], places[to])

    def replace(self, index: int, stage: StageConfig) -> None:
        """Replace a stage."""
        self.draft = self.draft.replace(self._places()[index], stage)

    def _place(self, index: int) -> int:
        places = self._places()
        return places[index] if index < len(places) else len(self.draft.stages)

    def _places(self) -> list[int]:
        stages = self.draft.stages
        return [n for n in self.draft.positions if stages[n].number not in self._excluded]


MAX_UNDO = 1000


@dataclass(frozen=True, slots=True)
class DraftChange:
    """One edit of a draft.

    Args:
        label: Description, such as ``"move CatFrames"``.
        before: Draft before the edit.
        after: Draft after the edit.
        merge: Consecutive edits with the same value are undone together.
    """

    label: str
    before: Draft
    after: Draft
    merge: str | None = None


class Editor:
    """A draft with undo history.

    Args:
        draft: Draft to edit.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> editor = Editor(Draft.of(Pipeline.of("Pendulum-v1", "RewardSum")))
        >>> editor.apply("remove RewardSum", editor.draft.remove(0))
        True
        >>> editor.undo().label, len(editor.draft.stages)
        ('remove RewardSum', 1)
    """

    def __init__(self, draft: Draft | None = None) -> None:
        self.draft = draft or Draft()
        self.revision = 0
        self._done: list[DraftChange] = []
        self._undone: list[DraftChange] = []
        self._saved = self.draft
        self._open = False

    @property
    def done(self) -> Sequence[DraftChange]:
        """Edits that can be undone, oldest first."""
        return tuple(self._done)

    @property
    def undone(self) -> Sequence[DraftChange]:
        """Edits that can be redone; the last one is redone first."""
        return tuple(self._undone)

    @property
    def saved(self) -> Draft:
        """Draft at the last save or load."""
        return self._saved

    @property
    def is_modified(self) -> bool:
        """True if the draft differs from the last save or load."""
        return self.draft != self._saved

    def apply(self, label: str, draft: Draft, merge: str | None = None) -> bool:
        """Replace the draft by the result of an edit.

        Args:
            label: Description of the edit.
            draft: Result of the edit.
            merge: Consecutive edits with the same value are undone together, until :meth:`seal`.

        Returns:
            True if the draft changed.
        """
        if draft == self.draft:
            return False
        last = self._done[-1] if self._done and self._open else None
        if merge is not None and last is not None and last.merge == merge:
            self._done[-1] = DraftChange(label, last.before, draft, merge)
        else:
            self._done.append(DraftChange(label, self.draft, draft, merge))
            del self._done[:-MAX_UNDO]
        self._open = True
        self._undone.clear()
        self._set(draft)
        return True

    def seal(self) -> None:
        """Start a new undo step with the next edit, whatever its ``merge`` is."""
        self._open = False

    def undo(self) -> DraftChange | None:
        """Undo the last edit; ``None`` if there is none."""
        if not self._done:
            return None
        change = self._done.pop()
        self._undone.append(change)
        self._open = False
        self._set(change.before)
        return change

    def redo(self) -> DraftChange | None:
        """Redo the edit undone last; ``None`` if there is none."""
        if not self._undone:
            return None
        change = self._undone.pop()
        self._done.append(change)
        self._open = False
        self._set(change.after)
        return change

    def load(self, draft: Draft) -> None:
        """Replace the draft and clear the history."""
        self._done.clear()
        self._undone.clear()
        self._set(draft)
        self._saved = draft

    def mark_saved(self) -> None:
        """Mark the current draft as saved."""
        self._saved = self.draft
        self._open = False

    def rename(self, file: str | None) -> None:
        """Set the file of the draft and of every draft in the history."""

        def renamed(change: DraftChange) -> DraftChange:
            before, after = replace(change.before, file=file), replace(change.after, file=file)
            return replace(change, before=before, after=after)

        self.draft, self._saved = replace(self.draft, file=file), replace(self._saved, file=file)
        self._done = [renamed(each) for each in self._done]
        self._undone = [renamed(each) for each in self._undone]

    def restore(
        self, saved: Draft, done: Sequence[DraftChange], undone: Sequence[DraftChange]
    ) -> None:
        """Set the history around the current draft.

        Args:
            saved: Draft that counts as saved.
            done: Edits that can be undone, oldest first.
            undone: Edits that can be redone; the last one is redone first.
        """
        self._saved, self._done, self._undone = saved, list(done), list(undone)
        self._open = False

    def _set(self, draft: Draft) -> None:
        self.draft = draft
        self.revision += 1


MAX_DESCRIBED = 3


def list_changes(before: Draft, after: Draft) -> list[str]:
    """List every difference: ``remove CatFrames``, ``N of CatFrames``, ``move Resize``.

    Args:
        before: Earlier draft.
        after: Later draft; stages with equal numbers are the same stage.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> draft = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter"))
        >>> list_changes(draft, draft.move(0, 1).toggle(0))
        ['StepCounter off', 'move RewardSum']
    """
    old = {stage.number: stage for stage in before.stages}
    new = {stage.number: stage for stage in after.stages}
    found = _list_env_changes(before, after)
    found += [f"remove {stage.config.name}" for n, stage in old.items() if n not in new]
    found += [f"add {stage.config.name}" for n, stage in new.items() if n not in old]
    for number in [each for each in new if each in old]:
        found += _list_stage_changes(old[number], new[number])
    return found + _list_moves(before, after)


def describe_changes(before: Draft, after: Draft) -> str:
    """Return the differences on one line; ``"nothing"`` if there are none."""
    found = list_changes(before, after)
    shown = found[:MAX_DESCRIBED]
    more = len(found) - len(shown)
    return ", ".join([*shown, *([f"{more} more"] if more else [])]) or "nothing"


def _list_env_changes(before: Draft, after: Draft) -> list[str]:
    if before.env == after.env:
        return []
    if before.env is None or after.env is None or before.env.id != after.env.id:
        return [f"env {after.env.id}" if after.env is not None else "no env"]
    old = {field.name: field.text for field in list_env_fields(before.env)}
    return [
        f"{field.name} {field.text or 'unset'}"
        for field in list_env_fields(after.env)
        if field.text != old[field.name]
    ]


def _list_stage_changes(old: DraftStage, new: DraftStage) -> list[str]:
    found = []
    if old.enabled != new.enabled:
        found.append(f"{new.config.name} {'on' if new.enabled else 'off'}")
    if old.config.name != new.config.name:
        found.append(f"{old.config.name} → {new.config.name}")
    elif old.config != new.config:
        names = [
            name
            for name in {**old.config.kwargs, **new.config.kwargs}
            if old.config.kwargs.get(name) != new.config.kwargs.get(name)
        ]
        what = ", ".join(names) if names and old.config.args == new.config.args else "arguments"
        found.append(f"{what} of {new.config.name}")
    return found


def _list_moves(before: Draft, after: Draft) -> list[str]:
    """Describe a single moved stage; several moves are one change of order."""
    numbers = [stage.number for stage in before.stages]
    old = [n for n in numbers if after.find_place(n) is not None]
    new = [stage.number for stage in after.stages if stage.number in numbers]
    if old == new:
        return []
    for number in old:
        if [n for n in old if n != number] == [n for n in new if n != number]:
            place = after.find_place(number)
            return [f"move {after.stages[place or 0].config.name}"]
    return ["another order"]
