"""Record the calls of ``step`` and ``reset`` of every level, and how they are nested."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tdx.keys import NestedKey
from tdx.stacks.gymnasium.hooks import Wrap, replaced_methods
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.snapshots import (
    Entries,
    action_entries,
    observation_entries,
    overwritten_keys,
    result_entries,
)

Method = Literal["reset", "step"]
_ACTION_NAMES = ("action", "actions")


@dataclass(slots=True)
class Call:
    """One call of a method of a level.

    Args:
        level: Index of the level.
        row: Sub-env that it belongs to; 0 outside of sub-envs.
        method: ``reset`` or ``step``.
        action: The action that it received.
        result: What it returned, copied.
        children: Calls that it made.
        own_ns: Its duration without its children.
        error: What it raised.
        overwritten: Keys of the observation that it wrote into the memory of the previous one.
        reported: Class and message of an error that another process raised.
    """

    level: int
    row: int
    method: Method
    action: Entries = field(default_factory=dict)
    result: Entries = field(default_factory=dict)
    children: list[Call] = field(default_factory=list)
    own_ns: int = 0
    error: Exception | None = None
    overwritten: tuple[NestedKey, ...] = ()
    reported: tuple[str, str] | None = None
    _inside_ns: int = 0

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


OnCall = Callable[[Call], None]
LastResults = dict[tuple[int, int], tuple[Any, Entries]]
"""Observation that each level and sub-env returned last, and a copy of its result."""


class RemoteCalls(Protocol):
    """Records the calls in other processes that the calls of one level wait for."""

    @property
    def core_index(self) -> int:
        """Index of the level whose calls wait."""
        ...

    def recording(self) -> AbstractContextManager[None]:
        """Record the calls in a block."""
        ...

    def add_calls(self, call: Call) -> int:
        """Add the calls of the last request as children; return the ns that they took."""
        ...

    def add_failed_call(self, call: Call) -> None:
        """Add the call that made this one fail as its child, if there is one."""
        ...


class CallRecorder:
    """Records complete calls of the outermost level, with the calls inside.

    Open calls are kept per thread, so an env that several threads step is recorded correctly.

    Args:
        on_call: Receives each complete call; called by one thread at a time.
        remote: Calls in worker processes. ``None``: there are none.
        last: Last results of an earlier recorder, which this one updates. ``None``: there are none.
    """

    def __init__(
        self,
        on_call: OnCall,
        remote: RemoteCalls | None = None,
        last: LastResults | None = None,
    ) -> None:
        self._on_call, self._remote = on_call, remote
        self._lock = threading.Lock()
        self._local = threading.local()
        self._failure: Exception | None = None
        self._last: LastResults = {} if last is None else last

    @contextmanager
    def attached(self, levels: tuple[Level, ...]) -> Iterator[None]:
        """Record the calls of all levels in a block.

        Raises:
            Exception: What ``on_call`` raised first, at the end of the block.
        """
        owners: dict[int, tuple[Any, Wrap]] = {}
        for level in levels:
            if level.in_workers:
                continue
            spaces = (level.observation_space, level.action_space)
            for row, owner in enumerate(level.owners):
                wrap = self._wrap_for(level.index, row, spaces)
                owners.setdefault(id(owner), (owner, wrap))
        with replaced_methods(owners.values()), self.recorded_remotely():
            yield
        if self._failure is not None:
            raise self._failure

    def recorded_remotely(self) -> AbstractContextManager[None]:
        """Record the calls in worker processes in a block."""
        return nullcontext() if self._remote is None else self._remote.recording()

    def _wrap_for(self, level: int, row: int, spaces: tuple[Any, Any]) -> Wrap:
        def wrap(owner: Any, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            method: Method = "step" if name == "step" else "reset"

            def recorded(*args: Any, **kwargs: Any) -> Any:
                return self._record(
                    Call(level, row, method),
                    lambda: action_entries(spaces[1], _action(args, kwargs)),
                    lambda: original(*args, **kwargs),
                    lambda result: _result(spaces[0], result),
                )

            return recorded

        return wrap

    def _record(
        self,
        call: Call,
        copy_action: Callable[[], Entries],
        run: Callable[[], Any],
        copy_result: Callable[[Any], Entries],
    ) -> Any:
        """Run a call of the env and record it, with copies of its action and its result."""
        clock = time.perf_counter_ns
        entered = clock()
        open_calls = self._open_calls()
        parent = open_calls[-1] if open_calls else None
        if call.method == "step":
            call.action = _copied(copy_action)
        open_calls.append(call)
        start = clock()
        try:
            result = run()
        except BaseException as error:
            call.own_ns = clock() - start - call._inside_ns
            open_calls.pop()
            if isinstance(error, Exception):
                call.error = error
                if self._remote is not None and call.level == self._remote.core_index:
                    # The error of the env must not be replaced.
                    with suppress(Exception):
                        self._remote.add_failed_call(call)
                self._close(call, parent, entered)
            raise
        call.own_ns = clock() - start - call._inside_ns
        open_calls.pop()
        if self._remote is not None and call.level == self._remote.core_index:
            self._add_remote_calls(call)
        call.result = _copied(lambda: copy_result(result))
        self._compare_with_last(call, result)
        self._close(call, parent, entered)
        return result

    def _compare_with_last(self, call: Call, result: Any) -> None:
        """Add the keys whose previous value the call overwrote in memory."""
        if not call.result:
            return
        observation = result[0] if isinstance(result, tuple) else result
        last = self._last.get((call.level, call.row))
        self._last[call.level, call.row] = observation, call.result
        if last is not None and call.method == "step":
            call.overwritten = overwritten_keys(last[0], observation, last[1], call.result)

    def _add_remote_calls(self, call: Call) -> None:
        """Add what workers recorded to the call that waited for them."""
        assert self._remote is not None
        try:
            taken = self._remote.add_calls(call)
        except Exception as error:
            self._failure = self._failure or error
        else:
            # A worker may have started before its parent waited.
            call.own_ns = max(call.own_ns - taken, 0)

    def _open_calls(self) -> list[Call]:
        found: list[Call] | None = getattr(self._local, "calls", None)
        if found is None:
            found = self._local.calls = []
        return found

    def _close(self, call: Call, parent: Call | None, entered: int) -> None:
        if parent is not None:
            parent.children.append(call)
            parent._inside_ns += time.perf_counter_ns() - entered
            return
        with self._lock:
            try:
                self._on_call(call)
            except Exception as error:
                # The env has made its step: the caller must get the result.
                self._failure = self._failure or error


def _copied(take: Callable[[], Entries]) -> Entries:
    """Copy values; a value that cannot be copied must not fail in the code of the user."""
    try:
        return take()
    except Exception:
        return {}


def _action(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args:
        return args[0]
    return next((kwargs[name] for name in _ACTION_NAMES if name in kwargs), None)


def _result(space: Any, result: Any) -> Entries:
    if not isinstance(result, tuple) or not result:
        return {}
    return {**observation_entries(space, result[0]), **result_entries(result)}
