"""A worker process as the app holds it: start, talk, end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from tdx.tui.backend.output import Output

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from tdx.tui.backend.worker import main
main(int(sys.argv[1]))
"""
_QUIET = {
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "KINETO_LOG_LEVEL": "99",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""What libraries say of themselves is none of what the log is for."""
_MOST_SAID = 4000
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


class WorkerProcess:
    """One process, from its start to its end.

    Its output goes to a file that nobody sees unless it dies: an env that prints would write into
    the middle of the screen. It has a process group of its own, so that what it starts ends with
    it; and it ends by itself when the app is gone.

    Args:
        received: called, in a thread of its own, with each message.
        ended: called, in that thread, when the process has ended.
    """

    def __init__(self, received: Callable[[Any], None], ended: Callable[[], None]) -> None:
        ours, theirs = socket.socketpair()
        self.output = Output()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.output.file,
                stderr=self.output.file,
                start_new_session=True,
                env={**_QUIET, **os.environ, **_no_screen()},
            )
        self._pipe = Connection(ours.detach())
        self._received, self._ended = received, ended
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

    def last_words(self) -> str:
        """The end of what it wrote to its output."""
        return self.output.end(_MOST_SAID)

    def how_it_ended(self) -> str:
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
        return f"{'crashed' if number in _CRASHES else 'killed'} ({number.name})"

    def close(self) -> None:
        """Let it end: kill it, and give back what it held."""
        self.kill()
        self._listener.join(timeout=1)
        self.output.close()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._received(self._pipe.recv())
        self._ended()
        self._pipe.close()


def _no_screen() -> dict[str, str]:
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return {}
    return {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
