"""Edits of a draft that can be undone and done again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tdx.pipeline.editing.draft import Draft

MOST_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """One edit.

    Args:
        label: what was done, such as ``"move CatFrames"``.
        before: the draft before it.
        after: the draft after it.
        merge: edits in a row that have the same are undone together.
    """

    label: str
    before: Draft
    after: Draft
    merge: str | None = None


class Editor:
    """A draft and the history of its edits.

    Args:
        draft: what is edited.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> editor = Editor(Draft.of(Pipeline.of("Pendulum-v1", "RewardSum")))
        >>> editor.apply("remove RewardSum", editor.draft.removed(0))
        True
        >>> editor.undo().label, len(editor.draft.stages)
        ('remove RewardSum', 1)
    """

    def __init__(self, draft: Draft | None = None) -> None:
        self.draft = draft or Draft()
        self.revision = 0
        self._done: list[Change] = []
        self._undone: list[Change] = []
        self._saved = self.draft
        self._open = False

    @property
    def done(self) -> Sequence[Change]:
        """The edits that can be undone, the last one last."""
        return tuple(self._done)

    @property
    def undone(self) -> Sequence[Change]:
        """The edits that can be done again, the next one last."""
        return tuple(self._undone)

    @property
    def saved(self) -> Draft:
        """The draft as it was when it was saved or loaded."""
        return self._saved

    @property
    def is_modified(self) -> bool:
        """Whether the draft is another one than when it was saved or loaded."""
        return self.draft != self._saved

    def apply(self, label: str, draft: Draft, merge: str | None = None) -> bool:
        """Take a draft as the result of an edit.

        Args:
            label: what was done.
            draft: the result.
            merge: edits in a row that have the same are undone together, up to :meth:`seal`.

        Returns:
            Whether the draft is another one than before.
        """
        if draft == self.draft:
            return False
        last = self._done[-1] if self._done and self._open else None
        if merge is not None and last is not None and last.merge == merge:
            self._done[-1] = Change(label, last.before, draft, merge)
        else:
            self._done.append(Change(label, self.draft, draft, merge))
            del self._done[:-MOST_KEPT]
        self._open = True
        self._undone.clear()
        self._set(draft)
        return True

    def seal(self) -> None:
        """Let the next edit be undone on its own, whatever it is."""
        self._open = False

    def undo(self) -> Change | None:
        """Take the last edit back; none where there is none."""
        if not self._done:
            return None
        change = self._done.pop()
        self._undone.append(change)
        self._open = False
        self._set(change.before)
        return change

    def redo(self) -> Change | None:
        """Make the edit that was last taken back; none where there is none."""
        if not self._undone:
            return None
        change = self._undone.pop()
        self._done.append(change)
        self._open = False
        self._set(change.after)
        return change

    def load(self, draft: Draft) -> None:
        """Begin anew with another draft; the history is gone."""
        self._done.clear()
        self._undone.clear()
        self._set(draft)
        self._saved = draft

    def mark_saved(self) -> None:
        """Let the present draft count as saved."""
        self._saved = self.draft
        self._open = False

    def rename(self, file: str | None) -> None:
        """Let the draft belong to another file, and with it all that undo and redo lead to."""

        def renamed(change: Change) -> Change:
            before, after = replace(change.before, file=file), replace(change.after, file=file)
            return replace(change, before=before, after=after)

        self.draft, self._saved = replace(self.draft, file=file), replace(self._saved, file=file)
        self._done = [renamed(each) for each in self._done]
        self._undone = [renamed(each) for each in self._undone]

    def restore(self, saved: Draft, done: Sequence[Change], undone: Sequence[Change]) -> None:
        """Take up a history that was kept, around the present draft.

        Args:
            saved: the draft that counts as saved.
            done: the edits that can be undone, the last one last.
            undone: the edits that can be done again, the next one last.
        """
        self._saved, self._done, self._undone = saved, list(done), list(undone)
        self._open = False

    def _set(self, draft: Draft) -> None:
        self.draft = draft
        self.revision += 1
