"""``tdx`` in processes of its own.

Each is a fork of this one that runs ``tdx`` from its arguments to its exit code on its own streams;
a fork has torch loaded already.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any

from tdx.cli import main


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it wrote."""

    code: int
    out: str
    err: str


def _forget_fork_server() -> None:
    """Let a fork start a fork server of its own: one of an earlier test is not its child."""
    server: Any = forkserver._forkserver
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


def started(
    arguments: tuple[str, ...], streams: dict[int, int], before: Callable[[], Any] | None = None
) -> int:
    """Start ``tdx`` in a process of its own.

    Args:
        arguments: after ``tdx``.
        streams: what its file descriptors are.
        before: called in the process.

    Returns:
        its id.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    code: Any = 70
    try:
        for number, stream in streams.items():
            os.dup2(stream, number)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _forget_fork_server()
        if before is not None:
            before()
        sys.argv = ["tdx", *arguments]
        main()
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


def run(*arguments: str, before: Callable[[], Any] | None = None) -> Ended:
    """Run ``tdx`` to its end with its output caught."""
    out, err = (os.memfd_create(name) for name in ("out", "err"))
    child = started(arguments, {1: out, 2: err}, before)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = []
    for stream in (out, err):
        os.lseek(stream, 0, os.SEEK_SET)
        with open(stream, encoding="utf-8") as file:
            texts.append(file.read())
    return Ended(code, *texts)


def ends_quietly_without_a_reader(arguments: tuple[str, ...]) -> None:
    """See that a process ends with 0 and without a word where nobody reads what it writes."""
    reading, writing = os.pipe()
    os.close(reading)
    err = os.memfd_create("err")
    child = started(arguments, {1: writing, 2: err})
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.fstat(err).st_size == 0
    os.close(err)


def refused(ended: Ended, code: int, message: str, hint: str) -> None:
    """See that a process ended with one line that says what is wrong, and one what to do."""
    assert (ended.code, ended.out) == (code, "")
    first, second = ended.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert hint in second
