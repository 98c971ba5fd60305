"""Child processes: how they start, what they inherit, how they end, and why they ended.

A child runs a function (:class:`FunctionChild`), or a program of its own whose output is captured
(:class:`ProgramChild`). Both have a pipe to the parent, start with a safe path, end with the
parent, and leave Ctrl-C to it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import IO, Any, Concatenate

from tdx.foundation.errors import ArgumentError, WorkerError, did_you_mean
from tdx.foundation.safe_path import SAFE_PATH, python_command, safe_path

_MEMORY_HINT = "the system kills processes when memory runs out"
_KILL_SECONDS = 5.0
_EXIT_SECONDS = 1.0
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9  # Windows has no name for it


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_memory() -> int | None:
    """Return the number of bytes of memory of this machine; ``None``: the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def resolve_start_method(name: str | None) -> str:
    """Validate the start method of :mod:`multiprocessing`, or choose the default.

    The default is ``forkserver``: children are forked from a clean process that has imported torch
    and runs no threads. ``fork`` would copy the parent, including locks held by threads that do
    not exist in the copy and a CUDA state that cannot be used there. ``spawn`` is as safe, but
    imports torch in each child.

    Raises:
        ArgumentError: The start method is not available on this system.
    """
    known = multiprocessing.get_all_start_methods()
    if name is None:
        return "forkserver" if "forkserver" in known else "spawn"
    if name not in known:
        raise ArgumentError(
            f"mp_start_method {name!r} is not available on this system",
            hint=did_you_mean(name, known, f"use one of {', '.join(known)}"),
        )
    return name


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why a process ended.

    Args:
        code: Its exit code, negative for a signal. ``None``: unknown.

    Example:
        >>> str(ExitReason(3)), str(ExitReason(-9)), str(ExitReason(-11))
        ('exited with code 3', 'was killed by SIGKILL', 'crashed with SIGSEGV')
    """

    code: int | None

    def __str__(self) -> str:
        if self.code is None or self.code >= 0:
            return f"exited with code {self.code}" if self.code else "exited"
        try:
            number = signal.Signals(-self.code)
        except ValueError:
            return f"was killed by signal {-self.code}"
        return f"{'crashed with' if number.name in _CRASHES else 'was killed by'} {number.name}"

    @property
    def is_signal(self) -> bool:
        """True if a signal ended it: it crashed, or was killed."""
        return self.code is not None and self.code < 0

    @property
    def hint(self) -> str | None:
        """Probable cause; ``None``: it says nothing about the cause."""
        return _MEMORY_HINT if self.code == -_SIGKILL else None


class Child(ABC):
    """A child process with a pipe to it.

    Args:
        connection: This end of the pipe.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id."""

    @abstractmethod
    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for the end of the process.

        Args:
            seconds: Longest time to wait. ``None``: no limit.

        Returns:
            Its exit code; ``None`` if it still runs.
        """

    @abstractmethod
    def signal_kill(self) -> None:
        """Send SIGKILL to the process, and to its process group if it has its own."""

    @property
    def exit_reason(self) -> ExitReason:
        """Why it ended; waits a second for the exit code of a process that has closed its pipe."""
        return ExitReason(self.wait(_EXIT_SECONDS))

    def kill(self) -> None:
        """End the process at once."""
        kill_all([self])


def kill_all(children: Sequence[Child]) -> None:
    """End processes at once, and wait until they have ended.

    Args:
        children: The processes; one that has ended already is not touched.
    """
    for child in children:
        if child.wait(0) is None:
            child.signal_kill()
    for child in children:
        child.wait(_KILL_SECONDS)


