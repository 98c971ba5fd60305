"""Child processes: how they start, what they inherit, how they end, and why they ended.

A child runs a function (:class:`FunctionChild`), or a program of its own whose output is captured
(:class:`ProgramChild`; a :class:`ForkedChild` is forked from a :class:`WarmProgram`, which has
imported what the program needs). They have a pipe to the parent, start with a safe path, end with
the parent, and leave Ctrl-C to it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import io
import itertools
import json
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import IO, Any, Concatenate, NoReturn

from tdx.foundation.errors import ArgumentError, WorkerError, did_you_mean
from tdx.foundation.safe_path import SAFE_PATH, python_command, safe_path

_MEMORY_HINT = "the system kills processes when memory runs out"
_KILL_SECONDS = 5.0
_EXIT_SECONDS = 1.0
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9  # Windows has no name for it
_LENGTH = struct.Struct("<Q")
_PIPE_MARK = b"\0tdx messages\0"
_READ_BYTES = 64 * 1024


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
    """A child process with a pipe to it."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id."""

    @abstractmethod
    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for the end of the process; return its exit code, or ``None`` if it still runs."""

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
    """End processes at once, and wait until they have ended."""
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

    Attributes:
        connection: This end of the pipe.

    Raises:
        WorkerError: The fork server was killed while it started the process.
        pickle.PicklingError, TypeError, AttributeError: An argument cannot be sent to a process.
    """

    connection: Connection

    def __init__(
        self,
        target: Callable[Concatenate[Connection, ...], object],
        args: Sequence[object] = (),
        *,
        name: str,
        method: str | None = None,
        daemon: bool = False,
        grace: float = 0.0,
        siblings: Iterable[FunctionChild] = (),
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
        self.connection = connection

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
    show_output_at_once()
    # Garbage that a fork inherits belongs to its parent. To collect it would run finalizers twice,
    # and those of native libraries may need threads that a fork does not have: one crashed.
    gc.freeze()
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


def show_output_at_once() -> None:
    """Write each line that this process prints, even to a file or a pipe.

    A process that is killed, or crashes, loses what it has in its buffers.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


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


class MessagePipe:
    """Messages between processes over two one-way pipes.

    Anonymous pipes are the only connection that a program inherits on every system; the pipes of
    :mod:`multiprocessing` are something else on Windows. ``on_text`` is called with the bytes
    before the first message, if there may be any.
    """

    def __init__(
        self,
        reader: IO[bytes],
        writer: IO[bytes],
        on_text: Callable[[bytes], object] | None = None,
    ) -> None:
        self._reader, self._writer, self._on_text = reader, writer, on_text
        self._send_lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message; any thread may.

        Raises:
            OSError: The other process has closed its end, or this one has.
            pickle.PicklingError, TypeError, AttributeError: The message cannot be sent.
        """
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._send_lock:
            if self._writer.closed:
                raise BrokenPipeError("this end of the pipe is closed")
            self._writer.write(_LENGTH.pack(len(data)) + data)
            self._writer.flush()

    def recv(self) -> Any:
        """Wait for the next message; EOFError if the other process has closed its end."""
        if self._on_text is not None:
            on_text, self._on_text = self._on_text, None
            text = bytearray()
            while not text.endswith(_PIPE_MARK):
                byte = self._reader.read(1)
                if not byte:
                    break
                text += byte
            if printed := text.removesuffix(_PIPE_MARK):
                on_text(bytes(printed))
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))

    def close(self) -> None:
        """Close this end; the thread that receives calls it."""
        self._reader.close()
        with self._send_lock, suppress(OSError):  # what was not sent, to a process that has exited
            self._writer.close()

    def _read(self, length: int) -> bytes:
        data = self._reader.read(length)
        if len(data) < length:
            raise EOFError
        return data


