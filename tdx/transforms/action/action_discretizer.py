"""Discretize a continuous action into bins."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Literal

import torch
from torch import Tensor

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import (
    ActionTransform,
    action_leaf,
    batch_dims_of,
    has_range,
    shared_bounds,
)
from tdx.core.transforms.spec_maps import with_entries
from tdx.core.transforms.validation import check_choice
from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey, format_key
from tdx.foundation.torch_internals import is_exporting
from tdx.specs import Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, TensorSpec


class ActionDiscretizer(ActionTransform):
    """Replace a continuous action by a bin index for each of its elements.

    The range of each element is divided into bins of equal width; ``sampling`` defines which
    value of the bin the env gets. Stored data is not changed.

    Args:
        num_intervals: Number of bins: one for all elements, or one for each element of the last
            dim.
        action_key: Action of the env.
        out_action_key: Key of the discrete action; ``action_key`` by default. With another key,
            the continuous action becomes a state, and a step returns it too.
        sampling: Value of a bin: its center (``median``, the default), its lower end (``low``),
            its upper end (``high``), or a random value (``random``).
        categorical: Take bin indices; otherwise one-hot vectors.

    Raises:
        ArgumentError: ``num_intervals`` contains a value that is not an integer of at least 1.
        UnknownNameError: ``sampling`` is unknown.
        KeyNotFoundError: The env has no such action (when its specs are computed).
        ChainError: The action is not continuous with a finite, non-empty range, or the length of
            ``num_intervals`` is not that of its last dim (when its specs are computed).

    Example:
        >>> from tdx import ActionDiscretizer, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), ActionDiscretizer(4))
        >>> env.action_spec.nvec
        tensor([4])
        >>> env.transform.inv(env.reset().set("action", torch.tensor([0])))["action"]
        tensor([-1.5000])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    class SamplingStrategy(IntEnum):
        """Value of a bin that the env gets."""

        MEDIAN = 0
        LOW = 1
        HIGH = 2
        RANDOM = 3

        @classmethod
        def _missing_(cls, value: object) -> ActionDiscretizer.SamplingStrategy:
            if not isinstance(value, str):
                raise ArgumentError(
                    f"sampling must be a strategy or its name, got {value!r}",
                    hint='for example sampling="median"',
                )
            check_choice(value.lower(), "sampling", [member.name.lower() for member in cls])
            return cls[value.upper()]

    def __init__(
        self,
        num_intervals: int | Sequence[int] | Tensor,
        action_key: NestedKey = "action",
        out_action_key: NestedKey | None = None,
        sampling: SamplingStrategy | Literal["median", "low", "high", "random"] | None = None,
        categorical: bool = True,
    ) -> None:
        outer = action_key if out_action_key is None else out_action_key
        super().__init__([action_key], [outer], in_keys=[])
        self._set_keys((), ())
        self.num_intervals = _check_counts(num_intervals)
        strategy: Any = self.SamplingStrategy.MEDIAN if sampling is None else sampling
        self.sampling = self.SamplingStrategy(strategy)
        self.categorical = categorical
        if self.sampling is self.SamplingStrategy.RANDOM:
            self.time_behavior = TimeBehavior.CONTROL
            self.why_not_exported = "it draws random numbers"
        self._counts: list[int] = []
        self._is_scalar = False
        # Relative position of the value of each bin in the range, from 0 to 1: [elements, bins].
        self.positions: Tensor | None
        self.low: Tensor | None
        self.width: Tensor | None
        for name in ("positions", "low", "width"):
            self.register_buffer(name, None, persistent=False)

    @property
    def action_key(self) -> NestedKey:
        """Action of the env."""
        return self.in_keys_inv[0]

    @property
    def out_action_key(self) -> NestedKey:
        """Key of the discrete action."""
        return self.out_keys_inv[0]

    def custom_arange(self, nint: int, device: torch.device | None) -> Tensor:
        """Return the relative positions of the values of ``nint`` bins, from 0 to 1, ``[nint]``.

        With random sampling these are the lower ends of the bins. A subclass may override the
        spacing.
        """
        strategy = self.SamplingStrategy
        shift = {strategy.MEDIAN: 0.5, strategy.HIGH: 1.0}.get(self.sampling, 0.0)
        return (torch.arange(nint, dtype=torch.float64, device=device) + shift) / nint

    # Data

    def _inv_apply_transform(self, action: Tensor) -> Tensor:
        positions, low, width = self.positions, self.low, self.width
        if positions is None or low is None or width is None:
            raise ChainError(
                "ActionDiscretizer has no range to divide into bins",
                hint="put it into an env whose action has a range",
            )
        bins = self._bins(action)
        table = positions.expand(*bins.shape, positions.shape[-1])
        place = table.gather(-1, bins.unsqueeze(-1)).squeeze(-1)
        if self.sampling is self.SamplingStrategy.RANDOM:
            counts = torch.tensor(self._counts, device=place.device)
            place = place + torch.rand_like(place) / counts
        if self._is_scalar:
            place = place.squeeze(-1)
        return low + width * place.clamp(0.0, 1.0)

    def _bins(self, action: Tensor) -> Tensor:
        """Return the bin indices, int64 ``[*B, elements]``."""
        if not self.categorical:
            blocks = action.split(self._counts, -1)
            return torch.stack([block.to(torch.uint8).argmax(-1) for block in blocks], -1)
        bins = action.long().unsqueeze(-1) if self._is_scalar else action.long()
        # On an accelerator the host would wait for the values, and a graph cannot raise.
        is_checked = bins.device.type == "cpu" and not is_exporting()
        if is_checked and ((bins < 0) | (bins >= torch.tensor(self._counts))).any():
            raise ArgumentError(
                f"the action has a bin index that is out of range for {self._counts} bins",
                hint="bin indices start at 0",
            ).at(transform="ActionDiscretizer")
        return bins

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        key = self.action_key
        spec = action_leaf(input_spec, key)
        if not has_range(spec):
            raise ChainError(
                f"the action is {type(spec).__name__} without a finite, non-empty range to divide "
                "into bins",
                hint="bound the action first, or remove ActionDiscretizer",
                where=Where(key=key),
            )
        dims = batch_dims_of(input_spec["full_action_spec"], key)
        self._is_scalar = spec.ndim == dims
        elements, given = 1 if self._is_scalar else spec.shape[-1], self.num_intervals
        if not isinstance(given, int) and len(given) != elements:
            raise ChainError(
                f"num_intervals has {len(given)} numbers, the action {format_key(key)!r} has "
                f"{elements} elements in its last dim",
                hint="pass one number for each element, or a single one for all",
                where=Where(key=key),
            )
        self._counts = [given] * elements if isinstance(given, int) else list(given)
        low, high = shared_bounds(spec.low, spec.high, dims)
        self.low, self.width = low, high - low
        rows = [self.custom_arange(count, spec.device) for count in self._counts]
        longest = max(self._counts)
        padded = [torch.nn.functional.pad(row, (0, longest - len(row))) for row in rows]
        self.positions = torch.stack(padded).to(spec.dtype)

    @property
    def _is_bound(self) -> bool:  # type: ignore[override]
        return bool(self._counts)

    def _inv_transform_spec(self, spec: TensorSpec) -> TensorSpec:
        lead = spec.shape if self._is_scalar else spec.shape[:-1]
        counts, device = self._counts, spec.device
        if self.categorical:
            if self._is_scalar:
                return Categorical(counts[0], shape=lead, device=device)
            return MultiCategorical(counts, shape=spec.shape, device=device)
        if self._is_scalar:
            return OneHot(counts[0], shape=(*lead, counts[0]), device=device)
        return MultiOneHot(counts, shape=(*lead, sum(counts)), device=device)

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Return the input spec with the discrete action, and with another key also the state."""
        result = super().transform_input_spec(input_spec)
        if self.out_action_key != self.action_key:
            continuous = input_spec["full_action_spec"][self.action_key]
            states = with_entries(result["full_state_spec"], {self.action_key: continuous})
            result["full_state_spec"] = states
        return result

    @property
    def exposed_keys(self) -> tuple[NestedKey, ...]:
        return () if self.out_action_key == self.action_key else (self.action_key,)

    def __repr__(self) -> str:
        keys = f"action_key={self.action_key!r}, out_action_key={self.out_action_key!r}"
        return (
            f"ActionDiscretizer(num_intervals={self.num_intervals}, {keys}, "
            f"sampling={self.sampling.name.lower()!r}, categorical={self.categorical})"
        )


def _check_counts(num_intervals: int | Sequence[int] | Tensor) -> int | list[int]:
    given: Any = num_intervals.tolist() if isinstance(num_intervals, Tensor) else num_intervals
    counts = list(given) if isinstance(given, (list, tuple)) else [given]
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ArgumentError(
                f"num_intervals must be integers of at least 1, got {num_intervals!r}",
                hint="for example 5, or [5, 7] for an action of two elements",
            )
    return counts if isinstance(given, (list, tuple)) else counts[0]
