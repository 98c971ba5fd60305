"""``tdx check`` of envs of TorchRL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tdx.foundation.errors import ExitCode
from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

FACTORIES = """
import gymnasium
from torchrl.envs import GymEnv, TransformedEnv
from torchrl.envs.transforms import FiniteTensorDictCheck


def make_torchrl():
    return TransformedEnv(GymEnv("Pendulum-v1"), FiniteTensorDictCheck())


def make_gymnasium():
    return gymnasium.wrappers.TimeAwareObservation(gymnasium.make("Pendulum-v1"))
"""


@exhaustive
def test_accelerator_runs_the_transforms_of_torchrl(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accelerated.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = tdx("check", "accelerated:make_torchrl", "--allow-code", "--accelerator")
    assert "TDX701" in outcome.out
    assert "FiniteTensorDictCheck" in outcome.out
    outcome = tdx("check", "accelerated:make_gymnasium", "--allow-code", "--accelerator")
    assert outcome.code == ExitCode.USAGE
    assert "tdx init --from" in outcome.err
