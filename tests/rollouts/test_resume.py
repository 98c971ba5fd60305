"""Interrupted dumps can be opened, and resumed ones equal an uninterrupted rollout."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import nn

from tdx import EnvError, TdxError, open_dump, save_mlp_policy
from tdx.core.envs import EnvBase
from tdx.envs.batched.env_state import save_env_state
from tdx.foundation.errors import StorageError
from tdx.rollouts import Goal, Manifest, resume, roll_out, verify
from tdx.rollouts.recording import rollout
from tests.programs import exhaustive, is_exhaustive, sampled
from tests.rollouts.recordings import (
    CHUNK,
    CutError,
    assert_same_dump,
    interrupt_after,
    record,
    request,
    run_and_kill_at,
    same,
)

MOMENTS = 20 if is_exhaustive() else 6
HERE = "tests.rollouts.recordings"


def roll_out_in_child(folder: Path, die_at: int | None, **options: Any) -> int:
    """Roll out in a child process; see :func:`run_and_kill_at`."""
    return run_and_kill_at(die_at, lambda: roll_out(request(**options), folder))


@pytest.mark.programs
@exhaustive
def test_killed_rollout_loses_no_chunk(tmp_path: Path) -> None:
    options: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 2, "raw": True}
    whole = tmp_path / "whole"
    calls = roll_out_in_child(whole, None, **options)
    wanted = open_dump(whole)
    for number, moment in enumerate(random.Random(0).sample(range(1, calls + 1), MOMENTS)):
        folder = tmp_path / str(number)
        assert roll_out_in_child(folder, moment, **options) == -1
        if not (folder / "manifest.json").exists():
            # Killed before the manifest was written.
            roll_out(request(**options), folder)
            assert_same_dump(folder, whole)
            continue
        left = Manifest.load(folder)
        assert left.chunks == wanted.manifest.chunks[: len(left.chunks)]
        assert verify(folder).is_fine
        if left.steps:
            assert left.steps % CHUNK == 0 or left.steps == wanted.manifest.steps
            assert same(open_dump(folder).data, wanted.data[:, : left.steps])
        resume(folder)
        assert_same_dump(folder, whole)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("Pendulum-v1", {}),
        ("CartPole-v1", {"num_envs": 3, "batching": "serial"}),
        ("tdx/CartPole", {"num_envs": 3, "raw": True}),
        ("Acrobot-v1", {"num_envs": 2, "policy": "zero"}),
        ("CartPole-v1", {"goal": Goal(episodes=9)}),
    ],
    ids=["single", "serial", "native", "vector", "episodes"],
)
@pytest.mark.parametrize("snapshot", [True, False], ids=["state", "again"])
@sampled(3)
def test_resumed_rollout_equals_an_uninterrupted_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    env: str,
    options: dict[str, Any],
    snapshot: bool,
) -> None:
    stages = ("StepCounter(max_steps=30)", "VecNorm", "RewardSum", "NoopResetEnv(3)")
    chosen = stages[: 4 if "num_envs" not in options else 3]
    record(tmp_path / "whole", env, *chosen, **options)
    if not snapshot:
        monkeypatch.setattr("tdx.rollouts.recording.checkpoint.save_env_state", lambda env: None)
    with pytest.raises(CutError):
        roll_out(request(env, *chosen, **options), tmp_path / "cut", on_chunk=interrupt_after(2))
    if snapshot:
        monkeypatch.delattr(rollout, "_run_again")
    before = torch.get_rng_state()
    resume(tmp_path / "cut")
    assert torch.equal(torch.get_rng_state(), before)
    assert_same_dump(tmp_path / "cut", tmp_path / "whole")
    loc = [name for name in open_dump(tmp_path / "cut").manifest.transforms if "." in name]
    assert loc


@pytest.mark.parametrize("batching", ["vector", "serial"])
def test_equal_seeded_runs_save_equal_states(tmp_path: Path, batching: str) -> None:
    states = []
    for name in ("one", "other"):
        options: dict[str, Any] = {"num_envs": 3, "batching": batching}
        with pytest.raises(CutError):
            roll_out(request(**options), tmp_path / name, on_chunk=interrupt_after(2))
        (file,) = (tmp_path / name / "state").iterdir()
        states.append(file.read_bytes())
    assert states[0] == states[1]


@exhaustive
def test_parallel_env_resumes_exactly_with_any_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resume with another number of processes, without replaying the steps so far."""
    stages = ("RewardSum", "CatFrames(3, dim=-1, in_keys=['observation'])")
    options: dict[str, Any] = {"num_envs": 3, "batching": "parallel"}
    record(tmp_path / "whole", "CartPole-v1", *stages, workers=1, **options)
    record(tmp_path / "serial", "CartPole-v1", *stages, num_envs=3, batching="serial")
    with pytest.raises(CutError):
        roll_out(
            request("CartPole-v1", *stages, workers=2, **options),
            tmp_path / "cut",
            on_chunk=interrupt_after(2),
        )
    monkeypatch.delattr(rollout, "_run_again")
    resume(tmp_path / "cut", workers=1)
    assert_same_dump(tmp_path / "cut", tmp_path / "whole")
    assert same(open_dump(tmp_path / "cut").data, open_dump(tmp_path / "serial").data)


