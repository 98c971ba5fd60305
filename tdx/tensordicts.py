"""The few TensorDict operations of the step loop, without the checks that cost it time.

A ``TensorDict.get`` or ``set`` normalises its key and checks its value on every call, about a
microsecond each. Inside a step both are known to be right, so the hot path goes to the methods
beneath; this is the one module that names them.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from tensordict import TensorDict, TensorDictBase

from tdx.keys import NestedKey


def new_tensordict(
    fields: dict[str, Any], batch_size: torch.Size, device: torch.device | None
) -> TensorDict:
    """A TensorDict over ``fields``, which must already have the batch size and the device."""
    made = cast(TensorDict, TensorDict._new_unsafe(fields, batch_size=batch_size, nested=False))
    # Set afterwards: given as an argument the device is parsed, which takes longer than the rest.
    made._device = device
    return made


def read(tensordict: TensorDictBase, key: NestedKey) -> Any:
    """The entry at ``key`` (in its normal form), or ``None``."""
    if type(key) is str:
        return tensordict._get_str(key, None)
    return tensordict._get_tuple(key, None)


def write(tensordict: TensorDictBase, key: NestedKey, value: Any) -> None:
    """Set the entry at ``key`` (in its normal form) to a value of the right batch and device."""
    if type(key) is str:
        tensordict._set_str(key, value, validated=True, inplace=False, non_blocking=False)
    else:
        tensordict._set_tuple(key, value, validated=True, inplace=False, non_blocking=False)
