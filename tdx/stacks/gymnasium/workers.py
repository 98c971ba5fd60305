"""The wrappers in the worker processes of a vector env, observed from their parent process."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import gymnasium
import numpy as np

from tdx.core.meter import Lane, Meter, Part, WorkerCalls
from tdx.foundation.errors import ArgumentError, get_first_line
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.worker_agent import AGENT, MISSING, Stamps, WorkerOwner, report_path
from tdx.stacks.sources import attributes_of
from tdx.stacks.stack import StageInfo

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.stacks.gymnasium.calls import Call

Send = Callable[..., Sequence[Any]]
"""Calls a method of the env in each worker: name of the method, arguments."""

# A worker ends if it cannot load what it receives, so only text is loaded without precautions.
_SOURCE = """
try:
    import tdx.stacks.gymnasium.worker_agent as worker_agent
    name = getattr(worker_agent, function)(command, token) if function else "step"
except Exception:
    name = missing
"""
_IS_WAITING, _HAS_ENDED = "it waits for the result of a call", "a worker process has ended"

_HINT = "inspect or profile the env when no call is pending, and before it is closed"


class _RunsInWorker:
    """A name that a function returns in the process that unpickles it.

    Args:
        function: Name of a function of ``worker_agent``. Empty: ``step``, which every env has.
        command: Its first argument.
        token: Its second argument.
    """

    def __init__(self, function: str, command: str | None = None, token: str = "") -> None:
        names = {"function": function, "command": command, "token": token, "missing": MISSING}
        self._scope = {"source": _SOURCE, "name": MISSING, **names}

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("exec(source) or name", self._scope)


@dataclass(frozen=True, slots=True)
class WorkerLevel(Level):
    """A level of the sub-envs in worker processes; its owners are their descriptions."""

    @property
    def name(self) -> str:
        """Class name."""
        return str(self.owner.info.name)

    @property
    def in_workers(self) -> bool:
        """True: its objects are in other processes."""
        return True

    @property
    def env_name(self) -> str:
        """Id of the env inside."""
        return str(self.owner.env_name)

    def info(self) -> StageInfo:
        """Describe the stage."""
        info: StageInfo = self.owner.info
        return StageInfo(
            self.index, info.name, info.arguments, info.location, info.direction, self.num_envs
        )


class Workers:
    """The sub-envs of a vector env that run in worker processes.

    Args:
        core: The vector env.
        send: Calls a method of the env in each worker.
        pipes: Its connections to the workers.
        supported: True if its workers have the loop of their library.
    """

    def __init__(
        self, core: Any, send: Send, pipes: Callable[[], Sequence[Any]], *, supported: bool
    ) -> None:
        self._core, self._send, self._pipes = core, send, pipes
        self.name = type(core).__name__
        self.rows: tuple[tuple[WorkerOwner, ...], ...] = ()
        self.reason: str | None = None
        self._token = ""
        problem = self._problem() or self._describe(supported)
        if problem is not None:
            names = self._names() if self._problem() is None and supported else []
            inside = f": {' > '.join(names)}" if names else ""
            self.reason = (
                f"the sub-envs of {self.name} run in worker processes and are measured as one, "
                f"because {problem}{inside}"
            )

    @property
    def core_index(self) -> int:
        """Index of the stage of the vector env."""
        return len(self.rows[0]) - 1 if self.rows else -1

    def levels(self) -> tuple[WorkerLevel, ...]:
        """Return the levels in the workers, the env inside first; empty if they are unknown."""
        count = len(self.rows)
        return tuple(
            WorkerLevel(index, owners, count, True)
            for index, owners in enumerate(zip(*self.rows, strict=True), start=-1)
        )

    def state(self) -> dict[int, dict[str, Tensor]]:
        """Return copies of the numbers that each wrapper keeps, stacked; empty without workers."""
        import torch

        from tdx.stacks.gymnasium.snapshots import stack_rows

        if not self.rows or self._problem() is not None:
            return {}
        self._install(None)
        rows = self._ask("state")
        found: dict[int, dict[str, Tensor]] = {}
        for index, owners in enumerate(zip(*rows, strict=True), start=-1):
            names = [name for name in owners[0] if all(name in each for each in owners)]
            parts = {
                name: stack_rows([torch.from_numpy(each[name]) for each in owners])
                for name in names
            }
            stacked = {name: each for name, each in parts.items() if not isinstance(each, list)}
            if index >= 0 and stacked:
                found[index] = stacked
        return found

    def copy_envs(self) -> list[Any]:
        """Return copies of the sub-envs; those in the workers do not change.

        Raises:
            ArgumentError: A sub-env cannot be copied.
        """
        problem = self._problem()
        if problem is not None:
            raise ArgumentError(problem, hint=_HINT)
        self._install(None)
        try:
            return [pickle.loads(each) for each in self._ask("copy")]
        except ArgumentError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"a copy cannot be loaded: {get_first_line(error)}",
                hint="use a vector env without worker processes",
            ) from error

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the calls in each worker in a block; :meth:`take_calls` collects them."""
        with self._observing("record", lambda _: None):
            yield

    @contextmanager
    def measuring(self, names: Mapping[int, str], meter: Meter) -> Iterator[None]:
        """Measure the calls in each worker in a block.

        Args:
            names: Name of the part of each level.
            meter: Gets the calls at the end of the block.
        """
        lanes: Mapping[str, Lane] = {"reset": "reset", "step": "step"}

        def add(answers: Sequence[Stamps]) -> None:
            calls = []
            for worker, stamps in enumerate(answers):
                for (index, method), data in stamps.items():
                    part = Part(
                        "env" if index < 0 else "wrapper", index, names[index], lanes[method]
                    )
                    calls.append(WorkerCalls(part, worker, np.frombuffer(data, np.int64)))
            meter.add_worker_calls((self.core_index, names[self.core_index]), calls)

        with self._observing("measure", add):
            yield

    def take_calls(self, method: str) -> Callable[[Call], int]:
        """Collect the calls in the workers that a call of the vector env has waited for.

        Only the times of the slowest worker count: the others ran at the same time.

        Returns:
            A function that adds them to the call as children, and returns the nanoseconds that the
            slowest worker took.
        """
        packed = self._ask("take")
        return lambda call: _add_calls(call, packed, method)

    def take_failed_call(self, error: Exception) -> Callable[[Call], int]:
        """Collect the call in a worker whose error made a call of the vector env fail."""
        text, found = str(error), []
        for row, path in enumerate(self._reports()):
            with suppress(OSError, ValueError):
                level, method, *raised = json.loads(path.read_text(encoding="utf-8"))
                found.append((raised[1] not in text, row, (level, row, method), tuple(raised)))

        def add(call: Call) -> int:
            from tdx.stacks.gymnasium.calls import Call

            if found:
                _, _, place, reported = min(found)
                call.children.append(Call(*place, error=call.error, reported=reported))
            return 0

        return add

    def _reports(self) -> list[Path]:
        """Return the file of each worker's error; most do not exist."""
        processes = attributes_of(self._core).get("processes", ())
        return [report_path(self._token, each.pid) for each in processes]

    @contextmanager
    def _observing(self, command: str, finish: Callable[[Sequence[Any]], None]) -> Iterator[None]:
        if not self.rows:
            yield
            return
        try:
            problem = self._problem()
            if problem is None:
                self._install(command)
        except ArgumentError as error:
            problem = error.message
        if problem is not None:
            raise ArgumentError(
                f"the wrappers in the workers of {self.name} cannot be reached: {problem}",
                hint=_HINT,
            )
        try:
            yield
        finally:
            # A worker that has ended, or has not answered, keeps nothing that matters.
            answers = None
            for path in self._reports():
                path.unlink(missing_ok=True)
            with suppress(ArgumentError):
                answers = self._ask("stop") if self._problem() is None else None
            if answers is not None:
                finish(answers)

    def _describe(self, supported: bool) -> str | None:
        """Ask each worker for its wrappers; return why that is not possible."""
        if not supported:
            return "its workers have a loop of their own"
        try:
            self._install(None)
            rows = self._ask("describe")
        except ArgumentError as error:
            return error.message
        except Exception as error:
            return get_first_line(error)
        kinds = {tuple(each.kind for each in row) for row in rows}
        if len(kinds) != 1:
            return "the sub-envs have different wrappers"
        self.rows = tuple(tuple(row) for row in rows)
        return None

    def _names(self) -> list[str]:
        """Ask the first worker for the names of its wrappers, outermost first.

        The text of an env names all its wrappers.
        """
        try:
            text = str(self._request("__str__")[0])
        except Exception:
            return []
        found = [each for each in text.replace(">", "").split("<") if each]
        return found if text.startswith("<") and " " not in text else []

    def _problem(self) -> str | None:
        """Return why the workers cannot get a request now; a request would wait forever."""
        attributes = attributes_of(self._core)
        pipes = self._pipes()
        if attributes.get("closed") or any(each is None or each.closed for each in pipes):
            return "it is closed"
        if not all(each.is_alive() for each in attributes.get("processes", ())):
            return _HAS_ENDED
        if attributes.get("waiting") or any(each.poll(0) for each in pipes):
            return _IS_WAITING
        return None

    def _request(self, name: str, *arguments: Any) -> Sequence[Any]:
        """Call a method of the env in each worker.

        Raises:
            ArgumentError: The workers cannot answer.
        """
        try:
            return self._send(name, *arguments)
        except gymnasium.error.AlreadyPendingCallError as error:
            raise ArgumentError(_IS_WAITING, hint=_HINT) from error
        except (OSError, EOFError) as error:
            raise ArgumentError(_HAS_ENDED, hint=_HINT) from error

    def _install(self, command: str | None) -> None:
        """Attach an agent in each worker, or in none.

        Raises:
            ArgumentError: That is not possible.
        """
        token = uuid4().hex
        if self._run_in_workers("install", command, token):
            self._token = token if command is not None else self._token
            return
        self._run_in_workers("uninstall", None, token)
        raise ArgumentError(
            "its workers hold no env that takes attributes, or are being traced or profiled already"
            if self._run_in_workers("")
            else "its workers cannot import tdx",
            hint=_HINT,
        )

    def _run_in_workers(self, function: str, command: str | None = None, token: str = "") -> bool:
        """Call a function of ``worker_agent`` in each worker; return True if all return a name."""
        name = _RunsInWorker(function, command, token)
        return all(self._request("has_wrapper_attr", name))

    def _ask(self, command: str) -> list[Any]:
        """Send a request to the agents of all workers.

        Raises:
            ArgumentError: An agent could not answer.
        """
        answers = [pickle.loads(each) for each in self._request(AGENT, command)]
        for is_answer, answer in answers:
            if not is_answer:
                raise ArgumentError(f"a worker cannot be read: {answer}", hint=_HINT)
        return [answer for _, answer in answers]


