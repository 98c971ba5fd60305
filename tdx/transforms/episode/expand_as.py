"""Expand one entry to the shape of another."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.kernels import Chunk, ChunkKernel, EntryMapping, TensorDictEntries
from tdx.core.transforms.spec_maps import missing_key_error, output_keys, with_entries
from tdx.foundation.errors import ArgumentError, TdxError, Where
from tdx.foundation.keys import NestedKey, format_key, normalize_key
from tdx.foundation.tensordicts import read
from tdx.specs import Composite, TensorSpec


class ExpandAs(Transform):
    """Expand an entry to the shape of another, along dims of size 1 and new last dims.

    Shapes are compared from the left: a reward ``[*B, 1]`` expands to an observation
    ``[*B, 3]``, and a flag ``[*B, 1]`` to the rewards ``[*B, 5, 1]`` of five agents.

    Args:
        in_key: Entry to expand.
        ref_key: Entry with the wanted shape.
        out_key: Key to write; ``in_key`` by default. An expanded done flag with another key is an
            observation, since it ends no episode.

    Raises:
        ArgumentError: The shapes do not fit.
        KeyNotFoundError: An entry is missing.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import ExpandAs
        >>> expand = ExpandAs("reward", "observation")
        >>> expand(TensorDict(reward=torch.ones(1), observation=torch.zeros(3)))["reward"]
        tensor([1., 1., 1.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self, in_key: NestedKey, ref_key: NestedKey, out_key: NestedKey | None = None
    ) -> None:
        super().__init__([in_key], None if out_key is None else [out_key])
        self.ref_key = normalize_key(ref_key)
        self._shape: torch.Size | None = None
        # Spec of a done flag that is written under another key.
        self._flag: TensorSpec | None = None

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        for key in (*self.in_keys, self.ref_key):
            if not any(part.get(key, None) is not None for part in output_spec.values()):
                raise missing_key_error(key, output_keys(output_spec), "the env at this stage")
        specs = (part.get(self.ref_key, None) for part in output_spec.values())
        self._shape = next(spec.shape for spec in specs if spec is not None)
        flag = output_spec["full_done_spec"].get(self.in_keys[0], None)
        self._flag = None if self.in_keys == self.out_keys else flag

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Return the spec of the done flags, without a copy of a flag under another key."""
        return done_spec if self._flag is not None else super().transform_done_spec(done_spec)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Return the observation spec, with the copy of a done flag under another key."""
        result = super().transform_observation_spec(observation_spec)
        if self._flag is None:
            return result
        return with_entries(result, {self.out_keys[0]: self._transform_spec(self._flag)})

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if self._shape is None:
            return spec
        shape = _aligned(spec.shape, self._shape, self.in_keys[0], self.ref_key)
        try:
            wide: TensorSpec = spec.reshape(shape).expand(self._shape)
        except (TdxError, RuntimeError) as error:
            raise ArgumentError(
                f"{type(spec).__name__} {format_key(self.in_keys[0])!r} cannot be expanded",
                hint="its last dim is a single choice, which cannot be repeated",
                where=Where(key=self.in_keys[0]),
            ) from error
        return wide

    def _expand_entry(self, entries: EntryMapping, shape: torch.Size | None) -> None:
        """Expand the entry, if present, to the shape of the reference, or else to ``shape``."""
        (in_key,), (out_key,) = self.in_keys, self.out_keys
        value, reference = entries.get(in_key), entries.get(self.ref_key)
        shape = shape if reference is None else reference.shape
        if value is not None and shape is not None:
            entries[out_key] = _expand(value, shape, in_key, self.ref_key)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._require_entries(next_tensordict)
        self._expand_entry(TensorDictEntries(next_tensordict), None)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        # The reference may be a reward, which a reset does not return.
        self._expand_entry(TensorDictEntries(tensordict_reset), self._shape)
        return tensordict_reset

    def make_chunk_kernel(self) -> ChunkKernel | None:
        if self._missing_tolerance or self._shape is None:
            return None
        return ChunkKernel(self._run_chunk, (*self.in_keys, self.ref_key), tuple(self.out_keys))

    def _run_chunk(self, chunk: Chunk) -> None:
        assert self._shape is not None
        for key in (*self.in_keys, self.ref_key):
            if key not in chunk.steps:
                raise self._missing_key(key, chunk.steps)
        self._expand_entry(chunk.steps, None)
        self._expand_entry(chunk.resets, torch.Size((len(chunk.times), *self._shape)))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Expand the entry of stored data ``[*B]``, in place."""
        return self._call(tensordict)

    def _require_entries(self, tensordict: TensorDictBase) -> None:
        for key in (*self.in_keys, self.ref_key):
            if not self._missing_tolerance and read(tensordict, key) is None:
                raise self._missing_key(key, tensordict)

    def __repr__(self) -> str:
        keys = [format_key(key) for key in (*self.in_keys, self.ref_key, *self.out_keys)]
        return f"ExpandAs(in_key={keys[0]!r}, ref_key={keys[1]!r}, out_key={keys[2]!r})"


def _expand(value: Tensor, shape: torch.Size, key: NestedKey, ref_key: NestedKey) -> Tensor:
    # A copy, since an expanded view cannot be written to.
    return value.reshape(_aligned(value.shape, shape, key, ref_key)).expand(shape).clone()


def _aligned(
    shape: torch.Size, wanted: torch.Size, key: NestedKey, ref_key: NestedKey
) -> torch.Size:
    """Return the shape with dims of size 1 appended."""
    sizes = zip(shape, wanted, strict=False)
    if len(shape) > len(wanted) or any(mine not in (1, other) for mine, other in sizes):
        raise ArgumentError(
            f"{format_key(key)!r} of shape {tuple(shape)} does not expand to the "
            f"{tuple(wanted)} of {format_key(ref_key)!r}",
            hint="from the left, each size must be 1 or equal; missing dims are added on the right",
            where=Where(key=key),
        )
    return torch.Size([*shape, *[1] * (len(wanted) - len(shape))])
