"""A rollout in chunks takes no more memory the longer it gets."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx import CatFrames, Compose, GymEnv, InitTracker, RewardSum, StepCounter, TransformedEnv

WARM_UP = 10
STATM = Path("/proc/self/statm")


def env() -> TransformedEnv:
    """Short episodes under stages that carry something from step to step."""
    chain = Compose(
        StepCounter(max_steps=15),
        RewardSum(),
        InitTracker(),
        CatFrames(4, dim=-1, in_keys=["observation"]),
    )
    return TransformedEnv(GymEnv("CartPole-v1"), chain)


def resident_bytes() -> int:
    """How much memory the process holds now."""
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def growth(chunks: Iterator[TensorDictBase], chunk_steps: int) -> tuple[int, int]:
    """By how many objects and bytes the process grew from the end of the warm-up to the end."""
    objects = size = index = 0
    for index, chunk in enumerate(chunks, 1):
        assert chunk.shape == (chunk_steps,)
        del chunk
        if index == WARM_UP:
            gc.collect()
            objects, size = len(gc.get_objects()), resident_bytes()
    gc.collect()
    assert index > 4 * WARM_UP
    return len(gc.get_objects()) - objects, resident_bytes() - size


class Leaning(nn.Module):
    """Pushes to the side that the pole falls to."""

    def forward(self, observation: Tensor) -> Tensor:
        right = (observation[..., -2:-1] > 0).long()
        return torch.cat([1 - right, right], -1)


@pytest.mark.skipif(not STATM.exists(), reason="reads the process's memory from /proc")
@pytest.mark.parametrize(
    ("steps", "chunk_steps", "policy"),
    [(100_000, 1000, None), (10_000, 200, Leaning())],
    ids=["random", "policy"],
)
def test_a_long_rollout_keeps_nothing_of_its_chunks(
    steps: int, chunk_steps: int, policy: nn.Module | None
) -> None:
    chunks = env().iter_rollout(steps, policy, chunk_steps=chunk_steps)
    objects, size = growth(chunks, chunk_steps)
    # One object, or 50 bytes, kept of each of the 100,000 steps would be more.
    assert objects < 1000
    assert size < 4 * 2**20
