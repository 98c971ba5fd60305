"""Write the change of an observation in a step, and store it instead of the next observation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.compose import upstream
from tdx.core.transforms.kernels import Chunk, ChunkKernel
from tdx.core.transforms.scan import reset_rows
from tdx.core.transforms.spec_maps import map_leaves, missing_key_error, normalize_keys
from tdx.foundation.errors import ArgumentError, ChainError, StoredDataError, Where
from tdx.foundation.keys import NestedKey, join_keys, normalize_key
from tdx.foundation.tensordicts import delete, read, write
from tdx.specs import Bounded, Composite, TensorSpec, Unbounded


class NextObservationDelta(Transform):
    """Write the next observation minus the current one, which is zero after a reset.

    A replay buffer stores the difference, if the data has it, instead of the next observation, and
    restores ``observation + delta`` in sampled data. This is exact up to the rounding of
    ``delta_dtype``. Data without the difference is stored as it is.

    Put it after the stages that write its in-keys, since it compares with the root: no later
    stage may change them.

    Args:
        in_keys: Observations to read; all floating observations of the env by default.
        out_keys: Keys of the differences; ``("delta", in_key)`` by default.
        delta_dtype: Floating dtype of the differences.
        restore_dtype: Dtype of restored next observations. ``"root"``: that of the current one.
        drop_delta: Remove the differences from sampled data.
        excluded_dtypes: Dtypes to ignore if ``in_keys`` are not given.

    Raises:
        ArgumentError: The numbers of keys differ, or a dtype is invalid.
        KeyNotFoundError: The env has no such observation (when its specs are computed).
        StoredDataError: A difference does not fit into ``delta_dtype`` (when a replay buffer is
            written).

    Example:
        >>> import torch
        >>> from tdx import GymEnv, NextObservationDelta, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), NextObservationDelta(["observation"]))
        >>> env.reset()["delta", "observation"]
        tensor([0., 0., 0., 0.], dtype=torch.float16)
    """

    _is_verified = True

    time_behavior = TimeBehavior.SCAN
    episode_memory = ("_last",)
    _last: dict[NestedKey, Tensor]

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        *,
        delta_dtype: torch.dtype = torch.float16,
        restore_dtype: torch.dtype | Literal["root"] = "root",
        drop_delta: bool = True,
        excluded_dtypes: tuple[torch.dtype, ...] = (
            torch.uint8,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.bool,
        ),
    ) -> None:
        if in_keys is None and out_keys is not None:
            raise ArgumentError("out_keys are given without in_keys", hint="give both")
        known = normalize_keys(in_keys, "in_keys")
        super().__init__(known, self._deltas(known) if out_keys is None else out_keys)
        self._finds_keys = in_keys is None
        if not isinstance(delta_dtype, torch.dtype) or not delta_dtype.is_floating_point:
            raise ArgumentError(
                f"delta_dtype must be a floating dtype, got {delta_dtype!r}",
                hint="for example torch.float16",
            )
        if restore_dtype != "root" and not isinstance(restore_dtype, torch.dtype):
            raise ArgumentError(
                f"restore_dtype must be a dtype or 'root', got {restore_dtype!r}",
                hint="for example torch.float32",
            )
        self.delta_dtype, self.restore_dtype = delta_dtype, restore_dtype
        self.drop_delta = drop_delta
        self.excluded_dtypes = tuple(excluded_dtypes)

    @staticmethod
    def _deltas(in_keys: Sequence[NestedKey]) -> list[NestedKey]:
        return [join_keys("delta", key) for key in in_keys]

    # Data

    def _delta(self, following: Any, current: Any) -> Any:
        if not isinstance(following, Tensor):  # group of entries
            return following.apply(self._delta, current)
        if not following.is_floating_point():
            return _integer_difference(following, current).to(self.delta_dtype)
        if following.itemsize < 4:
            # In the wider dtype: the difference of two float16 may not fit into float16.
            wide = torch.promote_types(following.dtype, self.delta_dtype)
            following, current = following.to(wide), current.to(wide)
        return (following - current).to(self.delta_dtype)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for in_key, out_key in self._pairs:
            following = self._entry(next_tensordict, in_key)
            current = read(tensordict, in_key)
            if current is None:  # a later stage renamed or dropped it
                current = self._last.get(in_key, following)
            self._last[in_key] = following
            write(next_tensordict, out_key, self._delta(following, current))
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        for in_key, out_key in self._pairs:
            first = self._entry(tensordict_reset, in_key)
            delta = torch.zeros_like(first, dtype=self.delta_dtype)
            rows, before = reset_rows(tensordict, in_key, first), self._last.get(in_key)
            if rows is not None and tensordict is not None:
                if before is not None:
                    first = first.where(rows, before)
                held = read(tensordict, out_key)
                if held is not None:
                    delta = delta.where(rows, held)
            self._last[in_key] = first
            write(tensordict_reset, out_key, delta)
        return tensordict_reset

    def make_chunk_kernel(self) -> ChunkKernel | None:
        reads, writes = tuple(self.in_keys), tuple(self.out_keys)
        return ChunkKernel(self._run_chunk, reads, writes, root=reads, scan=True)

    def _run_chunk(self, chunk: Chunk) -> None:
        for in_key, out_key in self._pairs:
            following = self._entry(chunk.steps, in_key)
            first = chunk.first.get(in_key, self._last.get(in_key, following[0]))
            current = torch.cat((first.unsqueeze(0), following[:-1]))
            if chunk.times:
                first, times = chunk.resets[in_key], list(chunk.times)
                rows = chunk.reset_rows(in_key, first)
                current[times] = first.where(rows, current[times])
            delta = chunk.steps[out_key] = self._delta(following, current)
            if chunk.times:
                held = delta[[time - 1 for time in times]]
                chunk.resets[out_key] = torch.zeros_like(held).where(rows, held)
            self._last[in_key] = following[-1].clone()

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Restore the next observations of stored steps, in place.

        Stored next observations are kept. With ``drop_delta`` the differences are removed,
        without it missing ones are computed. Data without the observation, or without both its
        difference and its successor, is not changed.

        Args:
            tensordict: Steps with their ``next``, of any shape.

        Raises:
            ChainError: ``in_keys`` were neither given nor derived from an env.
        """
        for in_key, out_key in self._stored_pairs():
            current = read(tensordict, in_key)
            next_key, delta_key = join_keys("next", in_key), join_keys("next", out_key)
            following, delta = read(tensordict, next_key), read(tensordict, delta_key)
            if current is None or (following is None and delta is None):
                continue
            if following is None:
                tensordict.set(next_key, self._restore(current, delta))
            elif delta is None and not self.drop_delta:
                tensordict.set(delta_key, self._delta(following, current))
            if self.drop_delta:
                for key in (out_key, delta_key):
                    delete(tensordict, key)
        return tensordict

    def _restore(self, current: Tensor, delta: Tensor) -> Tensor:
        dtype = current.dtype if self.restore_dtype == "root" else self.restore_dtype
        if not dtype.is_floating_point:
            return (current + delta.double()).round().to(dtype)
        return current.to(dtype) + delta.to(dtype)

    def _stored_pairs(self) -> tuple[tuple[NestedKey, NestedKey], ...]:
        if self._finds_keys and not self._pairs:
            raise ChainError(
                "NextObservationDelta has no in_keys for stored data",
                hint='pass them, for example in_keys=["observation"]',
            )
        return self._pairs

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Drop the next observations of stored steps that have a difference."""
        following = tensordict.get("next", None)
        if following is None or not self.invertible:
            return tensordict
        following = following.exclude()  # a copy whose entries can be set and deleted
        for in_key, out_key in self._stored_pairs():
            current, value = read(tensordict, in_key), read(following, in_key)
            delta = read(following, out_key)
            if current is not None and value is not None and delta is not None:
                self._check_range(in_key, current, value, delta)
                delete(following, in_key)
        return tensordict.set("next", following)

    def _check_range(self, key: NestedKey, current: Any, value: Any, delta: Any) -> None:
        """Raise a ``StoredDataError`` if the difference of two finite numbers is not finite."""
        if not isinstance(value, Tensor):  # group of entries
            for name in value.keys(True, True):
                parts = (entries.get(name) for entries in (current, value, delta))
                self._check_range(join_keys(key, normalize_key(name)), *parts)
            return
        overflows = value.isfinite() & current.isfinite() & ~delta.isfinite()
        if overflows.any():
            largest = (value.double() - current.double())[overflows].abs().max().item()
            raise StoredDataError(
                f"a difference of {largest:.6g} does not fit into {delta.dtype}, so the next "
                "observation cannot be restored",
                hint="pass delta_dtype=torch.float32 to the NextObservationDelta of the env",
                where=Where(key=key),
            )

    @property
    def invertible(self) -> bool:
        """True outside an env: a replay buffer stores differences, an env gets no input from it."""
        return upstream(self) is None

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        observations = output_spec["full_observation_spec"]
        if self._finds_keys:
            keys = [
                normalize_key(key)
                for key, spec in observations.items(True, True)
                if spec.dtype is not None
                and spec.dtype.is_floating_point
                and spec.dtype not in self.excluded_dtypes
            ]
            self._set_keys(keys, self._deltas(keys))
        for key in self.in_keys:
            if observations.get(key, None) is None:
                known = list(observations.keys(True, True))
                raise missing_key_error(key, known, "the observation spec at this stage")

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec with the differences."""
        return map_leaves(observation_spec, self._pairs, self._transform_spec)

    def _transform_spec(self, spec: Any) -> TensorSpec:
        if isinstance(spec, Bounded):
            low, high = self._delta(spec.low, spec.high), self._delta(spec.high, spec.low)
            return Bounded(low, high, shape=spec.shape, dtype=low.dtype, device=spec.device)
        return Unbounded(shape=spec.shape, dtype=self.delta_dtype, device=spec.device)

    def _map_spec(self, spec: Composite) -> Composite:
        """Return the reward spec and the spec of the done flags unchanged."""
        return spec

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_last": {}}

    def __repr__(self) -> str:
        return f"NextObservationDelta(delta_dtype={self.delta_dtype}, keys={self.in_keys})"


def _integer_difference(following: Tensor, current: Tensor) -> Tensor:
    """Return ``following - current`` of integers of any dtype, without wrapping around.

    The result is int64; for int64 and uint64, whose differences may not fit, float64.
    """
    if following.dtype is torch.uint64:
        return following.double() - current.double()
    following, current, narrow = following.long(), current.long(), following.dtype
    difference = following - current
    if narrow is not torch.int64:
        return difference
    wrapped = ((following ^ current) & (following ^ difference)) < 0
    return torch.where(wrapped, following.double() - current.double(), difference.double())
