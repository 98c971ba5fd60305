"""What README and docs show is what happens.

A ``console`` block is run: each line that begins with ``$`` is a command, and what stands below it
is all that it prints. A ``pycon`` block is a doctest. With TDX_UPDATE_GOLDEN=1 the pages take over
what is printed.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Shown(NamedTuple):
    """A command of a page and the output shown under it."""

    page: str
    command: str
    output: str


def blocks(page: Path, language: str) -> list[str]:
    """The texts of a page's blocks in one language."""
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def shown_commands() -> list[Shown]:
    """Every command with its output, from all pages."""
    found = []
    for page in PAGES:
        for block in blocks(page, "console"):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                found.append(Shown(page.relative_to(ROOT).as_posix(), command, output))
    return found


@pytest.mark.parametrize("shown", shown_commands(), ids=lambda shown: shown.command)
def test_console_example_prints_what_the_page_shows(shown: Shown, tmp_path: Path) -> None:
    program, *arguments = shlex.split(shown.command)
    assert program == "tdx", "only tdx commands can be checked here"
    done = subprocess.run(
        [sys.executable, "-m", "tdx", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "100"},
        check=False,
    )
    if os.environ.get("TDX_UPDATE_GOLDEN"):
        page = ROOT / shown.page
        before, after = (f"$ {shown.command}\n{text}" for text in (shown.output, done.stdout))
        page.write_text(page.read_text().replace(before, after))
    else:
        assert done.stdout == shown.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_example_prints_what_the_page_shows(page: Path) -> None:
    example = doctest.DocTestParser().get_doctest(
        "".join(blocks(page, "pycon")), {}, page.name, str(page), 0
    )
    runner = doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.FAIL_FAST
    )
    assert runner.run(example).failed == 0


def test_readme_has_the_two_commands_that_set_everything_up() -> None:
    commands = "".join(blocks(ROOT / "README.md", "bash")).splitlines()
    prefix = "python3 -m venv .venv && . .venv/bin/activate && pip install "
    assert len(commands) == 2
    assert commands[0].startswith(prefix)
    assert commands[0].endswith("tdx inspect spec --env Pendulum-v1 --t StepCounter")
    assert commands[1].startswith(prefix)
    assert "python -m pytest" in commands[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text())
    broken = [target for target in targets if not (page.parent / target).exists()]
    assert not broken