class FunctionChild(Child):
    """A child that runs a function.

    Args:
        target: Called with the child's end of the pipe and the arguments. With ``forkserver``, its
            module is imported once for all children.
        args: More arguments.
        name: Name of the process in error messages.
        method: Start method. ``None``: the default of :func:`resolve_start_method`.
        daemon: True for a process that cannot have children.
        grace: Seconds to end by itself after its parent has exited.
        siblings: Children that run already. A forked child closes its copies of their pipes: an
            open copy hides from their owners that the other side has exited.
        preload: More modules to import once.

    Raises:
        WorkerError: The fork server was killed while it started the process.
        pickle.PicklingError, TypeError, AttributeError: An argument cannot be sent to a process.
    """

    def __init__(
        self,
        target: Callable[Concatenate[Connection, ...], object],
        args: Sequence[object] = (),
        *,
        name: str,
        method: str | None = None,
        daemon: bool = False,
        grace: float = 0.0,
        siblings: Iterable[Child] = (),
        preload: Sequence[str] = (),
    ) -> None:
        chosen = resolve_start_method(method)
        context: Any = multiprocessing.get_context(chosen)
        environ = dict(os.environ)
        folder = None
        with suppress(FileNotFoundError):
            folder = os.getcwd()
        if os.name != "nt":
            from multiprocessing import resource_tracker

            with safe_path():
                # First, because starting it unblocks the interrupts; the others inherit it.
                resource_tracker.ensure_running()
        with delay_interrupts(), safe_path():
            if chosen == "forkserver":
                from multiprocessing import forkserver

                multiprocessing.set_forkserver_preload([target.__module__, *preload])
                # Also starts one again that was killed.
                forkserver.ensure_running()
            connection, theirs = context.Pipe()
            inherited = [connection, *(child.connection for child in siblings)]
            if chosen != "fork":
                inherited = []
            self._process: BaseProcess = context.Process(
                target=_run_function,
                args=(target, theirs, args, inherited, environ, folder, grace),
                name=name,
                daemon=daemon,
            )
            try:
                self._process.start()
            except BaseException as error:
                connection.close()
                if not isinstance(error, EOFError | ConnectionError):
                    raise
                raise WorkerError(
                    f"{name} could not be started: the fork server was killed", hint=_MEMORY_HINT
                ) from error
            finally:
                theirs.close()
        super().__init__(connection)

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def sentinel(self) -> int:
        """Descriptor that is readable when the process has ended."""
        return self._process.sentinel

    def wait(self, seconds: float | None = None) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode

    def signal_kill(self) -> None:
        self._process.kill()


def _run_function(
    target: Callable[Concatenate[Connection, ...], object],
    connection: Connection,
    args: Sequence[object],
    inherited: Sequence[Connection],
    environ: Mapping[str, str],
    folder: str | None,
    grace: float,
) -> None:
    # The parent handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    parent = parent_process()
    if parent is not None:

        def exit_after_parent() -> None:
            # Even if this process is busy.
            wait([parent.sentinel])
            time.sleep(grace)
            os._exit(1)

        threading.Thread(target=exit_after_parent, daemon=True).start()
    # The variables and the folder of a fork server may be outdated.
    if SAFE_PATH not in environ:
        os.environ.pop(SAFE_PATH, None)
    os.environ.update(environ)
    if folder is not None:
        os.chdir(folder)
    target(connection, *args)


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the block ends.

    A process that is started in the block inherits the blocked signal, so it cannot be interrupted
    and print a traceback before it ignores the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    # Blocking is not enough: another thread may receive the signal, and this one handles it.
    handler = signal.signal(signal.SIGINT, lambda number, frame: pending.append(number))
    # Windows has no blocked signals: a child may print a traceback there.
    has_mask = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if has_mask else set()
    try:
        yield
    finally:
        if has_mask:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if pending and callable(handler):
            handler(signal.SIGINT, None)


class ProgramChild(Child):
    """A child that runs a program in a session of its own, with its output in a file.

    Its own children are killed with it.

    Args:
        program: Python source, which gets the descriptor of its end of the pipe as ``sys.argv[1]``.
        arguments: More arguments, from ``sys.argv[2]`` on.
        output: File for its output.
        descriptors: Open files that it inherits.
        environ: Its environment variables.
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        output: IO[bytes],
        descriptors: Sequence[int] = (),
        environ: Mapping[str, str],
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                python_command("-c", program, str(theirs.fileno()), *arguments),
                pass_fds=[theirs.fileno(), *descriptors],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=environ,
            )
        super().__init__(Connection(ours.detach()))

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, seconds: float | None = None) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode

    def signal_kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        # Also if it has ended: its children may still run.
        self.signal_kill()
        self.wait()


def prepare_program(nice: int) -> None:
    """Prepare this process, which a :class:`ProgramChild` has started.

    Args:
        nice: Added to the niceness that it inherits.
    """
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    # If a library crashes, print the Python traceback.
    faulthandler.enable()
    if sys.platform == "linux":
        # The end of the pipe shows the end of the parent too, but not while a stuck library holds
        # the interpreter lock.
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if hasattr(os, "nice"):
        os.nice(nice)
