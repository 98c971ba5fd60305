"""pytorch/rl#1453: ``RewardSum`` inside of a ``ParallelEnv`` returns the reward of the last step.

It read its sum from the input of the step without declaring it as state, so a ``ParallelEnv`` did
not pass it on. The class is that transform; the current one declares the state. A worker of the
current ``ParallelEnv`` keeps its last result, so that only a sum that is set by hand is lost.
"""

from __future__ import annotations

from typing import Any

import torch
from torchrl.data import Unbounded
from torchrl.envs import Compose, RewardScaling, RewardSum, Timer, Transform, TransformedEnv

import tdx
from tests.field.published import suggestions


class OldRewardSum(Transform):  # type: ignore[misc]
    """Adds to the sum in the input of the step."""

    def __init__(self) -> None:
        super().__init__(in_keys=["reward"], out_keys=["episode_reward"])

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return tensordict_reset.set("episode_reward", torch.zeros(1))

    def _step(self, tensordict: Any, next_tensordict: Any) -> Any:
        reward = next_tensordict["reward"]
        total = tensordict.get("episode_reward", torch.zeros_like(reward))
        return next_tensordict.set("episode_reward", total + reward)

    def transform_observation_spec(self, observation_spec: Any) -> Any:
        observation_spec["episode_reward"] = Unbounded((1,))
        return observation_spec


def make(kind: Any) -> Any:
    """Create the env of one worker."""
    base = tdx.to_torchrl(tdx.PendulumEnv())
    return TransformedEnv(base, Compose(RewardScaling(0.0, 0.5), kind()))


def step_from_declared_input(env: Any) -> Any:
    """Return a second step from what a ``ParallelEnv`` passes on: actions and declared state."""
    first = env.step(env.rand_action(env.reset()))
    state = env.rand_action(env.step_mdp(first))
    return env.step(state.select(*env.action_keys, *env.state_spec.keys(True, True)))["next"]


def test_sum_that_is_not_declared_as_state_is_named() -> None:
    result = step_from_declared_input(make(OldRewardSum))
    assert result["episode_reward"].equal(result["reward"])
    assert suggestions(make(OldRewardSum)) == [("TDX205", 1, "OldRewardSum", "episode_reward")]


def test_current_transform_is_silent() -> None:
    result = step_from_declared_input(make(RewardSum))
    assert not result["episode_reward"].equal(result["reward"])
    assert suggestions(make(RewardSum)) == []


def test_finding_says_what_to_declare() -> None:
    (finding,) = tdx.check(make(OldRewardSum), seed=0).findings
    assert "full_state_spec" in str(finding.hint)


def test_entry_that_the_inverse_of_a_step_writes_is_not_carried() -> None:
    assert suggestions(make(Timer)) == []
