"""Actions by hand: what an env's action spec lets a person choose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tdx.inspection.live.numbers import unravelled
from tdx.keys import NestedKey, format_key

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor

    from tdx.envs import EnvBase
    from tdx.specs import TensorSpec

MOST = 32
_FAR = 3.0
"""How far a slider goes whose spec has no end."""

Numbers = Mapping[tuple[str, int], float]
"""What is chosen, by the key and the place of each field."""


@dataclass(frozen=True, slots=True)
class ActionField:
    """One number of an action.

    Args:
        key: the action key, with dots.
        place: which of the numbers under that key.
        kind: a ``slider`` between ends, or a ``choice`` among whole numbers from 0.
        low: the lower end.
        high: the upper end; of a choice the last one.
        start: what to begin with.
    """

    key: str
    place: int
    kind: Literal["slider", "choice"]
    low: float
    high: float
    start: float

    @property
    def name(self) -> str:
        """Key and place, ``action[0]``."""
        return f"{self.key}[{self.place}]"


def action_fields(env: EnvBase) -> tuple[ActionField, ...]:
    """What can be chosen of an action; of a batch the same for every env.

    Args:
        env: the env with its chain.

    Returns:
        at most ``MOST`` fields; nothing for keys whose spec is of another kind, which stay zero.

    Example:
        >>> from tdx import PendulumEnv
        >>> [field] = action_fields(PendulumEnv())
        >>> field.name, field.kind, field.low, field.high
        ('action[0]', 'slider', -2.0, 2.0)
    """
    found = (
        field
        for key, leaf in env.full_action_spec.items(True, True)
        for field in _of_leaf(format_key(key), leaf, len(env.batch_size))
    )
    return tuple(field for field, _ in zip(found, range(MOST), strict=False))


def _of_leaf(key: str, leaf: TensorSpec, batch_dims: int) -> Iterator[ActionField]:
    from tdx.specs import Bounded, Unbounded

    for place, count in enumerate(_choices(leaf, batch_dims)):
        yield ActionField(key, place, "choice", 0, count - 1, 0)
    if isinstance(leaf, Bounded):
        lows, highs = (_row(end, batch_dims).tolist() for end in (leaf.low, leaf.high))
        for place, (low, high) in enumerate(zip(lows, highs, strict=True)):
            low, high = max(low, -_FAR if math.isinf(low) else low), min(high, _end(high))
            discrete = not leaf.low.is_floating_point()
            kind: Literal["slider", "choice"] = "choice" if discrete and low == 0 else "slider"
            yield ActionField(key, place, kind, low, high, min(max(0.0, low), high))
    elif isinstance(leaf, Unbounded):
        for place in range(leaf.shape[batch_dims:].numel()):
            yield ActionField(key, place, "slider", -_FAR, _FAR, 0.0)


def _end(high: float) -> float:
    return _FAR if math.isinf(high) else high


def _choices(leaf: TensorSpec, batch_dims: int) -> list[int]:
    """How many there are to choose from, for each choice in the row of a spec."""
    from tdx.specs import Binary, Categorical, MultiCategorical, MultiOneHot, OneHot

    numbers = leaf.shape[batch_dims:].numel()
    if isinstance(leaf, OneHot):
        return [int(leaf.space.n)]
    if isinstance(leaf, MultiCategorical | MultiOneHot):
        return [int(count) for count in _last_row(leaf.nvec)]
    if isinstance(leaf, Binary):
        return [2] * numbers
    if isinstance(leaf, Categorical):
        return [int(leaf.space.n)] * numbers
    return []


def _last_row(counts: object) -> list[int]:
    import torch

    table = torch.as_tensor(counts)
    found: list[int] = table.reshape(-1, table.shape[-1])[0].tolist()
    return found


def _row(values: Tensor, batch_dims: int) -> Tensor:
    """The numbers of the first row, flat."""
    return values[(0,) * batch_dims].detach().cpu().reshape(-1)


def action_of(env: EnvBase, numbers: Numbers) -> TensorDictBase:
    """An action of these numbers, for every env of the batch; zero where none is given.

    Args:
        env: the env with its chain.
        numbers: what is chosen.

    Returns:
        the action keys, ``[*B]``.

    Example:
        >>> from tdx import PendulumEnv
        >>> action_of(PendulumEnv(), {("action", 0): 0.5})["action"]
        tensor([0.5000])
    """
    spec = env.full_action_spec
    action: TensorDictBase = spec.zero()
    for key, leaf in spec.items(True, True):
        chosen = {place: each for (name, place), each in numbers.items() if name == format_key(key)}
        _write(action, key, leaf, chosen, len(env.batch_size))
    return action


def aimed(env: EnvBase, action: TensorDictBase, row: int | None) -> TensorDictBase:
    """An action for one env of a batch, beside random ones for the others.

    Args:
        env: the env with its chain.
        action: the action keys, ``[*B]``.
        row: the env that takes it, counted through all batch dims; all of them where it is none.

    Returns:
        the action keys, ``[*B]``, of which nothing is shared with what was given.
    """
    if row is None or env.batch_size.numel() <= 1:
        return action.clone()
    found: TensorDictBase = env.full_action_spec.rand()
    at = unravelled(row, tuple(env.batch_size))
    found[at] = action[at]
    return found


def _write(
    action: TensorDictBase,
    key: NestedKey,
    leaf: TensorSpec,
    chosen: Mapping[int, float],
    batch_dims: int,
) -> None:
    import torch

    from tdx.specs import MultiOneHot, OneHot

    row = torch.zeros(leaf.shape[batch_dims:].numel(), dtype=torch.float64)
    if isinstance(leaf, OneHot | MultiOneHot):
        begin = 0
        for place, count in enumerate(_choices(leaf, batch_dims)):
            row[begin + int(chosen.get(place, 0))] = 1
            begin += count
    elif not chosen:
        return
    for place, number in chosen.items():
        if not isinstance(leaf, OneHot | MultiOneHot) and place < len(row):
            row[place] = number
    shaped = row.reshape(leaf.shape[batch_dims:]).to(leaf.dtype).to(leaf.device)
    action.set(key, shaped.expand(leaf.shape).clone())
