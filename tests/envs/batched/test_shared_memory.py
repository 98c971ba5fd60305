"""The block of memory that processes share."""

from __future__ import annotations

import pickle

import pytest
import torch

from tdx.envs.batched.shared_memory import Field, TensorBlock

DTYPES = [torch.bool, torch.uint8, torch.float16, torch.float64, torch.complex64]


def filled(shared: bool) -> TensorBlock:
    fields = {dtype: Field(torch.Size((3, 5)), dtype) for dtype in DTYPES}
    block = TensorBlock({**fields, "scalar": Field(torch.Size(), torch.int32)}, shared=shared)
    for tensor in block.tensors().values():
        tensor.fill_(1)
    return block


@pytest.mark.parametrize("shared", [True, False])
def test_tensors_of_every_dtype_lie_side_by_side(shared: bool) -> None:
    tensors = filled(shared).tensors()
    tensors[torch.uint8].fill_(7)
    assert tensors[torch.uint8].unique().tolist() == [7]
    assert all(bool((tensors[dtype] == 1).all()) for dtype in DTYPES if dtype != torch.uint8)
    assert tensors["scalar"].shape == torch.Size()


def test_an_empty_tensor_has_no_place_but_a_shape() -> None:
    block = TensorBlock({"nothing": Field(torch.Size((2, 0)), torch.float32)})
    assert block.tensors()["nothing"].shape == torch.Size([2, 0])


def test_sent_shared_it_is_the_same_memory() -> None:
    block = filled(shared=True)
    twin: TensorBlock = pickle.loads(pickle.dumps(block))
    twin.tensors()["scalar"].fill_(9)
    assert int(block.tensors()["scalar"]) == 9


def test_sent_unshared_it_is_a_copy() -> None:
    block = filled(shared=False)
    twin: TensorBlock = pickle.loads(pickle.dumps(block))
    twin.tensors()["scalar"].fill_(9)
    assert int(block.tensors()["scalar"]) == 1
