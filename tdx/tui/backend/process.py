"""A worker process as seen from the app: start, send, kill, and its captured output."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import IO, Any

TAIL_BYTES = 64 * 1024
"""Bytes of the end that are kept."""
MAX_BYTES = 1024 * 1024
"""Bytes above which what came before the end is thrown away."""


class Output:
    """A file without a name that processes write to, for as long as somebody holds it."""

    def __init__(self) -> None:
        self._position = 0
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        # Whoever writes writes at the end, also where the file was made shorter meanwhile.
        flags = fcntl.fcntl(self.file, fcntl.F_GETFL)
        fcntl.fcntl(self.file, fcntl.F_SETFL, flags | os.O_APPEND)

    def tail(self, max_bytes: int = TAIL_BYTES) -> str:
        """The end of what was written.

        Args:
            most: how many bytes of it.

        Example:
            >>> output = Output()
            >>> _ = os.write(output.file.fileno(), b"first, then last")
            >>> output.tail(4)
            'last'
            >>> output.close()
        """
        return self._read_end(max_bytes).decode(errors="replace").strip()

    def read_new(self, *, last: bool = False) -> tuple[str, int]:
        """What was written since this was asked before, in whole lines.

        Args:
            last: whether nothing more will come, so that a line need not be whole.

        Returns:
            The text, and how many bytes before it are left out because they are too many.

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
        found = self._read_end(unread - skipped_bytes)
        whole = found if last or skipped_bytes else found[: found.rfind(b"\n") + 1]
        self._position = size - len(found) + len(whole)
        return whole.decode(errors="replace"), skipped_bytes

    def trim(self) -> None:
        """Throw away all but the end where it has become much: a disk is not without end."""
        if self._size() > MAX_BYTES:
            end = self._read_end(TAIL_BYTES)
            os.ftruncate(self.file.fileno(), 0)
            with suppress(OSError):  # the disk is full
                os.write(self.file.fileno(), end)
            self._position = self._size()

    def close(self) -> None:
        """Give the file back."""
        self.file.close()

    def _size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def _read_end(self, max_bytes: int) -> bytes:
        return os.pread(self.file.fileno(), max_bytes, max(0, self._size() - max_bytes))


_BOOTSTRAP = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from tdx.tui.backend.worker import main
main(int(sys.argv[1]))
"""
_QUIET_ENVIRONMENT = {
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "KINETO_LOG_LEVEL": "99",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""What libraries say of themselves is none of what the log is for."""
_MAX_OUTPUT_TAIL = 4000
_CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


class WorkerProcess:
    """One process, from its start to its end.

    Its output goes to a file that nobody sees unless it dies: an env that prints would write into
    the middle of the screen. It has a process group of its own, so that what it starts ends with
    it; and it ends by itself when the app is gone.

    Args:
        received: called, in a thread of its own, with each message.
        ended: called, in that thread, when the process has ended.
    """

    def __init__(self, on_message: Callable[[Any], None], on_exit: Callable[[], None]) -> None:
        ours, theirs = socket.socketpair()
        self.output = Output()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.output.file,
                stderr=self.output.file,
                start_new_session=True,
                env={**_QUIET_ENVIRONMENT, **os.environ, **_headless_environment()},
            )
        self._pipe = Connection(ours.detach())
        self._on_message, self._on_exit = on_message, on_exit
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def send(self, message: object) -> None:
        """Send a message; nothing happens where the process has ended."""
        with suppress(OSError):
            self._pipe.send(message)

    def kill(self) -> None:
        """End the process and all that it has started, at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def output_tail(self) -> str:
        """The end of what it wrote to its output."""
        return self.output.tail(_MAX_OUTPUT_TAIL)

    def exit_reason(self) -> str:
        """What became of it, where it is no longer there.

        Returns:
            ``"exit code 3"``, ``"crashed (SIGSEGV)"``, ``"killed (SIGKILL)"``; nothing where it
            ended in good order.
        """
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit code {code}" if code else ""
        try:
            number = signal.Signals(-code)
        except ValueError:
            return f"signal {-code}"
        return f"{'crashed' if number in _CRASH_SIGNALS else 'killed'} ({number.name})"

    def close(self) -> None:
        """Let it end: kill it, and give back what it held."""
        self.kill()
        self._listener.join(timeout=1)
        self.output.close()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._on_message(self._pipe.recv())
        self._on_exit()
        self._pipe.close()


def _headless_environment() -> dict[str, str]:
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return {}
    return {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