@exhaustive
def test_rollout_with_a_failed_env_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"allow_code": True, "goal": Goal(steps=80), "raw": True}
    record(tmp_path / "whole", f"{HERE}:Fragile", "RewardSum", **options)
    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setenv("TDX_TEST_BREAK", str(broken))
    folder = tmp_path / "dump"
    with pytest.raises(EnvError, match="the belt slipped"):
        record(folder, f"{HERE}:Fragile", "RewardSum", **options)
    left = open_dump(folder)
    assert left.manifest.steps == 49
    assert not left.manifest.complete
    assert len(left.manifest.episodes) == 2
    assert same(left.data, open_dump(tmp_path / "whole").data[:49])
    with pytest.raises(EnvError, match="the belt slipped"):
        resume(folder, allow_code=True)
    broken.unlink()
    resume(folder, allow_code=True)
    assert_same_dump(folder, tmp_path / "whole")


def test_env_whose_state_cannot_be_saved_is_run_again(tmp_path: Path) -> None:
    options = {"allow_code": True, "goal": Goal(steps=80)}
    record(tmp_path / "whole", f"{HERE}:Opaque", "RewardSum", **options)
    with pytest.raises(CutError):
        roll_out(
            request(f"{HERE}:Opaque", "RewardSum", **options),
            tmp_path / "cut",
            on_chunk=interrupt_after(2),
        )
    resume(tmp_path / "cut", allow_code=True)
    assert_same_dump(tmp_path / "cut", tmp_path / "whole")


def test_state_of_another_version_of_a_native_env_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(env: EnvBase) -> Any:
        state = save_env_state(env)
        assert state is not None
        # An earlier version kept the state of a generator.
        state["env/native"]["_generator"] = 0
        return state

    monkeypatch.setattr("tdx.rollouts.recording.checkpoint.save_env_state", save)
    with pytest.raises(CutError):
        roll_out(request("tdx/Pendulum"), tmp_path / "cut", on_chunk=interrupt_after(2))
    with pytest.raises(StorageError, match=r"does not fit the dump: .*another version") as caught:
        resume(tmp_path / "cut")
    assert "record the dump again" in str(caught.value.hint)
    assert verify(tmp_path / "cut").is_fine


def test_nondeterministic_env_is_refused(tmp_path: Path) -> None:
    asked = request(f"{HERE}:Unrepeatable", "RewardSum", allow_code=True)
    with pytest.raises(CutError):
        roll_out(asked, tmp_path / "cut", on_chunk=interrupt_after(2))
    with pytest.raises(EnvError, match="does not repeat its rollout from the seed"):
        resume(tmp_path / "cut", allow_code=True)
    assert open_dump(tmp_path / "cut").manifest.steps == 2 * CHUNK


