"""Rollouts whose chunks run in worker processes have the values of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from tdx import (
    ActionSequence,
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    InitTracker,
    ObservationNorm,
    ParallelEnv,
    PendulumEnv,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    TrajCounter,
    Transform,
    TransformedEnv,
    VecNorm,
    inspect_plan,
)
from tdx.core.plan import plan_of
from tdx.core.transforms import TimeBehavior
from tests.core.planned.split_env import SplitEnv
from tests.core.planned.test_law import compared
from tests.envs.batched.test_processes import DrawingEnv
from tests.programs import exhaustive, sampled


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread, as in a worker: matrix products round differently with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def chain() -> list[Transform]:
    return [
        ObservationNorm(0.1, 2.0, in_keys=["observation"]),
        RewardScaling(0.0, 0.1),
        RewardClipping(-1, 1),
        RewardSum(),
        InitTracker(),
        StepCounter(30),
        CatFrames(4, -1, in_keys=["observation"]),
    ]


def pendulum() -> EnvBase:
    return GymEnv("Pendulum-v1")


def cart_pole() -> EnvBase:
    return GymEnv("CartPole-v1")


def counted() -> EnvBase:
    return TransformedEnv(
        cart_pole(), Compose(StepCounter(4, step_count_key="inner"), InitTracker("fresh"))
    )


def natives() -> EnvBase:
    return PendulumEnv(batch_size=[2], max_episode_steps=7)


def mlp(width: int = 12) -> TensorDictModule:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 1))
    return TensorDictModule(net, ["observation"], ["action"])


class Gaussian(nn.Module):
    """Policy that draws an action around the output of a network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp().module

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        mean = self.net(observation)
        return mean + torch.randn_like(mean)


class First(nn.Module):
    """Policy that returns a part of its input."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation[..., :1]


def rolled_out(env: TransformedEnv, policy: Any) -> list[Any]:
    """Return chunks, a rollout after them, and manual steps after that."""
    env.set_seed(3)
    torch.manual_seed(5)
    with torch.no_grad():
        parts = list(env.iter_rollout(90, policy, chunk_steps=40))
        parts.append(env.rollout(20, policy, break_when_any_done=False))
        root = env.maybe_reset(env.step_mdp(parts[-1][..., -1].clone()))
        for _ in range(3):
            done, root = env.step_and_maybe_reset(env.rand_action(root))
            parts.append(done)
    return [*parts, torch.rand(2)]


def assert_equal(mine: list[Any], other: list[Any]) -> None:
    *parts, drawn = mine
    *expected, wanted = other
    assert torch.equal(drawn, wanted)
    assert len(parts) == len(expected)
    for ours, theirs in zip(parts, expected, strict=True):
        compared(ours, theirs)


CASES: dict[str, tuple[Callable[[], EnvBase], Callable[[], Any]]] = {
    "random": (cart_pole, lambda: None),
    "an MLP": (pendulum, mlp),
    "a policy that draws": (
        pendulum,
        lambda: TensorDictModule(Gaussian(), ["observation"], ["action"]),
    ),
    "a part of the input": (
        pendulum,
        lambda: TensorDictModule(First(), ["observation"], ["action"]),
    ),
    "given": (pendulum, lambda: ActionSequence(torch.linspace(-2, 2, 450).view(5, 90, 1))),
    "chains inside": (counted, lambda: None),
    "native": (natives, lambda: None),
}


@pytest.mark.parametrize("name", sorted(CASES))
@sampled(3)
def test_rows_run_separately(name: str) -> None:
    make, policy = CASES[name]
    together = rolled_out(TransformedEnv(SerialEnv(5, make), Compose(*chain())), policy())
    for sizes in ((5,), (1, 3, 1)):
        split = SplitEnv(sizes, make)
        apart = rolled_out(TransformedEnv(split, Compose(*chain())), policy())
        assert split.chunks == [40, 40, 10, 20]
        assert_equal(apart, together)


@pytest.mark.parametrize("name", ["random", "an MLP"])
@exhaustive
def test_rows_in_processes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, policy = CASES[name]
    env = TransformedEnv(
        ParallelEnv(5, make, processes=2, mp_start_method="fork"), Compose(*chain())
    )
    plan = plan_of(env, ["observation"])
    assert (plan.processes, plan.why_stepwise) == (2, "")
    calls: list[int] = []
    chunks: Any = env.base_env.chunk_workers
    run = chunks.run

    def counted_run(copies: Any, tasks: Any) -> Any:
        calls.append(tasks[0].length)
        return run(copies, tasks)

    monkeypatch.setattr(chunks, "run", counted_run)
    mine = rolled_out(env, policy())
    env.close()
    # Pieces by duration: the first has one step.
    assert calls[0] == 1
    assert sum(calls) == 110
    assert_equal(mine, rolled_out(TransformedEnv(SerialEnv(5, make), Compose(*chain())), policy()))


def test_steps_before_workers_refuse_a_chunk_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    # Pieces of five steps.
    monkeypatch.setattr(SplitEnv, "seconds", 0.2)
    split = SplitEnv((1, 2), cart_pole)
    run = split.run

    def refuse_second(copies: Any, tasks: Any) -> Any:
        if not split.chunks:
            return run(copies, tasks)
        split.reason = "refused"
        return None

    monkeypatch.setattr(split, "run", refuse_second)
    found = []
    for base in (split, SerialEnv(3, cart_pole)):
        env = TransformedEnv(base, Compose(RewardSum(), StepCounter()))
        env.set_seed(0)
        torch.manual_seed(0)
        found.append(env.rollout(20, break_when_any_done=False))
    compared(*found)
    assert split.chunks == [5]
    plan = inspect_plan(TransformedEnv(split, RewardSum())).plan
    assert plan.why_stepwise == "refused"


class Mixing(nn.Module):
    """Policy that uses the mean of all rows."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(observation), 1) + observation.mean()


