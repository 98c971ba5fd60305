"""Dumps of live steps of an env of another library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tdx import ArgumentError, open_dump
from tdx.pipeline import parse_stage
from tdx.rollouts import replay, verify
from tdx.tui.live.messages import DumpSteps, Reset, RunSteps
from tests.programs import exhaustive
from tests.tui.test_stacks import do, player


@pytest.mark.parametrize(
    ("factory", "steps", "shape", "ends"),
    [
        ("make", 203, (203, 4, 3), ["truncated"]),
        ("make_vec_normalize", 20, (2, 20, 4), ["terminated", "terminated"]),
        ("make_vector", 20, (3, 20, 4), ["terminated", "terminated"]),
    ],
)
@exhaustive
def test_a_dump_has_the_values_of_the_outermost_stage(
    factory: str, steps: int, shape: tuple[int, ...], ends: list[str], tmp_path: Path
) -> None:
    with player(factory, seed=0) as (found, _):
        state = do(found, RunSteps(steps=steps), DumpSteps(str(tmp_path / "dump")))
        assert state.message.startswith(f"dumped {steps} steps to ")
        last = found.session.tracer.last
        assert last is not None
    dump = open_dump(tmp_path / "dump")
    observation = dump.data["next", "observation"]
    assert observation.shape == dump.data["observation"].shape == shape
    time = dump.data.ndim - 1
    assert torch.equal(observation.select(time, -1), last.env_tensordict["observation"])
    assert verify(tmp_path / "dump").is_fine
    finished = [each for each in dump.manifest.episodes if each.finished]
    assert ["terminated" if each.terminated else "truncated" for each in finished] == ends


def test_the_observation_of_a_step_is_the_one_that_the_policy_received(tmp_path: Path) -> None:
    with player("make_vec_normalize", seed=0) as (found, _):
        do(found, RunSteps(steps=20), DumpSteps(str(tmp_path / "dump")))
        returned = [trace.version("observation").value for trace in found.session.history]
    data = open_dump(tmp_path / "dump").data
    assert torch.equal(data["observation"], torch.stack(returned[:-1], 1))
    done = data["next", "done"]
    assert done.any()
    following, starts = data["next", "observation"][:, :-1], data["observation"][:, 1:]
    is_same = (following == starts).all(-1)
    assert torch.equal(is_same, ~done[:, :-1])


def test_only_the_steps_since_the_reset_are_dumped(tmp_path: Path) -> None:
    with player() as (found, _):
        do(
            found,
            RunSteps(steps=5),
            Reset(seed=1),
            RunSteps(steps=2),
            DumpSteps(str(tmp_path / "dump")),
        )
    assert open_dump(tmp_path / "dump").manifest.steps == 2


def test_entries_that_are_not_tensors_are_left_out(tmp_path: Path) -> None:
    with player("make_words") as (found, _):
        do(found, RunSteps(steps=2), DumpSteps(str(tmp_path / "dump")))
    data = open_dump(tmp_path / "dump").data
    assert list(data["observation"].keys()) == ["state"]
    assert verify(tmp_path / "dump").is_fine


@pytest.mark.parametrize(
    ("factory", "steps", "message"),
    [
        ("make_varying", 2, "observation: its shape or dtype differs between steps"),
        ("make", 0, "no steps since the reset"),
    ],
)
def test_refused_dump_has_a_reason(factory: str, steps: int, message: str, tmp_path: Path) -> None:
    with player(factory) as (found, _):
        if steps:
            do(found, RunSteps(steps=steps))
        state = do(found, DumpSteps(str(tmp_path / "dump")))
        assert state.message.startswith(message)
    assert not (tmp_path / "dump").exists()


def test_live_steps_of_another_library_are_not_replayed(tmp_path: Path) -> None:
    with player() as (found, _):
        do(found, RunSteps(steps=2), DumpSteps(str(tmp_path / "dump")))
    dump = open_dump(tmp_path / "dump")
    with pytest.raises(ArgumentError, match="its env in a chain of tdx has") as error:
        replay(dump, (parse_stage("RewardSum"),), tmp_path / "replayed", allow_code=True)
    assert "record them with tdx rollout" in str(error.value.hint)
