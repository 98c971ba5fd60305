"""Examples in README and docs match the actual output.

Each ``console`` block runs in a separate folder: each line that starts with ``$`` is a command,
followed by its complete output. The blocks of a tutorial share one folder. A block that starts with
the comment ``# NAME.py`` or ``# NAME.yaml`` is a file in that folder. A ``pycon`` block is a
doctest. Measured times and speeds are not compared. The README shows long lines folded, as a
terminal does, because a page on GitHub cuts them off. TDX_UPDATE_GOLDEN=1 updates the pages with
the actual output.
"""

from __future__ import annotations

import doctest
import importlib
import io
import os
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tdx.cli.process import run
from tests.cli.processes import run_merged
from tests.programs import require_program, sampled

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Pages in the folders of the reference are generated when the site is built.
PAGES = [ROOT / "README.md", *sorted({*DOCS.rglob("*.md")} - {*DOCS.glob("reference/*/*.md")})]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MEASURED = re.compile(r"about [\d,.]+ \w+(?: \d+ \w+)? at [\d,.]+ steps/s")
FILE = re.compile(r"# (\w+\.(?:py|yaml))\n")


class Session(NamedTuple):
    """Commands that run in sequence in one folder."""

    page: str
    commands: tuple[tuple[str, str], ...]
    """Commands and the output shown for them."""
    files: tuple[tuple[str, str], ...] = ()
    """Names and texts of the files in the folder."""


def blocks(page: Path, language: str) -> list[str]:
    """Return the texts of the blocks of a page in one language."""
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def sessions() -> list[Session]:
    """Return a session for each block of commands of all pages, and one for each tutorial."""
    found = []
    for page in PAGES:
        consoles = blocks(page, "console")
        if page.parent.name == "tutorials":
            consoles = ["".join(consoles)] if consoles else []
        for block in consoles:
            parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
            commands = tuple((part.partition("\n")[0], part.partition("\n")[2]) for part in parts)
            found.append(Session(page.relative_to(ROOT).as_posix(), commands, tuple(files(page))))
    return found


def files(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each file that a page shows."""
    for _, text in BLOCK.findall(page.read_text()):
        if start := FILE.match(text):
            yield start.group(1), text


def session_id(session: Session) -> str:
    """Return the page of a tutorial, or the last command of any other session."""
    is_tutorial = session.page.startswith("docs/tutorials/")
    return session.page if is_tutorial else session.commands[-1][0]


def folded(text: str, width: int) -> str:
    """Return text whose lines are at most ``width`` long, broken at spaces."""
    lines = [textwrap.wrap(line, width, break_on_hyphens=False) for line in text.splitlines()]
    return "".join(f"{part}\n" for line in lines for part in line or [""])


def run_command(line: str, *, in_process: bool) -> str:
    """Return the output of a command, and write it to the file after ``>``."""
    command, _, file = line.partition(" > ")
    program, *arguments = shlex.split(command)
    if program != "tdx":
        command_line = [require_program(program), *arguments]
        done = subprocess.run(command_line, capture_output=True, text=True, check=True)
        printed = done.stdout
    elif in_process:
        merged = io.StringIO()
        with redirect_stdout(merged), redirect_stderr(merged):
            run(arguments)
        printed = merged.getvalue()
    else:
        printed = run_merged(*arguments)
    if file:
        Path(file).write_text(printed)
    return "" if file else printed


@pytest.mark.parametrize("session", sessions(), ids=session_id)
@pytest.mark.programs
@sampled(4)
def test_console_example_prints_the_shown_output(
    session: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run the commands of the README in new processes and all others in this one."""
    (tmp_path / "sample_pipelines").symlink_to(ROOT / "sample_pipelines")
    for name, text in session.files:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    for name, text in {"NO_COLOR": "1", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, text)
    for command, output in session.commands:
        printed = run_command(command, in_process=session.page != "README.md")
        if session.page == "README.md":
            printed = folded(printed, 100)
        if os.environ.get("TDX_UPDATE_GOLDEN"):
            page = ROOT / session.page
            before, after = (f"$ {command}\n{text}" for text in (output, printed))
            page.write_text(page.read_text().replace(before, after))
        else:
            assert MEASURED.sub("about N at N steps/s", printed) == MEASURED.sub(
                "about N at N steps/s", output
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_example_prints_the_shown_output(page: Path) -> None:
    example = doctest.DocTestParser().get_doctest(
        "".join(blocks(page, "pycon")), {}, page.name, str(page), 0
    )
    runner = doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.FAIL_FAST
    )
    assert runner.run(example).failed == 0


def test_readme_has_one_command_for_users_and_one_for_developers() -> None:
    commands = "".join(blocks(ROOT / "README.md", "bash")).splitlines()
    prefix = "python3 -m venv .venv && . .venv/bin/activate && pip install "
    assert len(commands) == 2
    assert commands[0].startswith(prefix)
    assert commands[0].endswith("tdx inspect spec Pendulum-v1 -t StepCounter")
    assert commands[1].startswith(prefix)
    assert "python -m pytest" in commands[1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", ["gymnasium.utils", "stable_baselines3.common"])
def test_checkers_of_other_libraries_accept_the_first_env_of_the_readme(library: str) -> None:
    check_env = importlib.import_module(f"{library}.env_checker").check_env
    names: dict[str, Any] = {}
    exec(blocks(ROOT / "README.md", "python")[0], names)
    check_env(names["make_env"]())
    env = names["make_env"]()
    env.reset(seed=0)
    results = [env.step(env.action_space.sample()) for _ in range(50)]
    *_, truncated, info = results[-1]
    assert truncated
    assert "episode" not in info


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_tdx_is_installed_from_its_repository(page: Path) -> None:
    """On a package index, ``tdx`` is another project."""
    commands = re.findall(r"\b(?:pip|pipx|uv|uvx)\b[^`\n&;]*", page.read_text())
    assert not [line for line in commands if re.search(r"[\s'\"]tdx(?![\w./:])", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_are_valid(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text())
    broken = [
        f"{target}#{anchor}"
        for target, anchor in links
        if not (page.parent / target).exists()
        or (anchor and anchor not in anchors(page.parent / target if target else page))
    ]
    assert not broken


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, named as on GitHub."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "field").glob("test_*.py")))
def test_gallery_links_to_each_reproduced_thread(path: Path) -> None:
    found = re.match(r'"""([\w-]+/[\w-]+)#(\d+): ', path.read_text())
    assert found is not None
    link = "https://github.com/{}/issues/{}".format(*found.groups())
    assert link in (DOCS / "gallery.md").read_text()
