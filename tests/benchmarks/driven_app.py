"""Run the app on a pseudo-terminal, send keys and read its output."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0
_ROOT = Path(__file__).parents[2]
_MOVE = re.compile(rb"\x1b\[(\d+);(\d+)H")
_ESCAPE = re.compile(rb"\x1b(?:\[[0-9;?<>=]*\$?[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
_KEPT = 200_000


class DrivenApp:
    """Running app on a pseudo-terminal.

    Args:
        pid: Process ID.
        terminal: File descriptor of the pseudo-terminal.
    """

    def __init__(self, pid: int, terminal: int) -> None:
        self.pid = pid
        self._terminal = terminal
        self._drawn = b""

    def read(self, seconds: float) -> bytes:
        """Read the output, with a timeout for the first part."""
        if not select.select([self._terminal], [], [], max(0.0, seconds))[0]:
            return b""
        new = os.read(self._terminal, 1 << 16)
        self._drawn = (self._drawn + new)[-_KEPT:]
        return new

    def rest(self, seconds: float) -> None:
        """Read the output for a number of seconds."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self.read(left)

    def press(self, keys: bytes) -> None:
        """Send keys, encoded as by a terminal."""
        os.write(self._terminal, keys)

    @property
    def text(self) -> str:
        """Return the text that was drawn since the last wait, in drawing order."""
        return _ESCAPE.sub(b"", self._drawn).decode(errors="replace")

    def sees(self, *texts: str) -> None:
        """Wait until all texts have been drawn."""
        end = time.perf_counter() + PATIENCE
        while not all(text in self.text for text in texts):
            assert time.perf_counter() < end, f"no {texts} in {self.text[-4000:]}"
            self.read(0.1)
        self._drawn = b""

    def latest(self, pattern: str) -> str | None:
        """Return the last match of the group of a pattern."""
        found = re.findall(pattern, self.text)
        return str(found[-1]) if found else None

    def answered(self, key: bytes, columns: range) -> float:
        """Send a key; return the seconds until something is drawn in the columns."""
        while self.read(0.0):
            pass
        start = time.perf_counter()
        self.press(key)
        seen = b""
        while time.perf_counter() - start < PATIENCE:
            seen = seen[-20:] + self.read(1.0)
            if any(int(column) - 1 in columns for _, column in _MOVE.findall(seen)):
                return time.perf_counter() - start
        raise AssertionError(f"{key!r} is not answered")

    def resident(self) -> int:
        """Return the memory of the app and its workers, in bytes."""
        children = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True)
        pids = [self.pid, *map(int, children.stdout.split())]
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        return pages * resource.getpagesize()


@contextmanager
def app(
    arguments: Sequence[str], folder: Path, size: tuple[int, int] = (200, 60)
) -> Iterator[DrivenApp]:
    """Run ``tdx tui`` with arguments; kill it at the end."""
    ours, theirs = pty.openpty()
    columns, rows = size
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    variables = {"TDX_CONFIG": "config.toml", "XDG_STATE_HOME": "state", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tdx", "tui", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        start_new_session=True,
        env={
            **os.environ,
            **{name: str(folder / value) for name, value in variables.items() if name != "TERM"},
            "TERM": variables["TERM"],
            "PYTHONPATH": str(_ROOT),
        },
    )
    os.close(theirs)
    try:
        yield DrivenApp(process.pid, ours)
    finally:
        with_patience(process)
        os.close(ours)


def with_patience(process: subprocess.Popen[bytes]) -> None:
    """Kill a process; its workers exit on their own."""
    process.send_signal(signal.SIGKILL)
    process.wait()
