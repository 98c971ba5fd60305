"""Groups without entries leave the output and the specs, and come back in the input."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from tdx import Composite, EnvBase, RemoveEmptySpecs, TransformedEnv, Unbounded, check_env_specs


class Sighted(EnvBase):
    """One agent observes a number; the other observes nothing and has an empty state."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(
            seeing=Composite(observation=Unbounded(1)), blind=Composite(camera=Composite())
        )
        self.state_spec = Composite(blind=Composite(memory=Composite()))
        self.action_spec = Unbounded(1)
        self.given: list[bool] = []

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict({"seeing": {"observation": torch.zeros(1)}, "blind": {"camera": {}}})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.given.append(("blind", "memory") in tensordict.keys(True))
        return self._reset().update(
            {"reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)}
        )

    def _set_seed(self, seed: int | None) -> None:
        pass


def test_empty_groups_of_an_env() -> None:
    base = Sighted()
    assert "blind" in base.rollout(2).keys()
    base.given.clear()
    env = TransformedEnv(base, RemoveEmptySpecs())
    check_env_specs(env)
    assert set(env.observation_spec.keys(True)) == {"seeing", ("seeing", "observation")}
    assert list(env.full_state_spec.keys(True)) == []
    rollout = env.rollout(3)
    assert "blind" not in rollout.keys()
    assert "blind" not in rollout["next"].keys()
    assert all(base.given)
    assert env.transform.invertible


def test_a_chain_without_an_env_adds_nothing() -> None:
    data = TensorDict({"a": {"b": {}}})
    assert set(RemoveEmptySpecs().inv(data).keys(True)) == {"a", ("a", "b")}


def test_an_input_is_completed_before_the_specs_were_read() -> None:
    env = TransformedEnv(Sighted(), RemoveEmptySpecs())
    assert ("blind", "memory") in env.transform.inv(TensorDict()).keys(True)


def test_a_group_of_rewards_without_entries_belongs_to_the_step() -> None:
    base = Sighted()
    base.reward_spec = Composite(reward=Unbounded(1), bonus=Composite())
    step = base._step
    base._step = lambda tensordict: step(tensordict).update({"bonus": {}})  # type: ignore[method-assign]
    rollout = base.rollout(3)
    assert ("next", "bonus") in rollout.keys(True)
    assert "bonus" not in rollout.keys()
