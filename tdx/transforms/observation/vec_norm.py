"""Normalize by running statistics, which several envs can share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.transforms import Compose
from tdx.core.transforms.spec_maps import missing_key_error
from tdx.core.transforms.statistics import (
    Lock,
    RunningNorm,
    empty_moments,
    leaf_spec,
    loc_and_scale,
)
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.foundation.tensordicts import read
from tdx.transforms.observation.observation_norm import ObservationNorm, fixed_norm
from tdx.transforms.observation.vec_norm_v2 import VecNormV2


class VecNorm(RunningNorm):
    """Normalize values to ``(value - mean) / std``, by statistics of all values so far.

    Each value counts once: a step of B envs counts B values, a partial reset only the rows that
    it resets. Statistics continue across episodes, and are not updated in eval mode or once
    frozen. They are buffers, so they are part of ``state_dict``. Envs made by the same
    ``EnvCreator`` share them across processes. Stored data updates the statistics too.

    Args:
        in_keys: Entries to read; ``observation`` and ``reward`` by default.
        out_keys: Keys to write; the in-keys by default.
        shared_td: Statistics to use and update in place, from
            :meth:`build_td_for_shared_vecnorm`. ``None``: own statistics.
        lock: Lock to hold while statistics are updated or read. ``EnvCreator`` provides one.
        decay: Factor by which each update multiplies the weight of earlier values; 1 weighs all
            values the same.
        eps: Smallest variance.
        shapes: Shape of each entry without batch dims; by default the dims after the batch dims.
        new_api: Make a ``VecNormV2`` of the other arguments instead.

    Raises:
        ArgumentError: ``decay`` is not in (0, 1], ``eps`` is not above 0, or the numbers of keys
            and shapes differ.
        KeyNotFoundError: The env has no such entry (when its specs are computed).
        ChainError: The statistics have another shape than the entry.

    Example:
        >>> from tdx import GymEnv, TransformedEnv, VecNorm
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), VecNorm(["observation"], decay=1.0))
        >>> rollout = env.rollout(100)
        >>> env.transform.count["observation"]
        tensor(101., dtype=torch.float64)
        >>> env.transform.to_observation_norm().loc.shape
        torch.Size([3])
    """

    _is_verified = True

    default_in_keys = ("observation", "reward")

    def __new__(cls, *args: Any, new_api: bool | None = None, **kwargs: Any) -> Any:
        """Return a ``VecNormV2`` if ``new_api`` is true."""
        if not new_api:
            return super().__new__(cls, *args, **kwargs)
        return VecNormV2(*args, **kwargs)

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        shared_td: TensorDictBase | None = None,
        lock: Lock | None = None,
        decay: float = 0.9999,
        eps: float = 1e-4,
        shapes: Sequence[torch.Size | Sequence[int]] | None = None,
        new_api: bool | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, lock, decay, eps)
        if shapes is not None and len(shapes) != len(self.in_keys):
            raise ArgumentError(
                f"{len(shapes)} shapes for {len(self.in_keys)} in-keys", hint="give one for each"
            )
        for index, (key, name) in enumerate(self._names.items()):
            given = None if shared_td is None else shared_td.get(key, None)
            if shared_td is not None and given is None:
                raise missing_key_error(key, _leaf_keys(shared_td), "shared_td")
            if given is None and shapes is not None:
                given = empty_moments(torch.Size(shapes[index]), None)
            self._buffers[name] = given

    @staticmethod
    def build_td_for_shared_vecnorm(
        env: Any, keys: Sequence[NestedKey] | None = None
    ) -> TensorDictBase:
        """Return empty statistics in shared memory, for the ``shared_td`` of several instances.

        Args:
            env: Env upstream of the transform.
            keys: Entries to normalize; ``observation`` and ``reward`` by default.

        Raises:
            KeyNotFoundError: The env has no such entry.
        """
        statistics = TensorDict({})
        for key in map(normalize_key, VecNorm.default_in_keys if keys is None else keys):
            spec = leaf_spec(env.output_spec, key)
            statistics.set(key, empty_moments(spec.shape[env.ndim :], spec.device))
        return statistics.share_memory_()

    def _loc_and_scale(self, moments: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return loc_and_scale(moments, self.eps, dtype)

    def denorm(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Invert the normalization by the current statistics, in place.

        Args:
            tensordict: Data ``[*B]`` with the out-keys, at the root or under ``next``; the
                in-keys are written.
        """
        following = read(tensordict, "next")
        for level in (tensordict, following):
            for in_key, out_key in () if level is None else self._pairs:
                value, known = read(level, out_key), self._buffers[self._names[in_key]]
                if value is not None and known is not None:
                    loc, scale = self._loc_and_scale(known, value.dtype)
                    level.set(in_key, value * scale + loc)
        return tensordict

    def to_observation_norm(self) -> ObservationNorm | Compose:
        """Return a transform that normalizes by the current statistics.

        Returns:
            ``ObservationNorm``; for several in-keys a ``Compose`` with one for each.

        Raises:
            ChainError: There are no statistics yet.
        """
        return fixed_norm(self)


def _leaf_keys(tensordict: Mapping[Any, Any] | TensorDictBase) -> list[NestedKey]:
    return [normalize_key(key) for key in cast(Any, tensordict).keys(True, True)]
