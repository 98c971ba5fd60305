"""``tdx doctor`` in working and broken installations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tdx.cli.options import Color, Format, OutputOptions
from tdx.cli.output import render_view
from tdx.cli.views.setup import doctor_view
from tdx.inspection.doctor import (
    Diagnosis,
    DoctorReport,
    check_folders,
    check_shell,
    check_terminal,
)
from tests.cli.conftest import assert_fits
from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Golden

ROOT = Path(__file__).parents[2]
REPORT = DoctorReport(
    (
        Diagnosis("versions", "python", "ok", "3.11.7 on Linux x86_64"),
        Diagnosis("versions", "torch", "fail", "not installed", "pip install torch"),
        Diagnosis("envs", "gymnasium", "ok", "34 env ids"),
        Diagnosis("terminal", "unicode", "warn", "ascii", "set LANG=C.UTF-8"),
    )
)


@pytest.mark.parametrize("form", [Format.TABLE, Format.JSON])
def test_output_in_each_format(golden: Golden, form: Format) -> None:
    text = render_view(doctor_view(REPORT), OutputOptions(form, Color.NEVER))
    golden(f"doctor.{'txt' if form is Format.TABLE else form}", text)


def test_hints_are_below_the_table_in_a_narrow_terminal() -> None:
    text = render_view(doctor_view(REPORT), OutputOptions(color=Color.NEVER), width=60)
    assert_fits(text, 60)
    assert text.index("hints") < text.index("set LANG=C.UTF-8")


def examined(environ: dict[str, str]) -> tuple[int, dict[str, dict[str, str]]]:
    done = subprocess.run(
        [sys.executable, "-m", "tdx", "doctor", "--format", "json"],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        check=False,
    )
    return done.returncode, checks_of(done.stdout)


def checks_of(text: str) -> dict[str, dict[str, str]]:
    report = json.loads(text)
    assert report["kind"] == "doctor"
    assert report["ok"] == all(each["status"] != "fail" for each in report["checks"])
    return {f"{each['group']} {each['name']}": each for each in report["checks"]}


@pytest.mark.parametrize(
    ("torch", "status"),
    [
        ("raise OSError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13"),
        ("import os; os._exit(139)", "ended the process with code 139"),
    ],
    ids=["raises", "dies"],
)
@exhaustive
def test_broken_torch_and_invalid_settings_do_not_affect_other_checks(
    tmp_path: Path, torch: str, status: str
) -> None:
    (tmp_path / "torch.py").write_text(torch)
    config = tmp_path / "config.toml"
    config.write_text("frmat = 1")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    code, found = examined({"PYTHONPATH": path, "TDX_CONFIG": str(config)})
    assert code == 1
    assert "unknown setting 'frmat'" in found["files settings"]["value"]
    assert found["versions torch"]["status"] == "fail"
    assert status in found["versions torch"]["value"]
    assert "reinstall it" in found["versions torch"]["hint"]
    assert found["devices cpu"]["status"] == "warn"
    assert found["envs gymnasium"]["status"] == "ok"
    assert found["envs gymnasium"]["value"].endswith("env ids")


def test_unwritable_config_folder_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TDX_CONFIG", str(tmp_path / "file" / "config.toml"))
    config = next(each for each in check_folders() if each.name == "config")
    assert (config.status, config.hint) == ("warn", "TDX_CONFIG=FILE puts it elsewhere")


def test_missing_config_folder_is_created_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "not" / "yet"
    monkeypatch.setenv("TDX_CONFIG", str(folder / "config.toml"))
    found = next(each for each in check_folders() if each.name == "config")
    assert (found.status, found.value) == ("ok", f"{folder} (created on demand)")


def test_tdx_not_on_path_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/fish")
    path, completion = check_shell()
    assert (path.status, completion.status) == ("warn", "warn")
    script = tmp_path / ".config" / "fish" / "completions" / "tdx.fish"
    script.parent.mkdir(parents=True)
    script.write_text("")
    assert [each.status for each in check_shell()] == ["warn", "ok"]


@pytest.mark.parametrize(
    ("environ", "size", "found"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, (100, 30), ["ok", "16 million"]),
        ({"TERM": "xterm-256color", "COLORTERM": ""}, (60, 20), ["warn", "256"]),
        ({"TERM": "dumb"}, (80, 24), ["ok", "none: TERM is 'dumb'"]),
        ({"TERM": "xterm", "NO_COLOR": "1"}, (80, 24), ["ok", "off: NO_COLOR is set"]),
    ],
)
def test_terminal_check_reports_size_and_colors(
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    size: tuple[int, int],
    found: list[str],
) -> None:
    for name, text in {"NO_COLOR": "", **environ}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size(size))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    first, colors, unicode = check_terminal(sys.stdout)
    assert [first.status, colors.value] == found
    assert unicode.status == "ok"
