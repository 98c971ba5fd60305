"""Scale and shift rewards."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tdx.core.transforms import RewardTransform, TimeBehaviour
from tdx.core.transforms.affine import AffineTransform
from tdx.core.transforms.transform import RowStep
from tdx.keys import NestedKey
from tdx.specs import TensorSpec


class RewardScaling(AffineTransform, RewardTransform):
    """Map every reward to ``reward * scale + loc``.

    Args:
        loc: the offset.
        scale: the factor; broadcasts with the reward.
        in_keys: the rewards read.
        out_keys: the keys written; the in-keys by default.
        standard_normal: whether to map to ``(reward - loc) / scale`` instead.

    Raises:
        ArgumentError: ``loc`` or ``scale`` is not a finite number or tensor.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import RewardScaling
        >>> RewardScaling(loc=1.0, scale=0.5)(TensorDict(reward=torch.tensor([4.0])))["reward"]
        tensor([3.])
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.POINTWISE

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        standard_normal: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self._set_affine(loc, scale, standard_normal)

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        return self._affine(tensor)

    def _row_step(self) -> RowStep | None:
        if type(self)._apply_transform is RewardScaling._apply_transform:
            return self._affine_row_step() or super()._row_step()
        return super()._row_step()

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return self._affine_spec(spec)
