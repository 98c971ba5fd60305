"""Policy checkpoints: the processors around a policy, read as data.

No code of a checkpoint runs, no library of it is imported, and weights are not read.
"""

from tdx.stacks.checkpoints.dataset import Dataset
from tdx.stacks.checkpoints.datasets import find_dataset_format, is_dataset, read_dataset
from tdx.stacks.checkpoints.folder import is_checkpoint, read_checkpoint
from tdx.stacks.checkpoints.model import (
    Checkpoint,
    Feature,
    PolicyConfig,
    Processor,
    SampleEntries,
    Step,
    Trace,
)

__all__ = [
    "Checkpoint",
    "Dataset",
    "Feature",
    "PolicyConfig",
    "Processor",
    "SampleEntries",
    "Step",
    "Trace",
    "find_dataset_format",
    "is_checkpoint",
    "is_dataset",
    "read_checkpoint",
    "read_dataset",
]
