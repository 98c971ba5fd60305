"""Batches that are made ahead of time, and buffers that several threads use."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from tdx import (
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    RewardScaling,
    SamplerWithoutReplacement,
    SliceSampler,
)
from tdx.foundation.errors import ChainError
from tests.data.stored import rollout


def ahead(**kwargs: Any) -> ReplayBuffer:
    return ReplayBuffer(
        storage=LazyTensorStorage(20),
        prefetch=3,
        batch_size=4,
        generator=torch.Generator().manual_seed(0),
        **kwargs,
    )


def test_the_same_batches_as_without() -> None:
    plain = ReplayBuffer(
        storage=LazyTensorStorage(20), batch_size=4, generator=torch.Generator().manual_seed(0)
    )
    buffer = ahead()
    for each in (plain, buffer):
        each.extend(torch.arange(10))
    for _ in range(5):
        assert torch.equal(buffer.sample(), plain.sample())


def test_batches_are_prepared_in_another_thread() -> None:
    seen: list[int] = []

    def note(td: TensorDictBase) -> TensorDictBase:
        seen.append(threading.get_ident())
        return td

    buffer = ahead(transform=note)
    buffer.extend(rollout([9]))
    buffer.sample()
    buffer.close()
    assert len(seen) == 4
    assert threading.get_ident() not in seen


def test_one_pass() -> None:
    buffer = ahead(sampler=SamplerWithoutReplacement())
    buffer.extend(torch.arange(10))
    for _ in range(3):
        assert sorted(torch.cat(list(buffer)).tolist()) == list(range(10))


def test_changing_the_batch_size_skips_no_step() -> None:
    buffer = ahead(sampler=SamplerWithoutReplacement(shuffle=False))
    buffer.extend(torch.arange(10))
    assert buffer.sample().tolist() == [0, 1, 2, 3]
    assert buffer.sample(5).tolist() == [4, 5, 6, 7, 8]
    assert buffer.sample().tolist() == [9]


def test_changes_apply_to_the_next_batch() -> None:
    buffer = ahead()
    buffer.extend(rollout([10]))
    buffer.sample()
    buffer.append_transform(RewardScaling(100.0, 1.0, in_keys=[("next", "reward")]))
    assert (buffer.sample()["next", "reward"] > 100).all()
    buffer.set_sampler(SliceSampler(slice_len=4))
    assert (buffer.sample()["step"].diff() == 1).all()
    buffer.empty()
    with pytest.raises(ChainError, match="the buffer is empty"):
        buffer.sample()
    buffer.extend(rollout([4], first=7))
    assert (buffer.sample()["episode"] == 7).all()


def test_saving_does_not_lose_a_batch(tmp_path: Any) -> None:
    buffer = ahead(sampler=SamplerWithoutReplacement(shuffle=False))
    buffer.extend(torch.arange(10))
    buffer.sample()
    buffer.dumps(tmp_path)
    assert buffer.sample().tolist() == [4, 5, 6, 7]
    loaded = ahead(sampler=SamplerWithoutReplacement(shuffle=False))
    loaded.loads(tmp_path)
    assert loaded.sample().tolist() == [4, 5, 6, 7]


def test_an_error_reaches_the_caller() -> None:
    buffer = ahead(sampler=SliceSampler(slice_len=4))
    buffer.extend(rollout([3]))
    with pytest.raises(ChainError, match="no stored episode has 4 steps"):
        buffer.sample()
    buffer.set_sampler(RandomSampler())
    assert len(buffer.sample()) == 4


@pytest.mark.parametrize("prefetch", [None, 2])
def test_several_threads(prefetch: int | None) -> None:
    """Every batch is of whole steps of whole pieces, while others write."""
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(64),
        sampler=SliceSampler(slice_len=4),
        prefetch=prefetch,
        batch_size=32,
    )
    buffer.extend(rollout([9]))

    def write(number: int) -> None:
        for i in range(30):
            buffer.extend(rollout([5, 8], first=1000 * number + 10 * i))

    def read(number: int) -> None:
        for _ in range(30):
            rows = buffer.sample().reshape(-1, 4)
            assert (rows["episode"] == rows["episode"][:, :1]).all()
            assert (rows["step"].diff(dim=-1) == 1).all()
            assert torch.equal(rows["observation"][..., 1].long(), rows["step"])

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(job, n) for n in (1, 2) for job in (write, read)]:
            future.result(timeout=600)
    buffer.close()
    assert buffer.write_count == 9 + 2 * 30 * 13
