"""Statistics are written to a file, and loaded into another stack of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdx
from tdx.cli.process import run
from tests.contracts import envs as made
from tests.programs import exhaustive

STACKS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "stable-baselines3": (made.sb3_normalized, lambda: made.sb3_normalized(count=0, n_envs=3)),
    "gymnasium": (made.gym_normalized, lambda: made.gym_normalized(count=0)),
    "tdx": (made.tdx_normalized, lambda: made.tdx_normalized(steps=0)),
    "torchrl": (made.rl_normalized, lambda: made.rl_normalized(steps=1)),
}


@pytest.mark.parametrize("kind", STACKS)
@exhaustive
def test_statistics_move_to_another_stack(kind: str, tmp_path: Path) -> None:
    trained, fresh = (make() for make in STACKS[kind])
    contract = tdx.freeze(trained)
    names = tdx.save_state(trained, tmp_path / "state.safetensors")
    assert not tdx.check_contract(fresh, contract).same
    assert set(tdx.load_state(fresh, tmp_path / "state.safetensors")) <= set(names)
    assert tdx.check_contract(fresh, contract).differences == ()


def test_state_of_another_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    tdx.save_state(made.gym_normalized(), path)
    with pytest.raises(tdx.ArgumentError, match="state of a stack of gymnasium"):
        tdx.load_state(made.sb3_normalized(), path)


def test_state_of_other_stages_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    tdx.save_state(made.gym_normalized(), path)
    with pytest.raises(tdx.ArgumentError, match=r"stage 3 \(NormalizeObservation\)"):
        tdx.load_state(made.rescaled(), path)


def test_statistics_of_another_width_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    env = made.gym_normalized()
    env.obs_rms.mean, env.obs_rms.var = np.zeros(4), np.ones(4)
    tdx.save_state(env, path)
    target = made.gym_normalized(count=0)
    with pytest.raises(tdx.ArgumentError, match=r"shape \[4\], and the stage \[3\]"):
        tdx.load_state(target, path)
    assert target.obs_rms.count == pytest.approx(1e-4)


EMPTY = b"\x02\x00\x00\x00\x00\x00\x00\x00{}"


@pytest.mark.parametrize("data", [b"", b"\x80\x04.", b"\xff" * 64, EMPTY])
def test_damaged_file_changes_nothing(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(data)
    env = made.gym_normalized()
    before = env.obs_rms.mean.copy()
    if data == EMPTY:
        assert tdx.load_state(env, path) == ()
    else:
        with pytest.raises(tdx.StorageError, match="not a safetensors file"):
            tdx.load_state(env, path)
    assert np.array_equal(env.obs_rms.mean, before)


def test_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    path.write_text("mine")
    with pytest.raises(tdx.ArgumentError, match="already exists"):
        tdx.save_state(made.gym_normalized(), path)
    tdx.save_state(made.gym_normalized(), path, force=True)


def test_commands_export_and_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = ["--env", "Pendulum-v1", "--t", "VecNorm(['observation'])"]
    assert run(["inspect", "state", *pipeline, "--steps", "9", "--export", "s.safetensors"]) == 0
    trained = capsys.readouterr().out
    assert run(["inspect", "state", *pipeline, "--load", "s.safetensors"]) == 0
    loaded = capsys.readouterr()
    assert "loaded 1 tensors" in loaded.err
    numbers = next(line.split()[-3:] for line in loaded.out.splitlines() if "statistics/" in line)
    assert all(number in trained for number in numbers)
