"""Where sessions are kept while they last, so that a crash or a kill loses none."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tdx.errors import StorageError
from tdx.pipeline.editing.session import Session, from_json, to_json
from tdx.pipeline.editing.state_files import put_aside, read_json, write_json
from tdx.settings import state_path

FOLDER = "sessions"
MOST_KEPT = 20
"""Sessions that nobody takes up again: of more than so many the oldest are removed."""


@dataclass(frozen=True, slots=True)
class LeftSession:
    """A session that someone has left, or that was ended from outside.

    Args:
        session: what is in it.
        when: when it was kept last, in seconds since 1970.
        path: its file.
    """

    session: Session
    when: float
    path: Path

    @property
    def title(self) -> str:
        """What it is about: ``pendulum.yaml``, or the env where there is no file."""
        draft = self.session.draft
        if draft.file is not None:
            return Path(draft.file).name
        return draft.env.id if draft.env is not None else "new pipeline"

    @property
    def age(self) -> str:
        """How long ago it was, in words."""
        minutes = max(0, int(time.time() - self.when)) // 60
        if minutes < 1:
            return "just now"
        if minutes < 60:
            return f"{minutes} min ago"
        hours = minutes // 60
        return f"{hours} h ago" if hours < 48 else f"{hours // 24} days ago"


class SessionStore:
    """The sessions of all apps of this user; each app writes one file of its own.

    A lock that the kernel holds for as long as the app runs tells sessions of apps that are alive
    from those that were left behind, whatever ended the app.

    Args:
        folder: where; in the state folder by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_path() / FOLDER
        self._path = self.folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.json"
        self._lock: int | None = None
        self._left = False
        self._writing = threading.Lock()

    def keep(self, session: Session) -> None:
        """Write the session of this app, in whatever thread; nothing once it was left.

        Raises:
            StorageError: it cannot be written.
        """
        with self._writing:
            if self._left:
                return
            if self._lock is None:
                self._lock = self._locked(self._lock_of(self._path))
            write_json(self._path, {"when": time.time(), "session": to_json(session)})

    def forget(self) -> None:
        """Remove the session of this app: nothing in it is worth keeping."""
        with self._writing:
            self._remove(self._path)

    def leave(self) -> None:
        """Let go of the session of this app; its file stays for whoever comes next."""
        with self._writing:
            self._left = True
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        with suppress(OSError):
            self._lock_of(self._path).unlink()

    def left(self) -> tuple[list[LeftSession], list[str]]:
        """The sessions that nobody holds, the latest first, and what was passed over."""
        found: list[LeftSession] = []
        notices: list[str] = []
        for path in self._files():
            if self._is_held(path):
                continue
            try:
                document = read_json(path)
                if document is not None:
                    session = from_json(document["session"])
                    found.append(LeftSession(session, float(document["when"]), path))
            except (StorageError, KeyError, TypeError, ValueError) as error:
                put_aside(path)
                notices.append(f"a kept session was passed over: {error} ({path.name}.broken)")
        found.sort(key=lambda each: each.when, reverse=True)
        for each in found[MOST_KEPT:]:
            self.discard(each)
        return found[:MOST_KEPT], notices

    def take(self, left: LeftSession) -> bool:
        """Make a session that was left the one of this app.

        Returns:
            Whether it could be had: another app may have been faster.
        """
        lock = self._locked(self._lock_of(left.path))
        if lock is None or not left.path.exists():
            return False
        self.forget()
        self.leave()
        self._path, self._lock, self._left = left.path, lock, False
        return True

    def discard(self, left: LeftSession) -> None:
        """Remove a session that was left."""
        self._remove(left.path)
        with suppress(OSError):
            self._lock_of(left.path).unlink()

    def _files(self) -> list[Path]:
        try:
            return sorted(each for each in self.folder.glob("*.json") if each != self._path)
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
        """The lock, held; none where another process holds it, or where there are no locks."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            holder = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(holder)
            return None
        return holder

    def _remove(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink()
