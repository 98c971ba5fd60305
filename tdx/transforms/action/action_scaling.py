"""Let the outside give actions in a normalised range."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tdx.core.transforms import TimeBehaviour
from tdx.core.transforms.action import ActionTransform, action_leaf, has_range, shared_rows
from tdx.core.transforms.affine import AffineTransform, mapped_spec, refuse_integers
from tdx.errors import ArgumentError, ChainError, Where
from tdx.keys import NestedKey
from tdx.specs import Bounded, Composite, TensorSpec


class ActionScaling(ActionTransform, AffineTransform):
    """Take actions from [-1, 1], or [0, 1], and map them to the env's own range.

    On the way into the env an action becomes ``action * scale + loc``, where ``loc`` is the
    middle and ``scale`` half the width of the env's range. Stored data is mapped the other way.

    Args:
        in_keys_inv: the env's action, one key; ``action`` by default. An empty list leaves the
            env's actions alone and maps stored data only.
        out_keys_inv: its name outside; ``in_keys_inv`` by default.
        in_keys: the action in stored data; ``in_keys_inv`` by default.
        out_keys: where the mapped one is written; the in-keys by default.
        loc: the middle of the env's range; from the action spec where it is left out.
        scale: half the width of the env's range; from the action spec where it is left out.
        standard_normal: whether the outside's range is [-1, 1]; otherwise [0, 1].

    Raises:
        ArgumentError: there are several keys, only one of ``loc`` and ``scale`` is given, or a
            ``scale`` is zero.
        ChainError: the range is to follow from an action spec that is not continuous with a
            finite, non-empty range (when its specs are computed).

    Example:
        >>> from tdx import ActionScaling, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), ActionScaling())
        >>> env.base_env.action_spec.high, env.action_spec.high
        (tensor([2.]), tensor([1.]))
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.POINTWISE
    # In both forms actions are mapped by ``action * scale + loc``.
    _saves_form = False

    def __init__(
        self,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        *,
        loc: Tensor | float | None = None,
        scale: Tensor | float | None = None,
        standard_normal: bool = True,
    ) -> None:
        super().__init__(in_keys_inv, out_keys_inv, in_keys, out_keys)
        if len(self.in_keys_inv) > 1 or len(self.in_keys) > 1:
            raise ArgumentError(
                "ActionScaling takes one action", hint="add one ActionScaling for each"
            )
        if (loc is None) != (scale is None):
            raise ArgumentError(
                "loc and scale go together, only one of them is given",
                hint="give both, or neither to take them from the action spec",
            )
        if loc is None and not self.in_keys_inv:
            raise ArgumentError(
                "without in_keys_inv there is no action spec to take loc and scale from",
                hint="give loc and scale",
            )
        self._derives = loc is None
        self._set_affine(loc, scale, standard_normal, eps=0.0)
        if self.scale is not None and bool((self.scale == 0).any()):
            raise ArgumentError(
                "scale must not be zero: every action would become the same",
                hint="give half the width of the env's range",
            )

    def _ends(self) -> tuple[Tensor, Tensor]:
        loc, scale = self._buffers["loc"], self._buffers["scale"]
        if loc is None or scale is None:
            raise ChainError(
                "ActionScaling has no loc and scale yet",
                hint="give them, or put the transform into an env whose action has a range",
            )
        return loc, scale

    def _apply_transform(self, action: Tensor) -> Tensor:
        loc, scale = self._ends()
        normal = (action - loc) / scale
        return normal if self.standard_normal else (normal + 1) / 2

    def _inv_apply_transform(self, action: Tensor) -> Tensor:
        loc, scale = self._ends()
        if not self.standard_normal:
            action = action * 2 - 1
        return action * scale + loc

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if not self._derives:
            return
        key = self.in_keys_inv[0]
        spec = action_leaf(input_spec, key)
        if not has_range(spec):
            raise ChainError(
                f"the action is {type(spec).__name__} without a finite, non-empty range to scale",
                hint="give loc and scale, or leave ActionScaling out",
                where=Where(key=key),
            )
        low, high = shared_rows(spec.low, spec.high, len(input_spec.shape))
        self._set_affine((low + high) / 2, (high - low) / 2, self.standard_normal, eps=0.0)

    def _inv_transform_spec(self, spec: TensorSpec) -> TensorSpec:
        refuse_integers(spec, type(self).__name__)
        if not self._derives:
            return mapped_spec(spec, self._apply_transform)
        low = -1.0 if self.standard_normal else 0.0
        return Bounded(low, 1.0, shape=spec.shape, dtype=spec.dtype, device=spec.device)
