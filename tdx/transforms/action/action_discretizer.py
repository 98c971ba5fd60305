"""Let the outside choose among bins of a continuous action's range."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehaviour
from tdx.core.transforms.action import (
    ActionTransform,
    action_leaf,
    batch_dims_of,
    has_range,
    shared_rows,
)
from tdx.core.transforms.spec_edits import with_entries
from tdx.errors import ArgumentError, ChainError, UnknownNameError, Where, did_you_mean
from tdx.keys import NestedKey, format_key
from tdx.specs import (
    BoundedContinuous,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
)
from tdx.tensordicts import read, write


class ActionDiscretizer(ActionTransform):
    """Take a bin's number for each element of a continuous action.

    The range of each element is cut into bins of the same width; ``sampling`` says which value
    of its bin the env gets. Stored data stays as it is.

    Args:
        num_intervals: how many bins; one number for all elements, or one for each of the
            action's last dim.
        action_key: the env's action.
        out_action_key: its name outside; ``action_key`` by default. With a name of its own, a
            step also writes the continuous action beside it, and the continuous action becomes a
            state.
        sampling: the bin's middle ("median", also the default), its lower end, its upper end, or
            a value drawn at random from it.
        categorical: whether the outside gives the bins' numbers; otherwise one-hot rows.

    Raises:
        ArgumentError: ``num_intervals`` holds something other than integers of at least 1.
        UnknownNameError: there is no such ``sampling``.
        KeyNotFoundError: the env has no such action (when its specs are computed).
        ChainError: the action is not continuous with a finite, non-empty range, or
            ``num_intervals`` has another length than its last dim (when its specs are computed).

    Example:
        >>> from tdx import ActionDiscretizer, GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), ActionDiscretizer(4))
        >>> env.action_spec.nvec
        tensor([4])
        >>> env.transform.inv(env.reset().set("action", torch.tensor([0])))["action"]
        tensor([-1.5000])
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.POINTWISE

    class SamplingStrategy(IntEnum):
        """Which value of its bin an action becomes."""

        MEDIAN = 0
        LOW = 1
        HIGH = 2
        RANDOM = 3

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
        self.num_intervals = _counts(num_intervals)
        self.sampling = self._strategy(sampling)
        self.categorical = categorical
        if self.sampling is self.SamplingStrategy.RANDOM:
            self.time_behaviour = TimeBehaviour.CONTROL
        self._counts: list[int] = []
        self._is_scalar = False
        # Where in the range, from 0 to 1, each bin's value lies: [elements, bins].
        self.positions: Tensor | None
        self.low: Tensor | None
        self.width: Tensor | None
        for name in ("positions", "low", "width"):
            self.register_buffer(name, None, persistent=False)

    @classmethod
    def _strategy(cls, sampling: Any) -> SamplingStrategy:
        if sampling is None:
            return cls.SamplingStrategy.MEDIAN
        if isinstance(sampling, str):
            names = [each.name.lower() for each in cls.SamplingStrategy]
            if sampling.lower() not in names:
                raise UnknownNameError(
                    f"there is no sampling {sampling!r}",
                    hint=did_you_mean(sampling, names, f"one of {', '.join(names)}"),
                )
            return cls.SamplingStrategy[sampling.upper()]
        try:
            return cls.SamplingStrategy(sampling)
        except ValueError:
            raise ArgumentError(
                f"sampling must be a strategy or its name, got {sampling!r}",
                hint='for example sampling="median"',
            ) from None

    @property
    def action_key(self) -> NestedKey:
        """The env's action."""
        return self.in_keys_inv[0]

    @property
    def out_action_key(self) -> NestedKey:
        """The action's name outside."""
        return self.out_keys_inv[0]

    def custom_arange(self, nint: int, device: torch.device | None) -> Tensor:
        """Where in the range, from 0 to 1, the values of ``nint`` bins lie, ``[nint]``.

        With "random" sampling these are the bins' lower ends. A subclass may space the bins in
        another way.
        """
        strategy = self.SamplingStrategy
        shift = {strategy.MEDIAN: 0.5, strategy.HIGH: 1.0}.get(self.sampling, 0.0)
        return (torch.arange(nint, dtype=torch.float64, device=device) + shift) / nint

    # Data

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        value = read(tensordict, self.out_action_key)
        if value is not None:
            write(tensordict, self.action_key, self._inv_apply_transform(value))
        elif not self._missing_tolerance:
            raise self._missing(self.out_action_key, tensordict)
        return tensordict

    def _inv_apply_transform(self, action: Tensor) -> Tensor:
        positions, low, width = self.positions, self.low, self.width
        if positions is None or low is None or width is None:
            raise ChainError(
                "ActionDiscretizer has no range to cut into bins",
                hint="put it into an env whose action has a range",
            )
        bins = self._bins(action)
        self._check_bins(bins)
        table = positions.expand(*bins.shape, positions.shape[-1])
        place = table.gather(-1, bins.unsqueeze(-1)).squeeze(-1)
        if self.sampling is self.SamplingStrategy.RANDOM:
            counts = torch.tensor(self._counts, device=place.device)
            place = place + torch.rand_like(place) / counts
        if self._is_scalar:
            place = place.squeeze(-1)
        return low + width * place.clamp(0.0, 1.0)

    def _bins(self, action: Tensor) -> Tensor:
        """The numbers of the bins, int64 ``[*B, elements]``."""
        if self.categorical:
            return action.long().unsqueeze(-1) if self._is_scalar else action.long()
        blocks = action.split(self._counts, -1)
        return torch.stack([block.to(torch.uint8).argmax(-1) for block in blocks], -1)

    def _check_bins(self, bins: Tensor) -> None:
        if bins.device.type == "cpu" and bins.numel():
            counts = torch.tensor(self._counts)
            if bool(((bins < 0) | (bins >= counts)).any()):
                raise ArgumentError(
                    f"the action names a bin outside the {self._counts} that there are",
                    hint="bins are counted from 0",
                ).at(transform="ActionDiscretizer")

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        key = self.action_key
        spec = action_leaf(input_spec, key)
        if not has_range(spec):
            raise ChainError(
                f"the action is {type(spec).__name__} without a finite, non-empty range to cut "
                "into bins",
                hint="bound the action first, or leave ActionDiscretizer out",
                where=Where(key=key),
            )
        dims = batch_dims_of(input_spec["full_action_spec"], key)
        self._is_scalar = spec.ndim == dims
        self._counts = self._counts_for(spec, key)
        self._set_range(spec, dims)

    def _counts_for(self, spec: TensorSpec, key: NestedKey) -> list[int]:
        elements = 1 if self._is_scalar else spec.shape[-1]
        given = self.num_intervals
        if isinstance(given, int):
            return [given] * elements
        if len(given) != elements:
            raise ChainError(
                f"num_intervals has {len(given)} numbers, the action {format_key(key)!r} has "
                f"{elements} elements in its last dim",
                hint="give one number for each element, or a single one for all",
                where=Where(key=key),
            )
        return list(given)

    def _set_range(self, spec: BoundedContinuous, batch_dims: int) -> None:
        low, high = shared_rows(spec.low, spec.high, batch_dims)
        self.low, self.width = low, high - low
        rows = [self.custom_arange(count, spec.device) for count in self._counts]
        longest = max(self._counts)
        padded = [torch.nn.functional.pad(row, (0, longest - len(row))) for row in rows]
        self.positions = torch.stack(padded).to(spec.dtype)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The action spec with the bins in the place of the continuous action."""
        result = action_spec.clone()
        result.unlock_()
        continuous = result[self.action_key]
        del result[self.action_key]
        result[self.out_action_key] = self._discrete(continuous)
        return result

    def _discrete(self, spec: TensorSpec) -> TensorSpec:
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
        """The input spec with the discrete action; a continuous one beside it is a state."""
        result = super().transform_input_spec(input_spec)
        if self.out_action_key != self.action_key:
            continuous = input_spec["full_action_spec"][self.action_key]
            states = with_entries(result["full_state_spec"], {self.action_key: continuous})
            result["full_state_spec"] = states
        return result

    @property
    def _handed_out(self) -> tuple[NestedKey, ...]:
        return () if self.out_action_key == self.action_key else (self.action_key,)

    def __repr__(self) -> str:
        keys = f"action_key={self.action_key!r}, out_action_key={self.out_action_key!r}"
        return (
            f"ActionDiscretizer(num_intervals={self.num_intervals}, {keys}, "
            f"sampling={self.sampling.name.lower()!r}, categorical={self.categorical})"
        )


def _counts(num_intervals: int | Sequence[int] | Tensor) -> int | list[int]:
    given: Any = num_intervals.tolist() if isinstance(num_intervals, Tensor) else num_intervals
    counts = list(given) if isinstance(given, (list, tuple)) else [given]
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ArgumentError(
                f"num_intervals must be integers of at least 1, got {num_intervals!r}",
                hint="for example 5, or [5, 7] for an action of two elements",
            )
    return counts if isinstance(given, (list, tuple)) else counts[0]
