"""``MultiStepTransform``: returns over several steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import LazyTensorStorage, MultiStepTransform, PendulumEnv, ReplayBuffer, TransformedEnv
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError


def steps(count: int, ends: tuple[int, ...] = ()) -> TensorDict:
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[list(ends)] = True
    time = torch.arange(count)
    following = {"time": time + 1, "reward": torch.ones(count, 1), "done": done}
    return TensorDict({"time": time, "next": following}, batch_size=[count])


def test_an_episode_that_ends_earlier() -> None:
    ahead = MultiStepTransform(3, gamma=0.5).inv(steps(8, ends=(3,)))
    assert ahead["time"].tolist() == [0, 1, 2, 3, 4]
    assert ahead["next", "time"].tolist() == [3, 4, 4, 4, 7]
    assert ahead["next", "reward"].flatten().tolist() == [1.75, 1.75, 1.5, 1.0, 1.75]
    assert ahead["next", "original_reward"].flatten().tolist() == [1.0] * 5
    assert ahead["steps_to_next_obs"].tolist() == [3, 3, 2, 1, 3]
    assert ahead["gamma"].tolist() == [0.125, 0.125, 0.25, 0.5, 0.125]
    assert ahead["nonterminal"].tolist() == [True, True, True, False, True]
    assert ahead["next", "done"].flatten().tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("split", [1, 2, 5, 20])
def test_in_a_buffer_that_is_written_in_parts(split: int) -> None:
    data = steps(20, ends=(4, 11))
    buffer = ReplayBuffer(storage=LazyTensorStorage(50))
    buffer.append_transform(MultiStepTransform(3, gamma=0.9))
    written = [len(buffer.extend(part)) for part in data.split(split)]
    assert sum(written) == len(buffer) == 17
    assert (buffer[:] == MultiStepTransform(3, gamma=0.9).inv(data)).all()


def test_in_a_buffer_that_is_written_step_by_step() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(50))
    buffer.append_transform(MultiStepTransform(3, gamma=0.9))
    data = steps(20, ends=(4, 11))
    for step in data.unbind(0):
        buffer.add(step)
    assert (buffer[:] == MultiStepTransform(3, gamma=0.9).inv(data)).all()


def test_the_given_data_is_unchanged() -> None:
    data = steps(8)
    before = data.clone()
    transform = MultiStepTransform(2, gamma=0.9)
    transform.inv(data)
    assert (data == before).all()
    data["next", "reward"].zero_()
    assert transform.inv(steps(2))["next", "original_reward"].flatten().tolist() == [1.0, 1.0]


def test_number_of_steps_can_be_changed() -> None:
    transform = MultiStepTransform(2, gamma=1.0)
    assert transform.inv(steps(6))["next", "reward"].flatten().tolist() == [2.0] * 4
    transform.n_steps = 4
    assert transform.inv(steps(6))["next", "reward"].flatten().tolist() == [4.0] * 4
    with pytest.raises(ArgumentError, match="n_steps must be an integer"):
        transform.n_steps = 0


def test_masked_steps_are_terminal() -> None:
    data = steps(6)
    data["mask"] = torch.tensor([True, False, True, True, True, True])
    ahead = MultiStepTransform(2, gamma=1.0).inv(data)
    assert ahead["nonterminal"].tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_steps": 0, "gamma": 1.0}, "n_steps must be an integer of at least 1"),
        ({"n_steps": 2, "gamma": None}, "gamma must be a number"),
        ({"n_steps": 2, "gamma": "a"}, "gamma must be a number"),
    ],
)
def test_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MultiStepTransform(**arguments)


def test_incompatible_data_is_refused() -> None:
    with pytest.raises(KeyNotFoundError, match=r"next\.total"):
        MultiStepTransform(2, 0.9, reward_keys=["total"]).inv(steps(3))
    with pytest.raises(ChainError, match="an env has only the steps so far"):
        TransformedEnv(PendulumEnv(), MultiStepTransform(2, 0.9))
    data = steps(3)
    assert MultiStepTransform(2, 0.9)(data) is data
