"""Chains: specs, inputs, and the interface of a module."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    Bounded,
    Compose,
    Composite,
    KeyNotFoundError,
    RewardScaling,
    RewardSum,
    SpecError,
    StepCounter,
    TimeBehavior,
    Transform,
    TransformedEnv,
    Unbounded,
)
from tdx.core import stage_specs
from tests.core.stages import Double, Shift
from tests.envs.mocks import CountingEnv


def test_specs_are_mapped_without_changing_the_argument() -> None:
    shift = Shift(in_keys=["a"], out_keys=["b"])
    spec = Composite(a=Bounded(-1.0, 1.0, (2,)))
    before = spec.clone()
    for hook in ("observation", "reward", "done"):
        result = getattr(shift, f"transform_{hook}_spec")(spec)
        assert result["b"] == Bounded(0.0, 2.0, (2,))
        assert result["a"] == before["a"]
        assert spec == before


PARTS = {
    "transform_observation_spec": "full_observation_spec",
    "transform_reward_spec": "full_reward_spec",
    "transform_done_spec": "full_done_spec",
    "transform_action_spec": "full_action_spec",
    "transform_state_spec": "full_state_spec",
}


@pytest.mark.parametrize("hook", [*PARTS, "transform_input_spec", "transform_output_spec"])
def test_a_custom_hook_may_write_into_its_argument(hook: str) -> None:
    def written(self: Transform, spec: Composite) -> Composite:
        part = spec if hook in PARTS else next(iter(spec.values()))
        part["added"] = Unbounded((1,))
        return spec

    kind = type("Writes", (Transform,), {hook: written})
    env = TransformedEnv(CountingEnv(), Compose(RewardScaling(0.0, 2.0), kind(), StepCounter()))
    before = env.base_env.specs.clone()
    before.unlock_()
    stages = [stage.input_spec.keys(True, True) for stage in stage_specs(env)]
    stages += [stage.output_spec.keys(True, True) for stage in stage_specs(env)]
    names = [any(key[-1] == "added" for key in keys) for keys in stages]
    given = hook in ("transform_action_spec", "transform_state_spec", "transform_input_spec")
    grown, same = [False, False, True, True], [False] * 4
    assert names == [*(grown if given else same), *(same if given else grown)]
    assert any(key[-1] == "added" for key in env.specs.keys(True, True))
    assert env.base_env.specs == before


def test_input_specs_are_those_of_the_caller() -> None:
    shift = Shift(in_keys_inv=["action"], out_keys_inv=["push"])
    spec = Composite(action=Bounded(-1.0, 1.0, (2,)))
    for hook in ("action", "state"):
        result = getattr(shift, f"transform_{hook}_spec")(spec)
        assert result == Composite(push=Bounded(0.0, 2.0, (2,)))
        assert list(spec.keys()) == ["action"]


def test_whole_specs_are_mapped_part_by_part() -> None:
    env = CountingEnv()
    env.observation_spec = Composite(observation=Bounded(0.0, 9.0, (1,)))
    chain = Compose(Shift(["observation"], in_keys_inv=["action"]), Shift(["observation"]))
    output = chain.transform_output_spec(env.output_spec)
    assert output["full_observation_spec", "observation"] == Bounded(2.0, 11.0, (1,))
    assert output["full_reward_spec"] == env.full_reward_spec
    assert output["full_done_spec"] == env.full_done_spec
    given = chain.transform_input_spec(env.input_spec)
    assert given["full_action_spec", "action"] == Bounded(0.0, 2.0, (2,))
    assert env.action_spec == Bounded(-1.0, 1.0, (2,))


def test_actions_are_inverted_from_the_last_stage_to_the_first() -> None:
    class Records(CountingEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            given.append(tensordict["action"].tolist())
            return super()._step(tensordict)

    given: list[list[float]] = []
    env = TransformedEnv(
        Records(),
        Compose(
            Shift(in_keys_inv=["action"]), Double(in_keys_inv=["action"], out_keys_inv=["push"])
        ),
    )
    assert env.action_keys == ["push"]
    tensordict = env.reset().set("push", torch.tensor([2.0, 4.0]))
    stepped = env.step(tensordict)
    assert given == [[0.0, 1.0]]
    assert stepped["push"].tolist() == [2.0, 4.0]
    assert "action" not in stepped.keys()


def test_reset_inputs_pass_through_the_inverse() -> None:
    class Records(CountingEnv):
        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            assert tensordict is not None
            given.append(tensordict["goal"].item())
            return super()._reset(tensordict, **kwargs)

    given: list[float] = []
    base = Records()
    base.state_spec = Composite(goal=Unbounded((1,)))
    env = TransformedEnv(base, Compose(Double(in_keys_inv=["goal"])))
    result = env.reset(TensorDict(goal=torch.tensor([6.0])))
    assert given == [3.0]
    assert result["goal"].item() == 6


class Unsqueezes(Transform):
    """Stage that adds a batch dim of size one."""

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        return torch.Size((1, *batch_size))


class Elsewhere(Transform):
    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        return torch.device("meta")


def test_batch_size_and_device_go_through_the_chain() -> None:
    chain = Compose(Unsqueezes(), Compose(Unsqueezes()))
    assert chain.transform_env_batch_size(torch.Size([4])) == (1, 1, 4)
    assert TransformedEnv(CountingEnv(), Unsqueezes()).batch_size == (1,)
    chain = Compose(Elsewhere())
    assert chain.transform_env_device(torch.device("cpu")) == torch.device("meta")
    env = TransformedEnv(CountingEnv(), chain)
    assert env.device == torch.device("meta")
    assert env.observation_spec["observation"].device.type == "meta"


def test_the_specs_after_each_stage() -> None:
    env = TransformedEnv(CountingEnv(), Compose(StepCounter(), RewardSum()))
    stages = stage_specs(env)
    assert [(stage.index, stage.name) for stage in stages] == [
        (-1, "CountingEnv"), (0, "StepCounter"), (1, "RewardSum"),
    ]  # fmt: skip
    keys = [set(stage.output_spec["full_observation_spec"].keys()) for stage in stages]
    assert keys[1] - keys[0] == {"step_count"}
    assert keys[2] - keys[1] == {"episode_reward"}
    assert stages[-1].output_spec == env.output_spec
    assert stages[-1].transform is env.stages[-1]


def test_the_specs_after_each_stage_are_computed_once_per_change() -> None:
    computed: list[int] = []

    class Counted(Transform):
        def transform_observation_spec(self, observation_spec: Composite) -> Composite:
            computed.append(len(computed))
            return observation_spec

    inner = TransformedEnv(CountingEnv(), Compose(Counted()))
    env = TransformedEnv(inner, Compose(StepCounter()))
    assert stage_specs(env) == stage_specs(env)
    assert stage_specs(env)[-1].output_spec is env.output_spec
    assert len(computed) == 1
    stage_specs(env).clear()
    inner.append_transform(RewardSum())
    names = [stage.name for stage in stage_specs(env)]
    assert names == ["CountingEnv", "Counted", "RewardSum", "StepCounter"]
    inner.base_env.reward_spec = Unbounded((1,), dtype=torch.float64)
    dtypes = {stage.output_spec["full_reward_spec", "reward"].dtype for stage in stage_specs(env)}
    assert dtypes == {torch.float64}
    with pytest.raises(SpecError, match="locked"):
        stage_specs(env)[-1].output_spec["extra"] = Unbounded()


def test_a_stage_that_cannot_take_the_specs_is_named() -> None:
    env = TransformedEnv(CountingEnv(), Compose(StepCounter(), Double(["observtion"])))
    for look in (stage_specs, lambda env: env.specs):
        with pytest.raises(KeyNotFoundError, match=r"^stage 1 \(Double\), key 'observtion'"):
            look(env)


# Module


def test_state_dict_to_and_train_reach_every_stage() -> None:
    scaling = RewardScaling(torch.ones(1), torch.ones(1) * 3)
    chain = Compose(Shift(["a"]), Compose(scaling))
    other = Compose(Shift(["a"]), Compose(RewardScaling(torch.zeros(1), torch.ones(1))))
    other.load_state_dict(chain.state_dict())
    assert other(TensorDict(a=torch.ones(1), reward=torch.ones(1)))["reward"].item() == 4
    assert chain.to(torch.float64) is chain
    assert scaling.get_buffer("loc").dtype is torch.float64
    assert all(buffer.is_meta for buffer in chain.to("meta").buffers())
    chain.eval()
    added = StepCounter()
    chain.append(added)
    assert not added.training
    assert not any(module.training for module in chain.modules())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda chain: pickle.loads(pickle.dumps(chain))])
def test_copied_chain_is_independent(copied: Any) -> None:
    chain = Compose(Shift(["a"]), Compose(Double(["a"])))
    other = copied(chain)
    assert other[0] is not chain[0]
    assert other[0].container is other
    assert other(TensorDict(a=torch.ones(1)))["a"].item() == 4
    other.append(Shift(["a"]))
    assert len(chain) == 2


def test_a_clone_of_a_stage_goes_into_another_chain() -> None:
    stage = RewardScaling(torch.zeros(1), torch.ones(1))
    chain, other = Compose(stage), Compose(stage.clone())
    assert other[0].container is other
    assert chain[0].container is chain
    stage.in_keys = ["other"]
    assert other[0].in_keys == ["reward"]


def test_gradients_flow_through_a_chain() -> None:
    reward = torch.ones(1, requires_grad=True)
    Compose(RewardScaling(0.0, 3.0))(TensorDict(reward=reward))["reward"].backward()
    assert reward.grad is not None
    assert reward.grad.item() == 3


def test_undeclared_transforms_run_step_by_step() -> None:
    assert Shift(["a"]).time_behavior is TimeBehavior.CONTROL
    assert RewardScaling(0.0, 1.0).time_behavior is TimeBehavior.POINTWISE
