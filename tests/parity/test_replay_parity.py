"""Parity of replay buffers: the same steps at the same positions, and the same batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

import tdx
from tests.data.stored import batched, rollout
from tests.parity.twins import ORACLE, assert_same_values

torchrl_data = pytest.importorskip("torchrl.data.replay_buffers")

pytestmark = pytest.mark.filterwarnings("ignore")

THEIRS = SimpleNamespace(**{**vars(ORACLE), **vars(torchrl_data)})
STORAGES = ["ListStorage", "LazyTensorStorage", "LazyMemmapStorage"]
LIBRARIES: tuple[Any, Any] = (tdx, THEIRS)


def made(m: Any, storage: str, size: int = 9, sampler: Any = None, **kwargs: Any) -> Any:
    options = {"ndim": kwargs.pop("ndim")} if "ndim" in kwargs else {}
    return m.ReplayBuffer(
        storage=getattr(m, storage)(size, **options),
        sampler=None if sampler is None else sampler(m),
        batch_size=4,
        generator=torch.Generator().manual_seed(0),
        **kwargs,
    )


@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_stored_where(storage: str) -> None:
    ours, theirs = (made(m, storage) for m in LIBRARIES)
    parts = [rollout([4]), rollout([7]), rollout([30]), rollout([2])]
    for part in parts:
        for buffer in (ours, theirs):
            buffer.extend(part.clone())
            buffer.add(part[1].clone())
        assert (len(ours), ours.write_count) == (len(theirs), theirs.write_count)
        assert_same_values(ours[:], theirs[:])
        assert_same_values(ours[1:3], theirs[1:3])
        assert_same_values(ours[2], theirs[2])
    assert ours.extend(parts[1]).tolist() == theirs.extend(parts[1]).tolist()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(
    "sampler",
    [
        lambda m: m.RandomSampler(),
        lambda m: m.SamplerWithoutReplacement(),
        lambda m: m.SamplerWithoutReplacement(drop_last=True),
        lambda m: m.SamplerWithoutReplacement(shuffle=False),
    ],
    ids=["random", "pass", "whole-batches", "in-order"],
)
def test_batches_of_a_generator(storage: str, sampler: Any) -> None:
    ours, theirs = (made(m, storage, sampler=sampler) for m in LIBRARIES)
    for buffer in (ours, theirs):
        buffer.extend(rollout([9]))
    for _ in range(7):
        (mine, info), (wanted, where) = (each.sample(return_info=True) for each in (ours, theirs))
        assert_same_values(mine, wanted)
        assert torch.equal(info["index"], torch.as_tensor(where["index"]))


def test_batches_of_envs() -> None:
    data = batched([[5, 4], [9], [3, 6]])
    ours, theirs = (made(m, "LazyTensorStorage", 24, ndim=2) for m in LIBRARIES)
    for part in (data, data[:, :3]):
        places = [buffer.extend(part.clone()) for buffer in (ours, theirs)]
        assert places[0].tolist() == places[1].tolist()
        assert_same_values(ours[:], theirs[:])
        assert (len(ours), ours.write_count) == (len(theirs), theirs.write_count)


def slices_of(batch: TensorDictBase, length: int) -> set[tuple[int, ...]]:
    return set(map(tuple, batch["index"].reshape(-1, length).tolist()))


@pytest.mark.parametrize("lengths", [[5, 3, 8], [2, 2, 12]])
def test_slices_that_can_be_drawn(lengths: list[int]) -> None:
    found = []
    for m in LIBRARIES:
        buffer = m.TensorDictReplayBuffer(
            storage=m.LazyTensorStorage(11), sampler=m.SliceSampler(slice_len=3), batch_size=3000
        )
        buffer.extend(rollout(lengths))
        found.append(slices_of(buffer.sample(), 3))
    assert found[0] == found[1]


def test_marks_of_slices() -> None:
    flags = []
    for m in LIBRARIES:
        buffer = m.TensorDictReplayBuffer(
            storage=m.LazyTensorStorage(20), sampler=m.SliceSampler(num_slices=5), batch_size=20
        )
        buffer.extend(rollout([4, 4, 4, 4]))
        batch = buffer.sample()
        flags.append(batch["next"].select("done", "truncated"))
    assert_same_values(*flags)


def test_transforms_on_both_ways() -> None:
    data = rollout([9])
    data["precise"] = torch.rand(9, 2).double()

    def stages(m: Any) -> list[Any]:
        return [
            m.ObservationNorm(0.1, 2.0, in_keys=["observation"], out_keys=["normal"]),
            m.RewardScaling(1.0, 3.0, in_keys=[("next", "reward")]),
            m.DoubleToFloat(in_keys=["precise"], in_keys_inv=["precise"]),
            m.ActionScaling(loc=torch.ones(2), scale=torch.full((2,), 2.0)),
        ]

    ours, theirs = (made(m, "LazyTensorStorage") for m in LIBRARIES)
    for m, buffer in zip(LIBRARIES, (ours, theirs), strict=True):
        for stage in stages(m):
            buffer.append_transform(stage)
        buffer.append_transform(m.RewardClipping(0, 9, in_keys=[("next", "reward")]), invert=True)
        buffer.extend(data.clone())
    assert_same_values(ours.storage[:], theirs.storage[:])
    assert_same_values(ours.sample(), theirs.sample())
