"""The Python programs of docs/tutorials run to the end with a short budget.

The ``python`` blocks of a page are one program. ``pycon`` blocks and the files that commands use
are tested with the other pages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.programs import exhaustive, require_program
from tests.test_readme import FILE

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
BUDGETS: dict[str, Mapping[str, str]] = {
    "custom-env": {"iterations = 100": "iterations = 2"},
    "dqn": {
        "total_steps, learning_starts = 50_000, 1_000": "total_steps, learning_starts = 512, 256"
    },
    "recurrent-dqn": {
        "total_steps, learning_starts = 30_000, 2_000": "total_steps, learning_starts = 768, 512"
    },
    "deploy-in-cpp": {"iterations, steps = 8, 10_000": "iterations, steps = 1, 200"},
    "ppo": {"total_steps = 120_000": "total_steps = 2_048"},
}
"""For each page, lines of its program and their replacements in the tests."""
PROGRAMS = {"deploy-in-cpp": "g++"}
"""Programs that pages need."""


def read_program(page: str) -> str:
    """Return the Python program of a page."""
    text = (FOLDER / f"{page}.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return "\n".join(program for program in programs if not FILE.match(program))


def run_program(page: str, replacements: Mapping[str, str]) -> dict[str, Any]:
    """Run the program of a page and return its global variables.

    Args:
        page: Name of the page without suffix.
        replacements: Replacements of texts that occur once in the program.
    """
    program = read_program(page)
    for line, replacement in replacements.items():
        assert program.count(line) == 1, line
        program = program.replace(line, replacement)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, str(FOLDER / f"{page}.md"), "exec"), names)
    return names


def test_each_program_has_a_budget() -> None:
    assert {page.stem for page in FOLDER.glob("*.md") if read_program(page.stem)} == set(BUDGETS)


@pytest.mark.parametrize("page", BUDGETS)
@exhaustive
def test_program_of_a_tutorial_runs_to_the_end(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page in PROGRAMS:
        require_program(PROGRAMS[page])
    monkeypatch.chdir(tmp_path)
    run_program(page, BUDGETS[page])
    last = r"(return|reward of the last step): -?\d+(\.\d+)?|.*, differences: 0"
    assert re.fullmatch(rf"(.*\n)?({last})\n", capsys.readouterr().out)
