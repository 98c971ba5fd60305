"""Files changed by other programs during editing, and unwritable targets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tdx.foundation.errors import PipelineError
from tdx.pipeline import Pipeline
from tdx.pipeline.draft import Draft
from tdx.pipeline.editing.documents import ChangedOnDiskError, Document
from tdx.pipeline.editing.editor import describe_changes

TEXT = "# mine\nversion: 1\nenv: Pendulum-v1  # swing up\ntransforms:\n  - RewardSum\n"
OTHER = TEXT.replace("swing up", "by hand").replace("RewardSum", "StepCounter")
WANTED = Pipeline.of("Pendulum-v1", "RewardSum", "InitTracker")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(TEXT)
    return path


def test_saving_keeps_comments(path: Path) -> None:
    document, pipeline = Document.load(path)
    document.save(WANTED)
    assert path.read_text() == f"{TEXT}  - InitTracker\n"
    assert pipeline == Pipeline.of("Pendulum-v1", "RewardSum")
    assert document.disk_state() == "same"


def test_a_file_changed_on_disk_is_not_overwritten(path: Path) -> None:
    document, _ = Document.load(path)
    path.write_text(OTHER)
    assert document.disk_state() == "changed"
    with pytest.raises(ChangedOnDiskError, match="someone else"):
        document.save(WANTED)
    assert path.read_text() == OTHER
    difference = document.difference(WANTED)
    assert "-  - StepCounter" in difference
    assert "+  - RewardSum" in difference
    document.save(WANTED, force=True)
    assert "by hand" in path.read_text()
    assert Document.load(path)[1] == WANTED


def test_a_new_time_with_equal_text_is_not_a_change(path: Path) -> None:
    document, _ = Document.load(path)
    os.utime(path, (1, 1))
    assert document.disk_state() == "same"
    path.unlink()
    assert document.disk_state() == "gone"
    document.save(WANTED)
    assert path.read_text().startswith("# mine")


def test_an_invalid_file_on_disk_is_overwritten_only_with_force(path: Path) -> None:
    document, _ = Document.load(path)
    path.write_text("[")
    with pytest.raises(ChangedOnDiskError):
        document.save(WANTED)
    document.save(WANTED, force=True)
    assert path.read_text() == f"{TEXT}  - InitTracker\n"


def test_a_new_file_does_not_replace_an_existing_one(path: Path) -> None:
    document = Document(path)
    with pytest.raises(ChangedOnDiskError, match="already exists"):
        document.save(WANTED)
    assert path.read_text() == TEXT


def test_an_unwritable_target_is_reported(path: Path) -> None:
    document, _ = Document.load(path)
    path.chmod(0o400)
    if not os.access(path, os.W_OK):  # root may write it
        with pytest.raises(PipelineError, match="read-only"):
            document.save(WANTED)
    with pytest.raises(PipelineError, match="cannot write") as raised:
        Document(path.parent / "missing" / "a.yaml").save(WANTED)
    assert "\n" not in str(raised.value)
    assert path.read_text() == TEXT


def test_changes_between_two_drafts_are_described() -> None:
    draft = Draft.of(Pipeline.of("Pendulum-v1", "RewardSum", "StepCounter", "InitTracker"))
    stage = Pipeline.of("Pendulum-v1", "StepCounter(max_steps=5)").transforms[0]
    assert describe_changes(draft, draft) == "nothing"
    assert describe_changes(draft, draft.remove(0)) == "remove RewardSum"
    assert describe_changes(draft, draft.duplicate(0)) == "add RewardSum"
    assert describe_changes(draft, draft.move(0, 2)) == "move RewardSum"
    assert describe_changes(draft, draft.toggle(1)) == "StepCounter off"
    assert describe_changes(draft, draft.replace(1, stage)) == "max_steps of StepCounter"
    other = Draft.of(Pipeline.of("CartPole-v1"))
    assert describe_changes(draft, other).startswith("env CartPole-v1, remove RewardSum")
    assert describe_changes(draft, other).endswith("1 more")
