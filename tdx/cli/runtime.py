"""Streams and signals of the process: text that any terminal can show, and a reliable Ctrl-C."""

from __future__ import annotations

import codecs
import faulthandler
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from importlib.machinery import ExtensionFileLoader
from select import select
from traceback import walk_stack
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

from tdx.foundation.errors import EnvError, ExitCode
from tdx.foundation.text import escape_control_characters, escape_json

if TYPE_CHECKING:
    from types import FrameType

SCHEMA_VERSION = 1
"""Version of the JSON output."""

_COLOR = re.compile(r"\x1b\[[\d;]*m")

_ASCII = {
    "…": "...",
    "–": "-",
    "±": "+-",
    "≤": "<=",
    "≥": ">=",
    "→": "->",
    "×": "x",
    "’": "'",
    "µ": "u",
    "▌": "-",
    **dict(zip("▁▂▃▄▅▆▇█", ".:-=+*#@", strict=True)),
}


class EscapingStream:
    r"""A text stream that escapes control characters, apart from newlines and tabs.

    It removes colors; code that prints its own colors writes to :func:`raw_stream`. A ``\r`` at the
    start or end of one write is kept, because progress bars of libraries need it.

    Example:
        >>> _ = EscapingStream(sys.stdout).write("\x1b[31mPong\x1b[2J\n")
        Pong\x1b[2J
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text and return its length."""
        start = "\r" if text.startswith("\r") else ""
        end = "\r" if text.endswith("\r") and len(text) > 1 else ""
        inner = _COLOR.sub("", text[len(start) : len(text) - len(end)])
        self.stream.write(start + escape_control_characters(inner, keep="\n\t") + end)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def raw_stream(stream: TextIO) -> TextIO:
    """Return the stream behind an :class:`EscapingStream`, to write text with colors."""
    return stream.stream if isinstance(stream, EscapingStream) else stream


@contextmanager
def prepared_streams() -> Iterator[None]:
    """Replace stdout and stderr with streams that accept any text.

    Without UTF-8 other characters are replaced by ASCII. A closed stream discards its text. Stderr,
    which receives messages and the output of libraries, escapes control characters; text for stdout
    is escaped when it is laid out.
    """
    before = sys.stderr
    sys.stdout = _prepare_stream(sys.stdout)
    sys.stderr = escaping = cast(TextIO, EscapingStream(raw_stream(_prepare_stream(before))))
    try:
        yield
    finally:
        if before is not None:
            try:
                before.flush()
            except (OSError, ValueError):
                # Messages that cannot be written must not change the exit code: Python exits with
                # 120 if the last flush of stderr fails.
                close_quietly(before)
            if sys.stderr is escaping:
                sys.stderr = before


def _prepare_stream(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not supports_unicode(stream) and hasattr(stream, "reconfigure"):
        codecs.register_error("tdx.ascii", _to_ascii)
        stream.reconfigure(errors="tdx.ascii")
    return stream


def supports_unicode(stream: TextIO) -> bool:
    """Return True if ``stream`` can encode every character."""
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in text), error.end


def json_text(document: Mapping[str, Any], stream: TextIO, indent: int | None = None) -> str:
    """Return a document as JSON that a stream can encode, with a newline at the end.

    Control and bidirectional characters become JSON escapes.

    Without UTF-8, the JSON is ASCII. Without ``indent``, everything is on one line.
    """
    import json

    ascii_only = not supports_unicode(stream)
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only, allow_nan=False)
    return f"{escape_json(text)}\n"


def write_verbatim(text: str) -> None:
    """Write a file or a diff to stdout; escape control characters only on a terminal."""
    output = escape_control_characters(text, keep="\n\t") if sys.stdout.isatty() else text
    sys.stdout.write(output)