class Counting(nn.Module):
    """Policy that returns another action in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return observation[:, :1] * 0 + self.calls / 100


class Guarded(nn.Module):
    """Policy that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = threading.Lock()

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation[:, :1]


class Raising(nn.Module):
    """Policy that raises."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such action")


def test_a_policy_that_raises_is_named_with_its_step() -> None:
    split = SplitEnv((1, 2), pendulum)
    policy = TensorDictModule(Raising(), ["observation"], ["action"])
    with torch.no_grad(), pytest.raises(ValueError, match="no such action") as caught:
        split.rollout(5, policy, break_when_any_done=False)
    assert caught.value.__notes__ == ["tdx: raised at step 0 of the rollout"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Mixing, "depends on the other rows"),
        (Counting, "depends on the other rows, or on random numbers of its own"),
        (Guarded, "the policy cannot be copied: cannot pickle"),
    ],
)
def test_policies_that_cannot_be_split_run_in_one_process(
    kind: Callable[[], nn.Module], reason: str
) -> None:
    split = SplitEnv((1, 2), pendulum)
    found = []
    for base in (split, SerialEnv(3, pendulum)):
        policy = TensorDictModule(kind(), ["observation"], ["action"])
        found.append(rolled_out(TransformedEnv(base, RewardSum()), policy))
    assert_equal(*found)
    assert split.chunks == []
    policy = TensorDictModule(kind(), ["observation"], ["action"])
    with torch.no_grad():
        plan = inspect_plan(TransformedEnv(split, RewardSum()), policy=policy).plan
    assert (plan.executor, plan.processes) == ("planned", 2)
    assert reason in plan.why_stepwise


def test_weights_of_a_policy_are_updated_between_chunks() -> None:
    found = []
    for base in (SplitEnv((1, 2), pendulum), SerialEnv(3, pendulum)):
        policy, parts = mlp(3), []
        base.set_seed(0)
        with torch.no_grad():
            for chunk in base.iter_rollout(30, policy, chunk_steps=10):
                parts.append(chunk)
                for weight in policy.parameters():
                    weight.mul_(0.9)
        found.append(parts)
    for ours, theirs in zip(*found, strict=True):
        compared(ours, theirs)


def test_a_rollout_with_gradients_has_them() -> None:
    split = SplitEnv((1, 2), pendulum)
    steps = split.rollout(5, mlp(3), break_when_any_done=False)
    assert steps["action"].requires_grad
    assert split.chunks == []


def test_a_policy_with_another_number_of_threads_runs_in_one_process() -> None:
    split = SplitEnv((1, 2), pendulum)
    split.threads = 2
    with torch.no_grad():
        split.rollout(5, mlp(3), break_when_any_done=False)
    assert split.chunks == []


@pytest.mark.parametrize(
    ("stage", "reason"),
    [
        (lambda: VecNorm(["reward"]), "stage 1 (VecNorm) passes values from one row to the others"),
        (lambda: Own(["reward"]), "stage 1 (Own) may pass values from one row to the others"),
        (TrajCounter, "stage 1 (TrajCounter) overrides _step or _reset, which may read any entry"),
    ],
)
def test_stages_that_may_mix_rows_run_in_this_process(
    stage: Callable[[], Transform], reason: str
) -> None:
    split = SplitEnv((1, 2), pendulum)
    env = TransformedEnv(split, Compose(RewardSum(), stage()))
    assert plan_of(env).why_stepwise == reason
    env.rollout(5, break_when_any_done=False)
    assert split.chunks == []


class Own(RewardScaling):
    """Transform of another package."""

    time_behavior = TimeBehavior.POINTWISE

    def __init__(self, in_keys: list[str]) -> None:
        super().__init__(0.0, 2.0, in_keys=in_keys)

    def _apply_transform(self, reward: torch.Tensor) -> torch.Tensor:
        return reward * 2


def test_a_rollout_that_stops_at_a_done_flag_runs_step_by_step() -> None:
    split = SplitEnv((1, 2), cart_pole)
    assert split.rollout(500)["next", "done"][:, -1].any()
    assert split.chunks == []


def test_envs_that_draw_from_global_generators_are_stepped() -> None:
    env = ParallelEnv(2, DrawingEnv, processes=1, mp_start_method="fork")
    plan = plan_of(env)
    assert plan.why_stepwise == "the env may draw from the global random numbers of its process"
    assert env.rollout(3, break_when_any_done=False).shape == (2, 3)
    env.close()
