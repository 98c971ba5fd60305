"""Env ids for the tests of jobs, and a chain for each."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

CLASSIC = (
    "Acrobot-v1",
    "CartPole-v0",
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
)
TOY_TEXT = (
    "Blackjack-v1",
    "CliffWalking-v1",
    "CliffWalkingSlippery-v1",
    "FrozenLake-v1",
    "FrozenLake8x8-v1",
    "Taxi-v4",
)
ATARI = (
    "ALE/Asterix-v5",
    "ALE/Boxing-v5",
    "ALE/Breakout-v5",
    "ALE/Freeway-v5",
    "ALE/Pong-v5",
    "ALE/Skiing-v5",
    "BreakoutNoFrameskip-v4",
    "Pong-v4",
)
MUJOCO = (
    "Ant-v5",
    "HalfCheetah-v4",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
)
MINIGRID = (
    "BabyAI-GoToLocal-v0",
    "BabyAI-GoToRedBall-v0",
    "BabyAI-OpenDoor-v0",
    "MiniGrid-DistShift1-v0",
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-Dynamic-Obstacles-5x5-v0",
    "MiniGrid-Empty-5x5-v0",
    "MiniGrid-Fetch-5x5-N2-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-GoToDoor-5x5-v0",
    "MiniGrid-KeyCorridorS3R1-v0",
    "MiniGrid-LavaGapS5-v0",
    "MiniGrid-MultiRoom-N2-S4-v0",
    "MiniGrid-PutNear-6x6-N2-v0",
)

COUNTED = ("StepCounter(max_steps=50)", "RewardSum")
PIXELS = (
    'ToTensorImage(in_keys=["pixels"])',
    'Resize(16, 16, in_keys=["pixels"])',
    'CatFrames(4, dim=-3, in_keys=["pixels"])',
    "RewardClipping(-1, 1)",
)
NORMED = (
    'DoubleToFloat(in_keys=["observation"])',
    'ObservationNorm(0.0, 2.0, in_keys=["observation"])',
    "RewardSum",
)

# What must be installed for a group; classic control and toy text always are.
_GROUPS: tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...] = (
    (CLASSIC, "gymnasium", COUNTED),
    (TOY_TEXT, "gymnasium", COUNTED),
    (ATARI, "ale_py", PIXELS),
    (MUJOCO, "mujoco", NORMED),
    (MINIGRID, "minigrid", COUNTED),
)


def alternating_params(first: int) -> list[object]:
    """Each id once, by turns as a single env and as a batch of 4.

    Args:
        first: 0 to begin with a single env, 1 to begin with a batch.
    """
    return [
        _param(env_id, module, chain, (None, 4)[number % 2])
        for env_ids, module, chain in _GROUPS
        for number, env_id in enumerate(env_ids, first)
    ]


def _param(env_id: str, module: str, chain: tuple[str, ...], num_envs: int | None) -> object:
    missing = find_spec(module) is None
    return pytest.param(
        env_id,
        chain,
        num_envs,
        id=f"{env_id}-num_envs={num_envs}",
        marks=pytest.mark.skipif(missing, reason=f"{module} is not installed"),
    )