class ProgramChild(Child):
    """A child that runs Python source in a session of its own, with its output captured.

    Its own children are killed with it. Messages take its standard input and output, which
    :func:`open_parent_pipe` replaces: the program itself reads nothing and prints to the output.
    ``on_output`` is called in another thread with what it prints.
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        on_output: Callable[[bytes], object],
        environ: Mapping[str, str],
    ) -> None:
        self._process = subprocess.Popen(
            python_command("-c", program, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environ,
        )
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        self._connect(stdin, stdout, stderr, on_output)

    def _connect(
        self,
        stdin: IO[bytes],
        stdout: IO[bytes],
        stderr: IO[bytes],
        on_output: Callable[[bytes], object],
    ) -> None:
        # Modules that Python imports at start-up may print to the pipe before the program has it.
        self.connection = MessagePipe(stdout, stdin, on_output)

        def forward_output() -> None:
            # Not closed from outside: a process that has left the session may still print.
            with stderr:
                while data := os.read(stderr.fileno(), _READ_BYTES):
                    on_output(data)

        self._forwarder = threading.Thread(target=forward_output, daemon=True)
        self._forwarder.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, seconds: float | None = None) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode

    def signal_kill(self) -> None:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            return
        if self._process.poll() is None:
            # Windows knows the children of a process only as long as it runs.
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    ["taskkill", "/F", "/T", "/PID", str(self.pid)],
                    capture_output=True,
                    timeout=_KILL_SECONDS,
                    check=False,
                )
            self._process.kill()

    def kill(self) -> None:
        """End the process and its children at once; ``on_output`` gets what it has printed."""
        # Also if it has ended: its children may still run.
        self.signal_kill()
        self.wait()
        self._forwarder.join(_EXIT_SECONDS)


class WarmProgram:
    """A process that imports what a program needs, and then forks one process per run of it.

    Forks share the memory of the imported modules and start in milliseconds. The process runs a
    single thread, because a fork copies the locks of the others, but not the threads that would
    release them. It has no env and no accelerator. Where its imports leave threads behind, it
    starts the program from the beginning instead. Linux only.

    Its source, ``warm_up``, imports modules and calls :func:`serve_forks`. Arguments and
    environment variables are those of both.
    """

    def __init__(
        self, warm_up: str, arguments: Sequence[str], *, environ: Mapping[str, str]
    ) -> None:
        self._command = python_command("-c", warm_up, *arguments)
        self._environ = environ
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._forks: dict[int, ForkedChild] = {}
        self._numbers = itertools.count(1)

    @property
    def has_ended(self) -> bool:
        """True if it cannot fork any more."""
        return self._process is not None and self._process.poll() is not None

    def fork(
        self, child: ForkedChild, arguments: Sequence[str], descriptors: Sequence[int]
    ) -> None:
        """Start a process, as soon as the modules are imported.

        ``child`` learns of its start and of its end. The arguments follow those of the constructor,
        and the descriptors are its standard input, output and error.
        """
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # What the imports print belongs to the run that waits for them.
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=descriptors[2],
                stderr=descriptors[2],
                start_new_session=True,
                pass_fds=[theirs.fileno()],
                env=self._environ,
            )
            theirs.close()
            listen = partial(self._listen, self._control, self._process)
            threading.Thread(target=listen, daemon=True).start()
        number = next(self._numbers)
        self._forks[number] = child
        request = json.dumps([number, *arguments]).encode()
        try:
            socket.send_fds(self._control, [request], descriptors)
        except OSError:  # it has exited
            self.kill()
            assert self._process is not None
            child.set_ended(self._process.wait())

    def kill(self) -> None:
        """End the process, and all processes that it has forked, at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _listen(self, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
        with control, suppress(OSError):
            while data := control.recv(_READ_BYTES):
                number, pid, code = json.loads(data)
                if code is None:
                    self._forks[number].set_started(pid)
                else:
                    self._forks.pop(number).set_ended(code)
        code = process.wait()
        for child in list(self._forks.values()):
            child.signal_kill()
            child.set_ended(code)


class ForkedChild(ProgramChild):
    """A child that a :class:`WarmProgram` forks; both callbacks are called in another thread."""

    def __init__(
        self,
        warm: WarmProgram,
        arguments: Sequence[str],
        *,
        on_output: Callable[[bytes], object],
        on_start: Callable[[], object],
    ) -> None:
        self._warm, self._on_start = warm, on_start
        self._pid = 0
        self._code: int | None = None
        self._started, self._ended = threading.Event(), threading.Event()
        (stdin, to_child), (from_child, stdout), (from_stderr, stderr) = (
            os.pipe() for _ in range(3)
        )
        try:
            warm.fork(self, arguments, (stdin, stdout, stderr))
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        self._connect(
            os.fdopen(to_child, "wb"),
            os.fdopen(from_child, "rb"),
            os.fdopen(from_stderr, "rb"),
            on_output,
        )

    @property
    def pid(self) -> int:
        """Process id; waits until it has started. 0: it never did."""
        self._started.wait()
        return self._pid

    def set_started(self, pid: int) -> None:
        """Record that it runs."""
        self._pid = pid
        self._started.set()
        self._on_start()

    def set_ended(self, code: int) -> None:
        """Record how it ended."""
        self._code = code
        self._ended.set()
        self._started.set()

    def wait(self, seconds: float | None = None) -> int | None:
        self._ended.wait(seconds)
        return self._code

    def signal_kill(self) -> None:
        if not self._started.is_set():
            # An import may hang; the next run starts another warm process.
            self._warm.kill()
        elif self._pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)


