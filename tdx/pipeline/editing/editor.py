"""Undo history of a draft, and descriptions of changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tdx.pipeline.draft import Draft, DraftStage
from tdx.pipeline.editing.forms import list_env_fields

MAX_UNDO = 1000


@dataclass(frozen=True, slots=True)
class DraftChange:
    """One edit of a draft."""

    label: str
    before: Draft
    after: Draft
    merge: str | None = None


class Editor:
    """A draft with undo history."""

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

        Consecutive edits with the same value of ``merge`` are undone together, until :meth:`seal`.

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
        self._done.clear()
        self._undone.clear()
        self._set(draft)
        self._saved = draft

    def mark_saved(self) -> None:
        self._saved = self.draft
        self._open = False

    def rename(self, file: str | None) -> None:
        """Set the file of the draft and of every draft in the history."""

        def renamed(change: DraftChange) -> DraftChange:
            before, after = replace(change.before, file=file), replace(change.after, file=file)
            return replace(change, before=before, after=after)

        self.draft, self._saved = replace(self.draft, file=file), replace(self._saved, file=file)
        self._done = [renamed(change) for change in self._done]
        self._undone = [renamed(change) for change in self._undone]

    def restore(
        self, saved: Draft, done: Sequence[DraftChange], undone: Sequence[DraftChange]
    ) -> None:
        """Set the history around the current draft."""
        self._saved, self._done, self._undone = saved, list(done), list(undone)
        self._open = False

    def _set(self, draft: Draft) -> None:
        self.draft = draft
        self.revision += 1


MAX_DESCRIBED = 3


def list_changes(before: Draft, after: Draft) -> list[str]:
    """List every difference: ``remove CatFrames``, ``N of CatFrames``, ``move Resize``.

    Stages with equal numbers are the same stage.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> draft = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter"))
        >>> list_changes(draft, draft.move(0, 1).toggle(0))
        ['StepCounter off', 'move RewardSum']
    """
    old = {stage.number: stage for stage in before.stages}
    new = {stage.number: stage for stage in after.stages}
    changes: list[str] = []
    if after.env is None:
        changes += ["no env"] if before.env is not None else []
    elif before.env is None or before.env.id != after.env.id:
        changes.append(f"env {after.env.id}")
    elif before.env != after.env:
        texts = {field.name: field.text for field in list_env_fields(before.env)}
        changes += [
            f"{field.name} {field.text or 'unset'}"
            for field in list_env_fields(after.env)
            if field.text != texts[field.name]
        ]
    changes += [f"remove {stage.config.name}" for n, stage in old.items() if n not in new]
    changes += [f"add {stage.config.name}" for n, stage in new.items() if n not in old]
    for number in [number for number in new if number in old]:
        changes += _list_stage_changes(old[number], new[number])
    order = [n for n in old if n in new]
    new_order = [n for n in new if n in old]
    if order != new_order:
        # A single moved stage is named; several moves are one change of order.
        moved = (
            n for n in order if [m for m in order if m != n] == [m for m in new_order if m != n]
        )
        single = next(moved, None)
        changes.append("another order" if single is None else f"move {new[single].config.name}")
    return changes


def describe_changes(before: Draft, after: Draft) -> str:
    """Return the differences on one line; ``"nothing"`` if there are none."""
    changes = list_changes(before, after)
    shown = changes[:MAX_DESCRIBED]
    more = len(changes) - len(shown)
    return ", ".join([*shown, *([f"{more} more"] if more else [])]) or "nothing"


def _list_stage_changes(old: DraftStage, new: DraftStage) -> list[str]:
    changes = []
    if old.enabled != new.enabled:
        changes.append(f"{new.config.name} {'on' if new.enabled else 'off'}")
    if old.config.name != new.config.name:
        changes.append(f"{old.config.name} → {new.config.name}")
    elif old.config != new.config:
        names = [
            name
            for name in {**old.config.kwargs, **new.config.kwargs}
            if old.config.kwargs.get(name) != new.config.kwargs.get(name)
        ]
        what = ", ".join(names) if names and old.config.args == new.config.args else "arguments"
        changes.append(f"{what} of {new.config.name}")
    return changes
