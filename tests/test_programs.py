"""Tests that need a missing program are skipped with its name, and fail where CI installs it."""

from __future__ import annotations

import shutil

import pytest

from tests.programs import MUST_EXIST, require_program


def test_a_missing_program_skips_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MUST_EXIST, raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.skip.Exception, match="zsh is not installed"):
        require_program("zsh")


def test_a_missing_program_is_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MUST_EXIST, "1")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.fail.Exception, match="zsh is not installed"):
        require_program("zsh")


def test_an_alternative_serves_as_well() -> None:
    sh = shutil.which("sh", path="/bin:/usr/bin")
    assert sh is not None
    assert require_program("a-shell-that-nobody-has", sh) == sh
