"""What every transform is built on."""

from tdx.transforms.base.callable_transform import CallableTransform
from tdx.transforms.base.compose import Compose
from tdx.transforms.base.scan import RunningTransform
from tdx.transforms.base.time_behaviour import TimeBehaviour
from tdx.transforms.base.transform import ObservationTransform, RewardTransform, Transform

__all__ = [
    "CallableTransform",
    "Compose",
    "ObservationTransform",
    "RewardTransform",
    "RunningTransform",
    "TimeBehaviour",
    "Transform",
]
