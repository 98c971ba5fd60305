"""Episodes of random lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tdx import PendulumEnv, RandomTruncationTransform, SerialEnv, StepCounter, TransformedEnv
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ArgumentError, KeyNotFoundError
from tests.programs import exhaustive
from tests.transforms.envs import CountedGroupsEnv, RowsEnv


def truncated(num_envs: int, *args: Any, **kwargs: Any) -> EnvBase:
    env = TransformedEnv(SerialEnv(num_envs, PendulumEnv), StepCounter())
    return env.append_transform(RandomTruncationTransform(*args, **kwargs))


def lengths(env: EnvBase, steps: int) -> list[list[int]]:
    """Return the lengths of the episodes of each env that end within some steps."""
    rollout = env.rollout(steps, break_when_any_done=False)
    count, done = rollout["next", "step_count"], rollout["next", "truncated"]
    assert torch.equal(done, rollout["next", "done"])
    return [count[row][done[row]].tolist() for row in range(len(count))]


@exhaustive
def test_first_episodes_are_spread() -> None:
    torch.manual_seed(0)
    found = lengths(truncated(30, 5, 10), 30)
    first = {each[0] for each in found}
    assert len(first) > 5
    assert first <= set(range(1, 11))
    assert {length for each in found for length in each[1:]} == {10}


@exhaustive
def test_later_episodes_are_random_with_a_probability() -> None:
    torch.manual_seed(0)
    always = [length for each in lengths(truncated(10, 3, 6, prob=1.0), 60) for length in each[1:]]
    assert set(always) == {3, 4, 5, 6}
    found = lengths(truncated(30, 1, 8, first_episode_prob=1.0), 60)
    assert len({each[1] for each in found}) > 4
    assert {length for each in found for length in each[2:]} == {8}


def test_each_group_has_its_lengths() -> None:
    env = TransformedEnv(CountedGroupsEnv(), RandomTruncationTransform(1, 1))
    step = env.step(env.rand_action(env.reset()))
    assert step["next", "solo", "truncated"].all()
    assert step["next", "pair", "truncated"].all()
    one = RandomTruncationTransform(1, 1, step_count_key=("pair", "step_count"))
    env = TransformedEnv(CountedGroupsEnv(), one)
    step = env.rand_step(env.reset())
    assert not step["next", "solo", "truncated"].any()
    assert step["next", "pair", "done"].all()


def test_an_explicit_reset_begins_another_episode() -> None:
    env = truncated(1, 2, 2)
    env.reset()
    env.reset()
    assert len(env.rollout(9)) == 1
    assert lengths(env, 6)[0] == [2, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_horizon": 0, "max_horizon": 2}, "min_horizon must be an integer of at least 1"),
        ({"min_horizon": 1, "max_horizon": 2.0}, "max_horizon must be an integer"),
        ({"min_horizon": 3, "max_horizon": 2}, "is above max_horizon"),
        ({"min_horizon": 1, "max_horizon": 2, "prob": 1.5}, "prob must be from 0 to 1"),
        ({"min_horizon": 1, "max_horizon": 2, "first_episode_prob": "a"}, "first_episode_prob"),
    ],
)
def test_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RandomTruncationTransform(**arguments)


def test_counter_is_required() -> None:
    with pytest.raises(KeyNotFoundError, match="no key 'step_count'") as caught:
        TransformedEnv(RowsEnv(), RandomTruncationTransform(1, 2)).output_spec  # noqa: B018
    assert "StepCounter" in str(caught.value.hint)