def serve_forks(
    run: Callable[[], object], program: str, preload: Callable[[], object] = lambda: None
) -> NoReturn:
    """Fork this process whenever the parent asks for it, until the parent exits.

    ``run`` is called in the fork, with its arguments in ``sys.argv``; a process that cannot be
    forked starts the source ``program`` instead. ``preload`` imports what only later forks need,
    after the first one has started.
    """
    *arguments, descriptor = sys.argv[1:]
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)
    # From now on, only forks print.
    with open(os.devnull, "r+b") as nothing:
        sys.stdout.flush()
        for standard in (1, 2):
            os.dup2(nothing.fileno(), standard)
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, int] = {}
    is_first, is_forkable = True, _prepare_forks()

    def report(number: int, pid: int, code: int | None = None) -> None:
        with suppress(OSError):  # the parent has exited
            control.send(json.dumps([number, pid, code]).encode())

    def start(number: int, own: Sequence[str], standards: Sequence[int]) -> int:
        if not is_forkable:
            stdin, stdout, stderr = standards
            command = python_command("-c", program, *arguments, *own)
            pid = subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            ).pid
            report(number, pid)
            return pid
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            # Not before: the parent kills its process group.
            report(number, os.getpid())
            for standard, given in enumerate(standards):
                os.dup2(given, standard)
                os.close(given)
            for inherited in (control.detach(), wake_reader, wake_writer):
                os.close(inherited)
            sys.argv[1:] = [*arguments, *own]
            run()
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    while True:
        ready = select.select([control.fileno(), wake_reader], [], [])[0]
        if wake_reader in ready:
            os.read(wake_reader, _READ_BYTES)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    code = os.waitstatus_to_exitcode(status)
                    report(running.pop(pid), pid, code)
        if control.fileno() in ready:
            data, standards, _, _ = socket.recv_fds(control, _READ_BYTES, 3)
            if not data:
                break
            number, *own = json.loads(data)
            try:
                pid = start(number, own, standards)
            except OSError as error:
                os.write(standards[2], f"cannot start a process: {error}\n".encode())
                report(number, 0, 1)
            else:
                running[pid] = number
            for standard in standards:
                os.close(standard)
            if is_first:
                is_first = False
                with suppress(Exception):  # the fork that needs the module reports it
                    preload()
                is_forkable = is_forkable and _prepare_forks()
    for pid in running:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os._exit(0)


def _prepare_forks() -> bool:
    """Return True if this process can be forked; keep forks from copying its objects."""
    gc.collect()
    # The collector of a fork would write to each object, and so copy it.
    gc.freeze()
    # Libraries such as OpenBLAS end their threads in the first fork, and start them when needed.
    trial = os.fork()
    if not trial:
        os._exit(0)
    os.waitpid(trial, 0)
    return len(os.listdir("/proc/self/task")) == 1


def open_parent_pipe() -> MessagePipe:
    """Return the pipe to the parent, in a program that a :class:`ProgramChild` runs.

    From now on, standard input is empty, and standard output is standard error.
    """
    # Not inherited by child processes: an open copy would hide that this process has exited.
    reader, writer = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    output = open(writer, "wb")  # noqa: SIM115 - open until the process exits
    output.write(_PIPE_MARK)
    output.flush()
    return MessagePipe(open(reader, "rb"), output)


def prepare_program(nice: int) -> None:
    """Prepare the process of a :class:`ProgramChild`; ``nice`` is added to its niceness."""
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    show_output_at_once()
    # If a library crashes, print the Python traceback.
    faulthandler.enable()
    if sys.platform == "linux":
        # The end of the pipe shows the end of the parent too, but not while a stuck library holds
        # the interpreter lock.
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if hasattr(os, "nice"):
        os.nice(nice)
