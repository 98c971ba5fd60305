"""The classes that a transform extends, for those who write their own."""

from __future__ import annotations

from tdx.core.transforms import (
    CallableTransform,
    Compose,
    ObservationTransform,
    RewardTransform,
    RunningTransform,
    TimeBehavior,
    Transform,
)

__all__ = [
    "CallableTransform",
    "Compose",
    "ObservationTransform",
    "RewardTransform",
    "RunningTransform",
    "TimeBehavior",
    "Transform",
]
