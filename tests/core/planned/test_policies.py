"""Planned equals eager for every kind of policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
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
    GymWrapper,
    InitTracker,
    ObservationNorm,
    PendulumEnv,
    RenameTransform,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    TimeBehavior,
    Transform,
    TransformedEnv,
    Unbounded,
)
from tdx.core.envs.rollout import RolloutRequest
from tdx.core.planned import executor as engine
from tests.core.planned.test_law import compared
from tests.programs import sampled

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
@sampled(4)
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
def test_recurrent_policy_reads_its_next_entries(base: str) -> None:
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


def test_gradients_flow_through_a_differentiable_env() -> None:
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


def test_policy_that_writes_env_keys_runs_eagerly() -> None:
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
def test_policy_that_reads_its_own_entry(base: str) -> None:
    """It reads its entry of the previous step, which the start must contain."""

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


# Stages whose results the policy reads run on arrays


class Spikes(gymnasium.Env[Any, Any]):
    """Env that observes overflowing numbers, infinity and NaN; episodes differ in length."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    numbers = (3.0e38, float("inf"), float("nan"), -1.0, 0.25)

    def __init__(self, length: int = 4) -> None:
        self.count, self.length = 0, length

    def _observed(self) -> Any:
        return np.full(3, self.numbers[self.count % 5], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._observed(), 1.0, self.count % self.length == 0, False, {}


class Positive(nn.Module):
    def forward(self, observation: Tensor) -> Tensor:
        return nn.functional.one_hot((observation[..., 0] > 0).long(), 2)


class Doubled(Transform):
    """Stage without a form for arrays."""

    time_behavior = TimeBehavior.POINTWISE

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor * 2


class Halved(ObservationNorm):
    """Stage with its own map, so that the array form of its base does not apply."""

    time_behavior = TimeBehavior.POINTWISE

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return tensor / 2


class Newest(CatFrames):
    """Stage that repeats the newest frame."""

    time_behavior = TimeBehavior.SCAN

    def _combine(self, window: Any, out: Tensor | None = None) -> Tensor:
        return super()._combine([window[-1]] * len(window), out)


ARRAY_CHAINS: dict[str, Callable[[], list[Transform]]] = {
    "between others": lambda: [
        Doubled(in_keys=["observation"], out_keys=["twice"]),
        ObservationNorm(0.5, 3.0, in_keys=["twice"]),
        CatFrames(2, -1, ["observation"]),
        CatFrames(2, -1, ["observation"], ["far"]),
        ObservationNorm(0.5, 3.0),
    ],
    "frames of frames": lambda: [
        CatFrames(2, -1, ["observation"]),
        CatFrames(3, -1, ["observation"]),
    ],
    "own kernels": lambda: [Halved(0.0, 1.0), Newest(3, -1, ["observation"])],
    "several keys": lambda: [
        ObservationNorm(0.5, 3.0, ["observation", "observation"], ["a", "b"]),
        CatFrames(2, -1, ["b"], ["observation"], padding="constant", padding_value=7.0),
    ],
    "standard": lambda: [
        ObservationNorm(torch.tensor([0.5, 1.0, 2.0]), 3.0, standard_normal=True),
        CatFrames(4, -1, ["observation"]),
        RewardSum(),
    ],
}


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("name", sorted(ARRAY_CHAINS))
def test_stages_on_arrays_equal_stages_on_tensors(name: str, rows: int | None) -> None:
    def rolled_out(planned: bool) -> list[TensorDictBase]:
        base: Any = GymWrapper(Spikes())
        if rows is not None:
            makers = [partial(GymWrapper, Spikes(3 + row)) for row in range(rows)]
            base = SerialEnv(rows, makers)
        env = TransformedEnv(base, Compose(*ARRAY_CHAINS[name]()), planned=planned)
        policy = Positive()
        # Three chunks, and a rollout that continues with the same stages.
        parts = list(env.iter_rollout(20, policy, chunk_steps=7, break_when_any_done=False))
        parts.append(env.rollout(6, policy, auto_reset=False, tensordict=env.reset()))
        return parts

    for ours, theirs in zip(rolled_out(True), rolled_out(False), strict=True):
        compared(ours, theirs)


def test_input_kept_by_a_policy_does_not_change() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Tensor] = []

        def forward(self, observation: Tensor) -> Tensor:
            self.seen.append(observation)
            return observation[..., :1]

    policy = Keeps()
    env = TransformedEnv(
        GymEnv("Pendulum-v1"),
        Compose(ObservationNorm(0.1, 0.1), CatFrames(2, -1, ["observation"])),
    )
    chunks = list(env.iter_rollout(20, policy, chunk_steps=8))
    whole = torch.cat([chunk["observation"] for chunk in chunks])
    assert torch.equal(torch.stack(policy.seen), whole)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("is_index", [True, False], ids=["index", "one-hot"])
def test_discrete_actions_of_several_envs(dtype: torch.dtype, is_index: bool) -> None:
    def alternate(step_count: Tensor) -> Tensor:
        index = (step_count % 2).squeeze(-1)
        return (index if is_index else nn.functional.one_hot(index, 2)).to(dtype)

    def rolled_out(planned: bool) -> TensorDictBase:
        base = SerialEnv(3, lambda: GymEnv("CartPole-v1", categorical_action_encoding=is_index))
        env = TransformedEnv(base, StepCounter(), planned=planned)
        env.set_seed(0)
        policy = TensorDictModule(alternate, in_keys=["step_count"], out_keys=["action"])
        data = env.rollout(20, policy, break_when_any_done=False)
        assert is_planned(env, policy) == planned
        return data

    compared(rolled_out(True), rolled_out(False))
