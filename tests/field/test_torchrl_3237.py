"""pytorch/rl#3237: ``LineariseRewards`` writes a key that its specs do not declare.

The chain is that of the report: the stage after it, ``RewardScaling``, cannot find the key. The
class leaves the specs unchanged, as the transform did; the current one declares its out-key.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import Compose, EnvBase, LineariseRewards, RewardScaling, TransformedEnv

from tests.field.published import findings

VECTOR, WEIGHTED = ("agent1", "reward_vec"), ("agent1", "weighted_reward")


class Agent(EnvBase):  # type: ignore[misc]
    """One agent with two rewards."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((3,)))
        self.action_spec = Unbounded((2,))
        self.reward_spec = Composite(agent1=Composite(reward_vec=Unbounded((2,))))
        self.done_spec = Categorical(2, (1,), dtype=torch.bool)

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        return TensorDict(observation=torch.zeros(3))

    def _step(self, tensordict: Any) -> Any:
        following = TensorDict(observation=torch.ones(3))
        for flag in ("done", "terminated"):
            following[flag] = torch.zeros(1, dtype=torch.bool)
        return following.set(VECTOR, torch.ones(2))

    def _set_seed(self, seed: Any) -> None:
        pass


class OldLineariseRewards(LineariseRewards):  # type: ignore[misc]
    """Leaves the specs unchanged."""

    def transform_output_spec(self, output_spec: Any) -> Any:
        return output_spec


def make(kind: Any) -> Any:
    stages = (
        kind(in_keys=[VECTOR], out_keys=[WEIGHTED]),
        RewardScaling(in_keys=[WEIGHTED], loc=0.0, scale=2.0),
    )
    return TransformedEnv(Agent(), Compose(*stages))


def test_undeclared_key_and_the_stage_that_needs_it_are_named() -> None:
    assert findings(make(OldLineariseRewards)) == [
        ("TDX401", 0, "OldLineariseRewards", WEIGHTED),
        ("TDX102", 1, "RewardScaling", WEIGHTED),
    ]


def test_current_transform_is_silent() -> None:
    assert findings(make(LineariseRewards)) == []
