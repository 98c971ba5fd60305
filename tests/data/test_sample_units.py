"""Batches of windows around the steps that a sampler draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    ArgumentError,
    ChainError,
    HERReplayBuffer,
    KeyNotFoundError,
    LazyTensorStorage,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    Sequence,
    SliceSampler,
    TensorDictReplayBuffer,
)


def steps(*lengths: int, start: int = 0) -> TensorDict:
    """Return numbered steps of episodes of these lengths, ``[T]``; the last step of each is done.

    A negative length is an episode that continues.
    """
    total = sum(map(abs, lengths))
    done = torch.zeros(total, 1, dtype=torch.bool)
    end = 0
    for length in lengths:
        end += abs(length)
        done[end - 1] = length > 0
    number = torch.arange(start, start + total)
    return TensorDict(step=number, next=TensorDict(done=done), batch_size=[total])


def make(data: TensorDict, unit: Any, size: int = 100, **arguments: Any) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(size), batch_size=6, sample_unit=unit, **arguments
    )
    buffer.extend(data)
    return buffer


def windows(buffer: TensorDictReplayBuffer, unit: Sequence) -> dict[int, TensorDictBase]:
    """Return the window of each step that was drawn, by its number."""
    size = unit.burn_in + unit.length + unit.bootstrap
    stored = buffer[:]["step"]
    result = {}
    for _ in range(40):
        batch = buffer.sample().reshape(6, size)
        assert batch["sequence_id"].tolist() == [[i] * size for i in range(6)]
        assert batch["step_in_sequence"].tolist() == [list(range(size))] * 6
        for window in batch.unbind(0):
            result[int(stored[window["anchor_index"][0]])] = window
    return result


@pytest.mark.parametrize(
    ("boundary", "expected", "valid"),
    [
        ("pad", {3: [3, 4, 5], 4: [4, 5, 5], 7: [7, 8, 9]}, {4: [1, 1, 0]}),
        ("stop", {3: [3, 4, 5], 4: [3, 4, 5], 5: [3, 4, 5]}, {4: [1, 1, 1]}),
        ("include_reset", {4: [4, 5, 6], 9: [9, 9, 9]}, {4: [1, 1, 1], 9: [1, 0, 0]}),
    ],
)
def test_the_end_of_an_episode(
    boundary: Any, expected: dict[int, list[int]], valid: dict[int, list[int]]
) -> None:
    unit = Sequence(3, boundary)
    found = windows(make(steps(6, 4), unit), unit)
    assert set(found) == set(range(10))
    for anchor, numbers in expected.items():
        assert found[anchor]["step"].tolist() == numbers
    for anchor, flags in valid.items():
        assert found[anchor]["validity_mask"].int().tolist() == flags


def test_a_short_episode_is_padded_although_windows_stop_at_its_end() -> None:
    unit = Sequence(4, "stop")
    window = windows(make(steps(2, 8), unit), unit)[0]
    assert window["step"].tolist() == [0, 1, 1, 1]
    assert window["validity_mask"].tolist() == [True, True, False, False]


def test_steps_before_and_after_the_learning_part() -> None:
    unit = Sequence(2, burn_in=2, bootstrap=1)
    found = windows(make(steps(6, 6), unit), unit)
    assert found[8]["step"].tolist() == [6, 7, 8, 9, 10]
    assert found[8]["learning_mask"].tolist() == [False, False, True, True, False]
    # Nothing of the episode before is in a window.
    assert found[6]["step"].tolist() == [6, 6, 6, 7, 8]
    assert found[6]["validity_mask"].tolist() == [False, False, True, True, True]


def test_every_other_step() -> None:
    unit = Sequence(3, dilation=2)
    found = windows(make(steps(10), unit), unit)
    assert found[1]["step"].tolist() == [1, 3, 5]
    assert found[6]["validity_mask"].tolist() == [True, True, False]


@pytest.mark.parametrize("done_key", [("next", "done"), None])
def test_windows_cross_the_end_of_the_memory_but_not_the_newest_step(done_key: Any) -> None:
    unit = Sequence(3, "pad" if done_key is None else "include_reset", done_key)
    buffer = make(steps(-10), unit, size=10)
    buffer.extend(steps(-4, start=10))
    found = windows(buffer, unit)
    assert found[8]["step"].tolist() == [8, 9, 10]
    assert found[12]["step"].tolist() == [12, 13, 13]
    assert found[4]["step"].tolist() == [4, 5, 6]


def test_windows_of_several_envs_stay_in_their_env() -> None:
    unit = Sequence(2, burn_in=1)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20, ndim=2), batch_size=8, sample_unit=unit
    )
    env: TensorDict = torch.stack([steps(4), steps(2, -2, start=100)])
    buffer.extend(env)
    seen = set()
    for _ in range(40):
        batch = buffer.sample().reshape(8, 3)
        numbers = [tuple(row) for row in batch["step"].tolist()]
        stored = [env["step"][e, t].item() for t, e in batch["anchor_index"][:, 0].tolist()]
        assert [row[1] for row in numbers] == stored
        seen |= set(numbers)
    assert {(0, 1, 2), (2, 3, 3), (100, 101, 101), (102, 102, 103)} <= seen
    assert all(len({number // 100 for number in row}) == 1 for row in seen)


def test_weights_follow_the_windows_and_priorities_the_anchors() -> None:
    unit = Sequence(3)
    buffer = make(steps(6, 4), unit, sampler=PrioritizedSampler(100, alpha=1.0, beta=1.0))
    buffer.update_priority(torch.arange(10), torch.tensor([0.0] * 4 + [1.0] + [0.0] * 5))
    batch, info = buffer.sample(return_info=True)
    assert batch["step"].tolist() == [4, 5, 5] * 6
    weights = info["priority_weight"].reshape(6, 3)
    assert torch.equal(weights, weights[:, :1].expand(6, 3))
    # The step outside the episode does not count, nor do the steps after the anchor get its error.
    batch["td_error"] = torch.tensor([1.0, 2.0, 50.0] * 5 + [1.0, 7.0, 50.0])
    buffer.update_tensordict_priority(batch)
    buffer.update_priority(torch.tensor([0]), torch.tensor([7.0]))
    drawn = torch.cat([buffer.sample()["anchor_index"].reshape(6, 3)[:, 0] for _ in range(60)])
    assert set(drawn.tolist()) == {0, 4}
    assert 0.3 < float((drawn == 4).float().mean()) < 0.7


def test_priorities_of_batches_without_windows_are_those_of_their_steps() -> None:
    buffer = make(steps(4), None, sampler=PrioritizedSampler(100, alpha=1.0, beta=1.0))
    batch = TensorDict(
        index=torch.arange(4),
        anchor_index=torch.zeros(4, dtype=torch.int64),
        td_error=torch.tensor([0.0, 0.0, 5.0, 0.0]),
        batch_size=[4],
    )
    buffer.update_tensordict_priority(batch)
    assert set(buffer.sample()["step"].tolist()) == {2}


def test_a_seed_reproduces_prefetched_windows() -> None:
    def batches() -> list[list[int]]:
        unit = Sequence(3)
        buffer = make(steps(6, 4), unit, prefetch=2, generator=torch.Generator().manual_seed(0))
        result = [buffer.sample()["step"].tolist() for _ in range(5)]
        buffer.close()
        return result

    assert batches() == batches()


def test_own_unit() -> None:
    class Twice:
        def expand(self, index: Any, info: Any, storage: Any) -> Any:
            index = index.repeat_interleave(2)
            return index, {**info, "copy": torch.arange(len(index)) % 2}

    batch = make(steps(10), Twice()).sample()
    assert len(batch) == 12
    assert torch.equal(batch["step"][::2], batch["step"][1::2])
    assert batch["copy"].tolist() == [0, 1] * 6


def test_what_has_no_windows_is_refused() -> None:
    with pytest.raises(ArgumentError, match="must have a method expand, got object"):
        make(steps(4), object())
    with pytest.raises(ArgumentError, match="SliceSampler draws sequences"):
        make(steps(4), Sequence(2), sampler=SliceSampler(slice_len=2)).sample()
    listed = ReplayBuffer(sample_unit=Sequence(2), batch_size=2)
    listed.extend([steps(1)[0]])
    with pytest.raises(ChainError, match="got a ListStorage"):
        listed.sample()
    plain = ReplayBuffer(storage=LazyTensorStorage(9), sample_unit=Sequence(2), batch_size=2)
    plain.extend(torch.arange(9))
    with pytest.raises(ChainError, match="needs a TensorStorage of TensorDicts"):
        plain.sample()
    with pytest.raises(KeyNotFoundError, match="ended"):
        make(steps(4), Sequence(2, done_key="ended")).sample()
    with pytest.raises(ArgumentError, match="HERReplayBuffer"):
        HERReplayBuffer(
            lambda batch: batch["step"],
            storage=LazyTensorStorage(9),
            sample_unit=Sequence(2),
        )
    with pytest.raises(ArgumentError, match="buffers of the ensemble"):
        ReplayBufferEnsemble(make(steps(4), None), sample_unit=Sequence(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, "length must be an integer of at least 1, got 0"),
        ({"length": 2, "burn_in": -1}, "burn_in must be an integer of at least 0"),
        ({"length": 2, "bootstrap": 1.5}, "bootstrap must be an integer"),
        ({"length": 2, "dilation": 0}, "dilation must be an integer of at least 1"),
        ({"length": 2, "episode_boundary": "wrap"}, "unknown episode_boundary 'wrap'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Sequence(**arguments)
