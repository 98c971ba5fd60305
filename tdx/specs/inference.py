"""Inference of specs from data."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection, is_tensorclass

from tdx.specs.arguments import Value
from tdx.specs.bounded import Unbounded
from tdx.specs.composite import Composite
from tdx.specs.non_tensor import NonTensor
from tdx.specs.spec import TensorSpec


def make_composite_from_td(
    data: TensorDictBase, *, unsqueeze_null_shapes: bool = True, dynamic_shape: bool = False
) -> Composite:
    """Return the spec of a TensorDict, with all numbers unbounded.

    Args:
        data: TensorDict or tensorclass, ``[*B]``.
        unsqueeze_null_shapes: If True, tensors without dims are declared with shape ``[1]``.
        dynamic_shape: If True, declare the size of the last dim after the batch dims as -1.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> spec = make_composite_from_td(TensorDict(observation=torch.zeros(3), step=1))
        >>> spec["observation"].shape, spec["step"].dtype
        (torch.Size([3]), torch.int64)
    """
    entries: TensorDictBase = data.to_tensordict() if is_tensorclass(data) else data
    leaves = {
        name: _infer(entries.get(name), data.ndim, unsqueeze_null_shapes, dynamic_shape)
        for name in entries.keys()
    }
    kind = type(data) if is_tensorclass(data) else None
    return Composite(leaves, shape=data.batch_size, device=data.device, data_cls=kind)


def _infer(
    value: Value, batch_dims: int, unsqueeze_null_shapes: bool, dynamic_shape: bool
) -> TensorSpec:
    if is_non_tensor(value):
        return NonTensor(shape=value.batch_size, device=value.device, example_data=value.data)
    if is_tensor_collection(value):
        return make_composite_from_td(
            value, unsqueeze_null_shapes=unsqueeze_null_shapes, dynamic_shape=dynamic_shape
        )
    shape = value.shape
    if unsqueeze_null_shapes and not shape:
        shape = torch.Size((1,))
    if dynamic_shape and len(shape) > batch_dims:
        shape = torch.Size((*shape[:-1], -1))
    return Unbounded(shape=shape, device=value.device, dtype=value.dtype)
