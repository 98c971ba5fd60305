"""Batches of a replay buffer with a chain of three transforms."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tests.benchmarks.bars import REPLAY, REPLAY_SLICES, Bar
from tests.benchmarks.chains import Library, libraries, load
from tests.benchmarks.conftest import Compare, Run

STORED = 10_000
BATCH = 256
SAMPLES = 50
ROUNDS = 15
EPISODE = 200


def stored() -> TensorDictBase:
    """Return random data with the layout of a rollout of Pendulum-v1."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(STORED + 1, 3, generator=generator)
    done = (torch.arange(STORED) % EPISODE == EPISODE - 1).unsqueeze(-1)
    flags = {"done": done, "terminated": torch.zeros_like(done), "truncated": done}
    root = {name: torch.zeros_like(done) for name in flags}
    action, reward = (torch.randn(STORED, 1, generator=generator) for _ in range(2))
    following = {"observation": states[1:].clone(), "reward": reward, **flags}
    return TensorDict(
        {"observation": states[:-1].clone(), "action": action, **root, "next": following},
        batch_size=[STORED],
    )


def buffer_of(library: Library, sampler: str, **kwargs: Any) -> Any:
    """Create the buffer with the chain in one of the libraries."""
    lib = load(library)
    data = import_module("torchrl.data.replay_buffers") if library == "TorchRL" else lib
    buffer = data.ReplayBuffer(
        storage=data.LazyTensorStorage(STORED),
        sampler=getattr(data, sampler)(**kwargs),
        batch_size=BATCH,
    )
    buffer.append_transform(lib.ObservationNorm(0.1, 2.0, in_keys=["observation"]))
    buffer.append_transform(lib.RewardScaling(0.0, 0.1, in_keys=[("next", "reward")]))
    buffer.append_transform(lib.RewardClipping(-1, 1, in_keys=[("next", "reward")]))
    buffer.extend(stored())
    return buffer


@pytest.mark.parametrize(
    ("bar", "sampler", "options"),
    [
        (REPLAY, "RandomSampler", {}),
        (REPLAY_SLICES, "SliceSampler", {"slice_len": 16, "cache_values": True}),
    ],
    ids=["random", "slices"],
)
def test_sampling_from_a_replay_buffer(
    compare: Compare, bar: Bar, sampler: str, options: dict[str, Any]
) -> None:
    runs = {library: sampling(buffer_of(library, sampler, **options)) for library in libraries()}
    compare(bar, runs, rounds=ROUNDS)


def sampling(buffer: Any) -> Run:
    """Return a run that samples a few batches."""
    batch = buffer.sample()
    assert batch.batch_size == (BATCH,)
    assert batch["next", "reward"].abs().max() <= 1

    def samples() -> None:
        for _ in range(SAMPLES):
            buffer.sample()

    return Run(samples, SAMPLES)
