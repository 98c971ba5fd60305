"""Public names, and the modules that importing them loads."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tdx
from tests.programs import exhaustive

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "tensordict", "torchvision", "textual", "gymnasium", "numpy", "torchrl"}
HEAVY |= {"pyarrow", "pandas", "h5py", "zarr", "minari", "av", "PIL"}
RUN_COMMANDS = """
import contextlib, io, json, sys
from tdx.cli import main

def run(arguments):
    sys.argv = ["tdx", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()
    return sorted({name.partition(".")[0] for name in sys.modules})

print(json.dumps([run(arguments) for arguments in json.loads(sys.argv[1])]))
"""


def run_python(code: str, *arguments: str) -> str:
    """Return the last line that a new process prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout.splitlines()[-1]


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules of a new process after it has run ``code``."""
    names = run_python(f"{code}\nimport sys; print(*sys.modules)").split()
    return {name.partition(".")[0] for name in names}


def loaded_by_commands(*commands: str) -> dict[str, set[str]]:
    """Run commands in one process; return the top-level modules that it has after each."""
    printed = run_python(RUN_COMMANDS, json.dumps([command.split() for command in commands]))
    return dict(zip(commands, map(set, json.loads(printed)), strict=True))


def test_import_loads_no_heavy_modules() -> None:
    assert not loaded_by("import tdx, tdx.cli, tdx.foundation.errors") & HEAVY


@exhaustive
def test_missing_file_is_reported_without_importing_torch() -> None:
    targets = ("mistyped.ymal", "mistyped.py:make", "./no/such/folder")
    for command, modules in loaded_by_commands(
        *(f"check {path} --allow-code" for path in targets)
    ).items():
        assert not modules & {"torch", "gymnasium"}, command


@exhaustive
def test_command_that_only_reads_the_catalog_loads_no_heavy_modules() -> None:
    commands = (
        "--help",
        "--version",
        "inspect spec --help",
        "inspect chain --help",
        "inspect keys --help",
        "diff --help",
        "rollout --help",
        "show dump --help",
        "export --help",
        "import --help",
        "profile --help",
        "profile compare --help",
        "report --help",
        "init --help",
        "doctor --help",
        "config show",
        "list transforms",
        "list transforms --format json",
        "schema",
        "check --help",
        "explain",
        "explain TDX421",
    )
    for command, modules in loaded_by_commands(*commands).items():
        assert not modules & HEAVY, command


@exhaustive
def test_help_of_the_program_imports_no_command() -> None:
    shown = f"{RUN_COMMANDS}\nprint([name for name in sys.modules if name.startswith('tdx.cli')])"
    printed = run_python(shown, json.dumps([["--help"]]))
    assert "tdx.cli.process" in printed
    assert "tdx.cli.options" not in printed
    assert "tdx.cli.commands." not in printed


@exhaustive
def test_list_of_envs_loads_neither_torch_nor_textual() -> None:
    (modules,) = loaded_by_commands("list envs").values()
    assert not modules & (HEAVY - {"gymnasium", "numpy"})


@pytest.mark.parametrize("name", tdx.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(tdx, name) is not None
    assert name in dir(tdx)


@pytest.mark.parametrize(
    "module", ["tdx.specs", "tdx.envs", "tdx.transforms", "tdx.data", "tdx.core"]
)
def test_public_names_of_the_layers_are_exported_by_tdx(module: str) -> None:
    layer = importlib.import_module(module)
    missing = set(layer.__all__) - set(tdx.__all__)
    assert not missing, f"add these to tdx/__init__.pyi: {sorted(missing)}"
    for name in layer.__all__:
        assert getattr(tdx, name) is getattr(layer, name)


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchName"):
        _ = tdx.NoSuchName  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CompositeSpec", "Composite"),
        ("BoundedTensorSpec", "Bounded"),
        ("UnboundedContinuousTensorSpec", "Unbounded"),
        ("DiscreteTensorSpec", "Categorical"),
        ("OneHotDiscreteTensorSpec", "OneHot"),
    ],
)
def test_old_spec_names_are_deprecated_aliases(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"tdx.{old} is deprecated; use tdx.{new}"):
        assert getattr(tdx, old) is getattr(tdx, new)
    assert old not in dir(tdx)
