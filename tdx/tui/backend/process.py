"""A worker process as seen from the app: start, send, kill, and its captured output."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress

from tdx.foundation.processes import ExitReason, ForkedChild, ProgramChild, WarmProgram
from tdx.tui.backend.activity import ActivityRecord

TAIL_BYTES = 64 * 1024
"""Number of bytes at the end of the output that are kept."""


class Output:
    """The end of what a worker has printed."""

    def __init__(self) -> None:
        self._end = bytearray()
        self._unread_bytes = 0
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append output; any thread may."""
        with self._lock:
            self._end += data
            del self._end[:-TAIL_BYTES]
            self._unread_bytes += len(data)

    def tail(self, max_bytes: int = TAIL_BYTES) -> str:
        """Return the end of the output.

        Example:
            >>> output = Output()
            >>> output.write(b"first, then last")
            >>> output.tail(4)
            'last'
        """
        with self._lock:
            return self._end[-max_bytes:].decode(errors="replace").strip()

    def read_new(self, *, last: bool = False) -> tuple[str, int]:
        """Return the complete lines since the last call, and how many bytes before them are lost.

        ``last`` includes an incomplete last line, because no more output will follow.

        Example:
            >>> output = Output()
            >>> output.write(b"one line, and half a")
            >>> output.read_new(), output.read_new(last=True)
            (('', 0), ('one line, and half a', 0))
        """
        with self._lock:
            skipped_bytes = max(0, self._unread_bytes - TAIL_BYTES)
            end = self._end[len(self._end) - self._unread_bytes + skipped_bytes :]
            whole = end if last or skipped_bytes else end[: end.rfind(b"\n") + 1]
            self._unread_bytes = len(end) - len(whole)
        return whole.decode(errors="replace"), skipped_bytes


_BOOTSTRAP = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from tdx.foundation.processes import open_parent_pipe
pipe = open_parent_pipe()
from tdx.tui.backend.worker import main
main(pipe, sys.argv[-1])
"""
_WARM_UP = f"""
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from tdx.tui.backend.worker import serve
serve({_BOOTSTRAP!r})
"""
_QUIET_ENVIRONMENT = {
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "KINETO_LOG_LEVEL": "99",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""Silences start-up messages of libraries, which do not belong in the log."""


def _environment() -> dict[str, str]:
    headless = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        headless = {}
    return {**_QUIET_ENVIRONMENT, **os.environ, **headless}


def warm_up() -> WarmProgram | None:
    """Return a process that forks workers; ``None`` where forks are not safe."""
    # Windows has no fork, and the system libraries of macOS fail in one.
    if not hasattr(os, "fork") or sys.platform != "linux":
        return None
    return WarmProgram(_WARM_UP, [json.dumps(sys.path)], environ=_environment())


class WorkerProcess:
    """A worker process, from start to exit.

    Its output is captured, since an env that prints would garble the screen. ``on_message`` and
    ``on_exit`` are called in one thread, ``on_output`` in another, and ``on_start`` in any.
    """

    def __init__(
        self,
        on_message: Callable[[object], None],
        on_exit: Callable[[], None],
        on_output: Callable[[], None] = lambda: None,
        on_start: Callable[[], None] = lambda: None,
        warm: WarmProgram | None = None,
    ) -> None:
        self.output = Output()
        descriptor, self._activity_path = tempfile.mkstemp(prefix="tdx-")
        os.close(descriptor)
        self.activity = ActivityRecord(self._activity_path)

        def write(data: bytes) -> None:
            self.output.write(data)
            on_output()

        self._child: ProgramChild
        if warm is not None:
            self._child = ForkedChild(
                warm, [self._activity_path], on_output=write, on_start=on_start
            )
        else:
            arguments = [json.dumps(sys.path), self._activity_path]
            self._child = ProgramChild(
                _BOOTSTRAP, arguments, on_output=write, environ=_environment()
            )
            on_start()
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

    @property
    def exit_reason(self) -> ExitReason:
        """Why the process has ended."""
        return self._child.exit_reason

    def close(self) -> None:
        """Kill the process and release its resources."""
        self.kill()
        self.activity.close()
        with suppress(OSError):  # the worker has deleted it
            os.unlink(self._activity_path)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._on_message(self._child.connection.recv())
        self._on_exit()
        self._child.connection.close()
