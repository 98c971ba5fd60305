"""The memory of a rollout in chunks does not grow with its length."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tdx import CatFrames, Compose, GymEnv, InitTracker, RewardSum, StepCounter, TransformedEnv
from tests.processes import STATM, resident_bytes
from tests.programs import exhaustive

WARM_UP = 10


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
