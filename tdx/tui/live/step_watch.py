"""Records which hook of a step is running; while one takes long, shows the steps before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tdx.tui.backend.activity import ActivityRecord

if TYPE_CHECKING:
    from tdx.core.tracing import Place
    from tdx.core.tracing.traces import Direction, Hook

_INTERVAL = 0.1


class Watched(Protocol):
    """A player as seen by its watch."""

    @property
    def steps(self) -> int:
        """Number of completed steps."""
        ...

    def describe_call(self, place: Place, direction: Direction, hook: Hook) -> str:
        """Return a hook of the current step in words."""
        ...

    def push_completed(self) -> bool:
        """Push some completed steps that the app does not have; return False if it has all."""
        ...


class StepWatch:
    """Probe of a tracer that keeps the app up to date while a hook does not return.

    A worker that is killed takes its history with it, so the completed steps are sent before. The
    thread that sends them reads the history during a hook only: then nothing else changes it, and
    the hook cannot return before the thread has finished.

    Args:
        player: Steps the env.
        activity: Where to record the running hook.
    """

    def __init__(self, player: Watched, activity: ActivityRecord) -> None:
        self._player, self._activity = player, activity
        self._lock = threading.Lock()
        self._is_inside = False
        self._calls = 0

    def before(self, place: Place, direction: Direction, hook: Hook) -> None:
        """Record that a hook begins."""
        player = self._player
        self._activity.begin(player.describe_call(place, direction, hook), player.steps)
        self._calls += 1
        self._is_inside = True

    def after(self, place: Place, direction: Direction, hook: Hook) -> None:
        """Record that a hook has returned."""
        with self._lock:
            self._is_inside = False
        self._activity.end()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Push completed steps in a thread, during a block."""
        done = threading.Event()
        thread = threading.Thread(target=self._run, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _run(self, done: threading.Event) -> None:
        seen = 0
        while not done.wait(_INTERVAL):
            # A hook that was running at the last look already takes long.
            if self._calls == seen:
                while self._push(seen) and not done.is_set():
                    pass
            seen = self._calls

    def _push(self, call: int) -> bool:
        with self._lock:
            return self._is_inside and self._calls == call and self._player.push_completed()
