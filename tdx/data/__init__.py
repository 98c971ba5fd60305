"""Replay buffers: what holds the data, what draws from it, and the buffer around both."""

from tdx.data.buffer import ReplayBuffer
from tdx.data.list_storage import ListStorage
from tdx.data.memmap_storage import LazyMemmapStorage
from tdx.data.samplers import RandomSampler, Sampler, SamplerWithoutReplacement
from tdx.data.slice_sampler import SliceSampler
from tdx.data.storage import Storage
from tdx.data.tensor_storage import LazyTensorStorage
from tdx.data.tensordict_buffer import TensorDictReplayBuffer

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
