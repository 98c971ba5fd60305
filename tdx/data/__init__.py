"""Replay buffers, their storages, samplers and writers."""

from tdx.data.buffer import ReplayBuffer
from tdx.data.ensemble_buffer import ReplayBufferEnsemble
from tdx.data.ensembles import SamplerEnsemble, StorageEnsemble, WriterEnsemble
from tdx.data.lazy_storages import LazyMemmapStorage, LazyTensorStorage
from tdx.data.list_storage import LazyStackStorage, ListStorage
from tdx.data.prioritized_sampler import PrioritizedSampler
from tdx.data.samplers import RandomSampler, Sampler, SamplerWithoutReplacement
from tdx.data.slice_sampler import SliceSampler
from tdx.data.slice_samplers import PrioritizedSliceSampler, SliceSamplerWithoutReplacement
from tdx.data.storage import Storage
from tdx.data.tensor_storage import TensorStorage
from tdx.data.tensordict_buffers import (
    PrioritizedReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from tdx.data.writers import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
    Writer,
)

__all__ = [
    "ImmutableDatasetWriter",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "ListStorage",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "RoundRobinWriter",
    "Sampler",
    "SamplerEnsemble",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "Storage",
    "StorageEnsemble",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "Writer",
    "WriterEnsemble",
]
