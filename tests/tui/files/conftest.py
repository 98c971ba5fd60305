"""Fixture: a pipeline file in the current directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tui.files.filing import TEXT


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    path = work / "a.yaml"
    path.write_text(TEXT)
    return path
