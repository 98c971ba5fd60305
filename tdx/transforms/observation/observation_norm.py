"""Normalise observations by a fixed offset and scale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import ObservationTransform, TimeBehaviour
from tdx.core.transforms.affine import SMALLEST_SCALE, AffineTransform, refuse_integers
from tdx.core.transforms.key_pairs import missing_key
from tdx.core.transforms.transform import RowStep
from tdx.errors import ArgumentError, ChainError
from tdx.keys import NestedKey, format_key, normalize_key
from tdx.specs import TensorSpec
from tdx.tensordicts import read


class ObservationNorm(AffineTransform, ObservationTransform):
    """Map observations to ``observation * scale + loc``, or to ``(observation - loc) / scale``.

    Without ``loc`` and ``scale`` they are measured by :meth:`init_stats`. Keys of the way in
    are mapped by the inverse.

    Args:
        loc: the offset; broadcasts with the observation.
        scale: the factor; broadcasts with the observation.
        in_keys: the observations read; ``observation`` by default.
        out_keys: the keys written; the in-keys by default.
        in_keys_inv: the inputs of the env that are mapped by the inverse; none by default.
        out_keys_inv: their names outside; ``in_keys_inv`` by default.
        standard_normal: whether to map to ``(observation - loc) / scale``.
        eps: a divisor closer to zero counts as this.

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

    time_behaviour = TimeBehaviour.POINTWISE

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
                "loc and scale go together, only one of them is given",
                hint="give both, or neither and call init_stats",
            )
        self.eps = eps
        self._set_affine(loc, scale, standard_normal, eps)

    @property
    def initialized(self) -> bool:
        """Whether there are a ``loc`` and a ``scale``."""
        return self._buffers["loc"] is not None

    def _check_initialized(self) -> None:
        if not self.initialized:
            raise ChainError(
                "ObservationNorm has no loc and scale yet",
                hint="give them, or call init_stats(num_iter) once the transform is in its env",
            )

    def _apply_transform(self, tensor: Tensor) -> Tensor:
        if self._buffers["loc"] is None:
            self._check_initialized()
        return self._affine(tensor)

    def _row_step(self) -> RowStep | None:
        if self.initialized and type(self)._apply_transform is ObservationNorm._apply_transform:
            return self._affine_row_step() or super()._row_step()
        return super()._row_step()

    def _inv_apply_transform(self, tensor: Tensor) -> Tensor:
        self._check_initialized()
        return self._affine_inverse(tensor)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return self._affine_spec(spec) if self.initialized else spec

    def _inv_transform_spec(self, spec: TensorSpec) -> TensorSpec:
        refuse_integers(spec, type(self).__name__)
        # What the outside gives is mapped by the inverse, so its bounds are the forward's.
        return self._affine_spec(spec) if self.initialized else spec

    def init_stats(
        self,
        num_iter: int,
        reduce_dim: int | Sequence[int] = 0,
        cat_dim: int | None = None,
        key: NestedKey | None = None,
        keep_dims: Sequence[int] | None = None,
    ) -> None:
        """Measure ``loc`` and ``scale`` on random steps, so that the result is standard normal.

        The steps are made in the parent env, which this resets; reset the env afterwards.

        Args:
            num_iter: the number of steps.
            reduce_dim: the dims of the collected data ``[*B, T, ...]`` over which the mean and
                the standard deviation are taken.
            cat_dim: the dim of time in the data; ``reduce_dim`` by default.
            key: the observation to measure; needed where there are several in-keys.
            keep_dims: dims that stay, with size 1; by default no reduced dim stays.

        Raises:
            ArgumentError: a dim or the key is not given and cannot be told, or the statistics
                over these dims do not fit one observation.
            KeyNotFoundError: there is no such observation.
            ChainError: there is no env around, or ``loc`` and ``scale`` are there already.
        """
        if self.initialized:
            raise ChainError(
                "loc and scale are there already", hint="make a new ObservationNorm without them"
            )
        parent = self.parent
        if parent is None:
            raise ChainError(
                "init_stats needs an env to measure",
                hint="put the transform into a TransformedEnv first",
            )
        if num_iter < 2:
            raise ArgumentError(
                f"num_iter must be at least 2, got {num_iter}",
                hint="a standard deviation needs two steps or more: for example num_iter=1000",
            )
        if cat_dim is None and not isinstance(reduce_dim, int):
            raise ArgumentError(
                "cat_dim must be given where several dims are reduced",
                hint=f"the dim of time is {parent.ndim} for this env",
            )
        key = self._stats_key(key)
        spec = parent.full_observation_spec.get(key, None)
        if spec is None:
            raise missing_key(key, parent.observation_keys, "the env at this stage")
        data = read(parent.rollout(num_iter, break_when_any_done=False), key)
        dims = [reduce_dim] if isinstance(reduce_dim, int) else list(reduce_dim)
        loc, scale = _statistics(
            data, dims, keep_dims or (), dims[0] if cat_dim is None else cat_dim
        )
        if not _broadcasts(loc.shape, spec.shape):
            raise ArgumentError(
                f"the mean over dims {dims} of the data {tuple(data.shape)} has shape "
                f"{tuple(loc.shape)}, which does not fit an observation {tuple(spec.shape)}",
                hint=f"reduce the dim of time too, which is {parent.ndim} for this env",
            )
        scale = scale.clamp_min(self.eps)
        if not self.standard_normal:
            loc, scale = -loc / scale, 1 / scale
        self._set_affine(loc, scale, self.standard_normal, self.eps)
        self._changed()

    def _stats_key(self, key: NestedKey | None) -> NestedKey:
        if key is not None:
            return normalize_key(key)
        if len(self.in_keys) != 1:
            listed = ", ".join(map(format_key, self.in_keys))
            raise ArgumentError(
                f"which of the in-keys ({listed}) is to be measured?", hint="pass key="
            )
        return self.in_keys[0]


def _statistics(
    data: Tensor, dims: list[int], keep_dims: Sequence[int], cat_dim: int
) -> tuple[Tensor, Tensor]:
    for dim in (*dims, *keep_dims, cat_dim):
        if not -data.ndim <= dim < data.ndim:
            raise ArgumentError(
                f"there is no dim {dim} in the data {tuple(data.shape)}",
                hint="count from 0, or from the end with negative dims",
            )
    if cat_dim % data.ndim not in {dim % data.ndim for dim in dims}:
        raise ArgumentError(
            f"cat_dim must be one of the reduced dims {dims}, got {cat_dim}",
            hint="pass the dim of time, which is among the reduced ones",
        )
    if not data.is_floating_point():
        data = data.to(torch.get_default_dtype())
    loc, scale = data.mean(dims, keepdim=True), data.std(dims, keepdim=True)
    kept = {dim % data.ndim for dim in keep_dims}
    gone = sorted({dim % data.ndim for dim in dims} - kept, reverse=True)
    for dim in gone:
        loc, scale = loc.squeeze(dim), scale.squeeze(dim)
    return loc, scale


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    try:
        return torch.broadcast_shapes(shape, to) == to
    except RuntimeError:
        return False