def test_complete_dump_is_unchanged(tmp_path: Path) -> None:
    made = record(tmp_path / "dump")
    assert resume(tmp_path / "dump").to_dict() == made.to_dict()


@exhaustive
def test_changed_policy_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "actions.json"
    file.write_text(str([[0.5]] * 200))
    asked = replace(request("Pendulum-v1", "RewardSum"), policy=f"sequence:{file}")
    with pytest.raises(CutError):
        roll_out(asked, tmp_path / "cut", on_chunk=interrupt_after(2))
    copy = tmp_path / "cut" / "policy.json"
    kept = copy.read_text()
    copy.write_text(str([[0.6]] * 200))
    with pytest.raises(TdxError, match="is not the file that the dump was recorded with"):
        resume(tmp_path / "cut")
    copy.unlink()
    with pytest.raises(TdxError, match="has no copy of its policy") as caught:
        resume(tmp_path / "cut")
    assert f"--policy 'sequence:{file}'" in (caught.value.hint or "")
    copy.symlink_to(file)
    with pytest.raises(TdxError, match="symbolic link"):
        resume(tmp_path / "cut")
    copy.unlink()
    copy.write_text(kept)
    roll_out(asked, tmp_path / "whole")
    file.unlink()
    resume(tmp_path / "cut")
    assert_same_dump(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize("typed", [False, True])
@exhaustive
def test_mlp_policy_is_resumed_without_allow_code(tmp_path: Path, typed: bool) -> None:
    torch.manual_seed(0)
    file = tmp_path / "policy.safetensors"
    save_mlp_policy(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), file)
    asked = request("Pendulum-v1", "RewardSum", policy=f"mlp:{file}")
    with pytest.raises(CutError):
        roll_out(asked, tmp_path / "cut", on_chunk=interrupt_after(2))
    roll_out(asked, tmp_path / "whole")
    if typed:
        (tmp_path / "cut" / "policy.safetensors").unlink()
        rollout.resume(tmp_path / "cut", policy=f"mlp:{file}")
    else:
        file.unlink()
        resume(tmp_path / "cut")
    assert_same_dump(tmp_path / "cut", tmp_path / "whole")


class Alternating:
    """Policy with state that alternates between actions."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        return tensordict.set("action", torch.tensor([float(self.count % 3 - 1)]))


@exhaustive
def test_python_policy_with_state_is_resumed_exactly(tmp_path: Path) -> None:
    name = "tests.rollouts.test_resume:Alternating"
    asked = request("Pendulum-v1", "RewardSum", policy=name, allow_code=True)
    roll_out(asked, tmp_path / "whole")
    with pytest.raises(CutError):
        roll_out(asked, tmp_path / "cut", on_chunk=interrupt_after(2))
    resume(tmp_path / "cut", allow_code=True)
    assert_same_dump(tmp_path / "cut", tmp_path / "whole")


def test_resume_requires_allow_code(tmp_path: Path) -> None:
    with pytest.raises(CutError):
        roll_out(
            request(f"{HERE}:Fragile", "RewardSum", allow_code=True),
            tmp_path / "cut",
            on_chunk=interrupt_after(1),
        )
    with pytest.raises(TdxError, match="is Python code"):
        rollout.resume(tmp_path / "cut")


@pytest.mark.gpu
def test_rollout_on_an_accelerator_is_resumed_exactly(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_envs": 4, "device": "cuda:0", "raw": True}
    asked = request("tdx/CartPole", "StepCounter(max_steps=30)", "VecNorm", **options)
    roll_out(asked, tmp_path / "whole")
    with pytest.raises(CutError):
        roll_out(asked, tmp_path / "cut", on_chunk=interrupt_after(2))
    resume(tmp_path / "cut")
    assert_same_dump(tmp_path / "cut", tmp_path / "whole")
