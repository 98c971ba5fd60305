"""Record the calls of every level of a running stack: what each received and returned, and when.

A call that is recorded appends one tuple to a list; :func:`read_events` builds the tree of calls
lazily.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tdx.stacks.observe.copies import (
    SharedPaths,
    copy_action,
    is_new_memory,
    shared_paths,
)
from tdx.stacks.observe.events import Event
from tdx.stacks.observe.levels import NestedLevels, Original, Slot

_ACTION_NAMES = ("action", "actions")


@dataclass(slots=True)
class _Last:
    """The observation that a sub-env of a level returned last, and its copy."""

    value: Any = None
    copied: Any = None


LastResults = dict[tuple[int, int], _Last]
"""Observation that each level and sub-env returned last."""


@dataclass(slots=True)
class Details:
    """What only few calls have; see :class:`~tdx.stacks.observe.Event`."""

    error: Exception | None = None
    shared: SharedPaths = ()
    previous: object = None


Call = tuple[Slot, int, Any, Any, Details | None, int, int, int]
"""Slot, place where the call began, what it received and returned, details; clock when it began,
when it ended, and when its result was copied."""
Log = list[Call | None]
"""Complete calls in the order in which they ended; ``None`` where each of them began."""
OnRoot = Callable[[Log], None]


def read_events(log: Log, first: int = 0) -> list[Event]:
    """Return the outermost events in order, with the events inside.

    ``first`` is the number of starts and ends before it.
    """
    complete: list[tuple[int, Event, int]] = []
    for number, call in enumerate(log, start=first + 1):
        if call is None:
            continue
        slot, place, given, returned, details, start, end, left = call
        event = Event(slot.level, slot.row, slot.method, given, first + place + 1, returned, number)
        inside = 0
        while complete and complete[-1][0] > place:
            _, child, duration = complete.pop()
            event.children.insert(0, child)
            inside += duration
        event.own_ns = end - start - inside
        if details is not None:
            event.error, event.shared = details.error, details.shared
            event.previous = details.previous
        complete.append((place, event, left - start))
    return [event for _, event, _ in complete]


class _Thread(threading.local):
    """What one thread has recorded of its current outermost call."""

    def __init__(self) -> None:
        self.log: Log = []
        self.value: Any = None
        self.copied: Any = None


class EventRecorder:
    """Records complete calls of the outermost level, with the calls inside.

    Open calls are kept per thread, so an env that several threads step is recorded correctly.

    Args:
        on_root: Receives each complete call; called by one thread at a time.
        last: Last results of an earlier recorder, which this one updates. ``None``: there are none.
        on_number: Called when a call begins and when it ends, with the number of such moments in
            its root, from 1.
    """

    def __init__(
        self,
        on_root: OnRoot,
        last: LastResults | None = None,
        on_number: Callable[[int], None] | None = None,
    ) -> None:
        self._on_root, self._on_number = on_root, on_number
        self._lock = threading.Lock()
        self._thread = _Thread()
        self._failure: Exception | None = None
        self._last: LastResults = {} if last is None else last

    @contextmanager
    def attached(self, levels: NestedLevels, rows: int | None = None) -> Iterator[None]:
        """Record the calls of all levels in a block.

        Raises:
            Exception: What ``on_root`` raised first, at the end of the block.
        """
        with levels.attached(self._recorded, rows):
            yield
        if self._failure is not None:
            raise self._failure

    def _recorded(self, slot: Slot, original: Original) -> Original:
        """Return a function that records each call of a method.

        Its own time is part of the step, so it only copies values and reads the clock.
        """
        thread, clock, finish = self._thread, time.perf_counter_ns, self._finish
        on_number, copy = self._on_number, slot.copy
        is_step, takes_action = slot.method != "reset", slot.method in ("step", "step_async")
        last = self._last.setdefault((slot.level, slot.row), _Last())

        def recorded(*args: object, **kwargs: object) -> object:
            start = clock()
            log = thread.log
            place = len(log)
            log.append(None)
            given = details = returned = None
            if takes_action:
                named = (kwargs[name] for name in _ACTION_NAMES if name in kwargs)
                given = copy_action(args[0] if args else next(named, None))
            elif not is_step:
                given = copy_action(kwargs) or {}
            if on_number is not None:
                on_number(place + 1)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                end = clock()
                if not isinstance(error, Exception):
                    del log[place:]
                    raise
                log.append((slot, place, given, None, Details(error), start, end, clock()))
                if not place:
                    finish(thread)
                raise
            end = clock()
            if copy is not None:
                returned = copy(result, thread)
            if returned is not None:
                value = result[0] if isinstance(result, tuple) else result
                before = last.value
                if is_step and not is_new_memory(before, value):
                    shared = shared_paths(before, value)
                    if shared:
                        # Whether the memory is shared must be found out now: addresses are reused.
                        details = Details(None, shared, last.copied)
                last.value, last.copied = value, returned[0]
            log.append((slot, place, given, returned, details, start, end, clock()))
            if on_number is not None:
                on_number(len(log))
            if not place:
                finish(thread)
            return result

        return recorded

    def _finish(self, thread: _Thread) -> None:
        """Pass on a complete call of a thread."""
        log, thread.log = thread.log, []
        thread.value = thread.copied = None
        with self._lock:
            try:
                self._on_root(log)
            except Exception as error:
                # The env has made its step: the caller must get the result.
                self._failure = self._failure or error
