"""The private parts of Typer that tdx uses still exist and work."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from typer.main import get_command

from tdx.cli.typer_internals import TESTED_VERSIONS, FastCommand

CHANGED = "Typer changed {}: adapt tdx/cli/typer_internals.py and docs/decisions/0019"


def test_installed_version_is_tested() -> None:
    tested = SpecifierSet(TESTED_VERSIONS)
    assert version("typer") in tested, CHANGED.format(f"its version to {version('typer')}")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (requirement,) = (each for each in project["dependencies"] if each.startswith("typer"))
    assert Requirement(requirement).specifier == tested


def _command() -> Any:
    app = typer.Typer()

    def show(
        number: Annotated[int, typer.Option("--number", "-n", parser=lambda text: int(text) + 1)],
    ) -> int:
        return number

    def fail() -> None:
        """Do nothing: a second command makes Typer build a group."""

    app.command("show", cls=FastCommand)(show)
    app.command("fail", cls=FastCommand)(fail)
    return get_command(app)


def test_parser_converts_values() -> None:
    result = _command().main(args=["show", "-n", "3"], prog_name="app", standalone_mode=False)
    assert result == 4, CHANGED.format("get_runtime_param or type_descriptor.parameter_info")


def test_replaced_attributes_exist() -> None:
    (option, *_) = _command().commands["show"].params
    for name in ("get_runtime_param", "type_descriptor", "shell_complete"):
        assert hasattr(option, name), CHANGED.format(f"{name} of parameters")
    assert hasattr(option.type_descriptor, "parameter_info"), CHANGED.format("type_descriptor")
