"""Editing sessions, saved while the app runs so that a crash loses nothing."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tdx.foundation.container import make_folders
from tdx.foundation.errors import StorageError, TdxError
from tdx.foundation.folders import lock_file
from tdx.foundation.settings import state_path
from tdx.pipeline.conversions import from_flags, to_flags
from tdx.pipeline.draft import Draft, DraftStage
from tdx.pipeline.editing.documents import UnreadableError, read_json, set_aside, write_json
from tdx.pipeline.editing.editor import DraftChange, Editor
from tdx.pipeline.grammar import format_stage, parse_stage
from tdx.pipeline.model import EnvConfig, Pipeline, RolloutConfig
from tdx.pipeline.values import FileArguments

SCHEMA_VERSION = 1
"""Increased when old documents can no longer be read."""
KIND = "session"
_NO_ENV = "none"


@dataclass(frozen=True, slots=True)
class Session:
    """State of an editing session."""

    draft: Draft
    saved: Draft  # Draft in the file.
    done: tuple[DraftChange, ...] = ()  # Edits that can be undone, oldest first.
    undone: tuple[DraftChange, ...] = ()  # Edits that can be redone; the last one is redone first.
    base: str | None = None  # Text of the file at the last read or write. None: no file.

    @classmethod
    def of(cls, editor: Editor, base: str | None = None) -> Session:
        """Return the current session of an editor; cheap, as drafts are immutable."""
        return cls(editor.draft, editor.saved, tuple(editor.done), tuple(editor.undone), base)


def session_to_json(session: Session) -> dict[str, Any]:
    """Convert a session to plain data; a stage shared by many drafts is written once."""

    def head_to_json(head: DraftHead) -> list[str]:
        env, policy, rollout = head
        flags = to_flags(Pipeline(env or EnvConfig(_NO_ENV), (), policy, rollout))
        return flags if env is not None else [_NO_ENV, *flags]

    def draft_to_json(draft: Draft) -> list[Any]:
        # Consecutive drafts share these parts, but not a tuple of them.
        parts = (draft.env, draft.policy, draft.rollout)
        head = heads.number(parts, *parts)
        return [head, [stages.number(stage) for stage in draft.stages], draft.file]

    heads, drafts = _IndexedList(head_to_json), _IndexedList(draft_to_json)
    stages = _IndexedList(lambda stage: [stage.number, format_stage(stage.config), stage.enabled])
    current, saved = drafts.number(session.draft), drafts.number(session.saved)

    def edits(changes: Sequence[DraftChange]) -> list[list[Any]]:
        return [
            [change.label, drafts.number(change.before), drafts.number(change.after), change.merge]
            for change in changes
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


def session_from_json(document: object) -> Session:
    """Parse a session written by :func:`session_to_json`.

    Raises:
        StorageError: The document is not a session, has another version, or is damaged.
    """
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise StorageError("this is not a session of the terminal app", hint=_REMOVE)
    if document.get("schema_version") != SCHEMA_VERSION:
        version = document.get("schema_version")
        raise StorageError(f"the session has the unknown version {version!r}", hint=_REMOVE)
    try:
        return _parse_session(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, TdxError) as error:
        raise StorageError(
            f"the session is damaged: {type(error).__name__}: {error}", hint=_REMOVE
        ) from error


DraftHead = tuple[EnvConfig | None, str | None, RolloutConfig]


def _parse_session(document: Mapping[str, Any]) -> Session:
    # The drafts may have been opened from a file.
    stages = []
    for n, text, on in document["stages"]:
        stage = parse_stage(text)
        config = replace(stage, kwargs=FileArguments(stage.kwargs))
        stages.append(DraftStage(int(n), config, bool(on)))
    heads: list[DraftHead] = []
    for flags in document["heads"]:
        has_env = not flags or flags[0] != _NO_ENV
        read = from_flags(flags if has_env else flags[1:])
        env = replace(read.env, kwargs=FileArguments(read.env.kwargs))
        heads.append((env if has_env else None, read.policy, read.rollout))
    drafts = [
        Draft(env, tuple(stages[n] for n in numbers), policy, rollout, file)
        for head, numbers, file in document["drafts"]
        for env, policy, rollout in [heads[head]]
    ]

    def edits(name: str) -> tuple[DraftChange, ...]:
        return tuple(
            DraftChange(str(label), drafts[before], drafts[after], merge)
            for label, before, after, merge in document[name]
        )

    base = document["base"]
    if base is not None and not isinstance(base, str):
        raise TypeError("base must be text")
    now, saved = drafts[document["draft"]], drafts[document["saved"]]
    return Session(now, saved, edits("done"), edits("undone"), base)


class _IndexedList:
    """List of objects that are written once each and referred to by index."""

    def __init__(self, data: Callable[[Any], Any]) -> None:
        self.written: list[Any] = []
        self._data = data
        self._numbers: dict[tuple[int, ...], int] = {}
        self._kept: list[object] = []

    def number(self, thing: object, *parts: object) -> int:
        """Return the index of an object; one with the same identity or parts is added once."""
        key = tuple(id(part) for part in parts or (thing,))
        if key not in self._numbers:
            self._kept += parts or (thing,)
            self._numbers[key] = len(self.written)
            self.written.append(self._data(thing))
        return self._numbers[key]


SESSIONS_FOLDER = "sessions"
MAX_SESSIONS = 20
"""Maximum number of saved sessions; the oldest ones are removed."""


@dataclass(frozen=True, slots=True)
class SavedSession:
    """A session left by an app that has ended."""

    session: Session
    when: float  # Of the last save, in seconds since 1970.
    path: Path

    @property
    def title(self) -> str:
        """Short title: the name of the file, or the env."""
        draft = self.session.draft
        if draft.file is not None:
            return Path(draft.file).name
        return draft.env.id if draft.env is not None else "new pipeline"

    @property
    def age(self) -> str:
        """Time since the last save, as a phrase."""
        minutes = max(0, int(time.time() - self.when)) // 60
        if minutes < 1:
            return "just now"
        if minutes < 60:
            return f"{minutes} min ago"
        hours = minutes // 60
        return f"{hours} h ago" if hours < 48 else f"{hours // 24} days ago"


class SessionStore:
    """Stores the sessions of all apps of this user; each app writes its own file.

    A kernel lock, held while the app runs, distinguishes sessions of running apps from sessions
    left behind, however the app ended.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_path() / SESSIONS_FOLDER
        self._path = self.folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.json"
        self._lock: int | None = None
        self._left = False
        self._writing = threading.Lock()

    def keep(self, session: Session) -> None:
        """Write the session of this app; does nothing after :meth:`leave`. Thread-safe."""
        with self._writing:
            if self._left:
                return
            if self._lock is None:
                self._lock = self._locked(self._lock_of(self._path))
            write_json(self._path, {"when": time.time(), "session": session_to_json(session)})

    def forget(self) -> None:
        with self._writing:
            self._remove(self._path)

    def leave(self) -> None:
        """Release the session of this app; its file stays for the next app."""
        with self._writing:
            self._left = True
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        with suppress(OSError):
            self._lock_of(self._path).unlink()

    def left(self) -> tuple[list[SavedSession], list[str]]:
        """Return sessions without a running app, latest first, and notices about damaged files."""
        saved: list[SavedSession] = []
        notices: list[str] = []
        for path in self._files():
            if self._is_held(path):
                continue
            try:
                document = read_json(path)
                if document is not None:
                    session = session_from_json(document["session"])
                    saved.append(SavedSession(session, float(document["when"]), path))
            except UnreadableError as error:
                notices.append(f"skipped a session: {error}")
            except (StorageError, KeyError, TypeError, ValueError) as error:
                set_aside(path)
                notices.append(f"skipped a damaged session: {error} ({path.name}.broken)")
        saved.sort(key=lambda entry: entry.when, reverse=True)
        for entry in saved[MAX_SESSIONS:]:
            self.discard(entry)
        return saved[:MAX_SESSIONS], notices

    def take(self, left: SavedSession) -> bool:
        """Adopt a session that was left by another app.

        Returns:
            True on success; False if another app adopted it first.
        """
        lock = self._locked(self._lock_of(left.path))
        if lock is None or not left.path.exists():
            return False
        self.forget()
        self.leave()
        self._path, self._lock, self._left = left.path, lock, False
        return True

    def discard(self, left: SavedSession) -> None:
        self._remove(left.path)
        with suppress(OSError):
            self._lock_of(left.path).unlink()

    def _files(self) -> list[Path]:
        try:
            return sorted(path for path in self.folder.glob("*.json") if path != self._path)
        except OSError:
            return []

    def _lock_of(self, path: Path) -> Path:
        return path.with_suffix(".lock")

    def _is_held(self, path: Path) -> bool:
        if not self._lock_of(path).exists():
            return False
        lock = self._locked(self._lock_of(path))
        if lock is None:
            return True
        os.close(lock)
        return False

    def _locked(self, path: Path) -> int | None:
        """Acquire a lock; ``None`` if another process holds it, or locks are not supported."""
        try:
            make_folders(path.parent, 0o700)
            holder = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError:
            return None
        if lock_file(holder):
            return holder
        os.close(holder)
        return None

    def _remove(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink()
