"""State between runs: sessions of several apps, recent files, damaged files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tdx.foundation.container import UnsyncedError
from tdx.foundation.errors import StorageError
from tdx.pipeline import Pipeline
from tdx.pipeline.editing import Draft, Editor
from tdx.pipeline.editing.documents import MAX_RECENT, Document, RecentFiles
from tdx.pipeline.editing.sessions import SavedSession, Session, SessionStore

HOLD = """
import sys, time
from pathlib import Path
from tdx.pipeline import Pipeline
from tdx.pipeline.editing import Draft, Editor
from tdx.pipeline.editing.sessions import Session
from tdx.pipeline.editing.sessions import SessionStore
store = SessionStore(Path(sys.argv[1]))
store.keep(Session.of(Editor(Draft.of(Pipeline.of("Acrobot-v1")))))
print("kept", flush=True)
time.sleep(60)
"""


def session(env: str) -> Session:
    return Session.of(Editor(Draft.of(Pipeline.of(env))))


def test_a_session_is_found_after_it_was_released(tmp_path: Path) -> None:
    first, second = SessionStore(tmp_path), SessionStore(tmp_path)
    first.keep(session("Pendulum-v1"))
    second.keep(session("CartPole-v1"))
    assert second.left() == ([], [])
    first.leave()
    found, notices = second.left()
    assert [each.title for each in found] == ["Pendulum-v1"]
    assert notices == []
    assert found[0].age == "just now"


def test_a_session_is_adopted_once(tmp_path: Path) -> None:
    dead = SessionStore(tmp_path)
    dead.keep(session("Pendulum-v1"))
    dead.leave()
    mine, other = SessionStore(tmp_path), SessionStore(tmp_path)
    left = mine.left()[0][0]
    assert mine.take(left)
    assert not other.take(left)
    mine.keep(session("CartPole-v1"))
    assert len(list(tmp_path.glob("*.json"))) == 1
    mine.forget()
    mine.leave()
    assert list(tmp_path.iterdir()) == []


def test_the_session_of_a_killed_process_is_found(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "kept\n"
    mine = SessionStore(tmp_path)
    assert mine.left() == ([], [])
    process.kill()
    process.wait()
    process.stdout.close()
    assert [each.title for each in mine.left()[0]] == ["Acrobot-v1"]


def test_sessions_are_sorted_by_time_and_limited(tmp_path: Path) -> None:
    for number in range(25):
        store = SessionStore(tmp_path)
        store.keep(session(f"Env-v{number}"))
        store.leave()
        path = next(each for each in tmp_path.glob("*.json") if f"Env-v{number}" in _text(each))
        path.write_text(json.dumps({**json.loads(_text(path)), "when": float(number)}))
    mine = SessionStore(tmp_path)
    found, _ = mine.left()
    assert [each.title for each in found[:2]] == ["Env-v24", "Env-v23"]
    assert len(found) == len(list(tmp_path.glob("*.json"))) == 20
    mine.discard(found[0])
    assert next(each.title for each in mine.left()[0]) == "Env-v23"


@pytest.mark.parametrize("text", ["{", "[]", '{"session": {}, "when": 1}', "\x00"])
def test_a_damaged_session_is_skipped_with_one_notice(tmp_path: Path, text: str) -> None:
    (tmp_path / "1-a.json").write_text(text)
    store = SessionStore(tmp_path)
    found, notices = store.left()
    assert found == []
    assert len(notices) == 1
    assert "skipped a damaged session" in notices[0]
    assert store.left() == ([], [])
    assert (tmp_path / "1-a.json.broken").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="cannot write"):
        SessionStore(tmp_path).keep(session("Pendulum-v1"))


def test_a_file_in_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    store = SessionStore(tmp_path / "state" / "sessions")
    with pytest.raises(StorageError, match="cannot write"):
        store.keep(session("Pendulum-v1"))
    assert store.left() == ([], [])


def test_ages() -> None:
    def aged(seconds: float) -> str:
        import time

        return SavedSession(session("A-v0"), time.time() - seconds, Path()).age

    assert [aged(each) for each in (1, 130, 7300, 200_000)] == [
        "just now",
        "2 min ago",
        "2 h ago",
        "2 days ago",
    ]


def test_recent_files_are_unique_and_limited(tmp_path: Path) -> None:
    recent = RecentFiles(tmp_path / "recent.json")
    for number in range(MAX_RECENT + 5):
        recent.add(tmp_path / f"{number}.yaml")
    recent.add(tmp_path / "30.yaml")
    names = [each.name for each in recent.all()]
    assert names[:2] == ["30.yaml", "34.yaml"]
    assert len(names) == MAX_RECENT


@pytest.mark.parametrize("text", ["nonsense", "{}", "[1]"])
def test_a_damaged_list_of_recent_files_is_set_aside(tmp_path: Path, text: str) -> None:
    recent = RecentFiles(tmp_path / "recent.json")
    recent.path.write_text(text)
    assert recent.all() == []
    recent.add("a.yaml")
    assert [each.name for each in recent.all()] == ["a.yaml"]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reading state files fail, as it does without free descriptors."""

    def fail(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr("tdx.pipeline.editing.documents.read_limited", fail)


def test_list_that_cannot_be_read_now_is_not_replaced(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    recent = RecentFiles(tmp_path / "recent.json")
    recent.add("/a.yaml")
    text = recent.path.read_text()
    request.getfixturevalue("unreadable")
    assert recent.all() == []
    with pytest.raises(StorageError, match="too many open files"):
        recent.add("/b.yaml")
    assert recent.path.read_text() == text
    assert os.listdir(tmp_path) == ["recent.json"]


def test_session_that_cannot_be_read_now_is_not_set_aside(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dead = SessionStore(tmp_path)
    dead.keep(session("Pendulum-v1"))
    dead.leave()
    request.getfixturevalue("unreadable")
    sessions, notices = SessionStore(tmp_path).left()
    assert sessions == []
    assert "too many open files" in notices[0]
    assert not list(tmp_path.glob("*.broken"))


def test_document_knows_a_save_that_may_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, fsync = Document(tmp_path / "a.yaml"), os.fsync

    def fail_for_folder(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_for_folder)
        with pytest.raises(UnsyncedError, match="is written, but may be lost"):
            document.save(Pipeline.of("Pendulum-v1"))
    assert document.disk_state() == "same"
    document.save(Pipeline.of("CartPole-v1"))
    assert "CartPole-v1" in document.path.read_text()
