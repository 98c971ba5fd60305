"""Short and whole help, ``tdx help``, ``-V`` and ``-q``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_help_examples import COMMANDS

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

GROUPS = ("inspect", "contract", "list", "show", "config")
PATHS = ["", *GROUPS, *(path for path in COMMANDS if path != "profile run"), "profile"]


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("path", PATHS)
def test_short_help_fits_a_terminal_of_24_lines(tdx: Tdx, path: str) -> None:
    outcome = tdx(*path.split(), "-h")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.rstrip().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"Usage: tdx {path}".rstrip())
    assert f"tdx {path} --help".replace("  ", " ") in lines[-1]


@pytest.mark.parametrize("path", ["", *GROUPS])
def test_each_command_has_one_line_in_the_help_of_its_group(tdx: Tdx, path: str) -> None:
    shown = tdx(*path.split(), "--help").out.partition("╰")[2]
    rows = re.findall(r"^│ (?!-)(\S*) +(\S.*?) *│$", shown, re.MULTILINE)
    assert len(rows) > 1
    assert all(name and summary.endswith(".") for name, summary in rows)


def test_rare_options_are_in_the_last_section_of_the_whole_help(tdx: Tdx) -> None:
    shown = tdx("profile", "--help").out
    head, _, rare = shown.partition("─ Rarely used ─")
    assert "--steps" in head
    for option in ("--worker-timeout", "--debug", "--speedscope"):
        assert option not in head
        assert option in rare
    assert "─ Pipeline ─" in head


def test_help_command_equals_the_option(tdx: Tdx) -> None:
    assert tdx("help").out == tdx("--help").out
    assert tdx("help", "inspect", "spec").out == tdx("inspect", "spec", "--help").out
    unknown = tdx("help", "inspct")
    assert unknown.code == 2
    assert "inspect" in unknown.err


def test_short_option_shows_the_version(tdx: Tdx) -> None:
    assert tdx("-V").out == tdx("--version").out


def test_quiet_drops_messages_and_keeps_errors(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("contract", "record", "Pendulum-v1", "-t", "RewardSum")
    assert tdx(*words).err
    assert tdx(*words, "--force", "-q").err == ""
    refused = tdx(*words, "-q")
    assert refused.code == 2
    assert "already exists" in refused.err
