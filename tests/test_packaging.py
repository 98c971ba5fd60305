"""Packaging: version, console script, dependencies and files of the wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

import tdx
from tests.programs import exhaustive

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_command_prints_the_plain_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tdx", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+", tdx.__version__)
    assert done.stdout.split()[-1] == tdx.__version__
    assert done.stderr == ""


def test_console_script_points_at_a_function() -> None:
    script = EntryPoint("tdx", PROJECT["scripts"]["tdx"], "console_scripts")
    assert callable(script.load())


def test_lowest_versions_are_the_lower_bounds() -> None:
    lines = (ROOT / "tests" / "lowest.txt").read_text().splitlines()
    pinned = {
        name: version for name, sep, version in (line.partition("==") for line in lines) if sep
    }
    bounds = {}
    for each in map(Requirement, PROJECT["dependencies"]):
        (bounds[each.name],) = (part.version for part in each.specifier if part.operator == ">=")
    assert {name: Version(version) for name, version in pinned.items()} == {
        name: Version(version) for name, version in bounds.items()
    }


def test_tests_of_the_lowest_versions_exist() -> None:
    paths = (ROOT / "tests" / "lowest_tests.txt").read_text().splitlines()
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_changelog_has_an_entry_for_the_current_version() -> None:
    changelog = (ROOT / "docs" / "changelog.md").read_text()
    assert f"## {tdx.__version__}" in changelog


@exhaustive
def test_wheel_contains_every_file_of_the_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("tdx/")}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tdx").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    samples = {
        f"tdx/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / "sample_pipelines").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == wanted | samples
    assert {"tdx/py.typed", "tdx/__init__.pyi"} <= packed
