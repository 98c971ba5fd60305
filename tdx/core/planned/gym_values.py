"""What goes into a loop over Gymnasium envs and what comes out, as values by key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.error import ResetNeeded
from torch import Tensor

from tdx.core.envs.done_flags import as_row_mask
from tdx.core.planned.columns import leaves_of
from tdx.core.planned.inputs import ClosedLoop
from tdx.envs.gym.raw_rows import RawEnv, reward_column
from tdx.keys import NestedKey
from tdx.tensordicts import new_tensordict

NOTHING: Mapping[NestedKey, Tensor] = {}


class Kept:
    """The entries of many steps, by key."""

    def __init__(self) -> None:
        self._rows: dict[NestedKey, list[Tensor]] = {}

    def add(self, *parts: Mapping[NestedKey, Tensor]) -> None:
        rows = self._rows
        for entries in parts:
            for key, value in entries.items():
                if key in rows:
                    rows[key].append(value)
                else:
                    rows[key] = [value]

    def rows(self, key: NestedKey) -> list[Tensor]:
        return self._rows.setdefault(key, [])

    def columns(self, length: int) -> dict[NestedKey, Tensor]:
        return {key: torch.stack(rows[:length]) for key, rows in self._rows.items() if length}


class Taker:
    """What each env takes, from what a policy wrote.

    Args:
        envs: the envs.
        inputs: the policy, with the chain's way in.
        single: whether there is no batch.
    """

    def __init__(self, envs: Sequence[RawEnv], inputs: ClosedLoop, single: bool) -> None:
        self._envs, self._inputs, self._single = envs, inputs, single
        way_in = inputs.way_in
        is_tensor = way_in.action_keys == ("action",) and not way_in.stages
        direct = is_tensor and envs[0].decode_value is not None
        self._values = [env.decode_value for env in envs] if direct else None
        self.is_direct = direct

    def __call__(
        self, written: Mapping[NestedKey, Tensor]
    ) -> tuple[Sequence[Any], Mapping[NestedKey, Tensor]]:
        if self._values is not None:
            action = written["action"]
            parts = (action,) if self._single else action.unbind(0)
            pairs = zip(self._values, parts, strict=True)
            return [decode(part) for decode, part in pairs if decode is not None], {}
        inner, shown = self._inputs.inward(written)
        given = (inner.unsqueeze(0),) if self._single else inner.unsqueeze(1).unbind(0)
        pairs_of_rows = zip(self._envs, given, strict=True)
        return [env.decode(part)[0] for env, part in pairs_of_rows], shown


class Fields:
    """What a step of the envs returned, as far as somebody reads it step by step.

    Args:
        env: one of them.
        single: whether there is no batch.
        reads: the keys that are read.
    """

    def __init__(self, env: RawEnv, single: bool, reads: Collection[NestedKey]) -> None:
        self._env, self._single = env, single
        self._reward = "reward" in reads
        self._flags = not {"done", "terminated", "truncated"}.isdisjoint(reads)
        self.is_more = self._reward or self._flags or not env.flat

    def __call__(
        self, observed: list[Any], rewards: list[Any], over: list[tuple[int, bool, bool]]
    ) -> dict[NestedKey, Any]:
        single = self._single
        fields: dict[NestedKey, Any]
        fields = stacked(self._env, observed)
        if single:
            fields = {key: value[0] for key, value in fields.items()}
        if self._reward:
            column = reward_column(rewards)
            fields["reward"] = column[0] if single else column
        if self._flags:
            flags = np.zeros((2, len(observed), 1), np.bool_)
            for row, terminated, truncated in over:
                flags[:, row, 0] = terminated, truncated
            both = {"terminated": flags[0], "truncated": flags[1], "done": flags[0] | flags[1]}
            for name, value in both.items():
                fields[name] = torch.from_numpy(value[0] if single else value)
        return fields


def with_first_reset(env: RawEnv) -> Callable[[Any], Any]:
    """The env's step; one that was never reset is reset first, as a single step does."""
    step, reset = env.step, env.reset

    def stepped(action: Any) -> Any:
        try:
            return step(action)
        except ResetNeeded:
            reset()
            return step(action)

    return stepped


def stacked(env: RawEnv, rows: Sequence[Any]) -> dict[NestedKey, Tensor]:
    """Kept observations as entries ``[T, ...]``."""
    made = env.stack(rows)
    if all(isinstance(value, Tensor) for value in made.values()):
        return {key: value for key, value in made.items()}  # noqa: C416 - widens the key
    return leaves_of(new_tensordict(made, torch.Size((len(rows),)), None))


def shaped(columns: Mapping[NestedKey, Tensor], shape: tuple[int, ...]) -> dict[NestedKey, Tensor]:
    """Columns ``[T * n, ...]`` with the leading dims of the batch."""
    return {key: value.reshape(*shape, *value.shape[1:]) for key, value in columns.items()}


def merged(mask: Tensor, value: Tensor, before: Any) -> Tensor:
    """An entry after a reset of some rows; the others keep what they had."""
    if not isinstance(before, Tensor) or before.shape != value.shape:
        return value
    return torch.where(as_row_mask(mask, value, mask.ndim - 1), value, before)
