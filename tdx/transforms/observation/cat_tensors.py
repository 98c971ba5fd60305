"""Concatenate several observations into one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.joins import JoinTransform
from tdx.core.transforms.kernels import EntryMapping
from tdx.core.transforms.spec_maps import normalize_keys
from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey, format_key, split_key
from tdx.specs import Composite


class CatTensors(JoinTransform):
    """Concatenate several observations into one.

    Stored data is concatenated at the root; name keys that begin with ``next`` for the next
    observations.

    Args:
        in_keys: Observations to concatenate. ``None``: all vectors among the env's observations.
        out_key: Key to write.
        dim: Dim along which to concatenate. A dim from 0 on counts batch dims too.
        del_keys: Drop the concatenated entries.
        unsqueeze_if_oor: Add a first dim (a last one if ``dim`` is not negative) to entries that
            lack the dim.
        sort: Sort the in-keys by name.

    Raises:
        ArgumentError: Without ``in_keys``, ``dim`` is not -1; or (when its specs are computed) an
            entry lacks the dim, or the sizes of the other dims differ.
        KeyNotFoundError: An entry is missing.
        ChainError: Without ``in_keys``, the env observes no vector, or the data is not from an
            env.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import CatTensors
        >>> join = CatTensors(["position", "velocity"], "state")
        >>> join(TensorDict(position=torch.zeros(2), velocity=torch.ones(1)))["state"]
        tensor([0., 0., 1.])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self,
        in_keys: Sequence[NestedKey] | None = None,
        out_key: NestedKey = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        unsqueeze_if_oor: bool = False,
        sort: bool = True,
    ) -> None:
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise ArgumentError(
                f"dim must be an integer, got {dim!r}", hint="for example -1 for the last dim"
            )
        if in_keys is None and dim != -1:
            raise ArgumentError(
                f"without in_keys, dim must be -1, got {dim}",
                hint="name the observations: in_keys=[...]",
            )
        keys = normalize_keys(in_keys, "in_keys")
        super().__init__(_sorted(keys) if sort else keys, out_key, del_keys)
        self._finds_keys = in_keys is None
        self.dim, self.unsqueeze_if_oor, self.sort = dim, unsqueeze_if_oor, sort
        if dim >= 0:
            # The dim has another place in a block of steps.
            self.time_behavior = TimeBehavior.CONTROL

    def _on_keys_assigned(self) -> None:
        self._finds_keys = False

    def _join(self, values: list[Tensor], batch_dims: int) -> Tensor:
        if self.unsqueeze_if_oor:
            values = [self._with_dim(value, batch_dims) for value in values]
        return torch.cat(values, self.dim)

    def _with_dim(self, value: Tensor, batch_dims: int) -> Tensor:
        """Return an entry ``[*L, ...]`` with the dim, which it may lack."""
        if self.dim >= 0:
            return value if self.dim < value.ndim else value.unsqueeze(-1)
        return value if batch_dims - self.dim <= value.ndim else value.unsqueeze(batch_dims)

    def _join_entries(self, entries: EntryMapping, batch_dims: int) -> None:
        if not self.in_keys:
            raise ChainError(
                "CatTensors has no in_keys, and no env to take them from",
                hint="name the entries to concatenate: in_keys=[...]",
                where=Where(transform="CatTensors"),
            )
        super()._join_entries(entries, batch_dims)

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        super()._bind(input_spec, output_spec)
        observations = output_spec["full_observation_spec"]
        if self._finds_keys:
            vectors = [
                key
                for key, spec in observations.items(True, True)
                if len(spec.shape) == self._batch_dims + 1
            ]
            in_keys = normalize_keys(vectors, "in_keys")
            self._set_keys(_sorted(in_keys), self.out_keys)
        if not self.in_keys:
            raise ChainError(
                "the env observes no vector to concatenate",
                hint="name the entries to concatenate: in_keys=[...]",
            )
        specs = {key: observations.get(key, None) for key in self.in_keys}
        self._check_shapes({key: spec.shape for key, spec in specs.items() if spec is not None})

    def _check_shapes(self, shapes: dict[NestedKey, torch.Size]) -> None:
        examples = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
        for key, example in examples.items():
            dims = self._with_dim(example, self._batch_dims).ndim if self.unsqueeze_if_oor else 0
            dims = max(dims, example.ndim)
            lacks = self.dim >= dims if self.dim >= 0 else self._batch_dims - self.dim > dims
            if lacks:
                raise ArgumentError(
                    f"{format_key(key)!r} of shape {tuple(shapes[key])} has no dim {self.dim} "
                    f"after {self._batch_dims} batch dims",
                    hint="choose another dim, or unsqueeze_if_oor=True",
                    where=Where(key=key),
                )
        try:
            self._join(list(examples.values()), self._batch_dims)
        except RuntimeError:
            listed = ", ".join(f"{format_key(key)} {tuple(each)}" for key, each in shapes.items())
            raise ArgumentError(
                f"observations of different shapes cannot be concatenated along dim {self.dim}: "
                f"{listed}",
                hint="their sizes may differ in that dim alone",
            ) from None

    def __repr__(self) -> str:
        return f"CatTensors(in_keys={self.in_keys}, out_key={self.out_keys[0]!r})"


def _sorted(keys: Sequence[NestedKey]) -> list[NestedKey]:
    return sorted(keys, key=split_key)