def close_quietly(stream: TextIO) -> None:
    """Redirect ``stream`` to /dev/null, so that flushing its buffer cannot fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


GRACE_SECONDS = 4.0
"""Time that a run has to end by itself after Ctrl-C."""

_STDOUT, _STDERR = 1, 2


@contextmanager
def reliable_sigint() -> Iterator[Callable[[], None]]:
    """Raise KeyboardInterrupt at the end of a block if one was lost in it.

    Yields a function that does so earlier. Third-party code may catch a Ctrl-C, and Python discards
    exceptions that are raised in a finalizer: libraries that free many small objects, such as h5py,
    lose many of them.

    A process that ignores SIGINT, as a background job of a shell does, continues to ignore it, and
    a handler of the caller is kept. A block inside another one shares its handler.
    """
    previous, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    if isinstance(previous, _InterruptHandler):
        with previous.reliable() as check:
            yield check
        return
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or previous is not signal.default_int_handler:
        yield lambda: None
        return

    def on_unraisable(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            hook(unraisable)

    handler = _InterruptHandler()
    with handler.reliable() as check:
        signal.signal(signal.SIGINT, handler)
        sys.unraisablehook = on_unraisable
        try:
            yield check
        finally:
            signal.signal(signal.SIGINT, previous)
            sys.unraisablehook = hook


class _InterruptHandler:
    """Handler of SIGINT that raises KeyboardInterrupt, but not into an import of an extension.

    The initialization of an extension module, such as that of ale-py, may end the process with
    SIGABRT or SIGSEGV if an exception reaches it: there the signal is sent again a moment later.
    """

    _INITIALIZATION = (
        ExtensionFileLoader.create_module.__code__,
        ExtensionFileLoader.exec_module.__code__,
    )
    _RETRY_SECONDS = 0.02

    def __init__(self) -> None:
        self._interrupts = 0
        self._retry: threading.Timer | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += 1
        if any(caller.f_code in self._INITIALIZATION for caller, _ in walk_stack(frame)):
            self._cancel_retry()
            self._retry = threading.Timer(self._RETRY_SECONDS, signal.raise_signal, (number,))
            self._retry.daemon = True
            self._retry.start()
            return
        raise KeyboardInterrupt

    @contextmanager
    def reliable(self) -> Iterator[Callable[[], None]]:
        """Raise KeyboardInterrupt at the end of a block if a signal came in it."""
        before = self._interrupts

        def check() -> None:
            if self._interrupts > before:
                self._cancel_retry()
                raise KeyboardInterrupt

        try:
            yield check
        finally:
            check()

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()


_reported_interrupts: list[str] = []


def report_interrupt(message: str) -> None:
    """Print a message about Ctrl-C on a line of its own, instead of the echoed ``^C``."""
    _reported_interrupts.append(message)
    with suppress(OSError, ValueError):
        stream = raw_stream(sys.stderr)
        stream.write("\r\x1b[K" if stream.isatty() else "")
        print(escape_control_characters(message), file=stream)


def finish_interrupt() -> None:
    """Say on a terminal that the run was interrupted, unless a message was printed."""
    if not _reported_interrupts and sys.stderr.isatty():
        report_interrupt("interrupted")
    _reported_interrupts.clear()


class InterruptWatch:
    """Records Ctrl-C, and ends the process if it does not end by itself soon after.

    A thread receives the signal through the wakeup descriptor, even while the main thread imports a
    module, runs C code or waits for a worker to start. After :data:`GRACE_SECONDS` it kills the
    worker processes and exits with code 130.
    """

    def __init__(self) -> None:
        self._has_ended = threading.Event()
        self._is_interrupted = False
        self._pair: tuple[socket.socket, socket.socket] | None = None
        self._previous = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # Sockets rather than a pipe: Windows cannot wait for one.
            reading, writing = self._pair = socket.socketpair()
            writing.setblocking(False)
            self._previous = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
            threading.Thread(
                target=self._watch, args=[reading], name="tdx-interrupts", daemon=True
            ).start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pair is not None:
            signal.set_wakeup_fd(self._previous)
            self._pair[1].close()
        # Last: until here a signal needs somebody to receive it, and then the thread, which reads
        # the end of the stream or has read an interrupt, closes the other side.
        self._has_ended.set()

    @property
    def is_interrupted(self) -> bool:
        """True if the user pressed Ctrl-C."""
        has_input = False
        # The thread may have closed it.
        with suppress(OSError, ValueError):
            has_input = self._pair is not None and bool(select([self._pair[0]], (), (), 0)[0])
        return self._is_interrupted or has_input

    def _watch(self, reading: socket.socket) -> None:
        while signals := reading.recv(16):
            if signal.SIGINT in signals:
                self._is_interrupted = True
                if not self._has_ended.wait(GRACE_SECONDS):
                    kill_worker_processes()
                    os._exit(ExitCode.INTERRUPTED)
                break
        reading.close()


def kill_worker_processes() -> None:
    """Kill the worker processes of this process; their fork server ends with this process."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    for child in multiprocessing.active_children() if multiprocessing is not None else ():
        with suppress(OSError, ValueError, AssertionError):
            child.kill()
            child.join(1.0)


@contextmanager
def third_party_code() -> Iterator[None]:
    """Run code of envs and their libraries inside.

    Its output, also from C or from worker processes, goes to stderr, so that stdout contains only
    the result. A Ctrl-C that it swallows is raised again at the end. After a crash, such as a
    segmentation fault, stderr shows in which line of the env it happened.

    Raises:
        EnvError: The code called ``sys.exit``.
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    with reliable_sigint(), _stdout_to_stderr(), _reported_crashes():
        try:
            yield
        except SystemExit as error:
            raise EnvError(
                f"the env, or a library that it uses, called sys.exit({error.code!r})",
                hint="--debug shows where",
            ) from error


@contextmanager
def _reported_crashes() -> Iterator[None]:
    """Print the stack if the process crashes, which would otherwise end it without a word."""
    if faulthandler.is_enabled() or sys.__stderr__ is None:
        yield
        return
    # A standard stream may be closed.
    with suppress(OSError, ValueError):
        faulthandler.enable(sys.__stderr__, all_threads=False)
    try:
        yield
    finally:
        faulthandler.disable()


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    with redirect_stdout(sys.stderr):
        _flush()
        try:
            saved = os.dup(_STDOUT)
            os.dup2(_STDERR, _STDOUT)
        except OSError:
            # One of them is closed: there is nothing to separate.
            yield
            return
        try:
            yield
        finally:
            _flush()
            os.dup2(saved, _STDOUT)
            os.close(saved)


def _flush() -> None:
    for stream in (sys.__stdout__, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    import ctypes

    # C code has its own buffer, which it would flush into the result later.
    library = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    library.fflush(None)
