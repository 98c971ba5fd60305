"""Deployment descriptors as targets of commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.stacks.descriptors.exports import mjlab_metadata, write_isaaclab, write_mjlab

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx


def test_specs(tdx: Tdx, tmp_path: Path) -> None:
    for path in (write_mjlab(tmp_path / "policy.onnx"), write_isaaclab(tmp_path / "io.yaml")):
        result = tdx("inspect", "spec", str(path))
        assert result.code == 0, result.err
        assert "base_ang_vel" in result.out
        assert "left_knee" in result.out
        assert tdx("inspect", "spec", str(path), "--stages").code == 2


def test_check(tdx: Tdx, tmp_path: Path) -> None:
    one = str(write_mjlab(tmp_path / "one.onnx"))
    changed = mjlab_metadata() | {"action_scale": "0.25"}
    other = str(write_mjlab(tmp_path / "other.onnx", changed))
    assert tdx("check", one).code == 0
    assert tdx("contract", "check", one, "--against", one).code == 0
    result = tdx("contract", "check", other, "--against", one, "--format", "json")
    assert result.code == 1
    assert [finding["code"] for finding in json.loads(result.out)["findings"]] == ["TDX646"]
    assert tdx("contract", "check", other, "--against", one, "--ignore", "TDX646").code == 0


def test_other_targets_and_options_are_refused(tdx: Tdx, tmp_path: Path) -> None:
    path = str(write_mjlab(tmp_path / "policy.onnx"))
    result = tdx("contract", "check", path, "--against", str(tmp_path))
    assert result.code == 2
    assert "is not a deployment descriptor" in result.err
    assert tdx("check", path, "--fix").code == 2
    result = tdx("inspect", "chain", path)
    assert result.code == 2
    assert "this command does not take" in result.err
