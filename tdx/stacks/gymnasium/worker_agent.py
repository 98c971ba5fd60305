"""The part of tdx that runs inside a worker process: it observes the worker's own env.

It imports torch only to read the state, so that a worker stays small.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import sys
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from tdx.foundation.errors import get_first_line
from tdx.stacks.gymnasium.calls import Call, CallRecorder, Events, read_calls
from tdx.stacks.gymnasium.hooks import Wrap, replaced_methods
from tdx.stacks.gymnasium.levels import Level, core_of, env_name, list_wrappers, place_of_error
from tdx.stacks.sources import instance_dict
from tdx.stacks.stack import StageInfo, format_argument

AGENT = "tdx_worker_agent"
"""Attribute of the outermost wrapper in which an agent is found while it observes."""
MISSING = "tdx_worker_agent_missing"
"""Name that no env has."""
_MAX_CALLS = 16
"""Complete calls that are kept: steps that the parent does not collect must not fill the memory."""
_MAX_DEPTH = 8
_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_WRONLY
_PLAIN = (bool, int, float, str, bytes)

Stamps = dict[tuple[int, str], bytes]
"""Start and end of each call, int64, by level and method."""
PackedCall = tuple[int, str, Any, Any, int, list[Any]]
"""Level, method, action, result, own time, calls inside."""


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a value that only exists in the worker."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class WorkerOwner:
    """A wrapper or env in a worker, as its parent process knows it.

    Args:
        kind: Its class, as text.
        info: Its description as a stage.
        env_name: Id of the env inside.
        observation_space: Its space of observations.
        action_space: Its space of actions.
    """

    kind: str
    info: StageInfo
    env_name: str
    observation_space: gymnasium.Space[Any] = field(repr=False)
    action_space: gymnasium.Space[Any] = field(repr=False)


def install(command: str | None, token: str) -> str:
    """Attach an agent to the env of this worker, and return the name of its attribute.

    Args:
        command: What the agent begins. ``None``: nothing, it answers one request.
        token: Identifies the agent.

    Returns:
        :data:`MISSING` if the worker has no env, its outermost wrapper takes no attribute, or it is
        observed already.
    """
    env = _find_env()
    own = instance_dict(env)
    if own is None:
        return MISSING
    if isinstance(own.get(AGENT), WorkerAgent):
        return AGENT if command is None else MISSING
    agent = WorkerAgent(env, token)
    if command is not None:
        agent.begin(command)
    own[AGENT] = agent
    return AGENT


def report_path(token: str, process: int | None) -> Path:
    """Return the file in which an agent reports the error that ends its worker.

    Args:
        token: Identifies the agents of one block.
        process: Id of the worker.
    """
    return Path(tempfile.gettempdir(), f"tdx-{token}-{process}.json")


def uninstall(command: str | None, token: str) -> str:
    """Detach the agent with a token, if there is one.

    Args:
        command: Not used.
        token: Identifies the agent.
    """
    agent = (instance_dict(_find_env()) or {}).get(AGENT)
    if isinstance(agent, WorkerAgent) and agent.token == token:
        agent("stop")
    return MISSING


def _find_env() -> Any:
    """Return the env of the loop that receives the requests: the only one in its frame.

    The frames outside of the process belong, after a fork, to the parent.
    """
    frame = sys._getframe(2)
    while frame is not None and frame.f_code is not BaseProcess.run.__code__:
        found = {id(each): each for each in frame.f_locals.values() if _is_env(each)}
        if found:
            return next(iter(found.values())) if len(found) == 1 else None
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_env(value: Any) -> bool:
    return issubclass(type(value), gymnasium.Env)


class _EnvPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Replaces open files, such as the log of a monitor, by buffers."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, io.IOBase):
            return io.StringIO if isinstance(obj, io.TextIOBase) else io.BytesIO, ()
        if type(obj) is type(_create_csv_writer()):
            return _create_csv_writer, ()
        return super().reducer_override(obj)


def _create_csv_writer() -> Any:
    return csv.writer(io.StringIO())


class WorkerAgent:
    """Answers the requests of the parent process; every answer is bytes, and nothing raises.

    Args:
        env: The outermost wrapper in this worker.
        token: Identifies the agent.
    """

    def __init__(self, env: Any, token: str) -> None:
        self._env, self.token = env, token
        owners = [core_of(env), *reversed(list_wrappers(env))]
        self._levels = tuple(
            Level(index, (owner,), None) for index, owner in enumerate(owners, start=-1)
        )
        self._attached = ExitStack()
        self._is_attached = False
        self._calls: deque[Call] = deque(maxlen=_MAX_CALLS)
        self._stamps: dict[tuple[int, str], array[int]] = {}

    def __call__(self, command: str) -> bytes:
        """Answer a request by a pickled pair: ``True`` and the answer, or ``False`` and why not."""
        commands: dict[str, Callable[[], Any]] = {
            "describe": self._describe,
            "state": self._state,
            "take": self._take,
            "copy": self._copy,
            "stop": self._stop,
        }
        try:
            return pickle.dumps((True, commands[command]()))
        except Exception as error:
            return pickle.dumps((False, f"{type(error).__name__}: {error}"))
        finally:
            if not self._is_attached:
                (instance_dict(self._env) or {}).pop(AGENT, None)

    def begin(self, command: str) -> None:
        """Begin to observe.

        Args:
            command: ``"record"`` values, or ``"measure"`` times.

        Raises:
            ArgumentError: The env is observed already.
        """
        if command == "record":
            recorder = CallRecorder(self._add)
            self._attached.enter_context(recorder.attached(self._levels))
        else:
            for level in self._levels:
                wrap = self._wrap_for(level.index)
                self._attached.enter_context(replaced_methods([(level.owner, wrap)]))
        self._is_attached = True

    def _add(self, events: Events) -> None:
        call = read_calls(events)[-1]
        self._calls.append(call)
        failed = call.failed_call()
        if failed is not None and failed.error is not None:
            self._report(failed.level, failed.method, failed.error)

    def _report(self, level: int, method: str, error: Exception) -> None:
        """Write an error to a file: the worker ends with it, so the parent cannot ask for it."""
        report = json.dumps((level, method, type(error).__name__, get_first_line(error)))
        with suppress(OSError):
            file = os.open(report_path(self.token, os.getpid()), _NEW_FILE, 0o600)
            with open(file, "w", encoding="utf-8") as stream:
                stream.write(report)

    def _describe(self) -> list[WorkerOwner]:
        name = env_name(self._levels)
        return [
            WorkerOwner(
                repr(type(level.owner)),
                _portable_info(level.info()),
                name,
                level.observation_space,
                level.action_space,
            )
            for level in self._levels
        ]

    def _state(self) -> list[dict[str, Any]]:
        from tdx.stacks.gymnasium.snapshots import level_state

        return [
            {name: value.numpy() for name, value in level_state(level).items()}
            for level in self._levels
        ]

    def _copy(self) -> bytes:
        """Return the env as bytes, with its state and its generators, but without open files.

        Raises:
            RuntimeError: The env is being traced or profiled, so that its methods are replaced.
        """
        if self._is_attached:
            raise RuntimeError("its env is being traced or profiled")
        (instance_dict(self._env) or {}).pop(AGENT, None)
        stream = io.BytesIO()
        _EnvPickler(stream).dump(self._env)
        return stream.getvalue()

    def _take(self) -> list[PackedCall]:
        """Return the complete calls since the last request."""
        calls = list(self._calls)
        self._calls.clear()
        return [_pack(each) for each in calls]

    def _stop(self) -> Stamps:
        """Detach, and return when each measured call started and ended."""
        self._is_attached = False
        self._attached.close()
        return {key: stamps.tobytes() for key, stamps in self._stamps.items()}

    def _wrap_for(self, index: int) -> Wrap:
        def wrap(owner: Any, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            clock = time.perf_counter_ns
            stamps = self._stamps[index, name] = array("q")
            is_outermost = index == self._levels[-1].index

            def timed(*args: Any, **kwargs: Any) -> Any:
                start = clock()
                try:
                    return original(*args, **kwargs)
                except Exception as error:
                    place = place_of_error(error, self._levels) if is_outermost else None
                    if place is not None:
                        self._report(place[0], place[2], error)
                    raise
                finally:
                    stamps.extend((start, clock()))

            return timed

        return wrap


def _portable_info(info: StageInfo) -> StageInfo:
    arguments = {name: portable(value) for name, value in info.arguments.items()}
    return StageInfo(info.index, info.name, arguments, info.location, info.direction)


def portable(value: Any, depth: int = 0) -> Any:
    """Return plain data and arrays unchanged, and anything else as its text.

    A parent process cannot load an object whose class only its worker can import.

    Example:
        >>> portable({"x": [1, len]})
        {'x': [1, len]}
    """
    if value is None or type(value) in _PLAIN or isinstance(value, np.generic):
        return value
    if type(value) is np.ndarray and value.dtype.kind != "O":
        return value
    if depth < _MAX_DEPTH:
        if type(value) in (list, tuple):
            return type(value)(portable(each, depth + 1) for each in value)
        if isinstance(value, Mapping):
            return {portable(name, depth + 1): portable(value[name], depth + 1) for name in value}
    return Text(format_argument(value))


def _pack(call: Call) -> PackedCall:
    children = [_pack(each) for each in call.children]
    given, returned = portable(_as_array(call.given)), portable(_as_array(call.returned))
    return call.level, call.method, given, returned, call.own_ns, children


def _as_array(value: Any, depth: int = 0) -> Any:
    """Return a value with tensors as arrays, which are smaller and faster to send."""
    if type(value) in (tuple, list) and depth < _MAX_DEPTH:
        return type(value)(_as_array(each, depth + 1) for each in value)
    if type(value) is dict and depth < _MAX_DEPTH:
        return {name: _as_array(each, depth + 1) for name, each in value.items()}
    numpy = getattr(value, "numpy", None)
    return value if numpy is None else numpy()
