"""Opening, saving and recent files; no command loses edits."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Button

from tdx.pipeline import PipelineFile, parse_stage
from tdx.pipeline.editing import Draft
from tdx.pipeline.model import EnvConfig
from tests.programs import exhaustive
from tests.tui.files.filing import TEXT, Filer, FilesApp, filing, storage_in


async def test_save_keeps_the_comments(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        await app.edit("RewardSum", "InitTracker")
        await app.press("ctrl+s")
        assert file.read_text() == f"{TEXT}  - InitTracker\n"
        assert not app.workspace.editor.is_modified
        assert "saved a.yaml" in app.notices
        app.workspace.undo()
        assert app.workspace.editor.is_modified


async def test_disabled_stage_is_saved_and_restored(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        await app.edit("RewardSum", "InitTracker")
        app.workspace.edit("off", app.workspace.draft.toggle(0))
        await app.press("ctrl+s")
        assert "# off: RewardSum" in file.read_text()
        await app.press("ctrl+q")
        assert not app.app.is_running
    async with filing(tmp_path, file) as app:
        assert [stage.enabled for stage in app.workspace.draft.stages] == [False, True]
        assert not app.workspace.editor.is_modified


async def test_save_as_copies_the_comments_to_the_new_file(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        await app.edit("RewardSum", "InitTracker")
        await app.press("S")
        assert app.text("#path-input") == "a.yaml"
        await app.press("ctrl+u", "text:b.yaml", "enter")
        other = file.parent / "b.yaml"
        assert other.read_text() == f"{TEXT}  - InitTracker\n"
        assert file.read_text() == TEXT
        assert "b.yaml" in app.text("#status")
        app.workspace.undo()
        await app.press("ctrl+s")
        assert other.read_text() == TEXT


async def test_saving_a_new_pipeline_asks_for_a_name(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path) as app:
        await app.press("ctrl+s")
        assert "no pipeline yet; press e to choose an env" in app.notices
        app.workspace.edit("env", app.workspace.draft.with_env(EnvConfig("Pendulum-v1")))
        await app.press("ctrl+s")
        assert app.text("#path-input") == "pendulum.yaml"
        await app.press("enter")
        assert "id: Pendulum-v1" in (file.parent / "pendulum.yaml").read_text()


@exhaustive
async def test_save_as_asks_before_it_replaces_another_file(file: Path, tmp_path: Path) -> None:
    other = file.parent / "b.yaml"
    other.write_text("version: 1\nenv: CartPole-v1\n")
    async with filing(tmp_path, file) as app:
        await app.press("S", "ctrl+u", "text:b.yaml", "enter")
        assert "Overwrite the file?" in app.text()
        await app.press("s")
        assert "-env: CartPole-v1" in app.text()
        await app.press("escape", "a", "escape")
        assert other.read_text() == "version: 1\nenv: CartPole-v1\n"
        await app.press("S", "ctrl+u", "text:b.yaml", "enter", "o")
        assert other.read_text() == TEXT


@exhaustive
async def test_file_is_opened_by_path_completion_recent_list_and_mouse(
    file: Path, tmp_path: Path
) -> None:
    cart = file.parent / "folder" / "cart.yaml"
    cart.parent.mkdir()
    cart.write_text("version: 1\nenv: CartPole-v1\n")
    async with filing(tmp_path, file) as app:
        await app.press("ctrl+o", "text:fol", "tab", "enter")
        assert app.workspace.draft.file == str(cart)
        await app.press("ctrl+o", "text:a.", "enter")
        assert app.workspace.draft.file == str(file)
        await app.press("ctrl+r", "down", "enter")
        assert app.workspace.draft.file == str(cart)
        await app.press("ctrl+o")
        assert app.text("#path-list").startswith("cart.yaml")
        await app.pilot.click("#path-list", offset=(2, 1))
        await app.settle()
        assert "a.yaml" in app.text("#status")


@pytest.mark.parametrize("text", ["[", "version: 1\nenv: A\nenvs: 3\n"])
async def test_opening_an_invalid_file_changes_nothing(
    file: Path, tmp_path: Path, text: str
) -> None:
    (file.parent / "b.yaml").write_text(text)
    async with filing(tmp_path, file) as app:
        await app.press("ctrl+o", "text:b.yaml", "enter")
        assert "Not opened" in app.notices
        assert app.stages == ["RewardSum"]


async def test_opening_a_named_pipe_does_not_block(file: Path, tmp_path: Path) -> None:
    os.mkfifo(file.parent / "b.yaml")
    async with filing(tmp_path, file) as app:
        await app.press("ctrl+o", "text:b.yaml", "enter")
        assert "b.yaml is not a regular file" in app.notices
        await app.press("escape")
        file.unlink()
        os.mkfifo(file)
        app.app.files.watch.check()
        await app.settle()
        assert "changed on disk" in app.text()


async def test_failed_save_keeps_the_edits(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    async with filing(tmp_path, file) as app:
        await app.edit()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            await app.press("ctrl+s")
        assert "no space left on device" in app.notices
        assert file.read_text() == TEXT
        assert app.workspace.editor.is_modified
        await app.press("S", "ctrl+u", "text:missing/b.yaml", "enter")
        assert "cannot write" in app.notices
        assert app.workspace.draft.file == str(file)


async def test_quitting_asks_about_unsaved_edits(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        await app.edit()
        await app.press("ctrl+q")
        assert "1 unsaved edit; the last one: edit to 0" in app.text(".ask-text")
        assert [each.id for each in app.app.screen.query(Button)] == [
            "ask-save",
            "ask-keep",
            "ask-discard",
        ]
        assert app.app.screen.query_one("#ask-save").has_focus
        await app.press("right", "right")
        assert app.app.screen.query_one("#ask-discard").has_focus
        await app.press("escape", "ctrl+q")
        await app.pilot.click("#ask-save")
        await app.pilot.pause()
        assert not app.app.is_running
    assert "RewardSum" not in file.read_text()
    assert not list((tmp_path / "sessions").iterdir())


async def test_quitting_without_unsaved_edits_asks_nothing(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        await app.edit()
        app.workspace.undo()
        await app.press("ctrl+q")
        assert not app.app.is_running


async def test_new_pipeline_starts_after_the_old_one_is_saved(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        await app.edit()
        await app.press("ctrl+n")
        assert [each.id for each in app.app.screen.query(Button)] == ["ask-save", "ask-discard"]
        await app.press("d")
        assert app.workspace.draft.env is None
        assert file.read_text() == TEXT


async def test_file_that_changes_on_disk_can_be_reloaded(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        await app.edit("RewardSum", "StepCounter")
        file.write_text(TEXT.replace("RewardSum", "InitTracker"))
        app.app.files.watch.check()
        await app.settle()
        assert "a.yaml changed on disk" in app.text()
        app.app.files.watch.check()
        await app.press("s")
        assert "- - InitTracker" in app.text()
        await app.press("escape", "r")
        assert app.stages == ["InitTracker"]
        assert not app.workspace.editor.is_modified
        app.workspace.undo()
        assert app.stages == ["RewardSum", "StepCounter"]


async def test_next_save_replaces_the_changed_file_if_its_reload_was_declined(
    file: Path, tmp_path: Path
) -> None:
    async with filing(tmp_path, file) as app:
        file.write_text(TEXT.replace("swing up", "by hand").replace("RewardSum", "InitTracker"))
        app.app.files.watch.check()
        await app.settle()
        await app.press("k")
        assert app.workspace.editor.is_modified
        await app.press("ctrl+s")
        assert "by hand" in file.read_text()
        assert "- RewardSum" in file.read_text()


async def test_saving_asks_if_the_file_has_changed_since_the_last_check(
    file: Path, tmp_path: Path
) -> None:
    async with filing(tmp_path, file) as app:
        await app.edit("RewardSum", "InitTracker")
        file.write_text("[")
        await app.press("ctrl+s")
        assert "Overwrite the file?" in app.text()
        assert file.read_text() == "["
        await app.press("o")
        assert file.read_text() == f"{TEXT}  - InitTracker\n"


async def test_deleted_file_is_reported_and_created_again(file: Path, tmp_path: Path) -> None:
    async with filing(tmp_path, file) as app:
        file.unlink()
        app.app.files.watch.check()
        app.app.files.watch.check()
        await app.settle()
        assert app.notices.count("was deleted") == 1
        await app.press("ctrl+l")
        assert "Not reloaded" in app.notices
        await app.press("ctrl+s")
        assert "- RewardSum" in file.read_text()


async def test_options_count_as_edits_of_a_file(file: Path, tmp_path: Path) -> None:
    pipeline = PipelineFile.load(file).pipeline
    more = replace(pipeline, transforms=(*pipeline.transforms, parse_stage("InitTracker")))
    app = FilesApp(Draft.of(more), storage_in(tmp_path))
    async with app.run_test() as pilot:
        await Filer(app, pilot).settle()
        assert app.workspace.editor.is_modified
