"""Fill a replay buffer with episodes and their returns, and sample sequences for a GRU.

Run it from the folder above: python -m sample_pipelines.offline_returns
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tensordict import TensorDictBase

from tdx import (
    ActionChunkTransform,
    BurnInTransform,
    DeviceCastTransform,
    GRUModule,
    LazyTensorStorage,
    MultiStepTransform,
    PinMemoryTransform,
    RandomCropTensorDict,
    ReplayBuffer,
    Reward2GoTransform,
    SliceSampler,
    build_env,
)
from tdx.pipeline import read_pipeline

PIPELINE = Path(__file__).with_suffix(".yaml")
STEPS_PER_SEQUENCE = 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def collect() -> TensorDictBase:
    """Collect random episodes ``[B, T]`` whose last step is marked as done."""
    pipeline = read_pipeline(PIPELINE.read_text(encoding="utf-8"), PIPELINE.name)
    env = build_env(pipeline)
    assert pipeline.rollout.max_steps is not None
    # A return is only known for an episode that ends.
    return env.rollout(pipeline.rollout.max_steps, break_when_any_done=False, set_truncated=True)


def filled_buffer() -> ReplayBuffer:
    """Create a buffer of sequences with returns and up-to-date GRU states."""
    gru = GRUModule(
        4, 8, in_keys=["observation", "hidden"], out_keys=["features", ("next", "hidden")]
    )
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(1000, ndim=2),  # [B, T], as rollouts are
        sampler=SliceSampler(slice_len=STEPS_PER_SEQUENCE, end_key=("next", "done")),
        batch_size=4 * STEPS_PER_SEQUENCE,
    )
    # On storing, over whole episodes: discounted rewards from each step to the end.
    buffer.append_transform(Reward2GoTransform(gamma=0.99, out_keys=["return"]))
    # On sampling: move to the learner's device, split into sequences, and recompute the state after
    # their first two steps with the current network.
    buffer.append_transform(DeviceCastTransform(DEVICE, orig_device="cpu"))
    buffer.append_transform(lambda steps: steps.reshape(-1, STEPS_PER_SEQUENCE))
    buffer.append_transform(BurnInTransform([gru], burn_in=2))
    buffer.extend(collect())
    return buffer


def chunk_buffer() -> ReplayBuffer:
    """Create a buffer of sequences with chunks of actions."""
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(1000, ndim=2),
        sampler=SliceSampler(slice_len=STEPS_PER_SEQUENCE, end_key=("next", "done")),
        batch_size=4 * STEPS_PER_SEQUENCE,
    )
    # On sampling: half of each sequence, and the four actions that follow each of its steps.
    buffer.append_transform(lambda steps: steps.reshape(-1, STEPS_PER_SEQUENCE))
    buffer.append_transform(RandomCropTensorDict(STEPS_PER_SEQUENCE // 2))
    buffer.append_transform(ActionChunkTransform(4))
    buffer.extend(collect())
    return buffer


def transition_buffer() -> ReplayBuffer:
    """Create a buffer of single steps with returns over three steps."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000, ndim=2), batch_size=32)
    # On storing: the discounted rewards of three steps, and the observation after them.
    buffer.append_transform(MultiStepTransform(n_steps=3, gamma=0.99))
    buffer.append_transform(PinMemoryTransform())
    buffer.extend(collect())
    return buffer


if __name__ == "__main__":
    torch.manual_seed(0)
    sample = filled_buffer().sample()
    sys.stdout.write(f"{tuple(sample.shape)}, mean return {sample['return'].mean():.1f}\n")
