"""Drop entries by key."""

from __future__ import annotations

from tensordict import TensorDictBase

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import KeyFilter
from tdx.core.transforms.kernels import Chunk, ChunkKernel, DictStep, EntryMapping
from tdx.core.transforms.spec_maps import normalize_keys, require_keys, without_keys
from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey, format_key, split_key, unique_keys
from tdx.specs import Composite


class ExcludeTransform(KeyFilter):
    """Drop entries of the env's output or input.

    In an env the keys are checked against its specs; in stored data missing keys are ignored.
    The key of a group drops the whole group.

    Args:
        *excluded_keys: Entries to drop.
        inverse: Drop entries of the env's input instead of its output.

    Raises:
        ArgumentError: An element is not a key.
        KeyNotFoundError: The env has no such entry (when its specs are computed).
        ChainError: A group has no done flag left, or the env needs an entry of its input that is
            dropped (when its specs are computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import ExcludeTransform
        >>> stored = TensorDict(pixels=torch.zeros(3, 8, 8), state=torch.zeros(2))
        >>> list(ExcludeTransform("pixels")(stored).keys())
        ['state']
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(self, *excluded_keys: NestedKey, inverse: bool = False) -> None:
        super().__init__()
        if not isinstance(inverse, bool):
            raise ArgumentError(
                f"inverse must be a bool, got {inverse!r}",
                hint="inverse=True drops keys of the input, inverse=False those of the output",
            )
        self.excluded_keys = unique_keys(normalize_keys(excluded_keys, "excluded_keys"))
        self.inverse = inverse

    @property
    def invertible(self) -> bool:
        """True with ``inverse``."""
        return self.inverse

    # Data

    def _drop(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.exclude(*self.excluded_keys, inplace=True)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict if self.inverse else self._drop(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._drop(tensordict) if self.inverse else tensordict

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._inv_call(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Drop entries of stored data, in place; missing ones are ignored."""
        return self._call(tensordict)

    def make_dict_step(self) -> DictStep | None:
        names = self.excluded_keys
        if self.inverse or any(isinstance(name, tuple) for name in names):
            return None

        def step(root: EntryMapping, fields: EntryMapping) -> None:
            for name in names:
                if fields.get(name) is not None:
                    del fields[name]

        return step

    def make_chunk_kernel(self) -> ChunkKernel | None:
        if self.inverse:
            return ChunkKernel(lambda chunk: None)
        excluded = [split_key(key) for key in self.excluded_keys]

        def run(chunk: Chunk) -> None:
            for columns in (chunk.steps, chunk.resets):
                for key in list(columns):
                    if any(split_key(key)[: len(parts)] == parts for parts in excluded):
                        del columns[key]

        return ChunkKernel(run, drops=tuple(self.excluded_keys))

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        for key in self.excluded_keys if self.inverse else ():
            if any(part.get(key, None) is not None for part in input_spec.values()):
                raise ChainError(
                    f"this stage drops {format_key(key)!r}, which the env needs as input",
                    hint="remove the key from this stage",
                    where=Where(key=key),
                )
        if not self.inverse and not self._missing_tolerance:
            require_keys(output_spec, self.excluded_keys, "the env at this stage")

    def _map_spec(self, spec: Composite) -> Composite:
        return spec if self.inverse else without_keys(spec, self.excluded_keys)

    def __repr__(self) -> str:
        keys = [repr(key) for key in self.excluded_keys]
        inverse = ["inverse=True"] if self.inverse else []
        return f"ExcludeTransform({', '.join([*keys, *inverse])})"
