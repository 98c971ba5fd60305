"""Times of policies, steps and resets."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from tensordict import TensorDictBase

from tdx import GymEnv, SerialEnv, StepCounter, Timer, TransformedEnv, check_env_specs
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ArgumentError
from tests.transforms.envs import RowsEnv


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the clock by a second whenever it is read."""
    seconds = count(1)
    read = "tdx.transforms.episode.timer.perf_counter"
    monkeypatch.setattr(read, lambda: float(next(seconds)))


@pytest.mark.usefixtures("clock")
def test_measured_times() -> None:
    env = TransformedEnv(RowsEnv(endless=True), Timer())
    reset = env.reset()
    assert [reset[f"time_{name}"].item() for name in ("step", "policy", "reset")] == [0, 0, 1]
    step = env.step(env.rand_action(reset))["next"]
    assert [step[f"time_{name}"].item() for name in ("step", "policy", "reset")] == [1, 1, 0]


def slow(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.zeros(1))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("planned", [True, False])
def test_over_several_episodes(planned: bool) -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), planned=planned).append_transform(Timer())
    env.append_transform(StepCounter(5))
    rollout = env.rollout(10, slow, break_when_any_done=False)
    starts = [step % 5 == 0 for step in range(10)]
    assert (rollout["time_reset"] > 0).tolist() == starts
    assert (rollout["time_policy"] == 0).tolist() == starts
    assert (rollout["time_step"] == 0).tolist() == starts
    following = rollout["next"]
    assert (following["time_reset"] == 0).all()
    assert (following["time_policy"] > 0).all()
    assert (following["time_step"] > 0).all()


def test_in_a_batch() -> None:
    envs: list[EnvBase] = [
        TransformedEnv(SerialEnv(2, RowsEnv), Timer()),
        SerialEnv(2, lambda: TransformedEnv(RowsEnv(), Timer(time_key="seconds"))),
    ]
    for env in envs:
        check_env_specs(env)
    assert envs[0].rollout(1)["time_reset"].shape == (2, 1)


def test_too_few_names_are_refused() -> None:
    with pytest.raises(ArgumentError, match="three times, got 2"):
        Timer(["a", "b"])
