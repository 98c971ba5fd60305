"""A worker process as seen from the app: start, send, kill, and its captured output."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from tdx.foundation.processes import ExitReason, ProgramChild
from tdx.tui.backend.activity import ActivityRecord

TAIL_BYTES = 64 * 1024
"""Number of bytes at the end of the output that are kept."""
MAX_BYTES = 1024 * 1024
"""Size above which everything but the end is deleted."""


class Output:
    """An unnamed file that a worker writes its output to; only the end is kept."""

    def __init__(self) -> None:
        self._position = 0
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        # Append even after the file was truncated.
        flags = fcntl.fcntl(self.file, fcntl.F_GETFL)
        fcntl.fcntl(self.file, fcntl.F_SETFL, flags | os.O_APPEND)

    def tail(self, max_bytes: int = TAIL_BYTES) -> str:
        """Return the end of the output.

        Args:
            max_bytes: Maximum number of bytes.

        Example:
            >>> output = Output()
            >>> _ = os.write(output.file.fileno(), b"first, then last")
            >>> output.tail(4)
            'last'
            >>> output.close()
        """
        return self._read_end(max_bytes).decode(errors="replace").strip()

    def read_new(self, *, last: bool = False) -> tuple[str, int]:
        """Return the complete lines written since the last call.

        Args:
            last: Also return an incomplete last line, because no more output will follow.

        Returns:
            The text, and the number of bytes before it that were skipped because they were too
            many.

        Example:
            >>> output = Output()
            >>> _ = os.write(output.file.fileno(), b"one line, and half a")
            >>> output.read_new(), output.read_new(last=True)
            (('', 0), ('one line, and half a', 0))
            >>> output.close()
        """
        size = self._size()
        self._position = min(self._position, size)
        unread = size - self._position
        skipped_bytes = max(0, unread - TAIL_BYTES)
        end = self._read_end(unread - skipped_bytes)
        whole = end if last or skipped_bytes else end[: end.rfind(b"\n") + 1]
        self._position = size - len(end) + len(whole)
        return whole.decode(errors="replace"), skipped_bytes

    def trim(self) -> None:
        """Delete everything but the end if the file has become large."""
        if self._size() > MAX_BYTES:
            end = self._read_end(TAIL_BYTES)
            os.ftruncate(self.file.fileno(), 0)
            with suppress(OSError):  # the disk is full
                os.write(self.file.fileno(), end)
            self._position = self._size()

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def _read_end(self, max_bytes: int) -> bytes:
        return os.pread(self.file.fileno(), max_bytes, max(0, self._size() - max_bytes))


_BOOTSTRAP = """
import json, sys
descriptor, path, shared = sys.argv[1:]
sys.path[:] = json.loads(path)
from tdx.tui.backend.worker import main
main(int(descriptor), int(shared))
"""
_QUIET_ENVIRONMENT = {
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "KINETO_LOG_LEVEL": "99",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""Silences start-up messages of libraries, which do not belong in the log."""
_MAX_OUTPUT_TAIL = 4000


class WorkerProcess:
    """A worker process, from start to exit.

    Its output goes to a file, since an env that prints would garble the screen.

    Args:
        on_message: Called with each message, in a separate thread.
        on_exit: Called when the process has exited, in the same thread.

    Attributes:
        output: What it has printed.
        activity: What it is doing; after its death, what it was doing.
    """

    def __init__(self, on_message: Callable[[object], None], on_exit: Callable[[], None]) -> None:
        self.output = Output()
        headless = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
        if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            headless = {}
        with tempfile.TemporaryFile() as shared:
            self.activity = ActivityRecord(shared.fileno())
            self._child = ProgramChild(
                _BOOTSTRAP,
                [json.dumps(sys.path), str(shared.fileno())],
                output=self.output.file,
                descriptors=[shared.fileno()],
                environ={**_QUIET_ENVIRONMENT, **os.environ, **headless},
            )
        self._on_message, self._on_exit = on_message, on_exit
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def start(self) -> None:
        """Call the callbacks from now on; they may use this object, so it exists before."""
        self._listener.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def send(self, message: object) -> None:
        """Send a message; do nothing if the process has exited."""
        with suppress(OSError):
            self._child.connection.send(message)

    def kill(self) -> None:
        """Kill the process and its child processes; ``on_message`` gets what it has sent."""
        self._child.kill()
        if threading.current_thread() is not self._listener:
            self._listener.join(timeout=1)

    def output_tail(self) -> str:
        """Return the end of the output."""
        return self.output.tail(_MAX_OUTPUT_TAIL)

    @property
    def exit_reason(self) -> ExitReason:
        """Why the process has ended."""
        return self._child.exit_reason

    def close(self) -> None:
        """Kill the process and release its resources."""
        self.kill()
        self.output.close()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._on_message(self._child.connection.recv())
        self._on_exit()
        self._child.connection.close()
