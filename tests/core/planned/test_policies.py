"""The law for every kind of policy: planned and eager rollouts are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import (
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import Tensor, nn

from tdx import (
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    InitTracker,
    ObservationNorm,
    PendulumEnv,
    RenameTransform,
    RewardSum,
    StepCounter,
    TensorDictPrimer,
    TransformedEnv,
    Unbounded,
)
from tdx.core.envs.rollout_request import RolloutRequest
from tdx.core.planned import executor as engine
from tests.core.planned.test_law import compared

BASES: dict[str, Callable[[], EnvBase]] = {
    "Gymnasium": lambda: GymEnv("Pendulum-v1"),
    "two of Gymnasium": lambda: GymEnv("Pendulum-v1", num_envs=2),
    "native": lambda: PendulumEnv(batch_size=[2], max_episode_steps=5),
}


def make(base: str, planned: bool, *stages: Any) -> TransformedEnv:
    chain = Compose(ObservationNorm(0.1, 0.5), *stages, StepCounter(7), RewardSum())
    env = TransformedEnv(BASES[base](), chain, planned=planned)
    env.set_seed(0)
    return env


def is_planned(env: EnvBase, policy: Any) -> bool:
    request = RolloutRequest(policy, None, False, False, False)
    return engine.prepare_run(env, request, env.reset()) is not None


def both(
    base: str,
    policy: Callable[[], Any],
    *stages: Callable[[], Any],
    planned: bool = True,
    **how: Any,
) -> list[TensorDictBase]:
    results = []
    for plan in (True, False):
        env = make(base, plan, *(stage() for stage in stages))
        torch.manual_seed(1)
        acts = policy()
        assert is_planned(env, acts) == (plan and planned)
        env.set_seed(0)
        torch.manual_seed(2)
        how.setdefault("break_when_any_done", False)
        results.append(env.rollout(18, acts, **how))
    compared(*(result.detach() for result in results))
    return results


def a_function() -> Callable[[TensorDictBase], TensorDictBase]:
    return lambda tensordict: tensordict.set("action", tensordict["observation"][..., :1] * 0.7)


def linear() -> nn.Module:
    return nn.Linear(3, 1)


def gaussian() -> ProbabilisticTensorDictSequential:
    net = nn.Sequential(nn.Linear(3, 2), NormalParamExtractor())
    return ProbabilisticTensorDictSequential(
        TensorDictModule(net, ["observation"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(
            ["loc", "scale"],
            ["action"],
            distribution_class=torch.distributions.Normal,
            return_log_prob=True,
            default_interaction_type="random",
        ),
    )


def hooked() -> nn.Module:
    module = TensorDictModule(linear(), ["observation"], ["action"])
    module.register_forward_hook(
        lambda module, given, result: result.set("action", result["action"] * 0.5)
    )
    return module


def hooked_inside() -> nn.Module:
    net = linear()
    net.register_forward_hook(lambda module, given, result: result * 0.5)
    return TensorDictModule(net, ["observation"], ["action"])


MODULES: dict[str, Callable[[], Any]] = {
    "TensorDictModule": lambda: TensorDictModule(linear(), ["observation"], ["action"]),
    "TensorDictSequential": lambda: TensorDictSequential(
        TensorDictModule(linear(), ["observation"], ["hidden"]),
        TensorDictModule(nn.Tanh(), ["hidden"], ["action"]),
    ),
    "functions": lambda: TensorDictModule(lambda seen: seen[..., :1], ["observation"], ["action"]),
    "gaussian": gaussian,
    "hooked": hooked,
    "hooked inside": hooked_inside,
    "linear": linear,
    "nested out keys": lambda: TensorDictModule(
        lambda seen: (seen[..., :1], seen * 2), ["observation"], ["action", ("of", "policy")]
    ),
    "of counts": lambda: TensorDictModule(
        lambda seen, count: seen[..., :1] + count, ["observation", "step_count"], ["action"]
    ),
    "of nothing": lambda: TensorDictModule(
        lambda count: (count * 0.1).float(), ["step_count"], ["action"]
    ),
    "sequential": lambda: nn.Sequential(linear(), nn.Tanh()),
}


@pytest.mark.parametrize("base", sorted(BASES))
@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules(base: str, name: str) -> None:
    planned, _ = both(base, MODULES[name])
    assert "action" in planned.keys()
    if name == "gaussian":
        assert {"loc", "scale", "action_log_prob"} <= set(planned.keys())
    with torch.no_grad():
        planned, _ = both(base, MODULES[name])
    assert not planned["action"].requires_grad


@pytest.mark.parametrize("base", sorted(BASES))
def test_a_function_runs_eagerly(base: str) -> None:
    both(base, a_function, planned=False)


@pytest.mark.parametrize("base", sorted(BASES))
def test_nested_keys(base: str) -> None:
    def policy() -> nn.Module:
        return TensorDictModule(linear(), [("seen", "observation")], [("do", "it")])

    both(
        base,
        policy,
        lambda: RenameTransform(["observation"], [("seen", "observation")], create_copy=True),
        lambda: RenameTransform([], [], ["action"], [("do", "it")]),
    )


@pytest.mark.parametrize("base", sorted(BASES))
def test_a_recurrent_policy_gets_what_it_wrote_below_next(base: str) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(3, 1)

        def forward(self, observation: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
            after = self.cell(observation, hidden)
            return after, after

    def policy() -> nn.Module:
        return TensorDictModule(
            Recurrent(), ["observation", "hidden"], ["action", ("next", "hidden")]
        )

    planned, _ = both(base, policy, lambda: TensorDictPrimer(hidden=Unbounded((1,))), planned=False)
    after, before = planned["next", "hidden"], planned["hidden"]
    starts = planned["step_count"] == 0
    assert bool((before[starts] == 0).all())
    assert torch.equal(
        before[..., 1:, :][~starts[..., 1:, :]], after[..., :-1, :][~starts[..., 1:, :]]
    )


@pytest.mark.parametrize("base", sorted(BASES))
@pytest.mark.parametrize("stages", [(), (lambda: CatFrames(2, -1, ["observation"], ["stack"]),)])
def test_gradients_flow_as_in_an_eager_rollout(base: str, stages: Any) -> None:
    gradients = []
    for planned in (True, False):
        torch.manual_seed(1)
        policy = gaussian()
        env = make(base, planned, *(stage() for stage in stages))
        torch.manual_seed(2)
        data = env.rollout(15, policy, break_when_any_done=False)
        (data["action_log_prob"].sum() + data["loc"].square().sum()).backward()
        gradients.append([parameter.grad for parameter in policy.parameters()])
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other)


def test_gradients_flow_through_what_the_env_makes_of_actions() -> None:
    gradients = []
    for planned in (True, False):
        torch.manual_seed(1)
        policy = TensorDictModule(linear(), ["observation"], ["action"])
        env = make("native", planned, InitTracker())
        env.set_seed(3)
        env.rollout(9, policy, break_when_any_done=False)["next", "episode_reward"].sum().backward()
        gradients.append([parameter.grad for parameter in policy.parameters()])
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_policy_on_the_env_s_device_may_be_cast() -> None:
    both("native", MODULES["gaussian"], auto_cast_to_device=True)


def test_a_policy_that_writes_what_the_env_writes_runs_eagerly() -> None:
    both(
        "native",
        lambda: TensorDictModule(
            lambda seen: (seen[..., :1], seen * 2), ["observation"], ["action", "observation"]
        ),
        planned=False,
    )
    both(
        "native",
        lambda: TensorDictModule(
            lambda seen: (seen[..., :1], seen[..., :1]), ["observation"], ["action", "reward"]
        ),
        planned=False,
    )


@pytest.mark.parametrize("base", sorted(BASES))
def test_a_policy_that_reads_what_it_wrote(base: str) -> None:
    """Its own entry of the step before, which the start must hold."""

    def policy() -> nn.Module:
        return TensorDictModule(
            lambda seen, memory: (seen[..., :1] + memory, memory + 1.0),
            ["observation", "memory"],
            ["action", "memory"],
        )

    results = []
    for planned in (True, False):
        env = make(base, planned)
        start = env.reset().set("memory", torch.zeros(*env.batch_size, 1))
        results.append(
            env.rollout(12, policy(), auto_reset=False, tensordict=start, break_when_any_done=False)
        )
    compared(*results)
    assert results[0]["memory"].flatten().max() == 12
