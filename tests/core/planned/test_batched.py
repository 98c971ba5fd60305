"""Planned equals eager for batches of envs and for envs of other packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from tensordict import TensorDictBase

from tdx import (
    CartPoleEnv,
    CatFrames,
    Compose,
    EnvBase,
    FlattenObservation,
    GrayScale,
    GymEnv,
    GymWrapper,
    InitTracker,
    ObservationNorm,
    ParallelEnv,
    PendulumEnv,
    Resize,
    RewardSum,
    SerialEnv,
    StepCounter,
    ToTensorImage,
    Transform,
    TransformedEnv,
    VecNorm,
)
from tdx.core.plan import plan_of
from tdx.envs.gym.autoreset import RESETS_ROWS, AutoresetMode
from tests.core.planned.drawing import policy_reading
from tests.core.planned.test_law import compared
from tests.programs import exhaustive, sampled


def stages() -> list[Transform]:
    return [
        InitTracker(),
        ObservationNorm(0.1, 2.0),
        VecNorm(["reward"]),
        RewardSum(),
        StepCounter(9),
        CatFrames(3, -1, ["observation"], ["stack"]),
    ]


def rolled_out(
    env: TransformedEnv, reads: str | None, chunk: int, stop: bool, steps: int = 25
) -> list[TensorDictBase]:
    env.set_seed(3)
    torch.manual_seed(5)
    policy = None if reads is None else policy_reading(env, reads)
    chunks = env.iter_rollout(steps, policy, chunk_steps=chunk, break_when_any_done=stop)
    parts = list(chunks)
    parts.append(env.rollout(5, break_when_any_done=False))
    return parts


def held(
    base: Callable[[], EnvBase],
    chain: Callable[[], list[Transform]] = stages,
    *,
    planned: bool = True,
    tolerance: float = 0.0,
    steps: int = 25,
    policies: tuple[str | None, ...] = (None, "first", "last"),
) -> None:
    """Compare planned rollouts of an env with eager ones."""
    for reads, stop, chunk in zip(policies, (False, False, True), (10, 7, 25), strict=False):
        results = []
        for plan in (True, False):
            env = TransformedEnv(base(), Compose(*chain()), planned=plan)
            assert (plan_of(env).executor == "planned") == (plan and planned)
            results.append(rolled_out(env, reads, chunk, stop, steps))
            env.close()
        assert len(results[0]) == len(results[1])
        for ours, theirs in zip(*results, strict=True):
            compared(ours, theirs, tolerance)


def counted() -> EnvBase:
    return TransformedEnv(
        GymEnv("CartPole-v1"), Compose(StepCounter(4, step_count_key="inner"), InitTracker("fresh"))
    )


BATCHES: dict[str, Callable[[], EnvBase]] = {
    "Gymnasium": lambda: GymEnv("CartPole-v1", num_envs=3),
    "chains inside": lambda: SerialEnv(2, counted),
    "chains twice": lambda: SerialEnv(2, lambda: SerialEnv(2, counted)),
    "native": lambda: CartPoleEnv(batch_size=[2, 2]),
    "natives": lambda: SerialEnv(2, lambda: PendulumEnv(batch_size=[2], max_episode_steps=4)),
    "one": lambda: SerialEnv(1, lambda: GymEnv("CartPole-v1")),
}


@pytest.mark.parametrize("name", sorted(BATCHES))
@sampled(3)
def test_batches(name: str) -> None:
    held(BATCHES[name])


@pytest.mark.parametrize(("inside", "use_buffers"), [("plain", False), ("chain", True)])
@exhaustive
def test_workers(inside: str, use_buffers: bool) -> None:
    made = counted if inside == "chain" else (lambda: GymEnv("CartPole-v1"))
    held(
        lambda: ParallelEnv(2, made, use_buffers=use_buffers, mp_start_method="fork"),
        policies=(None, "last"),
    )


@pytest.mark.skipif(not RESETS_ROWS, reason="this Gymnasium has no autoreset modes")
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_vector_envs_of_gymnasium(mode: AutoresetMode) -> None:
    def made() -> EnvBase:
        each = [lambda: gymnasium.make("CartPole-v1") for _ in range(2)]
        return GymWrapper(SyncVectorEnv(each, autoreset_mode=mode))

    held(made)


def _counts() -> list[Transform]:
    return [InitTracker(), StepCounter(6), RewardSum(), VecNorm(["reward"])]


@pytest.mark.parametrize("name", ["Blackjack", "CliffWalking", "FrozenLake", "Taxi"])
@exhaustive
def test_toy_texts(name: str) -> None:
    id_ = max(each for each in gymnasium.registry if each.startswith(f"{name}-v"))
    held(lambda: GymEnv(id_), _counts)
    held(lambda: GymEnv(id_, num_envs=2, categorical_action_encoding=True), _counts)


class Goals(gymnasium.Env[Any, Any]):
    """Env with a dict observation, like goal-conditioned envs."""

    def __init__(self) -> None:
        box = gymnasium.spaces.Box(-10.0, 10.0, (2,))
        self.observation_space = gymnasium.spaces.Dict(
            observation=box, desired_goal=box, inner=gymnasium.spaces.Dict(of_it=box)
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
        self.place = box.sample() * 0

    def _observed(self) -> Any:
        return {
            "observation": self.place,
            "desired_goal": self.place + 1,
            "inner": {"of_it": self.place * 2},
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 2).astype("float32")
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        # In place, as in some envs: earlier results must not change.
        self.place += action
        return self._observed(), float(self.place.sum()), bool(self.place[0] > 1), False, {}


@exhaustive
def test_goals() -> None:
    def chain() -> list[Transform]:
        return [
            *stages(),
            ObservationNorm(0.2, 3.0, in_keys=[("inner", "of_it")], out_keys=["normal"]),
            CatFrames(2, -1, ["desired_goal"]),
        ]

    held(lambda: GymWrapper(Goals()), chain)
    held(lambda: SerialEnv(2, lambda: GymWrapper(Goals())), chain)


def test_mujoco() -> None:
    pytest.importorskip("mujoco")
    held(lambda: GymEnv("HalfCheetah-v5"), policies=(None, "last"))


@pytest.fixture
def atari() -> None:
    ale_py = pytest.importorskip("ale_py")
    gymnasium.register_envs(ale_py)


def images() -> list[Transform]:
    keys = ["pixels"]
    return [
        ToTensorImage(in_keys=keys),
        GrayScale(in_keys=keys),
        Resize(84, 84, in_keys=keys),
        CatFrames(4, -3, keys),
        RewardSum(),
        StepCounter(6),
    ]


@pytest.mark.usefixtures("atari")
@exhaustive
def test_atari_with_fused_images() -> None:
    def base() -> EnvBase:
        return GymEnv("ALE/Pong-v5", frameskip=4)

    env = TransformedEnv(base(), Compose(*images()))
    assert [stage.when for stage in plan_of(env).stages[:3]] == ["fused"] * 3
    # The policy reads counts: a rounding of pixels could change an action.
    held(base, images, tolerance=2e-5, steps=14, policies=(None, "last"))


def test_minigrid_runs_eagerly_for_its_texts() -> None:
    pytest.importorskip("minigrid")

    def chain() -> list[Transform]:
        pixels = ToTensorImage(in_keys=["image"], out_keys=["pixels"])
        flat = FlattenObservation(-3, -1, in_keys=["pixels"], out_keys=["flat"])
        return [pixels, flat, RewardSum(), StepCounter(6)]

    env = TransformedEnv(GymEnv("MiniGrid-Empty-5x5-v0"), Compose(*chain()))
    assert "mission holds objects" in plan_of(env).why_eager
    held(lambda: GymEnv("MiniGrid-Empty-5x5-v0"), chain, planned=False, policies=(None,))
