"""Random parts of stored sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    LazyTensorStorage,
    PendulumEnv,
    RandomCropTensorDict,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TransformedEnv,
)
from tdx.foundation.errors import ArgumentError, ChainError


def sequences(batch: int = 50, steps: int = 6) -> TensorDict:
    time = torch.arange(steps).expand(batch, steps)
    return TensorDict(
        time=time, row=torch.arange(batch).unsqueeze(1).expand(batch, steps)
    ).auto_batch_size_(2)


def test_every_crop_can_be_drawn() -> None:
    torch.manual_seed(0)
    cropped = RandomCropTensorDict(4)(sequences())
    first = cropped["time"][:, 0]
    assert set(first.tolist()) == {0, 1, 2}
    assert torch.equal(cropped["time"], first.unsqueeze(1) + torch.arange(4))
    assert torch.equal(cropped["row"][:, 0], torch.arange(50))


def test_the_whole_sequence() -> None:
    data = sequences()
    assert (RandomCropTensorDict(6)(data) == data).all()


def test_valid_steps_alone() -> None:
    data = sequences()
    data["mask"] = data["time"] < 3 + data["row"] % 3
    cropped = RandomCropTensorDict(3, mask_key="mask")(data)
    assert cropped["mask"].all()
    assert (cropped["time"][:, 0] <= cropped["row"][:, 0] % 3).all()
    with pytest.raises(ArgumentError, match="sequences of 3 steps are too short"):
        RandomCropTensorDict(4, mask_key="mask")(data)


def test_another_dim() -> None:
    data = sequences().transpose(0, 1)
    assert RandomCropTensorDict(4, sample_dim=0)(data.contiguous()).shape == (4, 50)


def test_in_a_buffer() -> None:
    stored = ReplayBuffer(
        storage=LazyTensorStorage(50, ndim=1), sampler=SamplerWithoutReplacement(), batch_size=5
    )
    stored.append_transform(RandomCropTensorDict(2))
    stored.extend(TensorDict(a=torch.arange(10), batch_size=[10]))
    with pytest.raises(ArgumentError, match="time"):
        stored.sample()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sub_seq_len": 0}, "sub_seq_len must be an integer of at least 1"),
        ({"sub_seq_len": 1, "sample_dim": 0.5}, "sample_dim must be an integer"),
    ],
)
def test_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RandomCropTensorDict(**arguments)


def test_data_without_crops_is_refused() -> None:
    with pytest.raises(ArgumentError, match="sequences of 6 steps are too short"):
        RandomCropTensorDict(7)(sequences())
    with pytest.raises(ArgumentError, match="has no dim -1"):
        RandomCropTensorDict(1)(TensorDict(a=torch.zeros(1)))
    data = sequences()
    data["mask"] = torch.ones(50, 6, 1)
    with pytest.raises(ArgumentError, match="the mask has shape"):
        RandomCropTensorDict(1, mask_key="mask")(data)
    with pytest.raises(ChainError, match="cannot be part of an env"):
        TransformedEnv(PendulumEnv(), RandomCropTensorDict(2))
