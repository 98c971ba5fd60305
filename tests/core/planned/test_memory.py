"""The memory of a rollout in chunks does not grow with its length."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx import (
    CatFrames,
    Compose,
    GymEnv,
    GymWrapper,
    InitTracker,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from tests.envs.gym.mocks import SpaceEnv
from tests.processes import STATM, resident_bytes
from tests.programs import exhaustive

WARM_UP = 10
FRAME = spaces.Box(0, 255, (64, 64, 3), np.uint8)


class FrameEnv(SpaceEnv):
    """Env that keeps no observation, and does not count them in the memory of the test."""

    def _observe(self) -> Any:
        observation = super()._observe()
        self.observed.clear()
        return observation


def env() -> TransformedEnv:
    """Return an env with short episodes and stages that carry state."""
    chain = Compose(
        StepCounter(max_steps=15),
        RewardSum(),
        InitTracker(),
        CatFrames(4, dim=-1, in_keys=["observation"]),
    )
    return TransformedEnv(GymEnv("CartPole-v1"), chain)


def growth(chunks: Iterator[TensorDictBase], chunk_steps: int, count: int) -> tuple[int, int]:
    """Return by how many objects and bytes the process grows in one half of the rollout.

    It is the half after the warm-up in which it grows less: what is kept of each step shows in both
    halves, memory that the allocator requests now and then only in one.
    """
    places = [WARM_UP, (WARM_UP + count) // 2, count]
    held: list[tuple[int, int]] = []
    for index, chunk in enumerate(chunks, 1):
        assert chunk.shape == (chunk_steps,)
        del chunk
        if index in places:
            gc.collect()
            held.append((len(gc.get_objects()), resident_bytes()))
    halves = [
        (after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(held)
    ]
    assert len(halves) == 2
    return min(objects for objects, _ in halves), min(size for _, size in halves)


class Leaning(nn.Module):
    """Policy that pushes to the side to which the pole falls."""

    def forward(self, observation: Tensor) -> Tensor:
        right = (observation[..., -2:-1] > 0).long()
        return torch.cat([1 - right, right], -1)


@pytest.mark.skipif(not STATM.exists(), reason="reads the process's memory from /proc")
@pytest.mark.parametrize(
    ("steps", "chunk_steps", "policy"),
    [(100_000, 1000, None), (10_000, 200, Leaning())],
    ids=["random", "policy"],
)
@exhaustive
def test_a_long_rollout_keeps_nothing_of_its_chunks(
    steps: int, chunk_steps: int, policy: nn.Module | None
) -> None:
    chunks = env().iter_rollout(steps, policy, chunk_steps=chunk_steps)
    objects, size = growth(chunks, chunk_steps, steps // chunk_steps)
    # One object, or 50 bytes, kept of each of the 50,000 steps would be more.
    assert objects < 1000
    assert size < 2 * 2**20


@pytest.mark.parametrize("space", [FRAME, spaces.Dict(frame=FRAME)], ids=["Box", "Dict"])
@pytest.mark.parametrize("acts", [False, True], ids=["random", "policy"])
def test_a_chunk_is_released_without_a_garbage_collection(
    space: spaces.Space[Any], acts: bool
) -> None:
    """Else a profile, which switches the collector off, holds all frames that it has seen."""
    env = TransformedEnv(GymWrapper(FrameEnv(space)), Compose(StepCounter()))
    policy = env.rand_action if acts else None
    chunk_steps, sizes = 20, []
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for chunk in env.iter_rollout(10 * chunk_steps, policy, chunk_steps=chunk_steps):
            assert chunk.shape == (chunk_steps,)
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        gc.enable()
    # Eight chunks of frames would be 2 MB.
    assert sizes[-1] - sizes[1] < chunk_steps * np.prod(FRAME.shape)
