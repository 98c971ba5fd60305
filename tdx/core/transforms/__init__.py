"""What every transform is built on."""

from tdx.core.transforms.callable_transform import CallableTransform
from tdx.core.transforms.compose import Compose
from tdx.core.transforms.scan import RunningTransform
from tdx.core.transforms.time_behaviour import TimeBehaviour
from tdx.core.transforms.transform import ObservationTransform, RewardTransform, Transform

__all__ = [
    "CallableTransform",
    "Compose",
    "ObservationTransform",
    "RewardTransform",
    "RunningTransform",
    "TimeBehaviour",
    "Transform",
]
