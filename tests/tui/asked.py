"""Requests with handlers, for tests of the workers."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass

from tdx.foundation.errors import ArgumentError
from tdx.tui.backend.messages import Job, Request
from tdx.tui.backend.worker import register_handler


@dataclass(frozen=True)
class Echo(Request[tuple[int, int]]):
    """Return the number of requests that this worker has answered."""

    value: int


@dataclass(frozen=True)
class Fail(Request[None]):
    """Raise an exception, or end the process."""

    kind: str


@dataclass(frozen=True)
class Busy(Request[str]):
    """Push numbers until cancelled, with the values received meanwhile."""

    most: int = 1_000_000


@dataclass(frozen=True)
class Noise(Request[None]):
    """Print a number of bytes, then wait for cancellation."""

    size: int


@dataclass(frozen=True)
class Hang(Request[None]):
    """Print, then hang.

    Args:
        child: Start a child process that hangs too.
        stuck: Hang in C code that holds the interpreter lock.
    """

    child: bool = False
    stuck: bool = False


@dataclass(frozen=True)
class Print(Request[None]):
    """Write a line to stdout and one to stderr."""

    text: str


def echo(request: Echo, job: Job) -> tuple[int, int]:
    count: list[int] = job.get_cached("count", list)
    count.append(request.value)
    return request.value, len(count)


def fail(request: Fail, job: Job) -> None:
    if request.kind == "tdx":
        raise ArgumentError("that is wrong", hint="do it right")
    if request.kind == "exit":
        sys.stdout.write("last words")
        sys.stdout.flush()
        os._exit(7)
    if request.kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    raise ValueError("unforeseen")


def busy(request: Busy, job: Job) -> str:
    received: list[object] = []
    for number in range(request.most):
        received += job.receive()
        if job.is_cancelled:
            return f"cancelled, received {received}"
        job.push("number", number)
        job.push("received", tuple(received))
        time.sleep(0.0005)
    return "done"


def noise(request: Noise, job: Job) -> None:
    os.write(1, b"." * request.size)
    os.write(2, b"the end")
    while not job.wait(0.01):
        pass


def hang(request: Hang, job: Job) -> None:
    sys.stdout.write("I hang")
    if request.child and os.fork() == 0:
        time.sleep(1000)
    job.push("pid", os.getpid())
    if request.stuck:
        ctypes.PyDLL(None).sleep(1000)
    while True:
        time.sleep(1000)


def write(request: Print, job: Job) -> None:
    sys.stdout.write(f"{request.text}\n")
    sys.stderr.write(f"careful, {request.text}\n")


register_handler(Echo, echo)
register_handler(Fail, fail)
register_handler(Busy, busy)
register_handler(Noise, noise)
register_handler(Hang, hang)
register_handler(Print, write)
