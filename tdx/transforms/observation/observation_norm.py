"""Normalize observations by a fixed offset and scale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import Compose, ObservationTransform, TimeBehavior
from tdx.core.transforms.parameters import SMALLEST_SCALE, AffineTransform
from tdx.core.transforms.spec_maps import broadcasts_to, missing_key_error
from tdx.core.transforms.statistics import RunningNorm
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.foundation.tensordicts import read
from tdx.specs import Composite


class ObservationNorm(AffineTransform, ObservationTransform):
    """Map observations to ``observation * scale + loc``, or to ``(observation - loc) / scale``.

    If ``loc`` and ``scale`` are not given, :meth:`init_stats` measures them. Inputs of the env
    are mapped by the inverse.

    Args:
        loc: Offset; broadcasts with the observation. ``None``: measured by :meth:`init_stats`.
        scale: Factor; broadcasts with the observation. ``None``: measured by
            :meth:`init_stats`.
        in_keys: Observations to read; ``observation`` by default.
        out_keys: Keys to write; the in-keys by default.
        in_keys_inv: Inputs of the env to map by the inverse. Default: no keys.
        out_keys_inv: Keys that the policy writes for them; ``in_keys_inv`` by default.
        standard_normal: Map to ``(observation - loc) / scale`` instead.
        eps: Smallest absolute scale with ``standard_normal``.

    Raises:
        ArgumentError: ``loc`` or ``scale`` is not a finite number or tensor, or only one of them
            is given.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import ObservationNorm
        >>> norm = ObservationNorm(loc=1.0, scale=2.0, standard_normal=True)
        >>> norm(TensorDict(observation=torch.tensor([5.0])))["observation"]
        tensor([2.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self,
        loc: float | Tensor | None = None,
        scale: float | Tensor | None = None,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        in_keys_inv: Sequence[NestedKey] | None = None,
        out_keys_inv: Sequence[NestedKey] | None = None,
        standard_normal: bool = False,
        eps: float = SMALLEST_SCALE,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if (loc is None) != (scale is None):
            raise ArgumentError(
                "only one of loc and scale is given",
                hint="give both, or neither and call init_stats",
            )
        self.eps = eps
        self._is_measured = loc is None
        self._set_affine(loc, scale, standard_normal, eps)

    def init_stats(
        self,
        num_iter: int,
        reduce_dim: int | Sequence[int] = 0,
        cat_dim: int | None = None,
        key: NestedKey | None = None,
        keep_dims: Sequence[int] | None = None,
    ) -> None:
        """Measure ``loc`` and ``scale`` on random steps, so that the output is standard normal.

        The steps are taken in the parent env, which is reset; reset the env afterwards.

        Args:
            num_iter: Number of steps.
            reduce_dim: Dims of the collected data ``[*B, T, ...]`` over which to take the mean
                and the standard deviation.
            cat_dim: Time dim of the data. ``None``: ``reduce_dim``.
            key: Observation to measure; required if there are several in-keys.
            keep_dims: Reduced dims to keep with size 1. Default: no dims.

        Raises:
            ArgumentError: A dim or the key is missing and ambiguous, or the statistics over these
                dims do not fit an observation.
            KeyNotFoundError: The env has no such observation.
            ChainError: The transform is not in an env, or has ``loc`` and ``scale`` already.
        """
        if self.initialized:
            raise ChainError(
                "loc and scale are set already", hint="create an ObservationNorm without them"
            )
        parent = self.parent
        if parent is None:
            raise ChainError(
                "init_stats needs an env to measure",
                hint="put the transform into a TransformedEnv first",
            )
        check_integer(
            num_iter, "num_iter", 2, "a standard deviation needs two steps: for example 1000"
        )
        if cat_dim is None and not isinstance(reduce_dim, int):
            raise ArgumentError(
                "cat_dim is required if several dims are reduced",
                hint=f"the time dim is {parent.ndim} for this env",
            )
        key = self._stats_key(key)
        spec = parent.full_observation_spec.get(key, None)
        if spec is None:
            raise missing_key_error(key, parent.observation_keys, "the env at this stage")
        data = read(parent.rollout(num_iter, break_when_any_done=False), key)
        dims = [reduce_dim] if isinstance(reduce_dim, int) else list(reduce_dim)
        loc, scale = _statistics(
            data, dims, keep_dims or (), dims[0] if cat_dim is None else cat_dim
        )
        if not broadcasts_to(loc.shape, spec.shape):
            raise ArgumentError(
                f"the mean over dims {dims} of the data {tuple(data.shape)} has shape "
                f"{tuple(loc.shape)}, which does not fit an observation {tuple(spec.shape)}",
                hint=f"reduce the time dim too, which is {parent.ndim} for this env",
            )
        scale = scale.clamp_min(self.eps)
        if not self.standard_normal:
            loc, scale = -loc / scale, 1 / scale
        self._set_affine(loc, scale, self.standard_normal, self.eps)
        self.notify_changed()

    def _check_in_keys(self, output_spec: Composite) -> None:
        """Check the in-keys; if one of several is measured, a step checks the others."""
        if not (self._is_measured and len(self.in_keys) > 1):
            super()._check_in_keys(output_spec)

    def _stats_key(self, key: NestedKey | None) -> NestedKey:
        if key is not None:
            return normalize_key(key)
        if len(self.in_keys) != 1:
            listed = ", ".join(map(format_key, self.in_keys))
            raise ArgumentError(
                f"there are several in-keys to measure: {listed}", hint="choose one with key="
            )
        return self.in_keys[0]


def fixed_norm(norm: RunningNorm) -> ObservationNorm | Compose:
    """Return a transform that normalizes by the current statistics of another one."""
    norms = [
        ObservationNorm(loc, scale, [in_key], [out_key], standard_normal=True, eps=0.0)
        for in_key, out_key, loc, scale in norm.iter_affine()
    ]
    return norms[0] if len(norms) == 1 else Compose(*norms)


def _statistics(
    data: Tensor, dims: list[int], keep_dims: Sequence[int], cat_dim: int
) -> tuple[Tensor, Tensor]:
    for dim in (*dims, *keep_dims, cat_dim):
        if not -data.ndim <= dim < data.ndim:
            raise ArgumentError(
                f"dim {dim} is out of range for the data {tuple(data.shape)}",
                hint="count from 0, or from the end with negative dims",
            )
    if cat_dim % data.ndim not in {dim % data.ndim for dim in dims}:
        raise ArgumentError(
            f"cat_dim must be one of the reduced dims {dims}, got {cat_dim}",
            hint="pass the time dim, which must be reduced too",
        )
    if not data.is_floating_point():
        data = data.to(torch.get_default_dtype())
    loc, scale = data.mean(dims, keepdim=True), data.std(dims, keepdim=True)
    kept = {dim % data.ndim for dim in keep_dims}
    gone = sorted({dim % data.ndim for dim in dims} - kept, reverse=True)
    for dim in gone:
        loc, scale = loc.squeeze(dim), scale.squeeze(dim)
    return loc, scale
