"""TorchRL envs in the jobs that take any stack."""

from __future__ import annotations

from typing import Any

from torchrl.envs import Compose, RewardScaling, StepCounter, TransformedEnv

import tdx


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
