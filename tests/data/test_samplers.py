"""Which steps are drawn, and in which order."""

from __future__ import annotations

import pytest
import torch

from tdx import (
    LazyTensorStorage,
    RandomSampler,
    ReplayBuffer,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
)
from tdx.foundation.errors import ArgumentError
from tests.data.stored import rollout


def numbers(sampler: Sampler, size: int = 10, batch_size: int = 4, seed: int = 0) -> ReplayBuffer:
    generator = torch.Generator().manual_seed(seed)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(max(size, 10)),
        sampler=sampler,
        batch_size=batch_size,
        generator=generator,
    )
    buffer.extend(torch.arange(size))
    return buffer


def test_random_steps_can_repeat() -> None:
    drawn = numbers(RandomSampler()).sample(10000)
    counts = torch.bincount(drawn, minlength=10)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_each_step_once_in_a_pass() -> None:
    buffer = numbers(SamplerWithoutReplacement())
    passes = [torch.cat(list(buffer)) for _ in range(2)]
    for drawn in passes:
        assert sorted(drawn.tolist()) == list(range(10))
    assert not torch.equal(*passes)


def test_the_last_batch_may_be_dropped() -> None:
    assert [len(batch) for batch in numbers(SamplerWithoutReplacement())] == [4, 4, 2]
    assert [len(batch) for batch in numbers(SamplerWithoutReplacement(drop_last=True))] == [4, 4]
    with pytest.raises(
        ArgumentError, match="batch size 11 is greater than the storage capacity: 10 steps"
    ):
        numbers(SamplerWithoutReplacement(drop_last=True)).sample(11)


def test_in_order() -> None:
    buffer = numbers(SamplerWithoutReplacement(shuffle=False))
    assert buffer.sample().tolist() == [0, 1, 2, 3]
    assert buffer.sample(3).tolist() == [4, 5, 6]
    assert buffer.sample(30).tolist() == [7, 8, 9]
    assert buffer.sampler.ran_out
    assert buffer.sample().tolist() == [0, 1, 2, 3]
    assert not buffer.sampler.ran_out


def test_new_steps_wait_for_the_next_pass() -> None:
    buffer = numbers(SamplerWithoutReplacement(shuffle=False), size=5)
    buffer.sample()
    buffer.extend(torch.arange(5, 8))
    assert buffer.sample().tolist() == [4]
    assert torch.cat(list(buffer)).tolist() == list(range(8))


def test_emptying_the_buffer_ends_a_pass() -> None:
    buffer = numbers(SamplerWithoutReplacement(shuffle=False))
    buffer.sample()
    buffer.empty()
    buffer.extend(torch.arange(3))
    assert buffer.sample().tolist() == [0, 1, 2]


@pytest.mark.parametrize("sampler", [RandomSampler, SamplerWithoutReplacement])
@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_seed_gives_the_same_batches(sampler: type[Sampler], prefetch: int | None) -> None:
    def drawn() -> list[list[int]]:
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(20),
            sampler=sampler(),
            batch_size=4,
            prefetch=prefetch,
            generator=torch.Generator().manual_seed(3),
        )
        buffer.extend(torch.arange(10))
        batches = [buffer.sample().tolist() for _ in range(3)]
        buffer.extend(torch.arange(10, 20))
        batches += [buffer.sample().tolist() for _ in range(6)]
        buffer.close()
        return batches

    assert drawn() == drawn()


def test_torch_seed_without_a_generator() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    buffer.extend(torch.arange(10))
    torch.manual_seed(1)
    first = buffer.sample()
    torch.manual_seed(1)
    assert torch.equal(buffer.sample(), first)


def test_set_rng() -> None:
    buffer = numbers(RandomSampler())
    first = buffer.sample()
    buffer.set_rng(torch.Generator().manual_seed(0))
    assert torch.equal(buffer.sample(), first)


def test_set_sampler_keeps_the_generator() -> None:
    buffer = numbers(RandomSampler(), seed=4)
    buffer.set_sampler(SamplerWithoutReplacement())
    expected = torch.randperm(10, generator=torch.Generator().manual_seed(4))[:4]
    assert torch.equal(buffer.sample(), expected)


def test_custom_sampler() -> None:
    class Newest(Sampler):
        def draw(self, storage, batch_size):  # type: ignore[no-untyped-def]
            return torch.arange(len(storage) - batch_size, len(storage)), {}

    assert numbers(Newest()).sample().tolist() == [6, 7, 8, 9]


def test_only_slices_are_in_time() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    buffer.extend(rollout([10]))
    names = {}
    for sampler in (RandomSampler(), SamplerWithoutReplacement(), SliceSampler(slice_len=2)):
        buffer.set_sampler(sampler)
        names[type(sampler).__name__] = (buffer.sample().names, buffer.sample()["next"].names)
    assert names == {
        "RandomSampler": (["batch"], ["batch"]),
        "SamplerWithoutReplacement": (["batch"], ["batch"]),
        "SliceSampler": (["time"], ["time"]),
    }
