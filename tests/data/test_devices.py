"""Buffers whose storage is on an accelerator."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    LazyMemmapStorage,
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    Sampler,
    SliceSampler,
    TensorStorage,
)
from tests.data.stored import rollout


def test_a_storage_on_the_device_of_its_first_data() -> None:
    storage = LazyTensorStorage(4, device="auto")
    assert storage.device == torch.device("cpu")
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(TensorDict(a=torch.zeros(2, device="meta"), batch_size=[2]))
    assert storage.device == buffer[:]["a"].device == torch.device("meta")
    given = TensorDict(a=torch.zeros(2), batch_size=[2], device="cpu:1")
    assert TensorStorage(given, device="auto").device == torch.device("cpu:1")
    assert LazyMemmapStorage(4, device="auto").device == torch.device("cpu")


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
