"""Apps on a terminal that are killed; the next start restores all edits."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tdx.pipeline.editing.sessions import SessionStore
from tests.processes import PATIENCE, all_ended, family
from tests.programs import exhaustive, sampled

_START = """
import os, sys
from tdx.tui import open_app
if os.environ.get("TDX_TEST_FAULT"):
    from tdx.tui.files.files import Files
    Files.new = lambda files: 1 / 0
from tdx.pipeline import PipelineFile
sys.exit(open_app(PipelineFile.load(sys.argv[1]).pipeline if len(sys.argv) > 1 else None))
"""
TEXT = "version: 1\nenv: Pendulum-v1\ntransforms:\n  - RewardSum\n"


class Terminal:
    """App in its own pseudo-terminal."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.master, slave = pty.openpty()
        self.seen = b""
        state = {"TDX_STATE_DIR": str(folder / "state"), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={**os.environ, **state, "COLUMNS": "100", "LINES": "30"},
            start_new_session=True,
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, done: Callable[[], bool]) -> None:
        """Read the output until a condition holds."""
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, self.seen[-2000:]
            self.read()

    def read(self, seconds: float = 0.05) -> bool:
        """Read pending output; return True if there was any."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            self.seen += os.read(self.master, 1 << 16)
        except OSError:  # the process has ended
            time.sleep(0.01)
            return False
        return True

    def rest(self) -> None:
        """Wait until the output pauses: earlier keys may arrive before the chain is shown."""
        while self.read(0.6):
            pass

    def wait(self) -> int:
        self.until(lambda: self.process.poll() is not None)
        length = -1
        while len(self.seen) > length:
            length = len(self.seen)
            self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with suppress(OSError):
            os.close(self.master)


def edits(folder: Path) -> tuple[list[str], list[str]]:
    """Return the effective and the undone edits in the stored session."""
    from tdx.foundation.errors import StorageError
    from tdx.pipeline.editing.documents import read_json
    from tdx.pipeline.editing.sessions import session_from_json

    for path in (folder / "state" / "sessions").glob("*.json"):
        with suppress(StorageError):
            found = session_from_json(read_json(path)["session"])
            return [each.label for each in found.done], [each.label for each in found.undone]
    return [], []


@sampled(3)
@pytest.mark.parametrize("ending", ["SIGKILL", "closed terminal", "SIGTERM"])
def test_next_start_restores_the_chain_and_its_undo_history(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(TEXT)
    first = Terminal(tmp_path, str(file))
    try:
        first.until(lambda: b"RewardSum" in first.seen)
        first.rest()
        first.type("\x1b[B")  # down
        first.type("cdu")  # duplicate, remove, undo
        wanted = ["duplicate RewardSum"], ["remove RewardSum"]
        first.until(lambda: edits(tmp_path) == wanted)
        kin = family(first.process.pid)
        assert len(kin) > 1
        if ending == "closed terminal":
            os.close(first.master)
            assert first.process.wait(PATIENCE) == 128 + signal.SIGHUP
        else:
            first.process.send_signal(signal.Signals[ending])
            number = signal.Signals[ending]
            assert first.wait() == (-number if ending == "SIGKILL" else 128 + number)
        if ending in ("SIGTERM", "SIGINT"):
            assert b"unsaved edits are kept" in first.seen
            assert b"\x1b[?1049l" in first.seen  # the terminal is restored
        assert all_ended(kin)
    finally:
        first.close()
    left, notices = SessionStore(tmp_path / "state" / "sessions").left()
    assert [each.label for each in left[0].session.done] == wanted[0]
    assert [each.label for each in left[0].session.undone] == wanted[1]
    assert len(left[0].session.draft.stages) == 2
    assert notices == []
    assert file.read_text() == TEXT
    if ending == "SIGKILL":
        _starts_again(tmp_path)


def _starts_again(folder: Path) -> None:
    second = Terminal(folder)
    try:
        second.until(lambda: b"Restored" in second.seen)
        second.rest()
        second.type("\x13")  # ctrl+s
        second.until(lambda: (folder / "a.yaml").read_text() == f"{TEXT}  - RewardSum\n")
        second.type("\x11")  # ctrl+q
        assert second.wait() == 0
    finally:
        second.close()
    assert not list((folder / "state" / "sessions").glob("*.json"))


@exhaustive
def test_internal_error_is_reported_in_one_line_and_edits_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDX_TEST_FAULT", "1")
    file = tmp_path / "a.yaml"
    file.write_text(TEXT)
    app = Terminal(tmp_path, str(file))
    try:
        app.until(lambda: b"RewardSum" in app.seen)
        app.rest()
        app.type("\x1b[B")
        app.type("c\x0e")  # duplicate, ctrl+n
        assert app.wait() == 1
    finally:
        app.close()
    said = app.seen.rpartition(b"\x1b[?1049l")[2].decode()
    assert "error: internal error in tdx: ZeroDivisionError: division by zero" in said
    assert "unsaved edits are kept for the next start of tdx tui" in said
    assert "Traceback" not in said
    assert "ZeroDivisionError" in (tmp_path / "state" / "crash.txt").read_text()
    assert edits(tmp_path) == (["duplicate RewardSum"], [])


@exhaustive
def test_app_starts_with_a_warning_about_an_invalid_configuration_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('theme = 3\n[keymap]\n"file.save" = "f5"\n"file.sve" = "f6"\n')
    monkeypatch.setenv("TDX_CONFIG", str(config))
    app = Terminal(tmp_path)
    try:
        app.until(lambda: b"file.sve" in app.seen and b"must" in app.seen)
        app.rest()
        app.type("\x11")
        assert app.wait() == 0, app.seen[-3000:].decode()
    finally:
        app.close()
