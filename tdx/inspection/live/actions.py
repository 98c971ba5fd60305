"""Actions that a user enters, from the action spec of an env."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

from tdx.foundation.keys import format_key
from tdx.inspection.live.arrays import unravel_row

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.envs import EnvBase
    from tdx.inspection.live.stack_env import StackEnv
    from tdx.specs import TensorSpec

MAX_FIELDS = 32
_UNBOUNDED_LIMIT = 3.0
"""Limit of a slider whose spec is unbounded."""
ActionNumbers = Mapping[tuple[str, int], float]
"""Selected numbers, by key and index of the field."""


@dataclass(frozen=True, slots=True)
class ActionField:
    """One number of an action.

    Args:
        kind: ``slider`` between two limits, or ``choice`` among whole numbers from 0.
        high: Upper limit; the last choice.
    """

    key: str
    place: int
    kind: Literal["slider", "choice"]
    low: float
    high: float
    start: float

    @property
    def name(self) -> str:
        """Key and index, ``action[0]``."""
        return f"{self.key}[{self.place}]"


def action_fields(env: EnvBase | StackEnv) -> tuple[ActionField, ...]:
    """Return the numbers of an action that can be selected; all envs of a batch share them.

    There are at most ``MAX_FIELDS``. Keys with other kinds of specs have none and stay zero.
    """
    from tdx.specs import Bounded, Unbounded

    batch_dims = len(env.batch_size)

    def fields() -> Iterator[ActionField]:
        for raw_key, leaf in env.full_action_spec.items(True, True):
            key = format_key(raw_key)
            for place, count in enumerate(_choice_counts(leaf, batch_dims)):
                yield ActionField(key, place, "choice", 0, count - 1, 0)
            if isinstance(leaf, Bounded):
                lows, highs = (
                    end[(0,) * batch_dims].detach().cpu().reshape(-1).tolist()
                    for end in (leaf.low, leaf.high)
                )
                is_discrete = not leaf.low.is_floating_point()
                for place, (low, high) in enumerate(zip(lows, highs, strict=True)):
                    low = -_UNBOUNDED_LIMIT if math.isinf(low) else low
                    high = _UNBOUNDED_LIMIT if math.isinf(high) else high
                    kind: Literal["slider", "choice"]
                    kind = "choice" if is_discrete and low == 0 else "slider"
                    yield ActionField(key, place, kind, low, high, min(max(0.0, low), high))
            elif isinstance(leaf, Unbounded):
                for place in range(leaf.shape[batch_dims:].numel()):
                    limit = _UNBOUNDED_LIMIT
                    yield ActionField(key, place, "slider", -limit, limit, 0.0)

    return tuple(islice(fields(), MAX_FIELDS))


def _choice_counts(leaf: TensorSpec, batch_dims: int) -> list[int]:
    """Return the number of options of each choice in one row of a spec."""
    from tdx.specs import Binary, Categorical, MultiCategorical, MultiOneHot, OneHot

    numbers = leaf.shape[batch_dims:].numel()
    if isinstance(leaf, OneHot):
        return [int(leaf.space.n)]
    if isinstance(leaf, MultiCategorical | MultiOneHot):
        import torch

        table = torch.as_tensor(leaf.nvec)
        return [int(count) for count in table.reshape(-1, table.shape[-1])[0].tolist()]
    if isinstance(leaf, Binary):
        return [2] * numbers
    if isinstance(leaf, Categorical):
        return [int(leaf.space.n)] * numbers
    return []


def build_action(env: EnvBase | StackEnv, numbers: ActionNumbers) -> TensorDictBase:
    """Build an action, ``[*B]``, for every env of the batch; zero where nothing is selected."""
    import torch

    from tdx.specs import MultiOneHot, OneHot

    spec, batch_dims = env.full_action_spec, len(env.batch_size)
    action: TensorDictBase = spec.zero()
    for key, leaf in spec.items(True, True):
        selected = {
            place: number for (name, place), number in numbers.items() if name == format_key(key)
        }
        row = torch.zeros(leaf.shape[batch_dims:].numel(), dtype=torch.float64)
        if isinstance(leaf, OneHot | MultiOneHot):
            begin = 0
            for place, count in enumerate(_choice_counts(leaf, batch_dims)):
                row[begin + int(selected.get(place, 0))] = 1
                begin += count
        else:
            for place, number in selected.items():
                if place < len(row):
                    row[place] = number
            if not selected:
                continue
        shaped = row.reshape(leaf.shape[batch_dims:]).to(leaf.dtype).to(leaf.device)
        action.set(key, shaped.expand(leaf.shape).clone())
    return action


def target_row(env: EnvBase | StackEnv, action: TensorDictBase, row: int | None) -> TensorDictBase:
    """Apply an action ``[*B]`` to one env of a batch, and random actions to the others.

    ``row`` counts through all batch dims; ``None``: all envs. The result has memory of its own.
    """
    if row is None or env.batch_size.numel() <= 1:
        return action.clone()
    fields: TensorDictBase = env.full_action_spec.rand()
    at = unravel_row(row, tuple(env.batch_size))
    fields[at] = action[at]
    return fields
