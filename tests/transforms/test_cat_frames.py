"""Values of ``CatFrames``, step by step and on stored data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx import (
    CatFrames,
    Compose,
    RewardSum,
    TransformedEnv,
)
from tdx.core.transforms.kernels import ChunkKernel
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import assert_same, fixed_rollout

each_padding = pytest.mark.parametrize("padding", ["same", "constant"])


def frames(stack: Tensor, n: int) -> Tensor:
    """Reshape a stack ``[..., n * size]`` to ``[..., n, size]``."""
    return stack.unflatten(-1, (n, -1))


def episodes(rollout: TensorDictBase) -> list[TensorDictBase]:
    """Return the episodes ``[T]`` of each row of a rollout ``[B, T]``."""
    found = []
    for row in rollout:
        ends = [index + 1 for index in row["next", "done"].flatten().nonzero().flatten().tolist()]
        starts = [0, *ends]
        found += [row[a:b] for a, b in zip(starts, [*ends, len(row)], strict=True) if a < b]
    return found


# Frame stacks at the ends of episodes


@each_padding
def test_stacks_start_with_padding_and_end_with_the_current_frames(padding: Any) -> None:
    env = TransformedEnv(
        RowsEnv((4,)),
        CatFrames(3, -1, ["observation"], ["stack"], padding=padding, padding_value=-7.0),
    )
    for episode in episodes(fixed_rollout(env, 12)):
        raw = [episode["observation"][0], *episode["next", "observation"]]
        pad = raw[0] if padding == "same" else torch.full((3,), -7.0)
        history = [pad, pad, *raw]
        for step in range(len(episode)):
            root, following = history[step : step + 3], history[step + 1 : step + 4]
            assert torch.equal(frames(episode["stack"][step], 3), torch.stack(root))
            assert torch.equal(frames(episode["next", "stack"][step], 3), torch.stack(following))


# The same on stored data


@each_padding
@pytest.mark.parametrize("batch_size", [(), (4,), (2, 3)])
def test_stacks_of_a_stored_rollout_equal_stepwise_ones(
    padding: Any, batch_size: tuple[int, ...]
) -> None:
    def stack() -> CatFrames:
        return CatFrames(4, -1, ["observation"], padding=padding, padding_value=2.5)

    stored = fixed_rollout(RowsEnv(batch_size), 12)
    assert_same(stack()(stored), fixed_rollout(TransformedEnv(RowsEnv(batch_size), stack()), 12))


class StepwiseCatFrames(CatFrames):
    """``CatFrames`` without a chunk form, which therefore runs in each step."""

    def make_chunk_kernel(self) -> ChunkKernel | None:
        return None


@each_padding
@pytest.mark.parametrize("size", [1, 2, 4, 9])
@pytest.mark.parametrize("batch_size", [(), (4,), (2, 3)])
def test_a_chunk_equals_its_steps(padding: Any, size: int, batch_size: tuple[int, ...]) -> None:
    def roll_out(kind: type[CatFrames]) -> TensorDictBase:
        stack = kind(size, -1, ["observation"], ["stack"], padding=padding, padding_value=2.5)
        env = TransformedEnv(RowsEnv(batch_size), Compose(stack, RewardSum()))
        torch.manual_seed(0)
        chunks = [env.rollout(7, break_when_any_done=False) for _ in range(3)]
        return torch.cat(chunks, -1)

    assert_same(roll_out(CatFrames), roll_out(StepwiseCatFrames))
