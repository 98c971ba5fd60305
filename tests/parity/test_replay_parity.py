"""Parity of replay buffers: the same steps at the same positions, and the same batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

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


def test_the_largest_values_are_at_the_same_positions() -> None:
    buffers = [
        made(m, "LazyTensorStorage", 5, writer=m.TensorDictMaxValueWriter(rank_key="value"))
        for m in LIBRARIES
    ]
    for count in (3, 4, 9):
        data = TensorDict(value=torch.randperm(50)[:count].float(), batch_size=[count])
        ours, theirs = (buffer.extend(data.clone()).tolist() for buffer in buffers)
        assert ours == theirs
        assert buffers[0][:]["value"].tolist() == buffers[1][:]["value"].tolist()


@pytest.mark.parametrize("alpha", [0.6, 1.0])
def test_priorities_and_weights(alpha: float) -> None:
    found = []
    for m in LIBRARIES:
        torch.manual_seed(0)
        buffer = m.TensorDictPrioritizedReplayBuffer(
            alpha=alpha, beta=0.4, storage=m.LazyTensorStorage(8), batch_size=500
        )
        data = TensorDict(step=torch.arange(6), td_error=torch.arange(6) + 0.5, batch_size=[6])
        buffer.extend(data)
        buffer.extend(data.exclude("td_error")[:3].set("td_error", torch.full((3,), 9.0)))
        batch = buffer.sample()
        weights = dict(zip(batch["index"].tolist(), batch["priority_weight"].tolist(), strict=True))
        found.append(weights)
    assert found[0].keys() == found[1].keys()
    for index, weight in found[0].items():
        assert weight == pytest.approx(found[1][index], rel=1e-5)


@pytest.mark.parametrize("batched_data", [False, True])
def test_nested_data(batched_data: bool) -> None:
    tensors = torch.arange(12.0).reshape(2, 6) if batched_data else torch.arange(6.0)
    data = {"a": tensors, "b": (tensors + 1, [tensors.unsqueeze(-1)])}
    ndim = 2 if batched_data else 1
    ours, theirs = (made(m, "LazyTensorStorage", 12, ndim=ndim) for m in LIBRARIES)
    for buffer in (ours, theirs):
        buffer.extend(data)
    mine, wanted = ours.sample(), theirs.sample()
    assert mine["a"].shape == wanted["a"].shape
    assert torch.equal(mine["b"][0], mine["a"] + 1)
    assert mine["b"][1][0].shape == wanted["b"][1][0].shape


def test_flags_of_slices_of_a_storage() -> None:
    infos = []
    for m in LIBRARIES:
        storage = m.LazyTensorStorage(12)
        storage.set(range(12), rollout([4, 4, 4]))
        sampler = m.SliceSampler(slice_len=4, end_key=("next", "done"))
        infos.append(sampler.sample(storage, 12)[1])
    for name in ("done", "terminated", "truncated"):
        assert torch.equal(infos[0]["next", name], infos[1]["next", name])
