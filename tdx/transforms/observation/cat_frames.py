"""Stack the last frames of an episode."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import CallableTransform, Compose, TimeBehavior
from tdx.core.transforms.episodes import Window, known_steps, padded_entries
from tdx.core.transforms.spec_maps import require_keys, require_leaf
from tdx.core.transforms.validation import check_integer
from tdx.core.transforms.windows import WindowTransform
from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey, format_key, join_keys
from tdx.specs import Binary, Bounded, Composite, MultiOneHot, OneHot, TensorSpec
from tdx.transforms.keys.exclude_transform import ExcludeTransform

if TYPE_CHECKING:
    from tdx.data import SliceSampler


class CatFrames(WindowTransform):
    """Concatenate the last ``N`` frames of the episode along ``dim``, oldest first.

    In stored data ``[*B, T]`` the frames are stacked in the same way, at the root and in
    ``next``, and never across the end of an episode.

    Args:
        N: Number of frames.
        dim: Dim along which to concatenate. Negative, so that batch dims do not count.
        in_keys: Frames to read; ``pixels`` by default.
        out_keys: Keys to write; the in-keys by default.
        padding: Frames before the start of an episode: copies of its first frame (``same``), or
            ``padding_value`` (``constant``).
        padding_value: Value for ``constant``.
        as_inverse: Do nothing in an env, and stack frames when data is written to a replay
            buffer.
        reset_key: Reset mask to follow; that of the frame's group by default.
        done_key: Done flag under ``next`` that separates stored episodes; ``done`` by default.
        future: Stack the next ``N`` frames, oldest first, instead of the last ones; for stored
            data only.
        mask_key: Key for a mask of the padded frames, bool ``[*B, T, N]``; for stored data only.
            Not written by default.

    Raises:
        ArgumentError: ``N`` is below 1, ``dim`` is not negative, or ``padding`` is unknown.
        ChainError: ``future`` or ``mask_key`` is used in an env (when its specs are computed).

    Example:
        >>> from tdx import CatFrames, GymEnv, TransformedEnv
        >>> env = TransformedEnv(
        ...     GymEnv("CartPole-v1"), CatFrames(4, dim=-1, in_keys=["observation"])
        ... )
        >>> env.reset()["observation"].shape
        torch.Size([16])
    """

    _is_verified = True

    time_behavior = TimeBehavior.SCAN
    default_in_keys = ("pixels",)

    def __init__(
        self,
        N: int,
        dim: int,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        padding: Literal["same", "constant"] = "same",
        padding_value: float = 0,
        as_inverse: bool = False,
        reset_key: NestedKey | None = None,
        done_key: NestedKey | None = None,
        future: bool = False,
        mask_key: NestedKey | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, as_inverse, reset_key, done_key)
        check_integer(N, "N", 1, "for example N=4")
        if isinstance(dim, bool) or not isinstance(dim, int) or dim >= 0:
            raise ArgumentError(
                f"dim must be a negative integer, got {dim!r}",
                hint="count from the end, so that batch dims don't matter: -1, or -3 for [C, H, W]",
            )
        if padding not in ("same", "constant"):
            raise ArgumentError(
                f"padding must be 'same' or 'constant', got {padding!r}",
                hint="'same' repeats the first frame, 'constant' fills with padding_value",
            )
        self.N, self.dim = N, dim
        self.padding, self.padding_value = padding, padding_value
        self.future = self._looks_ahead = bool(future)
        self.mask_key = mask_key

    @property
    def _size(self) -> int:
        return self.N

    @property
    def _constant(self) -> float | None:
        return self.padding_value if self.padding == "constant" else None

    def _before_reset(self, newest: Tensor) -> Tensor:
        return torch.zeros_like(newest) if self._constant is None else self._pad(newest)

    def _combine(self, window: Window, out: Tensor | None = None) -> Tensor:
        return torch.cat(window, self.dim, out=out)

    def _combine_arrays(self, window: list[Array], out: Array) -> None:
        np.concatenate(window, self.dim, out)

    def _combined_shape(self, shape: torch.Size) -> torch.Size:
        sizes = list(shape)
        sizes[self.dim] *= self.N
        return torch.Size(sizes)

    def _map_stored(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict = super()._map_stored(tensordict)
        if self.mask_key is not None and "time" not in tensordict.names[:-1]:
            known = known_steps(tensordict, self.done_key, self.future)
            tensordict.set(self.mask_key, padded_entries(known, self.N, self.future))
        return tensordict

    def make_rb_transform_and_sampler(
        self, batch_size: int, **sampler_kwargs: Any
    ) -> tuple[Compose, SliceSampler]:
        """Return what a replay buffer needs to store single frames and to sample stacks of them.

        The sampler draws slices of ``N`` steps of an episode. The transform stacks their frames
        and keeps the last step of each slice, so a batch of ``n`` steps reads ``n * N`` of them.
        It also removes the stacks from data that is written. The first ``N - 1`` steps of an
        episode are sampled only as part of later stacks; with ``future`` the last ones.

        Args:
            batch_size: Default batch size of the buffer: number of stacks.
            **sampler_kwargs: Arguments of the :class:`~tdx.SliceSampler`, except for the
                ones that change the length of its slices.

        Returns:
            Transform and sampler.

        Raises:
            ArgumentError: ``batch_size`` is not an integer of at least 1, an out-key is also an
                in-key, or an argument changes the length of slices.

        Example:
            >>> from tdx import CatFrames, GymEnv, LazyTensorStorage, ReplayBuffer
            >>> frames = CatFrames(4, dim=-1, in_keys=["observation"], out_keys=["stack"])
            >>> rollout = GymEnv("CartPole-v1").append_transform(frames).rollout(
            ...     50, break_when_any_done=False
            ... )
            >>> transform, sampler = frames.make_rb_transform_and_sampler(batch_size=32)
            >>> buffer = ReplayBuffer(
            ...     storage=LazyTensorStorage(100), sampler=sampler, transform=transform
            ... )
            >>> _ = buffer.extend(rollout)
            >>> buffer.sample()["next", "stack"].shape
            torch.Size([32, 16])
        """
        from tdx.data import SliceSampler

        check_integer(batch_size, "batch_size", 1, "pass the number of steps in a batch")
        for name, default in _SLICE_ARGUMENTS.items():
            if sampler_kwargs.get(name, default) != default:
                raise ArgumentError(
                    f"{name}={sampler_kwargs[name]!r} changes the slices, which have N steps",
                    hint=f"remove {name}",
                )
        out_keys = [*self.out_keys, *(() if self.mask_key is None else (self.mask_key,))]
        for key in out_keys:
            if key in self.in_keys:
                raise ArgumentError(
                    f"{format_key(key)!r} is both read and written: the buffer would store stacks",
                    where=Where(key=key, transform="CatFrames"),
                    hint="create the CatFrames with out_keys, for example out_keys=['stack']",
                )
        frames = CatFrames(
            self.N,
            self.dim,
            self.in_keys,
            self.out_keys,
            self.padding,
            self.padding_value,
            done_key=self.done_key,
            future=self.future,
            mask_key=self.mask_key,
        )
        transform = Compose(
            CallableTransform(functools.partial(_split_slices, length=self.N)),
            frames,
            CallableTransform(functools.partial(_keep_step, index=0 if self.future else -1)),
            ExcludeTransform(
                *out_keys, *(join_keys("next", key) for key in out_keys), inverse=True
            ),
        )
        return transform, SliceSampler.of_windows(self.N, batch_size, **sampler_kwargs)

    def _check_in_keys(self, output_spec: Composite) -> None:
        if self.future or self.mask_key is not None:
            raise ChainError(
                "future and mask_key need whole episodes: the stage works offline only",
                hint="use it in a replay buffer or on a stored rollout",
                where=Where(transform="CatFrames"),
            )
        if self.as_inverse or self._missing_tolerance:
            return
        parts = ("full_observation_spec", "full_done_spec")
        returned = Composite({part: output_spec[part] for part in parts}, shape=output_spec.shape)
        require_keys(returned, self.in_keys, "a reset of the env at this stage")
        for key in self.in_keys:
            spec = next(part[key] for part in returned.values() if part.get(key, None) is not None)
            require_leaf(spec, key, "CatFrames")
            _check_frame(self.dim, spec.shape[len(output_spec.shape) :], key)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if self.as_inverse:
            return spec
        _check_frame(self.dim, spec.shape, None)
        shape = self._combined_shape(spec.shape)
        if isinstance(spec, (OneHot, MultiOneHot)) and self.dim == -1:
            # Several one-hot vectors in a row are not one-hot.
            dtype = torch.bool if spec.dtype is None else spec.dtype
            return Binary(shape=shape, dtype=dtype, device=spec.device)
        if not isinstance(spec, Bounded):
            return spec.replace(shape=shape)
        low, high = (self._combine([end] * self.N) for end in (spec.low, spec.high))
        if self.padding == "constant" and not math.isnan(self.padding_value):
            low, high = low.clamp(max=self.padding_value), high.clamp(min=self.padding_value)
        return Bounded(low, high, shape=shape, dtype=spec.dtype, device=spec.device)

    def __repr__(self) -> str:
        return f"CatFrames(N={self.N}, dim={self.dim}, keys={self.in_keys})"


def _check_frame(dim: int, shape: torch.Size, key: NestedKey | None) -> None:
    if -dim > len(shape):
        raise ArgumentError(
            f"dim={dim} is out of range for a frame with {len(shape)} dims {tuple(shape)}",
            where=Where(key=key),
            hint="count from the end of the frame: dim=-1 is its last dim",
        )


_SLICE_ARGUMENTS = {
    "num_slices": None,
    "slice_len": None,
    "strict_length": True,
    "pad_output": False,
    "span": False,
}
"""Arguments of a ``SliceSampler`` that change the length of its slices, with their defaults."""


def _split_slices(batch: TensorDictBase, length: int) -> TensorDictBase:
    """Return a flat batch of slices as ``[n, length]``, in time order along the last dim."""
    slices = batch.reshape(-1, length)
    slices.names = ["batch", "time"]
    return slices


def _keep_step(slices: TensorDictBase, index: int) -> TensorDictBase:
    """Return one step of each slice ``[n, T]``."""
    return slices[:, index].contiguous()
