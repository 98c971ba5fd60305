"""The whole process in a terminal of tmux: send keys and read the screen."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import PATIENCE, all_ended, family, is_alive
from tests.programs import require_program

_ROOT = Path(__file__).parents[2]
_OTHERS_SIZE = ("COLUMNS", "LINES")
"""Variables with the size of another terminal; pytest-xdist sets them in its workers."""

_WATCH = "while kill -0 $1 2>/dev/null; do sleep 1; done; exec tmux kill-server"


class Terminal:
    """Terminal that runs one program; the test is skipped where tmux is missing.

    Args:
        folder: Folder of the socket of tmux.
    """

    def __init__(self, folder: str) -> None:
        self._tmux = require_program("tmux")
        outside = {name: text for name, text in os.environ.items() if name not in _OTHERS_SIZE}
        self._environ = {**outside, "TMUX_TMPDIR": folder, "TMUX": ""}
        # A killed test run cannot clean up.
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(os.getpid())],
            env=self._environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def tmux(self, *arguments: str) -> str:
        """Call tmux."""
        done = subprocess.run(
            [self._tmux, "-f", "/dev/null", *arguments],
            env=self._environ,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def close(self) -> None:
        """End tmux and the program in the terminal."""
        self._watch.kill()
        self._watch.wait()
        subprocess.run([self._tmux, "kill-server"], env=self._environ, capture_output=True)

    def press(self, *keys: str) -> None:
        """Press keys, with the names of tmux."""
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        """Type a text."""
        self.tmux("send-keys", "-l", text)

    def screen(self) -> str:
        """Return the text on the screen."""
        return self.tmux("capture-pane", "-p")

    def sees(self, *texts: str, gone: str | None = None) -> str:
        """Wait until all texts and not ``gone`` are on the screen; return its text."""
        end = time.monotonic() + PATIENCE
        while True:
            shown = self.screen()
            if all(text in shown for text in texts) and (gone is None or gone not in shown):
                return shown
            assert time.monotonic() < end, f"no {texts} (or still {gone}) on:\n{shown}"
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        """Process ID of the program in the terminal."""
        return int(self.tmux("list-panes", "-F", "#{pane_pid}"))


@contextmanager
def terminal(
    *arguments: str, folder: Path, size: tuple[int, int] = (120, 40), then: str = ""
) -> Iterator[Terminal]:
    """Run ``tdx`` in its own terminal, which is closed at the end.

    Args:
        arguments: Arguments of ``tdx``.
        folder: Current directory.
        size: Columns and rows.
        then: Shell command to run afterwards. Empty: the terminal closes with the program.
    """
    command = shlex.join([sys.executable, "-m", "tdx", *arguments])
    command = f"PYTHONPATH={shlex.quote(str(_ROOT))} {command}"
    command = f"{command}; {then}" if then else f"exec env {command}"
    columns, rows = map(str, size)
    with tempfile.TemporaryDirectory(prefix="tmux") as socket:
        made = Terminal(socket)
        made.tmux("new-session", "-d", "-x", columns, "-y", rows, "-c", str(folder), command)
        kin = family(made.pid)
        try:
            yield made
            kin += family(made.pid) if is_alive(kin[0]) else []
        finally:
            made.close()
        assert all_ended(kin)
