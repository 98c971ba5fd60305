"""Chunks of the actions that follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import ActionChunkTransform, LazyTensorStorage, ReplayBuffer, TransformedEnv
from tdx.foundation.errors import ArgumentError, KeyNotFoundError
from tests.transforms.envs import RowsEnv


def windows(batch: int = 2, steps: int = 4) -> TensorDict:
    actions = torch.arange(batch * steps).float().reshape(batch, steps, 1)
    return TensorDict(action=actions, batch_size=[batch])


def test_a_chunk_stops_at_the_end_of_the_episode() -> None:
    data = windows(1)
    data.batch_size = [1, 4]
    data["next", "done"] = torch.tensor([[False, True, False, False]]).unsqueeze(-1)
    chunked = ActionChunkTransform(3)(data)
    chunks = chunked["vla_action", "chunk"].squeeze()
    assert chunks.tolist() == [[0, 1, 1], [1, 1, 1], [2, 3, 3], [3, 3, 3]]
    padded = chunked["action_is_pad"].squeeze().sum(-1)
    assert padded.tolist() == [1, 2, 1, 2]


def test_windows_in_a_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=2)
    buffer.append_transform(ActionChunkTransform(3, chunk_key="chunk", pad_key=("pad", "mask")))
    buffer.extend(windows(8))
    batch = buffer.sample()
    assert batch["chunk"].shape == (2, 4, 3, 1)
    assert batch["pad", "mask"].shape == (2, 4, 3)
    assert "chunk" not in buffer.storage[:].keys()


def test_chunk_transform_does_nothing_in_an_env() -> None:
    base = RowsEnv()
    env = TransformedEnv(base, ActionChunkTransform(3))
    assert env.output_spec == base.output_spec
    assert "vla_action" not in env.rollout(2).keys()


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_sizes(size: Any) -> None:
    with pytest.raises(ArgumentError, match="chunk_size must be an integer of at least 1"):
        ActionChunkTransform(size)


def test_data_without_time() -> None:
    with pytest.raises(ArgumentError, match="have no time in dim -2"):
        ActionChunkTransform(2)(TensorDict(action=torch.zeros(3)))
    with pytest.raises(ArgumentError, match="have no time in dim 0"):
        ActionChunkTransform(2, time_dim=0)(windows())
    with pytest.raises(KeyNotFoundError, match="action"):
        ActionChunkTransform(2)(TensorDict(a=torch.zeros(3)))
    data = windows()
    data["next", "done"] = torch.zeros(2, 3, 1, dtype=torch.bool)
    with pytest.raises(ArgumentError, match="the done flag has shape"):
        ActionChunkTransform(2)(data)
    assert "vla_action" in ActionChunkTransform(2, done_key=None)(data).keys()
