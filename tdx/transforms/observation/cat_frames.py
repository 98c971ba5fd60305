"""Stack the last frames of an episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import ObservationTransform, TimeBehaviour
from tdx.core.transforms.chunk import Chunk, TimeForm
from tdx.core.transforms.episodes import episode_starts
from tdx.core.transforms.key_pairs import flat_pairs, require_keys
from tdx.core.transforms.scan import moved_along, reset_rows
from tdx.core.transforms.transform import Entries, RowStep, Transform
from tdx.core.transforms.windows import Windows
from tdx.errors import ArgumentError, KeyNotFoundError, Where
from tdx.keys import NestedKey, format_key, join_keys, normalize_key, split_key
from tdx.specs import Binary, Bounded, Composite, MultiOneHot, OneHot, TensorSpec
from tdx.tensordicts import read, write


class CatFrames(ObservationTransform):
    """Concatenate the last ``N`` frames of the episode along ``dim``, the newest last.

    Offline, in :meth:`forward`, it does the same to a stored rollout ``[*B, T]``, at the root and
    in ``next``, without ever reaching across the end of an episode.

    Args:
        N: the number of frames.
        dim: the dim along which they are concatenated; negative, so that batch dims don't count.
        in_keys: the frames read; ``pixels`` by default.
        out_keys: the keys written; the in-keys by default.
        padding: what fills the stack at the start of an episode: ``same`` for copies of the first
            frame, ``constant`` for ``padding_value``.
        padding_value: the value for ``constant``.
        as_inverse: whether to do nothing in an env, and stack on the way into a replay buffer.
        reset_key: the reset mask to follow; that of the frame's group by default.
        done_key: the done flag that tells stored episodes apart; ``("next", "done")`` by default.

    Raises:
        ArgumentError: ``N`` is below 1, ``dim`` not negative, or ``padding`` unknown.

    Example:
        >>> from tdx import CatFrames, GymEnv, TransformedEnv
        >>> env = TransformedEnv(
        ...     GymEnv("CartPole-v1"), CatFrames(4, dim=-1, in_keys=["observation"])
        ... )
        >>> env.reset()["observation"].shape
        torch.Size([16])
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.SCAN
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
    ) -> None:
        super().__init__(in_keys, out_keys)
        if isinstance(N, bool) or not isinstance(N, int) or N < 1:
            raise ArgumentError(
                f"N must be an integer of at least 1, got {N!r}", hint="for example N=4"
            )
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
        self.as_inverse = as_inverse
        self.reset_key = None if reset_key is None else normalize_key(reset_key)
        self.done_key: NestedKey = ("next", "done") if done_key is None else normalize_key(done_key)
        self._frames: dict[NestedKey, list[Tensor]] = {}
        if as_inverse:
            self._set_inverse_keys(self.out_keys, self.in_keys)

    def _padding(self, frame: Tensor) -> Tensor:
        return frame if self.padding == "same" else torch.full_like(frame, self.padding_value)

    def _stacked(self, in_key: NestedKey, frame: Tensor) -> Tensor:
        # A copy: the frame itself may be handed out beside the stack, and be written to.
        frame = frame.clone()
        earlier = self._frames.get(in_key)
        if earlier is None:
            earlier = [self._padding(frame)] * (self.N - 1)
        frames = [*earlier, frame]
        self._frames[in_key] = frames[1:]
        return torch.cat(frames, self.dim)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._call(next_tensordict)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        for in_key, out_key in () if self.as_inverse else self._pairs:
            frame = read(next_tensordict, in_key)
            if frame is None:
                if self._missing_tolerance:
                    continue
                raise self._missing(in_key, next_tensordict)
            write(next_tensordict, out_key, self._stacked(in_key, frame))
        return next_tensordict

    def _row_step(self) -> RowStep | None:
        pairs, stacked = flat_pairs(self._pairs), self._stacked
        if self.as_inverse or self._missing_tolerance or pairs is None:
            return None

        def step(tensordict: Entries, fields: dict[str, Any]) -> None:
            for in_key, out_key in pairs:
                frame = fields.get(in_key)
                if frame is None:
                    raise self._missing(in_key, fields)
                fields[out_key] = stacked(in_key, frame)

        return step

    def _owned_row_step(self) -> RowStep | None:
        pairs, frames, dim = flat_pairs(self._pairs), self._frames, self.dim
        if self.as_inverse or self._missing_tolerance or pairs is None:
            return None

        def step(tensordict: Entries, fields: dict[str, Any]) -> None:
            for in_key, out_key in pairs:
                frame, earlier = fields.get(in_key), frames.get(in_key)
                if frame is None:
                    raise self._missing(in_key, fields)
                if earlier is None:
                    fields[out_key] = self._stacked(in_key, frame)
                    continue
                stack = [*earlier, frame]
                frames[in_key] = stack[1:]
                fields[out_key] = torch.cat(stack, dim)

        return step

    def _time_form(self) -> TimeForm | None:
        if self.as_inverse:
            return TimeForm(lambda chunk: None)
        if self._missing_tolerance:
            return None
        reads, writes = tuple(self.in_keys), tuple(self.out_keys)
        return TimeForm(self._stack_chunk, reads, writes, scan=True)

    def _stack_chunk(self, chunk: Chunk) -> None:
        for in_key, out_key in self._pairs:
            frames = chunk.steps.get(in_key)
            if frames is None:
                raise self._missing(in_key, chunk.steps)
            earlier = self._frames.get(in_key)
            if earlier is None:
                earlier = [self._padding(frames[0])] * (self.N - 1)
            constant = self.padding_value if self.padding == "constant" else None
            windows = Windows(self.N, self.dim, self.reset_key or in_key, constant)
            stacks, last = windows.over(chunk, in_key, earlier)
            if chunk.times:
                begun = chunk.resets[in_key]
                padded = [*[self._padding(begun)] * (self.N - 1), begun]
                chunk.resets[out_key] = torch.cat(padded, self.dim)
            # Copies: these frames outlive the chunk, which would be kept for their sake.
            self._frames[in_key] = [frame.clone() for frame in last] if self.N > 1 else []
            chunk.steps[out_key] = stacks

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        if self.as_inverse:
            return tensordict_reset
        for in_key, out_key in self._pairs:
            frame = read(tensordict_reset, in_key)
            if frame is None:
                if self._missing_tolerance:
                    continue
                raise self._missing(in_key, tensordict_reset)
            frame = frame.clone()
            frames = [*[self._padding(frame)] * (self.N - 1), frame]
            begun, before = frames[1:], self._frames.get(in_key)
            rows = reset_rows(tensordict, self.reset_key or in_key, frame)
            if rows is not None and before is not None:
                pairs = zip(begun, before, strict=True)
                begun = [new.where(rows, old) for new, old in pairs]
            self._frames[in_key] = begun
            write(tensordict_reset, out_key, torch.cat(frames, self.dim))
        return tensordict_reset

    def _check_in_keys(self, output_spec: Composite) -> None:
        if not self.as_inverse and not self._missing_tolerance:
            parts = ("full_observation_spec", "full_done_spec")
            seen = Composite({part: output_spec[part] for part in parts}, shape=output_spec.shape)
            require_keys(seen, self.in_keys, "a reset of the env at this stage")
            for key in self.in_keys:
                spec = next(part[key] for part in seen.values() if part.get(key, None) is not None)
                self._refuse_group(spec, key)
                _check_dim(self.dim, spec.shape[len(output_spec.shape) :], key)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if self.as_inverse:
            return spec
        _check_dim(self.dim, spec.shape, None)
        shape = list(spec.shape)
        shape[self.dim] *= self.N
        if isinstance(spec, (OneHot, MultiOneHot)) and self.dim == -1:
            # Several vectors of one category each side by side.
            dtype = torch.bool if spec.dtype is None else spec.dtype
            return Binary(shape=torch.Size(shape), dtype=dtype, device=spec.device)
        if not isinstance(spec, Bounded):
            return spec.replace(shape=torch.Size(shape))
        low, high = (torch.cat([end] * self.N, self.dim) for end in (spec.low, spec.high))
        if self.padding == "constant" and not math.isnan(self.padding_value):
            low, high = low.clamp(max=self.padding_value), high.clamp(min=self.padding_value)
        return Bounded(low, high, shape=torch.Size(shape), dtype=spec.dtype, device=spec.device)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stack the frames of a stored rollout, at the root and in ``next``, in place.

        An in-key that begins with ``next`` gets one entry, the stacks in ``next``, under its
        out-key; the earlier frames are those at the root. With ``as_inverse`` the frames are
        stacked already, and stay as they are.

        Args:
            tensordict: Stored rollout ``[*B, T]``, in time order along its last dim.

        Raises:
            ArgumentError: It has no dim of time.
            KeyNotFoundError: Frames are missing, at the root too, or the done key and ``is_init``
                both are.
        """
        return tensordict if self.as_inverse else self._stack_stored(tensordict)

    def _stack_stored(self, tensordict: TensorDictBase) -> TensorDictBase:
        stacks: dict[NestedKey, Tensor] = {}
        for in_key, out_key in self._pairs:
            parts = split_key(in_key)
            root = normalize_key(parts[1:]) if parts[0] == "next" else in_key
            newest, frames = read(tensordict, in_key), read(tensordict, root)
            if newest is None and self._missing_tolerance:
                continue
            if newest is None:
                raise self._missing(in_key, tensordict)
            if frames is None:
                raise _no_earlier_frames(in_key, root)
            ages, time = self._ages(tensordict), tensordict.ndim - 1
            stacks[out_key] = self._windows(newest, frames, ages, time, int(root != in_key))
            next_key = join_keys("next", in_key)
            following = None if next_key in self.in_keys else read(tensordict, next_key)
            if following is not None and root == in_key:
                next_stacks = self._windows(following, frames, ages, time, 1)
                stacks[join_keys("next", out_key)] = next_stacks
        # Only now: an in-key may be the out-key of another.
        for key, value in stacks.items():
            tensordict.set(key, value)
        return tensordict

    def _ages(self, tensordict: TensorDictBase) -> Tensor:
        """How many steps before each step its episode began, ``[*B, T]``."""
        starts = episode_starts(tensordict, self.done_key)
        time = torch.arange(starts.shape[-1], device=starts.device).expand(starts.shape)
        return time - torch.where(starts, time, 0).cummax(-1).values

    def _windows(
        self, newest: Tensor, frames: Tensor, ages: Tensor, time_dim: int, ahead: int
    ) -> Tensor:
        """For each step ``newest``, behind the ``N - 1`` frames before it of the same episode.

        Args:
            newest: the newest frame of each stack, ``[*B, T, ...]``.
            frames: the root's frames, ``[*B, T, ...]``.
            ages: steps since the episode's start, ``[*B, T]``.
            time_dim: the dim of time.
            ahead: 1 where ``newest`` is one step ahead of ``frames``, else 0.
        """
        steps = ages.shape[-1]
        time = torch.arange(steps, device=ages.device)
        stack = [newest]
        for back in range(1, self.N):
            distance = back - ahead
            inside = ages >= distance
            source = time - torch.where(inside, distance, ages)
            index = source.reshape(*source.shape, *([1] * (frames.ndim - time_dim - 1)))
            frame = frames.gather(time_dim, index.expand(frames.shape))
            if self.padding == "constant":
                mask = inside.reshape(index.shape)
                frame = frame.where(mask, torch.full_like(frame, self.padding_value))
            stack.insert(0, frame)
        return torch.cat(stack, self.dim)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._stack_stored(tensordict) if self.as_inverse else tensordict

    @property
    def invertible(self) -> bool:
        """Whether it works on the way into a replay buffer."""
        return self.as_inverse

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict

    def transform_input_spec(self, input_spec: Any) -> Any:
        """The input spec, which stays as it is."""
        return input_spec

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for kept in self._frames.values():
            kept[:] = [moved_along(frame, fn) for frame in kept]
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        frames = {key: [frame.detach() for frame in kept] for key, kept in self._frames.items()}
        return {**super().__getstate__(), "_frames": frames}

    def clone(self) -> Any:
        """A transform of its own, with no episode begun."""
        copied = Transform.clone(self)
        copied._frames = {}
        return copied

    def __repr__(self) -> str:
        return f"CatFrames(N={self.N}, dim={self.dim}, keys={self.in_keys})"


def _no_earlier_frames(in_key: NestedKey, root: NestedKey) -> KeyNotFoundError:
    return KeyNotFoundError(
        f"a stack of {format_key(in_key)!r} begins with the frame of the reset, which is stored "
        f"as {format_key(root)!r} at the root",
        hint=f"keep {format_key(root)!r} in the stored data",
        where=Where(key=root, transform="CatFrames"),
    )


def _check_dim(dim: int, shape: torch.Size, key: NestedKey | None) -> None:
    if -dim > len(shape):
        raise ArgumentError(
            f"dim={dim} is beyond the frame's {len(shape)} dims {tuple(shape)}",
            where=Where(key=key),
            hint="count from the end of the frame: dim=-1 is its last dim",
        )
