"""A draft with the history of its edits as plain data, so that nothing is lost when the app is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tdx.errors import StorageError, TdxError
from tdx.pipeline.editing.draft import Draft, DraftStage
from tdx.pipeline.editing.editor import Change, Editor
from tdx.pipeline.flags import from_flags, to_flags
from tdx.pipeline.formatting import format_stage
from tdx.pipeline.grammar import parse_stage
from tdx.pipeline.model import EnvConfig, Pipeline, RolloutConfig

SCHEMA_VERSION = 1
"""Grows where a document can no longer be read as before."""
KIND = "session"
_OTHER = "remove the file; the app begins a new session"
_NO_ENV = "none"


@dataclass(frozen=True, slots=True)
class Session:
    """What someone was doing.

    Args:
        draft: the chain as it was last.
        saved: the chain as it is in the file.
        done: the edits that can be undone, the last one last.
        undone: the edits that can be done again, the next one last.
        base: the text of the file when it was read or written last; none without a file.
    """

    draft: Draft
    saved: Draft
    done: tuple[Change, ...] = ()
    undone: tuple[Change, ...] = ()
    base: str | None = None

    @classmethod
    def of(cls, editor: Editor, base: str | None = None) -> Session:
        """The session of an editor as it is now; cheap, since drafts are never changed."""
        return cls(editor.draft, editor.saved, tuple(editor.done), tuple(editor.undone), base)

    def give(self, editor: Editor) -> None:
        """Let an editor take it up."""
        editor.load(self.draft)
        editor.restore(self.saved, self.done, self.undone)


def to_json(session: Session) -> dict[str, Any]:
    """A session as plain data; a stage that many drafts share is written once.

    Example:
        >>> from tdx.pipeline import Pipeline
        >>> editor = Editor(Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter")))
        >>> _ = editor.apply("remove RewardSum", editor.draft.removed(0))
        >>> document = to_json(Session.of(editor))
        >>> [stage[1] for stage in document["stages"]], from_json(document).done[0].label
        (['StepCounter', 'RewardSum'], 'remove RewardSum')
    """
    drafts = _Numbered(lambda draft: _draft_data(draft, heads, stages))
    heads, stages = _Numbered(_head_data), _Numbered(_stage_data)
    current, saved = drafts.number(session.draft), drafts.number(session.saved)

    def edits(changes: Sequence[Change]) -> list[list[Any]]:
        return [
            [each.label, drafts.number(each.before), drafts.number(each.after), each.merge]
            for each in changes
        ]

    done, undone = edits(session.done), edits(session.undone)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "draft": current,
        "saved": saved,
        "base": session.base,
        "done": done,
        "undone": undone,
        "drafts": drafts.written,
        "heads": heads.written,
        "stages": stages.written,
    }


_REMOVE = "remove its file; a new session starts without it"


def from_json(document: object) -> Session:
    """The session that :func:`to_json` has written.

    Raises:
        StorageError: it is none, or of another version, or damaged.
    """
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise StorageError("this is not a session of the terminal app", hint=_REMOVE)
    if document.get("schema_version") != SCHEMA_VERSION:
        version = document.get("schema_version")
        raise StorageError(f"the session has the unknown version {version!r}", hint=_REMOVE)
    try:
        return _session(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, TdxError) as error:
        raise StorageError(
            f"the session is damaged: {type(error).__name__}: {error}", hint=_REMOVE
        ) from error


def _session(document: Mapping[str, Any]) -> Session:
    stages = [DraftStage(int(n), parse_stage(text), bool(on)) for n, text, on in document["stages"]]
    heads = [_head(each) for each in document["heads"]]
    drafts = [
        _draft(heads[head], [stages[n] for n in numbers], file)
        for head, numbers, file in document["drafts"]
    ]

    def edits(name: str) -> tuple[Change, ...]:
        return tuple(
            Change(str(label), drafts[before], drafts[after], merge)
            for label, before, after, merge in document[name]
        )

    base = document["base"]
    if base is not None and not isinstance(base, str):
        raise TypeError("base must be text")
    now, saved = drafts[document["draft"]], drafts[document["saved"]]
    return Session(now, saved, edits("done"), edits("undone"), base)


Head = tuple[EnvConfig | None, str | None, RolloutConfig]


def _draft(head: Head, stages: Sequence[DraftStage], file: str | None) -> Draft:
    env, policy, rollout = head
    return Draft(env, tuple(stages), policy, rollout, file)


def _draft_data(draft: Draft, heads: _Numbered, stages: _Numbered) -> list[Any]:
    # Drafts share these parts from one edit to the next, but not a tuple of them.
    parts = (draft.env, draft.policy, draft.rollout)
    head = heads.number(parts, *parts)
    return [head, [stages.number(stage) for stage in draft.stages], draft.file]


def _head_data(head: Head) -> list[str]:
    env, policy, rollout = head
    flags = to_flags(Pipeline(env or EnvConfig(_NO_ENV), (), policy, rollout))
    return flags if env is not None else [_NO_ENV, *flags]


def _head(flags: Sequence[str]) -> Head:
    without = bool(flags) and flags[0] == _NO_ENV
    read = from_flags(flags[1:] if without else flags)
    return None if without else read.env, read.policy, read.rollout


def _stage_data(stage: DraftStage) -> list[Any]:
    return [stage.number, format_stage(stage.config), stage.enabled]


class _Numbered:
    """Things that are written once each, and named by their place in that list.

    Args:
        data: a thing as plain data.
    """

    def __init__(self, data: Callable[[Any], Any]) -> None:
        self.written: list[Any] = []
        self._data = data
        self._numbers: dict[tuple[int, ...], int] = {}
        self._kept: list[object] = []

    def number(self, thing: object, *parts: object) -> int:
        """The place of a thing; the same object, or one of the same parts, has one place."""
        key = tuple(id(each) for each in parts or (thing,))
        if key not in self._numbers:
            self._kept += parts or (thing,)
            self._numbers[key] = len(self.written)
            self.written.append(self._data(thing))
        return self._numbers[key]
