"""Requests for tests of the workers."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass

import numpy as np

from tdx.foundation.errors import ArgumentError
from tdx.tui.backend.messages import Job, Request


@dataclass(frozen=True)
class Echo(Request[tuple[int, int]]):
    """Return the number of requests that this worker has answered."""

    value: int

    def answer(self, job: Job) -> tuple[int, int]:
        count: list[int] = job.get_cached("count", list)
        count.append(self.value)
        return self.value, len(count)


@dataclass(frozen=True)
class Draw(Request[tuple[int, int]]):
    """Return the parent of this process, and a number of NumPy's global generator."""

    def answer(self, job: Job) -> tuple[int, int]:
        return os.getppid(), int(np.random.randint(2**31 - 1))


@dataclass(frozen=True)
class Fail(Request[None]):
    """Raise an exception, or end the process."""

    kind: str

    def answer(self, job: Job) -> None:
        if self.kind == "tdx":
            raise ArgumentError("that is wrong", hint="do it right")
        if self.kind == "exit":
            sys.stdout.write("last words")
            sys.stdout.flush()
            os._exit(7)
        if self.kind == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        raise ValueError("unforeseen")


@dataclass(frozen=True)
class Busy(Request[str]):
    """Push numbers until cancelled, with the values received meanwhile."""

    most: int = 1_000_000

    def answer(self, job: Job) -> str:
        received: list[object] = []
        for number in range(self.most):
            received += job.receive()
            if job.is_cancelled:
                return f"cancelled, received {received}"
            job.push("number", number)
            job.push("received", tuple(received))
            time.sleep(0.0005)
        return "done"


@dataclass(frozen=True)
class Describe(Request[None]):
    """Push a state, then a view, and then the state that describes it."""

    def answer(self, job: Job) -> None:
        for topic, value in (("state", 1), ("view", 2), ("state", 2)):
            job.push(topic, value)


@dataclass(frozen=True)
class Noise(Request[None]):
    """Print a number of bytes, then wait for cancellation."""

    size: int

    def answer(self, job: Job) -> None:
        os.write(1, b"." * self.size)
        os.write(2, b"the end")
        while not job.wait(0.01):
            pass


@dataclass(frozen=True)
class Hang(Request[None]):
    """Print, then hang.

    Args:
        child: Start a child process that hangs too.
        stuck: Hang in C code that holds the interpreter lock.
    """

    child: bool = False
    stuck: bool = False

    def answer(self, job: Job) -> None:
        sys.stdout.write("I hang")
        if self.child and os.fork() == 0:
            time.sleep(1000)
        job.push("pid", os.getpid())
        if self.stuck:
            ctypes.PyDLL(None).sleep(1000)
        while True:
            time.sleep(1000)


@dataclass(frozen=True)
class Print(Request[None]):
    """Write a line to stdout and one to stderr."""

    text: str

    def answer(self, job: Job) -> None:
        sys.stdout.write(f"{self.text}\n")
        sys.stderr.write(f"careful, {self.text}\n")
