"""Sessions: stored while the app runs, restored by the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdx.foundation.errors import StorageError
from tdx.pipeline.editing.sessions import SessionStore
from tests.programs import exhaustive
from tests.tui.files.filing import TEXT, Filer, filing
from tests.tui.idle import until


async def kept(app: Filer) -> None:
    """Wait until the autosave has written the latest edit, or has failed to."""
    await app.settle()
    autosave = app.app.files.autosave
    await until(lambda: autosave._timer is None)
    writing = autosave._writing
    await until(lambda: writing is not None and writing.done())


async def killed(state: Path, file: Path | None) -> None:
    """Edit in an app that is killed, so that no clean-up runs."""
    async with filing(state, file) as app:
        if file is None:
            from tdx.pipeline.model import EnvConfig

            app.workspace.edit("env", app.workspace.draft.with_env(EnvConfig("CartPole-v1")))
        await app.edit("RewardSum", "InitTracker")
        await app.edit("RewardSum", "InitTracker", "StepCounter(max_steps=7)")
        app.workspace.undo()
        await kept(app)
        store = app.app.files.autosave._store
        assert store is not None
        said = [entry.text for entry in app.workspace.journal.entries]
        assert said.count("autosave keeps the edits of this session") == 1
        store.leave()  # as the kernel does


async def test_app_without_a_file_restores_the_last_session(file: Path, tmp_path: Path) -> None:
    await killed(tmp_path, file)
    async with filing(tmp_path) as app:
        assert "Restored unsaved edits: a.yaml: 1 edit, just now" in app.notices
        assert app.stages == ["RewardSum", "InitTracker"]
        assert app.workspace.editor.is_modified
        app.workspace.redo()
        assert app.stages[-1] == "StepCounter(max_steps=7)"
        app.workspace.undo()
        app.workspace.undo()
        assert app.stages == ["RewardSum"]
        assert not app.workspace.editor.is_modified
        app.workspace.redo()
        await app.press("ctrl+s", "ctrl+q")
        assert not app.app.is_running
    assert file.read_text() == f"{TEXT}  - InitTracker\n"
    assert not list((tmp_path / "sessions").glob("*.json"))


async def test_restored_session_reports_a_file_that_changed_on_disk(
    file: Path, tmp_path: Path
) -> None:
    await killed(tmp_path, file)
    file.write_text(TEXT.replace("RewardSum", "RewardClipping"))
    async with filing(tmp_path) as app:
        app.app.files.watch.check()
        await app.settle()
        assert "a.yaml changed on disk" in app.text()
        await app.press("escape")
        assert app.stages == ["RewardSum", "InitTracker"]


@pytest.mark.parametrize(
    ("key", "stages", "left"),
    [
        ("r", ["RewardSum", "InitTracker"], 1),
        ("o", ["RewardSum"], 1),
        ("d", ["RewardSum"], 0),
        ("escape", ["RewardSum"], 1),
    ],
)
async def test_opening_the_same_file_offers_its_session(
    file: Path, tmp_path: Path, key: str, stages: list[str], left: int
) -> None:
    await killed(tmp_path, file)
    async with filing(tmp_path, file) as app:
        assert "a.yaml has unsaved edits" in app.text()
        await app.press(key)
        assert app.stages == stages
        assert len(list((tmp_path / "sessions").glob("*.json"))) == left


async def test_opening_another_file_mentions_the_unsaved_session(
    file: Path, tmp_path: Path
) -> None:
    await killed(tmp_path, None)
    async with filing(tmp_path, file) as app:
        assert "1 unsaved session; press R to restore" in app.notices
        await app.press("R")
        assert "CartPole-v1" in app.text("#choose-list")
        await app.press("enter")
        assert app.workspace.draft.env is not None
        assert app.workspace.draft.env.id == "CartPole-v1"
        assert app.workspace.draft.file is None


@exhaustive
async def test_session_does_not_replace_unsaved_edits(file: Path, tmp_path: Path) -> None:
    await killed(tmp_path, None)
    async with filing(tmp_path, file) as app:
        await app.edit("InitTracker")
        await app.press("R")
        assert "Restore another session?" in app.text()
        await app.press("escape")
        assert app.stages == ["InitTracker"]
        await app.press("R", "s", "enter")
        assert app.stages == ["RewardSum", "InitTracker"]
    assert "- InitTracker" in file.read_text()


async def test_quitting_can_keep_the_session(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        await app.edit("InitTracker")
        await app.press("ctrl+q", "k")
        assert not app.app.is_running
    async with filing(tmp_path) as app:
        assert app.stages == ["InitTracker"]
        assert app.workspace.draft.file == str(file)


async def test_two_apps_keep_separate_sessions(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as one:
        await one.edit("InitTracker")
        await kept(one)
        async with filing(tmp_path) as two:
            assert two.stages == []
            assert "left" not in two.notices
            await two.edit("StepCounter")
            await kept(two)
            assert len(list((tmp_path / "sessions").glob("*.json"))) == 2


async def test_damaged_session_is_skipped_with_a_notice(file: Path, tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "1-a.json").write_text("{")
    async with filing(tmp_path) as app:
        assert "skipped a damaged session" in app.notices
        assert app.stages == []


async def test_failing_autosave_is_reported_once_and_the_app_continues(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise StorageError("cannot write there: read-only file system")

    monkeypatch.setattr(SessionStore, "keep", refuse)
    async with filing(tmp_path, file) as app:
        await app.edit("InitTracker")
        await kept(app)
        await app.edit("StepCounter")
        await kept(app)
        await app.settle()
        assert app.notices.count("autosave failed") == 1
        await app.press("ctrl+q")
        assert "Keep for next time" not in app.text()
        await app.press("s")
        assert "- StepCounter" in file.read_text()
