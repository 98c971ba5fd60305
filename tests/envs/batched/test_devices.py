"""Batches on another device than their envs."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tests.envs.batched.conftest import MakeBatch
from tests.envs.mocks import CountingEnv, TwoGroupsEnv, WideEnv, WordsEnv


def test_outputs_are_on_the_device_of_the_batch(make_batch: MakeBatch) -> None:
    env = make_batch(2, TwoGroupsEnv, device="meta")
    assert env.device == torch.device("meta")
    assert {leaf.device for leaf in env.specs.values(True, True)} == {torch.device("meta")}
    result = env.reset()
    assert result.device == torch.device("meta")
    assert {value.device for value in result.values(True, True)} == {torch.device("meta")}


def test_moving_a_batch_does_not_move_its_envs(make_batch: MakeBatch) -> None:
    env = make_batch(2, CountingEnv).to("meta")
    assert env.device == torch.device("meta")
    assert env.envs_device() == ["cpu", "cpu"]
    assert env.reset()["observation"].device == torch.device("meta")


@pytest.mark.gpu
@pytest.mark.parametrize("make_env", [CountingEnv, TwoGroupsEnv, WordsEnv])
def test_12_envs_on_the_cpu_roll_out_under_an_accelerator(
    make_batch: MakeBatch, make_env: type[CountingEnv]
) -> None:
    env = make_batch(2, make_env, device="cuda:0")
    result = env.rollout(7, break_when_any_done=False)
    assert {value.device.type for value in result.values(True, True)} == {"cuda"}
    twin = make_batch(2, make_env)
    actions = result.select(*env.action_keys).cpu()
    current = twin.reset()
    for index in range(7):
        step, current = twin.step_and_maybe_reset(current.update(actions[:, index]))
        for key in twin.done_keys + twin.reward_keys:
            assert (step["next"].get(key) == result[:, index]["next"].get(key).cpu()).all()


@pytest.mark.gpu
def test_partial_resets_under_an_accelerator(make_batch: MakeBatch) -> None:
    env = make_batch(2, partial(CountingEnv, batch_size=(2,), stop=50), device="cuda:0")
    current = env.step_mdp(env.rand_step(env.reset()))
    mask = torch.zeros(2, 2, 1, dtype=torch.bool, device="cuda:0")
    mask[1, 0] = True
    after = env.reset(current.set("_reset", mask))
    assert after["observation"].squeeze(-1).tolist() == [[1, 1], [0, 1]]


@pytest.mark.gpu
@pytest.mark.parametrize("device", [None, "cpu"])
def test_envs_on_an_accelerator(make_batch: MakeBatch, device: str | None) -> None:
    env = make_batch(2, partial(CountingEnv, device="cuda:0"), device=device)
    assert env.device.type == (device or "cuda")
    result = env.rollout(5, break_when_any_done=False)
    assert {value.device.type for value in result.values(True, True)} == {device or "cuda"}
    assert result["next", "observation"][0].flatten().tolist() == [1, 2, 3, 1, 2]


@pytest.mark.gpu
def test_envs_on_several_devices(make_batch: MakeBatch) -> None:
    env = make_batch(2, [CountingEnv, partial(CountingEnv, device="cuda:0")])
    assert env.device.type == "cpu"
    result = env.rollout(5, break_when_any_done=False)
    assert result["next", "observation"][1].flatten().tolist() == [1, 2, 3, 1, 2]


@pytest.mark.gpu
def test_different_envs_under_an_accelerator(make_batch: MakeBatch) -> None:
    env = make_batch(2, [partial(WideEnv, 2), partial(WideEnv, 3)], device="cuda:0")
    result = env.rollout(4, break_when_any_done=False)
    assert result[1]["next", "observation"].device.type == "cuda"
    assert result[1]["next", "observation"][:, 0].tolist() == [1, 2, 3, 1]
