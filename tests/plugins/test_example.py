"""The example plugin of the documentation in commands, completion and the reference."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from docs.site.reference import transform_page
from tdx import GymEnv, open_stack
from tdx.cli.process import run as run_tdx
from tdx.inspection.transform_example import find_example
from tdx.pipeline import load_catalog
from tests.plugins.installed import EXAMPLE, install_example, installed
from tests.programs import exhaustive

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    install_example(folder)
    return folder


@pytest.fixture
def run(site: Path, tmp_path: Path) -> Run:
    """Return a function that runs Python in a process in which the example is installed."""

    def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(site), "TDX_PLUGINS": "1", **variables}
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=600,
            check=False,
        )

    return start


Output = Callable[..., tuple[int, str, str]]


@pytest.fixture
def output(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Output]:
    """Yield a function that runs ``tdx`` in this process, in which the example is installed."""
    monkeypatch.chdir(tmp_path)

    def start(*arguments: str) -> tuple[int, str, str]:
        code = run_tdx(arguments)
        return code, *capsys.readouterr()

    with installed(site):
        yield start


def test_plugin_is_listed_and_documented(output: Output) -> None:
    (entry,) = json.loads(output("list", "transforms", "symlog", "--format", "json")[1])[
        "transforms"
    ]
    assert (entry["name"], entry["category"]) == ("SymLog", "symlog")
    code, text, _ = output("show", "SymLog")
    assert code == 0
    assert "Hafner" in text
    assert "±[0.693147" in text, "specs of an env before and after"
    schema = json.loads(output("schema")[1])
    assert schema["$defs"]["SymLog"]["anyOf"][0]["properties"].keys() == {"in_keys", "out_keys"}


@exhaustive
def test_check_applies_the_rule_of_the_plugin(output: Output, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "version: 1\nenv: Pendulum-v1\ntransforms:\n- ObservationNorm: [0, 1.5]\n- SymLog\n"
    )
    code, text, _ = output("check", str(file))
    assert code == 1
    assert "SYM101" in text
    assert output("check", str(file), "--ignore", "SYM101")[0] == 0
    assert output("check", str(file), "--fix", "--unsafe-fixes")[0] == 0
    assert "SymLog" not in file.read_text()
    assert "SymLog after a normalization" in output("explain", "SYM101")[1]


def test_export_uses_the_format_of_the_plugin(output: Output, tmp_path: Path) -> None:
    assert output("rollout", "Pendulum-v1", "--steps", "7", "--out", "dump")[0] == 0
    code, _, error = output("export", "dump", "--to", "csv", "--keys", "next.reward")
    assert code == 0, error
    header, *rows = csv.reader((tmp_path / "dump.csv").read_text().splitlines())
    assert header == ["next.reward[0]"]
    assert len(rows) == 7
    assert all(float(value) < 0 for (value,) in rows)


def test_plugin_has_a_reference_page_and_a_stack_kind(site: Path) -> None:
    def marked() -> GymEnv:
        return GymEnv("Pendulum-v1")

    marked.tdx_stack = True  # type: ignore[attr-defined]
    with installed(site):
        info = load_catalog()["SymLog"]
        assert "World Models" in transform_page(info, find_example(info))
        assert open_stack(marked).kind == "tdx"


@exhaustive
def test_new_process_finds_the_plugin(run: Run) -> None:
    done = run("-m", "tdx", "inspect", "spec", "Pendulum-v1", "-t", "SymLog")
    assert "±[0.693147" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("inspect", "spec", "-t", "Sym"), "SymLog"), (("export", "--to", "cs"), "csv")],
)
@exhaustive
def test_completion_does_not_import_the_plugin(
    run: Run, words: tuple[str, ...], expected: str
) -> None:
    completed = run(
        *("-X", "importtime", "-m", "tdx"),
        _TDX_COMPLETE="complete_bash",
        COMP_WORDS="\n".join(("tdx", *words)),
        COMP_CWORD=str(len(words)),
    )
    assert expected in completed.stdout
    assert "tdx_symlog" not in completed.stderr


@exhaustive
def test_plugin_passes_the_contract_tests(run: Run) -> None:
    """Run the contract tests of tdx for the transform of the plugin."""
    tests = str(ROOT / "tests/plugins/test_catalog_contract.py")
    done = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT)),
        *("-c", str(ROOT / "pyproject.toml"), tests, "-k", "SymLog"),
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_one_variable_disables_all_plugins(output: Output) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TDX_PLUGINS", "0")
        code, _, error = output("inspect", "spec", "Pendulum-v1", "-t", "SymLog")
    assert code == 2
    assert "unknown transform SymLog" in error


def test_example_is_one_file() -> None:
    assert [path.name for path in EXAMPLE.glob("*.py")] == ["tdx_symlog.py"]
