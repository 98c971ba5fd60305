"""A broken plugin is disabled, affects nothing else, and is reported with the reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tdx
from tdx.foundation.errors import UnknownNameError
from tdx.foundation.plugins import disabled_plugins
from tdx.inspection.doctor import check_plugins
from tdx.inspection.lint.linter import all_rules
from tdx.pipeline import Pipeline, build_checked_env, load_catalog
from tdx.rollouts.formats.registry import export_formats, find_format, plugin_exporters
from tests.plugins.installed import install, installed
from tests.programs import exhaustive

RULE = """
from tdx.inspection.lint.rule import rule

@rule({code!r}, "always", "warning", why="It fails.", wrong="--env Pendulum-v1", right="")
def always(context):
    raise RuntimeError("no luck")
"""
FORMAT = """
from tdx.rollouts.formats.interface import Format

class Exporter:
    format = Format({name!r}, "a format", (".toy",))
    def write(source, target, options): return ()
"""
TRANSFORM = "from tdx import Transform\nclass {name}(Transform):\n    '''A transform.'''\n"

BROKEN = {
    "import fails": ("tdx.rules", "toy", "toy_plugin", "import missing_package", "ModuleNotFound"),
    "import exits": ("tdx.rules", "toy", "toy_plugin", "raise SystemExit(3)", "SystemExit"),
    "syntax error": ("tdx.transforms", "Toy", "toy_plugin:Toy", "class Toy(", "SyntaxError"),
    "no source": ("tdx.transforms", "Toy", "no_such_module:Toy", "", "ModuleNotFoundError"),
    "no class": ("tdx.transforms", "Toy", "toy_plugin:Toy", "Toy = 3", "not a class"),
    "other name": (
        *("tdx.transforms", "Other", "toy_plugin:Toy", TRANSFORM.format(name="Toy")),
        "named like its class",
    ),
    "no transform": ("tdx.transforms", "Toy", "toy_plugin:Toy", "class Toy: ...", "not a subclass"),
    "name of tdx": (
        *("tdx.transforms", "CatFrames", "toy_plugin:CatFrames"),
        *(TRANSFORM.format(name="CatFrames"), "name of another transform"),
    ),
    "no rule": ("tdx.rules", "toy", "toy_plugin", "x = 3", "has no rule"),
    "code of tdx": (
        "tdx.rules",
        "toy",
        "toy_plugin",
        RULE.format(code="TDX401"),
        "capital letters",
    ),
    "no write": ("tdx.exporters", "toy", "toy_plugin:x", "x = 3", "no format and no write"),
    "format of tdx": (
        *("tdx.exporters", "npz", "toy_plugin:Exporter", FORMAT.format(name="npz")),
        "name of another format",
    ),
    "no kind": ("tdx.stacks", "toy", "toy_plugin:x", "x = 3", "has no title"),
}


@exhaustive
def test_doctor_reports_package_entry_and_reason(tmp_path: Path) -> None:
    """All are installed at once: each probe of the plugins is a process."""
    expected = {}
    for number, (group, *parts, reason) in enumerate(BROKEN.values()):
        name, target, source = (re.sub("[Tt]oy", rf"\g<0>{number}", part) for part in parts)
        install(tmp_path, {group: {name: target}}, source, f"toy{number}")
        expected[f"toy{number} 1.0"] = (name, reason)
    with installed(tmp_path):
        found = list(check_plugins(plugin_exporters))
        assert len(found) == len(BROKEN)
        for each in found:
            (package,) = re.findall(r"toy\d+ 1\.0", each.value)
            name, reason = expected.pop(package)
            assert (each.status, each.name.split()[-1]) == ("warn", name)
            assert reason in each.value, package
            assert each.hint is not None
            assert "TDX_PLUGINS=0" in each.hint
        # Everything else still works.
        env = build_checked_env(
            Pipeline.of("Pendulum-v1", "CatFrames(4, -1, in_keys=['observation'])")
        )
        assert env.rollout(2)["observation"].shape == (2, 12)
        assert "TDX404" in {rule.code for rule in all_rules()}
        assert "npz" in {each.name for each in export_formats()}


def test_error_for_a_disabled_plugin_gives_the_reason(tmp_path: Path) -> None:
    entries = {
        "tdx.transforms": {"Toy": "toy_plugin:Toy"},
        "tdx.exporters": {"toy": "toy_plugin:x"},
    }
    install(tmp_path, entries, "raise OSError('no disk')")
    with installed(tmp_path):
        with pytest.warns(UserWarning, match="it is disabled: see tdx doctor"):
            names = load_catalog().names
        assert "Toy" not in names
        with pytest.raises(UnknownNameError, match=r"not a class in the source of toy_plugin"):
            load_catalog()["Toy"]
        with (
            pytest.warns(UserWarning, match="exporter toy of toy 1.0"),
            pytest.raises(UnknownNameError, match=r"cannot be imported: OSError: no disk"),
        ):
            find_format("toy")


@exhaustive
def test_rule_that_raises_is_skipped(tmp_path: Path) -> None:
    """Check that the other rules still apply and that stderr has one line of tdx."""
    install(
        tmp_path, {"tdx.rules": {"toy": "toy_plugin"}}, "print('hi')" + RULE.format(code="TOY101")
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tdx", "check", "Pendulum-v1", "-t", "RewardScaling(0, 1)"),
            *("--format", "json"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TDX_PLUGINS": "1"},
        timeout=600,
        check=False,
    )
    assert [each["code"] for each in json.loads(done.stdout)["findings"]] == ["TDX491"]
    hi, warning = done.stderr.splitlines()
    assert hi == "hi"
    assert warning.startswith(
        "warning: the rule toy of toy 1.0 failed (TOY101): RuntimeError: no luck"
    )


@exhaustive
def test_fact_of_a_rule_that_raises_disables_the_rule(tmp_path: Path) -> None:
    source = (
        "from tdx.inspection.lint.rule import stack_rule\n"
        "from tdx.inspection.lint.stack_context import Fact\n"
        "class Broken(Fact):\n    def add(self, call): raise RuntimeError('no luck')\n"
        "@stack_rule('TOY101', 'toy', 'warning', why='toy', python='', facts=(Broken,))\n"
        "def toy(context):\n    context.fact(Broken, 0)\n    return []\n"
    )
    install(tmp_path, {"tdx.rules": {"toy": "toy_plugin"}}, source)
    import gymnasium

    with (
        installed(tmp_path),
        pytest.warns(UserWarning, match="rule toy of toy 1.0 failed .TOY101.: RuntimeError"),
    ):
        report = tdx.check(gymnasium.make("Pendulum-v1"), steps=3, seed=0)
    assert report.ok


def test_stack_kind_that_raises_is_skipped(tmp_path: Path) -> None:
    source = (
        "class Kind:\n    title = 'a toy'\n    def accepts(target): return target.missing\n"
        "    def open(target): ...\n"
    )
    install(tmp_path, {"tdx.stacks": {"toy": "toy_plugin:Kind"}}, source)
    from tdx.foundation.errors import ArgumentError
    from tdx.stacks import open_stack

    with (
        installed(tmp_path),
        pytest.warns(UserWarning, match="kind of stack toy of toy 1.0 failed: AttributeError"),
        pytest.raises(ArgumentError, match="an object of type int is not supported"),
    ):
        open_stack(3)


@exhaustive
def test_the_first_of_two_packages_with_the_same_names_is_used(tmp_path: Path) -> None:
    for name in ("aaa", "bbb"):
        source = TRANSFORM.format(name="Toy") + RULE.format(code="TOY101")
        target = f"{name}_plugin"
        entries = {"tdx.transforms": {"Toy": f"{target}:Toy"}, "tdx.rules": {name: target}}
        install(tmp_path, entries, source, name)
    with installed(tmp_path):
        found = {(each.name, each.status): each.value for each in check_plugins()}
        assert found["transform Toy", "ok"] == found["rule aaa", "ok"] == "aaa 1.0"
        assert "bbb 1.0 has the name of another transform" in found["transform Toy", "warn"]
        assert "has the code TOY101 of another rule" in found["rule bbb", "warn"]
        assert load_catalog()["Toy"].package == "aaa"


def test_duplicate_code_in_a_plugin_is_reported(tmp_path: Path) -> None:
    source = RULE.format(code="TOY101") + RULE.format(code="TOY101").replace("always(", "again(")
    install(tmp_path, {"tdx.rules": {"toy": "toy_plugin"}}, source)
    with installed(tmp_path):
        (found,) = check_plugins()
        assert "has the code TOY101 of another rule" in found.value


def test_nothing_is_disabled_without_plugins() -> None:
    assert not disabled_plugins()
    assert not list(check_plugins())[1:]