def workers_of_vector_env(core: gymnasium.vector.AsyncVectorEnv) -> Workers:
    """Return the sub-envs of an ``AsyncVectorEnv``."""
    return Workers(
        core, core.call, lambda: core.parent_pipes, supported=attributes_of(core)["worker"] is None
    )


def _of_last_request(calls: list[Call], method: str) -> list[Call]:
    """Return the calls of the last request; earlier ones belong to steps that nobody collected."""
    steps = [place for place, call in enumerate(calls) if call.method == "step"]
    return calls[steps[-1] :] if steps and method == "step" else calls[-1:]


def _add_calls(call: Call, packed: Sequence[Any], method: str) -> int:
    """Add the calls of each worker to the call that waited for them."""
    found = [
        _of_last_request([_unpack(each, row) for each in calls], method)
        for row, calls in enumerate(packed)
    ]
    busy = [sum(each.own_ns for outer in calls for each in outer.walk()) for calls in found]
    slowest = busy.index(max(busy))
    for row, calls in enumerate(found):
        call.children += calls
        if row != slowest:
            for each in (inner for outer in calls for inner in outer.walk()):
                each.own_ns = 0
    return busy[slowest]


def _unpack(packed: Any, row: int) -> Call:
    from tdx.stacks.gymnasium.calls import Call

    level, method, given, returned, own_ns, children = packed
    inner = [_unpack(each, row) for each in children]
    return Call(level, row, method, given, returned, inner, own_ns)
