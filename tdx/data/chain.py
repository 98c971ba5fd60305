"""Run a chain of transforms over a batch."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from tdx.tensordicts import read, write
from tdx.transforms.base import Compose, Transform

FORWARD = Transform.forward


def run_chain(chain: Compose, data: TensorDictBase) -> TensorDictBase:
    """What ``chain(data)`` does, with less around it for transforms that map tensor by tensor.

    Args:
        chain: the transforms.
        data: a batch of its own, ``[N, ...]``; changed in place.
    """
    stage: Transform
    if chain._forward_hooks or chain._forward_pre_hooks:
        result: TensorDictBase = chain(data)
        return result
    try:
        for stage in chain:
            if type(stage).forward is not FORWARD or _has_hooks(stage) or not _mapped(stage, data):
                data = stage(data)
    except Exception as error:
        raise chain._located(error, stage, "sampling") from error.__cause__
    return data


def _has_hooks(stage: Transform) -> bool:
    return bool(stage._forward_hooks or stage._forward_pre_hooks)


def _mapped(stage: Transform, data: TensorDictBase) -> bool:
    """Map every in-key; false, with nothing done, where one is missing."""
    pairs, batch, ndim = stage._pairs, data.batch_size, data.ndim
    values = [read(data, in_key) for in_key, _ in pairs]
    if any(value is None for value in values):
        return False
    for (in_key, out_key), value in zip(pairs, values, strict=True):
        # Two in-keys may be written one after the other: the second then reads what is new.
        result: Any = stage._apply_transform(value if len(pairs) == 1 else read(data, in_key))
        fits = type(result) is Tensor and type(value) is Tensor and result.device == value.device
        if fits and result.shape[:ndim] == batch:
            write(data, out_key, result)
        else:
            data.set(out_key, result)
    return True
