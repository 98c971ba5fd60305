"""Scale actions from a normalized range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from torch import Tensor

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import ActionTransform, action_leaf, has_range, shared_bounds
from tdx.core.transforms.parameters import SMALLEST_SCALE, AffineTransform, require_floating
from tdx.core.transforms.spec_maps import map_bounds
from tdx.foundation.accelerators import move
from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey
from tdx.specs import Bounded, Composite, TensorSpec


class ActionScaling(ActionTransform, AffineTransform):
    """Map actions from [-1, 1], or [0, 1], to the range of the env.

    The env gets ``action * scale + loc``, where ``loc`` is the middle and ``scale`` half the
    width of its range. Stored actions are mapped the other way.

    Args:
        in_keys_inv: Action of the env, one key; ``action`` by default. An empty list maps stored
            data only.
        out_keys_inv: Key that the policy writes; ``in_keys_inv`` by default.
        in_keys: Action in stored data; ``in_keys_inv`` by default.
        out_keys: Key to write in stored data; the in-keys by default.
        loc: Middle of the env's range. ``None``: from the action spec.
        scale: Half the width of the env's range. ``None``: from the action spec.
        standard_normal: The policy's range is [-1, 1]; otherwise [0, 1].

    Raises:
        ArgumentError: There are several keys, only one of ``loc`` and ``scale`` is given, or
            ``scale`` is zero.
        ChainError: The range must be derived from an action spec that is not continuous with a
            finite, non-empty range (when its specs are computed).

    Example:
        >>> from tdx import ActionScaling, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), ActionScaling())
        >>> env.base_env.action_spec.high, env.action_spec.high
        (tensor([2.]), tensor([1.]))
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE
    # Both ranges use ``action * scale + loc``, so the form is not part of the state.
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
                "ActionScaling maps a single action", hint="add one ActionScaling for each"
            )
        if (loc is None) != (scale is None):
            raise ArgumentError(
                "only one of loc and scale is given",
                hint="give both, or neither to take them from the action spec",
            )
        if loc is None and not self.in_keys_inv:
            raise ArgumentError(
                "without in_keys_inv, loc and scale cannot be derived from an action spec",
                hint="pass loc and scale",
            )
        self._derives = loc is None
        self._set_affine(loc, scale, standard_normal, eps=0.0)
        if self.scale is not None and bool((self.scale == 0).any()):
            raise ArgumentError(
                "scale must not be zero: every action would become the same",
                hint="pass half the width of the env's range",
            )

    @classmethod
    def from_stats(
        cls,
        *,
        mean: Tensor | None = None,
        std: Tensor | None = None,
        low: Tensor | None = None,
        high: Tensor | None = None,
        eps: float = SMALLEST_SCALE,
        **kwargs: Any,
    ) -> Self:
        """Return a scaling by the statistics of a dataset.

        Args:
            mean: Mean of each element of the actions, mapped to 0.
            std: Standard deviation of each element, mapped to 1.
            low: Smallest value of each element, mapped to -1.
            high: Largest value of each element, mapped to 1.
            eps: Smallest scale.
            **kwargs: Further arguments of the constructor.

        Raises:
            ArgumentError: Not exactly one of the two pairs is given, or its shapes differ.

        Example:
            >>> import torch
            >>> stats = {"low": torch.tensor([0.0]), "high": torch.tensor([10.0])}
            >>> ActionScaling.from_stats(**stats).normalize(torch.tensor([5.0, 10.0]))
            tensor([0., 1.])
        """
        pairs = [pair for pair in ((mean, std), (low, high)) if pair != (None, None)]
        if len(pairs) != 1:
            raise ArgumentError(
                "exactly one pair of statistics is needed",
                hint="pass mean and std, or low and high",
            )
        first, second = pairs[0]
        if first is None or second is None:
            raise ArgumentError(
                "mean and std, or low and high, have to be given together", hint="pass both"
            )
        if first.shape != second.shape:
            raise ArgumentError(
                f"the statistics must have the same shape, got {tuple(first.shape)} and "
                f"{tuple(second.shape)}",
                hint="pass one number for each element of the action",
            )
        loc, scale = (
            (first, second)
            if mean is not None
            else (
                (first + second) / 2,
                (second - first) / 2,
            )
        )
        return cls(loc=loc, scale=scale.clamp_min(eps), **kwargs)

    @classmethod
    def from_metadata(cls, metadata: Any, **kwargs: Any) -> Self:
        """Return a scaling by the statistics in the metadata of a dataset.

        Args:
            metadata: Object with ``action_mean`` and ``action_std``, or ``action_low`` and
                ``action_high``, and with the name of the action as ``action_key``. Attributes that
                are missing or ``None`` are not used.
            **kwargs: Further arguments of the constructor and of :meth:`from_stats`.

        Raises:
            ArgumentError: It has neither pair of statistics.

        Example:
            >>> from types import SimpleNamespace
            >>> import torch
            >>> metadata = SimpleNamespace(
            ...     action_low=torch.tensor([0.0]), action_high=torch.tensor([10.0])
            ... )
            >>> ActionScaling.from_metadata(metadata).normalize(torch.tensor([5.0]))
            tensor([0.])
        """

        def given(*names: str) -> dict[str, Any]:
            bounds = {name: getattr(metadata, f"action_{name}", None) for name in names}
            return {} if any(value is None for value in bounds.values()) else bounds

        stats = given("mean", "std") or given("low", "high")
        if not stats:
            raise ArgumentError(
                f"{type(metadata).__name__} has no statistics of the actions",
                hint="it needs action_mean and action_std, or action_low and action_high",
            )
        key = getattr(metadata, "action_key", None)
        if key is not None:
            name = "in_keys_inv" if kwargs.get("in_keys_inv", True) else "in_keys"
            kwargs.setdefault(name, [key])
        return cls.from_stats(**stats, **kwargs)

    def normalize(self, action: Tensor) -> Tensor:
        """Map an action of the env ``[*B, n]`` to the policy's range.

        Raises:
            ArgumentError: The scale has another number of elements.
        """
        return self._apply_transform(self._fitting(action))

    def denormalize(self, action: Tensor) -> Tensor:
        """Map an action of the policy ``[*B, n]`` to the env's range.

        Raises:
            ArgumentError: The scale has another number of elements.
        """
        return self._inv_apply_transform(self._fitting(action))

    def _fitting(self, action: Tensor) -> Tensor:
        size = self._loc_and_scale()[1].shape[-1:]
        if size.numel() > 1 and size != action.shape[-1:]:
            raise ArgumentError(
                f"the action of shape {tuple(action.shape)} does not match the {size.numel()} "
                "elements of loc and scale",
                hint="pass actions [*B, n] with one element for each of the scale",
            )
        return action

    def _loc_and_scale(self) -> tuple[Tensor, Tensor]:
        loc, scale = self._buffers["loc"], self._buffers["scale"]
        if loc is None or scale is None:
            raise ChainError(
                "ActionScaling has no loc and scale yet",
                hint="pass them, or put the transform into an env whose action has a range",
            )
        return loc, scale

    def _apply_transform(self, action: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale()
        normal = (action - loc) / scale
        return normal if self.standard_normal else (normal + 1) / 2

    def _inv_apply_transform(self, action: Tensor) -> Tensor:
        loc, scale = self._loc_and_scale()
        if not self.standard_normal:
            action = action * 2 - 1
        return action * scale + loc

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if not self._derives:
            return
        key = self.in_keys_inv[0]
        spec = action_leaf(input_spec, key)
        # The range is read, so an accelerator is waited for once for each bound.
        host = spec.to("cpu")
        if not has_range(host):
            raise ChainError(
                f"the action is {type(spec).__name__} without a finite, non-empty range to scale",
                hint="pass loc and scale, or remove ActionScaling",
                where=Where(key=key),
            )
        low, high = shared_bounds(host.low, host.high, len(input_spec.shape))
        self._set_affine((low + high) / 2, (high - low) / 2, self.standard_normal, eps=0.0)
        for name, value in self._buffers.items():
            self._buffers[name] = None if value is None else move(value, spec.device)

    def _inv_transform_spec(self, spec: TensorSpec) -> TensorSpec:
        require_floating(spec, type(self).__name__)
        if not self._derives:
            return map_bounds(spec, self._apply_transform)
        low = -1.0 if self.standard_normal else 0.0
        return Bounded(low, 1.0, shape=spec.shape, dtype=spec.dtype, device=spec.device)
