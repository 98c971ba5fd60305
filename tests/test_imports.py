"""Public names, and the modules that importing them loads."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tdx

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "tensordict", "torchvision", "textual", "gymnasium", "numpy", "torchrl"}
HEAVY |= {"pyarrow", "pandas", "h5py", "zarr", "minari", "av", "PIL"}
RUN_MAIN = """
import contextlib, io, sys
from tdx.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
"""
REPORT = (
    "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
)


def loaded_by(code: str, *arguments: str) -> set[str]:
    """Return the top-level modules of a new process after it has run ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{REPORT}", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("code", ["import tdx", "import tdx.cli", "import tdx.foundation.errors"])
def test_import_loads_no_heavy_modules(code: str) -> None:
    assert not loaded_by(code) & HEAVY


@pytest.mark.parametrize("target", ["mistyped.ymal", "mistyped.py:make", "./no/such/folder"])
def test_missing_file_is_reported_without_importing_torch(target: str) -> None:
    assert not loaded_by(RUN_MAIN, "check", target, "--allow-code") & {"torch", "gymnasium"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["inspect", "spec", "--help"],
        ["inspect", "chain", "--help"],
        ["inspect", "keys", "--help"],
        ["diff", "--help"],
        ["rollout", "--help"],
        ["show", "dump", "--help"],
        ["export", "--help"],
        ["import", "--help"],
        ["profile", "--help"],
        ["profile", "compare", "--help"],
        ["report", "--help"],
        ["init", "--help"],
        ["doctor", "--help"],
        ["config", "show"],
        ["list", "transforms"],
        ["list", "transforms", "--format", "json"],
        ["schema"],
        ["check", "--help"],
        ["explain"],
        ["explain", "TDX421"],
    ],
    ids=" ".join,
)
def test_command_that_only_reads_the_catalog_loads_no_heavy_modules(arguments: list[str]) -> None:
    assert not loaded_by(RUN_MAIN, *arguments) & HEAVY


def test_help_of_the_program_imports_no_command() -> None:
    shown = f"{RUN_MAIN}\nsys.exit(str([n for n in sys.modules if n.startswith('tdx.cli')]))"
    command = [sys.executable, "-c", shown, "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stderr
    assert "tdx.cli.process" in printed
    assert "tdx.cli.options" not in printed
    assert "tdx.cli.commands." not in printed


def test_list_of_envs_loads_neither_torch_nor_textual() -> None:
    assert not loaded_by(RUN_MAIN, "list", "envs") & (HEAVY - {"gymnasium", "numpy"})


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
def test_old_spec_names_raise_with_the_new_name(old: str, new: str) -> None:
    assert hasattr(tdx, new)
    assert not hasattr(tdx, old)
    with pytest.raises(AttributeError, match=rf"{old} has been renamed \(use tdx.{new}\)"):
        getattr(tdx, old)
    assert old not in dir(tdx)
