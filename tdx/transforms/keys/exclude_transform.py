"""Drop entries by name."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from tdx.core.transforms import TimeBehaviour
from tdx.core.transforms.chunk import Chunk, TimeForm
from tdx.core.transforms.key_filter import KeyFilter
from tdx.core.transforms.key_pairs import key_list, require_keys
from tdx.core.transforms.spec_edits import without_keys
from tdx.core.transforms.transform import Entries, RowStep
from tdx.errors import ArgumentError, ChainError, Where
from tdx.keys import NestedKey, format_key, split_key, unique_keys
from tdx.specs import Composite


class ExcludeTransform(KeyFilter):
    """Drop entries of the env's output, or of what is on its way in.

    In an env the keys are checked against its specs; in stored data those that are not there are
    passed over. Leaving out a key of a group drops the whole group.

    Args:
        *excluded_keys: the entries to drop.
        inverse: whether they are dropped on the way in, and nothing is on the way out.

    Raises:
        ArgumentError: one of them is no key.
        KeyNotFoundError: the env has no such entry (when its specs are computed).
        ChainError: no done flag of a group would be left, or the env needs what would be dropped
            on the way in (when its specs are computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import ExcludeTransform
        >>> stored = TensorDict(pixels=torch.zeros(3, 8, 8), state=torch.zeros(2))
        >>> list(ExcludeTransform("pixels")(stored).keys())
        ['state']
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.POINTWISE

    def __init__(self, *excluded_keys: NestedKey, inverse: bool = False) -> None:
        super().__init__()
        if not isinstance(inverse, bool):
            raise ArgumentError(
                f"inverse must be a bool, got {inverse!r}",
                hint="inverse=True drops keys of the input, inverse=False those of the output",
            )
        self.excluded_keys = unique_keys(key_list(excluded_keys, "excluded_keys"))
        self.inverse = inverse

    @property
    def invertible(self) -> bool:
        """Whether it works on the way in."""
        return self.inverse

    # Data

    def _excluded(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.exclude(*self.excluded_keys, inplace=True)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict if self.inverse else self._excluded(next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return self._call(tensordict_reset)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._excluded(tensordict) if self.inverse else tensordict

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._inv_call(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Drop the entries of stored data that are there, in place."""
        return self._call(tensordict)

    def _row_step(self) -> RowStep | None:
        names = self.excluded_keys
        if self.inverse or any(isinstance(name, tuple) for name in names):
            return None

        def step(tensordict: Entries, fields: dict[str, Any]) -> None:
            for name in names:
                fields.pop(name, None)  # type: ignore[arg-type]

        return step

    def _time_form(self) -> TimeForm | None:
        if self.inverse:
            return TimeForm(lambda chunk: None)
        excluded = [split_key(key) for key in self.excluded_keys]

        def run(chunk: Chunk) -> None:
            for columns in (chunk.steps, chunk.resets):
                for key in list(columns):
                    if any(split_key(key)[: len(parts)] == parts for parts in excluded):
                        del columns[key]

        return TimeForm(run, drops=tuple(self.excluded_keys))

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        if self.inverse:
            self._refuse_needed(input_spec)
        elif not self._missing_tolerance:
            require_keys(output_spec, self.excluded_keys, "the env at this stage")

    def _refuse_needed(self, input_spec: Composite) -> None:
        for key in self.excluded_keys:
            if any(part.get(key, None) is not None for part in input_spec.values()):
                raise ChainError(
                    f"the env needs {format_key(key)!r}, which would be dropped on the way in",
                    hint="leave the key out of this stage",
                    where=Where(key=key),
                )

    def _mapped(self, spec: Composite) -> Composite:
        return spec if self.inverse else without_keys(spec, self.excluded_keys)

    def __repr__(self) -> str:
        keys = [repr(key) for key in self.excluded_keys]
        inverse = ["inverse=True"] if self.inverse else []
        return f"ExcludeTransform({', '.join([*keys, *inverse])})"
