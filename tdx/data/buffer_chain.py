"""Run the transforms of a replay buffer, and invert them."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import Compose, TimeBehaviour, Transform
from tdx.keys import NestedKey
from tdx.tensordicts import read, write

FORWARD = Transform.forward
Pairs = tuple[tuple[NestedKey, NestedKey], ...]


class ChainProgram:
    """Runs ``chain(data)`` with less overhead for transforms that map tensor by tensor.

    Args:
        chain: Chain of transforms; a changed chain needs a new program.
    """

    def __init__(self, chain: Compose) -> None:
        self.chain = chain
        self._hooks = (chain._forward_hooks, chain._forward_pre_hooks)
        self._steps = tuple(
            (stage, _plain_pairs(stage), stage._forward_hooks, stage._forward_pre_hooks)
            for stage in chain
        )

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """Map a batch; most transforms do so in place.

        Args:
            data: Batch ``[N, ...]`` that the caller owns.
        """
        if self._hooks[0] or self._hooks[1]:
            hooked: TensorDictBase = self.chain(data)
            return hooked
        stage: Transform
        try:
            for stage, pairs, hooks, pre_hooks in self._steps:
                if pairs is None or hooks or pre_hooks:
                    data = stage(data)
                else:
                    _map_each(stage, pairs, data)
        except Exception as error:
            raise self.chain._located(error, stage, "sampling") from error.__cause__
        return data


def _plain_pairs(stage: Transform) -> Pairs | None:
    return stage._pairs if type(stage).forward is FORWARD else None


def _map_each(stage: Transform, pairs: Pairs, data: TensorDictBase) -> None:
    for in_key, out_key in pairs:
        value = read(data, in_key)
        if value is None:
            if stage.missing_tolerance:
                continue
            raise stage._missing_key(in_key, data)
        result: Any = stage._apply_transform(value)
        alike = type(result) is Tensor and result.shape == value.shape
        if alike and result.device == value.device:
            write(data, out_key, result)
        else:
            data.set(out_key, result)


class InvertedTransform(Transform):
    """Swaps ``forward`` and ``inv`` of a transform.

    Args:
        transform: Transform to invert.
    """

    time_behaviour = TimeBehaviour.CONTROL

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform
        transform.set_container(self)

    @property
    def invertible(self) -> bool:
        """Always true."""
        return True

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map sampled data by the inverse of the transform."""
        return self.transform.inv(tensordict)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.transform(tensordict)

    def __repr__(self) -> str:
        return f"InvertedTransform({self.transform})"
