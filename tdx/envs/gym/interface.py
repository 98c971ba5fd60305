"""Types of Gymnasium's interface. Values are of any type: they are checked when converted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from tdx.foundation.array_files import Array

AnyEnv = gymnasium.Env[Any, Any]
AnyVectorEnv = gymnasium.vector.VectorEnv[Any, Any, Any]
AnySpace = gymnasium.Space[Any]
AnyWrapper = gymnasium.Wrapper[Any, Any, Any, Any]
DType = np.dtype[Any]

Batch = Array | Sequence[Any]
"""Values of several steps or rows: an array, or one by one."""
Info = dict[str, Any]
ResetResult = tuple[Any, Info]
"""Observation and info of a reset."""
StepResult = tuple[Any, Any, Any, Any, Info]
"""Observation, reward, ``terminated``, ``truncated`` and info of a step; rows of a vector env."""
