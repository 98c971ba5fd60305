"""Helpers that run ``tdx`` in a fork of this process, which has already imported torch."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from multiprocessing import forkserver
from typing import Any, cast

from tdx.cli import main
from tests.processes import fork


@dataclass(frozen=True)
class Completed:
    """Exit code and output of one run of ``tdx``."""

    code: int
    out: str
    err: str


def _forget_fork_server() -> None:
    """Clear the fork server of an earlier test, which is not a child of the fork."""
    server: Any = forkserver._forkserver
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


def start(
    arguments: tuple[str, ...], streams: dict[int, int], before: Callable[[], Any] | None = None
) -> int:
    """Start ``tdx`` in a fork.

    Args:
        arguments: Arguments after ``tdx``.
        streams: Open file descriptors by number: 0, 1, 2.
        before: Called in the fork.

    Returns:
        Process ID.
    """
    return start_function(partial(call_main, *arguments), streams, before)


def call_main(*arguments: str) -> None:
    """Run ``tdx`` in this process, which is a fork."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _forget_fork_server()
    sys.argv = ["tdx", *arguments]
    main()


def start_function(
    function: Callable[[], object],
    streams: dict[int, int],
    before: Callable[[], Any] | None = None,
) -> int:
    """Call a function in a fork that ends with 0, or as ``sys.exit`` says.

    Args:
        function: Its exceptions are printed.
        streams: Open file descriptors by number: 0, 1, 2.
        before: Called in the fork before the function.

    Returns:
        Process ID.
    """
    child = fork()
    if child:
        return child
    code: Any = 70
    try:
        for number, stream in streams.items():
            os.dup2(stream, number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        # stderr is line-buffered, as in any Python process.
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", 1, closefd=False)  # noqa: SIM115
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
        if before is not None:
            before()
        function()
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        for file in (sys.stdout, sys.stderr):
            try:
                file.flush()
            except (OSError, ValueError):
                code = code or 71
        os._exit(int(code or 0))


def run(
    *arguments: str,
    before: Callable[[], Any] | None = None,
    stdin: str | None = None,
    encoding: str = "utf-8",
) -> Completed:
    """Run ``tdx`` in a fork and return its output.

    Args:
        arguments: Arguments after ``tdx``.
        before: Called in the fork.
        stdin: Text of stdin. ``None``: stdin of this process.
        encoding: Encoding of stdout and stderr.
    """

    return run_function(
        partial(call_main, *arguments), before=before, stdin=stdin, encoding=encoding
    )


def run_function(
    function: Callable[[], object],
    *,
    before: Callable[[], Any] | None = None,
    stdin: str | None = None,
    encoding: str = "utf-8",
) -> Completed:
    """Call a function in a fork, for what it does to the process, and return its output.

    Args:
        function: Its exceptions are printed.
        before: Called in the fork before the function.
        stdin: Text of stdin. ``None``: stdin of this process.
        encoding: Encoding of stdout and stderr.
    """

    def prepare() -> None:
        for stream in (sys.stdout, sys.stderr):
            cast(TextIOWrapper, stream).reconfigure(encoding=encoding)
        if before is not None:
            before()

    streams = {number: os.memfd_create(f"stream{number}") for number in (1, 2)}
    if stdin is not None:
        streams[0] = os.memfd_create("stdin")
        os.write(streams[0], stdin.encode())
        os.lseek(streams[0], 0, os.SEEK_SET)
    child = start_function(function, streams, prepare)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if stdin is not None:
        os.close(streams[0])
    texts = []
    for number in (1, 2):
        os.lseek(streams[number], 0, os.SEEK_SET)
        with open(streams[number], encoding=encoding) as file:
            texts.append(file.read())
    return Completed(code, *texts)


def run_merged(*arguments: str) -> str:
    """Run ``tdx`` in a fork and return stdout and stderr in the order they were written."""
    stream = os.memfd_create("streams")
    os.waitpid(start(arguments, {1: stream, 2: stream}), 0)
    os.lseek(stream, 0, os.SEEK_SET)
    with open(stream, encoding="utf-8") as file:
        return file.read()


def assert_quiet_without_reader(arguments: tuple[str, ...]) -> None:
    """Check that a process exits with 0 and prints nothing to stderr if nobody reads its stdout."""
    reading, writing = os.pipe()
    os.close(reading)
    err = os.memfd_create("err")
    child = start(arguments, {1: writing, 2: err})
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.fstat(err).st_size == 0
    os.close(err)


def assert_refused(completed: Completed, code: int, message: str, hint: str) -> None:
    """Check that a process printed an error on one line and a hint on the next."""
    assert (completed.code, completed.out) == (code, "")
    first, second = completed.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert hint in second
