"""Record the calls of ``step`` and ``reset`` of every level, and how they are nested.

A call that is recorded appends one tuple to a list; :func:`read_calls` makes a tree of them when
somebody reads it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from tdx.foundation.keys import NestedKey
from tdx.stacks.gymnasium.capture import (
    Below,
    Entries,
    SharedPaths,
    freeze_action,
    freeze_result,
    is_new_memory,
    shared_paths,
)
from tdx.stacks.gymnasium.hooks import Wrap, replaced_methods
from tdx.stacks.gymnasium.levels import Level

Method = Literal["reset", "step"]
_ACTION_NAMES = ("action", "actions")


@dataclass(slots=True)
class Call:
    """One call of a method of a level.

    Args:
        level: Index of the level.
        row: Sub-env that it belongs to; 0 outside of sub-envs.
        method: ``reset`` or ``step``.
        given: Copy of the action that it received.
        returned: Copy of what it returned, observation first. ``None``: it has another form.
        children: Calls that it made.
        own_ns: Its duration without its children.
        error: What it raised.
        shared: Where its observation is in the memory of the previous one.
        previous: Copy of the previous observation, if they share memory.
        action: The action as tensors by key.
        result: The result as tensors by key.
        overwritten: Keys of the observation that it wrote into the memory of the previous one.
    """

    level: int
    row: int
    method: Method
    given: Any = None
    returned: tuple[Any, ...] | None = None
    children: list[Call] = field(default_factory=list)
    own_ns: int = 0
    error: Exception | None = None
    shared: SharedPaths = ()
    previous: Any = None
    action: Entries = field(default_factory=dict)
    result: Entries = field(default_factory=dict)
    overwritten: tuple[NestedKey, ...] = ()

    def walk(self) -> Iterator[Call]:
        """Yield this call and all calls inside it, in the order in which they began."""
        yield self
        for child in self.children:
            yield from child.walk()

    def failed_call(self) -> Call | None:
        """Return the innermost call that raised the error."""
        for child in reversed(self.children):
            if child.error is not None and child.error is self.error:
                return child.failed_call()
        return None if self.error is None else self


@dataclass(slots=True)
class _Last:
    """The observation that a sub-env of a level returned last, and its copy."""

    value: Any = None
    copied: Any = None


LastResults = dict[tuple[int, int], _Last]
"""Observation that each level and sub-env returned last."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A method of an object that is recorded.

    Args:
        level: Index of the level.
        row: Sub-env that it belongs to.
        method: ``reset`` or ``step``.
        create: Creates its calls from level, row and method.
        takes_action: True if its first argument is the action.
        freeze: Copies its result. ``None``: it returns nothing.
    """

    level: int
    row: int
    method: Method
    create: Callable[[int, int, Method], Call] = Call
    takes_action: bool = True
    freeze: Callable[[Any, Below], tuple[Any, ...] | None] | None = freeze_result


@dataclass(slots=True)
class Details:
    """What only few calls have.

    Args:
        error: What it raised.
        shared: See :class:`Call`.
        previous: See :class:`Call`.
    """

    error: Exception | None = None
    shared: SharedPaths = ()
    previous: Any = None


Event = tuple[Site, int, Any, Any, Details | None, int, int, int]
"""Site, place where the call began, action, result, details; clock when it began, when it ended,
and when its result was copied."""
Events = list[Event | None]
"""Complete calls in the order in which they ended; ``None`` where each of them began."""
OnEvents = Callable[[Events], None]


def read_calls(events: Events) -> list[Call]:
    """Return the outermost calls in order, with the calls inside."""
    complete: list[tuple[int, Call, int]] = []
    for event in events:
        if event is None:
            continue
        site, place, given, returned, details, start, end, left = event
        call = site.create(site.level, site.row, site.method)
        call.given, call.returned = given, returned
        inside = 0
        while complete and complete[-1][0] > place:
            _, child, duration = complete.pop()
            call.children.insert(0, child)
            inside += duration
        call.own_ns = end - start - inside
        if details is not None:
            call.error, call.shared = details.error, details.shared
            call.previous = details.previous
        complete.append((place, call, left - start))
    return [call for _, call, _ in complete]


class _Thread(threading.local):
    """What one thread has recorded of its current outermost call."""

    def __init__(self) -> None:
        self.events: Events = []
        self.value: Any = None
        self.copied: Any = None


class CallRecorder:
    """Records complete calls of the outermost level, with the calls inside.

    Open calls are kept per thread, so an env that several threads step is recorded correctly.

    Args:
        on_events: Receives each complete call; called by one thread at a time.
        last: Last results of an earlier recorder, which this one updates. ``None``: there are none.
    """

    def __init__(
        self,
        on_events: OnEvents,
        last: LastResults | None = None,
    ) -> None:
        self._on_events = on_events
        self._lock = threading.Lock()
        self._thread = _Thread()
        self._failure: Exception | None = None
        self._last: LastResults = {} if last is None else last

    @contextmanager
    def attached(self, levels: tuple[Level, ...]) -> Iterator[None]:
        """Record the calls of all levels in a block.

        Raises:
            Exception: What ``on_events`` raised first, at the end of the block.
        """
        owners: dict[int, tuple[Any, Wrap]] = {}
        for level in levels:
            for row, owner in enumerate(level.owners):
                owners.setdefault(id(owner), (owner, self._wrap_for(level.index, row)))
        with replaced_methods(owners.values()):
            yield
        if self._failure is not None:
            raise self._failure

    def _wrap_for(self, level: int, row: int) -> Wrap:
        def wrap(owner: Any, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            is_step = name == "step"
            site = Site(level, row, "step" if is_step else "reset", takes_action=is_step)
            return self._recorded(site, original)

        return wrap

    def _recorded(self, site: Site, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that records each call of a method.

        Its own time is part of the step, so it only copies values and reads the clock.
        """
        thread, clock, finish = self._thread, time.perf_counter_ns, self._finish
        takes_action, is_step, freeze = site.takes_action, site.method == "step", site.freeze
        last = self._last.setdefault((site.level, site.row), _Last())

        def recorded(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            events = thread.events
            place = len(events)
            events.append(None)
            given = details = returned = None
            if takes_action:
                given = freeze_action(args[0] if args else _named_action(kwargs))
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                end = clock()
                if not isinstance(error, Exception):
                    del events[place:]
                    raise
                details = Details(error)
                events.append((site, place, given, None, details, start, end, clock()))
                if not place:
                    finish(thread)
                raise
            end = clock()
            if freeze is not None:
                returned = freeze(result, thread)
            if returned is not None:
                value = result[0] if isinstance(result, tuple) else result
                before = last.value
                if is_step and not is_new_memory(before, value):
                    details = _with_shared(details, shared_paths(before, value), last.copied)
                last.value, last.copied = value, returned[0]
            events.append((site, place, given, returned, details, start, end, clock()))
            if not place:
                finish(thread)
            return result

        return recorded

    def _finish(self, thread: _Thread) -> None:
        """Pass on a complete call of a thread."""
        events, thread.events = thread.events, []
        if thread.value is not None:
            thread.value = thread.copied = None
        with self._lock:
            try:
                self._on_events(events)
            except Exception as error:
                # The env has made its step: the caller must get the result.
                self._failure = self._failure or error


def _with_shared(details: Details | None, shared: SharedPaths, previous: Any) -> Details | None:
    if not shared:
        return details
    found = details or Details()
    found.shared, found.previous = shared, previous
    return found


def outermost_site(events: Events) -> Site:
    """Return the site of the outermost call, which ended last."""
    event = events[-1]
    assert event is not None
    return event[0]


def _named_action(kwargs: dict[str, Any]) -> Any:
    return next((kwargs[name] for name in _ACTION_NAMES if name in kwargs), None)
