"""Buffers whose storage is on an accelerator."""

from __future__ import annotations

import pytest
import torch

from tdx import LazyTensorStorage, RandomSampler, ReplayBuffer, Sampler, SliceSampler
from tests.data.stored import rollout


@pytest.mark.gpu
@pytest.mark.parametrize("sampler", [RandomSampler(), SliceSampler(slice_len=4)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_storage_on_an_accelerator(sampler: Sampler, device: str) -> None:
    data = rollout([9, 7])
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(20, device="cuda"),
        sampler=sampler,
        batch_size=8,
        generator=torch.Generator(device).manual_seed(0),
    )
    buffer.extend(data)
    batch, info = buffer.sample(return_info=True)
    assert batch.device.type == "cuda"
    assert torch.equal(batch["observation"].cpu(), data["observation"][info["index"].cpu()])
