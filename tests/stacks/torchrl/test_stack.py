"""TorchRL envs in the jobs that take any stack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import (
    CatFrames,
    Compose,
    EnvBase,
    RewardClipping,
    RewardScaling,
    StepCounter,
    TransformedEnv,
    VecNormV2,
)

import tdx
from tdx.inspection.value_stats import ValueStats
from tdx.inspection.values_report import inspect_values
from tests.programs import exhaustive


def make() -> Any:
    base = tdx.to_torchrl(tdx.PendulumEnv())
    return TransformedEnv(base, Compose(RewardScaling(0.0, 0.5), StepCounter(10)))


def test_stages_have_the_names_arguments_and_sources_of_the_transforms() -> None:
    stack = tdx.open_stack(make())
    assert stack.kind == "torchrl"
    assert [stage.name for stage in stack.stages] == ["RewardScaling", "StepCounter"]
    assert stack.stages[1].arguments["max_steps"] == 10
    assert "torchrl" in str(stack.stages[1].location)


def test_env_is_inspected_and_checked() -> None:
    chain = tdx.inspect(make(), steps=3).chain
    assert chain is not None
    assert [[write.key for write in stage.forward.writes] for stage in chain.stages] == [
        ["reward"],
        ["step_count"],
    ]
    assert tdx.check(make(), seed=0, steps=3).findings == ()


def reward_rows(low: float) -> list[ValueStats]:
    """Return the rewards of the same steps before and after they are clipped."""
    env = TransformedEnv(tdx.to_torchrl(tdx.PendulumEnv()), RewardClipping(low, 0.0))
    report = inspect_values(env, steps=40, seed=0)
    steps = next(phase for phase in report.phases if phase.phase == "step")
    stages = [stage for stage in steps.stages if stage.kind in ("env", "stage")]
    return [next(value for value in stage.values if value.key == "reward") for stage in stages]


@exhaustive
def test_values_count_the_steps_in_which_a_transform_changes_them() -> None:
    before, unclipped = reward_rows(-1e9)
    assert before.mean is not None
    assert (unclipped.mean, unclipped.changed) == (before.mean, 0)
    low = before.mean
    inner, clipped = reward_rows(low)
    assert inner.mean == low
    assert clipped.minimum == pytest.approx(low)
    assert (clipped.present, clipped.maximum) == (40, inner.maximum)
    assert 0 < (clipped.changed or 0) < 40


def test_state_that_the_first_step_creates() -> None:
    frames = CatFrames(N=2, dim=-1, in_keys=["observation"])
    norm = VecNormV2(in_keys=["observation"])
    env = TransformedEnv(tdx.to_torchrl(tdx.PendulumEnv()), Compose(frames, norm))
    assert 0 not in tdx.inspect(env).state
    state = tdx.inspect(env, steps=3, seed=0).state
    assert state[0]["_cat_buffers_observation"].shape == (6,)
    assert {"_loc.observation", "_var.observation"} <= state[1].keys()


class Thermometer(EnvBase):  # type: ignore[misc]
    """Observes a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded(()))
        self.action_spec = Bounded(-1, 1, (1,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> Any:
        return TensorDict({"observation": torch.tensor(0.0)})

    def _step(self, tensordict: Any) -> Any:
        result = {"observation": tensordict["action"].sum(), "reward": torch.ones(1)}
        return TensorDict({**result, "done": torch.zeros(1, dtype=torch.bool)})

    def _set_seed(self, seed: int | None) -> None:
        torch.manual_seed(seed or 0)


def test_env_that_observes_a_single_number_has_a_contract() -> None:
    contract = tdx.freeze(TransformedEnv(Thermometer(), RewardScaling(0.0, 0.5)), steps=3)
    assert tdx.check_contract(TransformedEnv(Thermometer(), RewardScaling(0.0, 0.5)), contract).same
