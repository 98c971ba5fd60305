"""Short and whole help, ``tdx help``, ``-V`` and ``-q``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_help_examples import COMMANDS
from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

GROUPS = ("inspect", "contract", "list", "show", "config")
PATHS = ["", *GROUPS, *COMMANDS]


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


FORMER = {
    "inspect spec": ("--env", "--t", "--transform", "--pipeline"),
    "inspect keys": ("--env", "--t", "--pipeline"),
    "profile": ("--save", "--t"),
    "replay": ("--t", "--transform"),
    "diff": ("--html",),
    "init": ("--env", "--t"),
}


@pytest.mark.parametrize("path", FORMER)
def test_former_spellings_are_in_no_help(tdx: Tdx, path: str) -> None:
    for option in ("--help", "-h"):
        words = re.findall(r"(?<![\w-])--?[a-z][\w-]*", tdx(*path.split(), option).out)
        assert not {*FORMER[path]} & {*words}


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "spec", "--env", "Pendulum-v1", "--t", "RewardSum"),
        ("inspect", "spec", "--env=Pendulum-v1", "--transform=RewardSum"),
        ("inspect", "spec", "Pendulum-v1", "-t", "RewardSum"),
    ],
)
def test_former_spellings_of_the_target_and_stages_work(tdx: Tdx, words: tuple[str, ...]) -> None:
    shown = tdx(*words)
    assert (shown.code, shown.err) == (0, "")
    assert "episode_reward" in shown.out


@exhaustive
def test_former_spellings_of_files_work(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ("--steps", "5", "--repeat", "1", "--passes", "none")
    for option in ("--save", "--out", "-o"):
        assert tdx("profile", "Pendulum-v1", *quick, option, f"p{option}.json").code == 0
        assert Path(f"p{option}.json").exists()
    for option in ("--html", "--out", "-o"):
        tdx("diff", "Pendulum-v1", "CartPole-v1", option, f"d{option}.html")
        assert Path(f"d{option}.html").exists()


def test_unknown_spelling_suggests_the_short_option(tdx: Tdx) -> None:
    assert "did you mean -t?" in tdx("inspect", "spec", "Pendulum-v1", "--transfrm", "X").err


def test_short_option_shows_the_version(tdx: Tdx) -> None:
    assert tdx("-V").out == tdx("--version").out


@exhaustive
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
