"""Tensors in shared memory."""

from __future__ import annotations

import os
import pickle
import resource
from pathlib import Path

import pytest
import torch

from tdx.envs.batched.shared_memory import Field, TensorBlock
from tdx.foundation.errors import WorkerError

DTYPES = [torch.bool, torch.uint8, torch.float16, torch.float64, torch.complex64]


def filled(shared: bool) -> TensorBlock:
    fields = {dtype: Field(torch.Size((3, 5)), dtype) for dtype in DTYPES}
    block = TensorBlock({**fields, "scalar": Field(torch.Size(), torch.int32)}, shared=shared)
    for tensor in block.tensors().values():
        tensor.fill_(1)
    return block


@pytest.mark.parametrize("shared", [True, False])
def test_block_with_tensors_of_every_dtype(shared: bool) -> None:
    tensors = filled(shared).tensors()
    tensors[torch.uint8].fill_(7)
    assert tensors[torch.uint8].unique().tolist() == [7]
    assert all(bool((tensors[dtype] == 1).all()) for dtype in DTYPES if dtype != torch.uint8)
    assert tensors["scalar"].shape == torch.Size()


def test_empty_tensors() -> None:
    block = TensorBlock({"nothing": Field(torch.Size((2, 0)), torch.float32)})
    assert block.tensors()["nothing"].shape == torch.Size([2, 0])


def test_pickled_shared_block_is_the_same_memory() -> None:
    block = filled(shared=True)
    twin: TensorBlock = pickle.loads(pickle.dumps(block))
    twin.tensors()["scalar"].fill_(9)
    assert int(block.tensors()["scalar"]) == 9


def test_pickled_unshared_block_is_a_copy() -> None:
    block = filled(shared=False)
    twin: TensorBlock = pickle.loads(pickle.dumps(block))
    twin.tensors()["scalar"].fill_(9)
    assert int(block.tensors()["scalar"]) == 1


def test_failed_allocation_leaves_no_file() -> None:
    def files() -> set[Path]:
        return set(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))

    before, limits = files(), resource.getrlimit(resource.RLIMIT_FSIZE)
    # Fails as a full /dev/shm does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(WorkerError, match="1,000,000 bytes of shared memory") as caught:
            TensorBlock({"": Field(torch.Size((1_000_000,)), torch.uint8)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "/dev/shm" in str(caught.value.hint)
    assert files() <= before
