"""Base classes of transforms, the chain, and the helpers that transforms are written with."""

from tdx.core.transforms.callable_transform import CallableTransform
from tdx.core.transforms.compose import Compose
from tdx.core.transforms.families import (
    EnvOnlyTransform,
    ObservationTransform,
    RewardTransform,
    StoredDataTransform,
)
from tdx.core.transforms.kernels import TimeBehavior
from tdx.core.transforms.scan import RunningTransform
from tdx.core.transforms.transform import Transform

__all__ = [
    "CallableTransform",
    "Compose",
    "EnvOnlyTransform",
    "ObservationTransform",
    "RewardTransform",
    "RunningTransform",
    "StoredDataTransform",
    "TimeBehavior",
    "Transform",
]
