"""Replay buffers, their storages and their samplers."""

from tdx.data.buffer import ReplayBuffer, TensorDictReplayBuffer
from tdx.data.samplers import RandomSampler, Sampler, SamplerWithoutReplacement
from tdx.data.slice_sampler import SliceSampler
from tdx.data.storage import ListStorage, Storage
from tdx.data.tensor_storage import LazyMemmapStorage, LazyTensorStorage

__all__ = [
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "ListStorage",
    "RandomSampler",
    "ReplayBuffer",
    "Sampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "Storage",
    "TensorDictReplayBuffer",
]
