"""Data pipelines without an env as targets of commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

PROGRAM = """
def double(sample):
    return {**sample, "state": sample["state"] * 2}


def triple(sample):
    return {**sample, "state": sample["state"] * 3}


def train():
    return [double]


def deploy():
    return [triple]
"""


@exhaustive
def test_commands(tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data_pipelines.py").write_text(PROGRAM)
    np.savez("samples.npz", state=np.arange(12.0).reshape(3, 4), image=np.zeros((3, 2, 2)))
    options = ("--allow-code", "--samples", "samples.npz")
    for command in ("inspect spec", "inspect chain", "inspect values", "inspect state", "check"):
        result = tdx(*command.split(), "data_pipelines.py:train", *options)
        assert result.code == 0, result.err
    assert (
        tdx("contract", "record", "data_pipelines.py:train", *options, "--out", "contract").code
        == 0
    )
    against = (*options, "--against", "contract")
    assert tdx("check", "data_pipelines.py:train", *against).code == 0
    result = tdx("check", "data_pipelines.py:deploy", *against)
    assert result.code == 1
    assert "it is multiplied by 1.5" in result.out
    result = tdx("diff", "data_pipelines.py:train", "data_pipelines.py:deploy", *options)
    assert result.code == 1
    assert tdx("inspect", "values", "data_pipelines.py:double", *options).code == 0
    result = tdx("report", "data_pipelines.py:train", *options, "--steps", "5", "-o", "report.md")
    assert result.code == 0, result.err
    report = Path("report.md").read_text()
    assert "--samples samples.npz" in report
    assert "0 double" in report
    # Samples have no rewards, and belong to no episode.
    assert "episode" not in report
    result = tdx("inspect", "plan", "data_pipelines.py:train", "--allow-code")
    assert result.code == 2
    assert "train() returned an object of type list, which is a data pipeline" in result.err
    result = tdx("inspect", "values", "data_pipelines.py:train", *options[1:])
    assert result.code != 0
    assert "--allow-code" in result.err
