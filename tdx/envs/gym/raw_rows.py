"""A Gymnasium env without TensorDicts: what a loop over many steps calls by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.envs.gym.codec import Codec
from tdx.envs.gym.env_codecs import root_spec
from tdx.envs.gym.stepping import Conversion, Raw
from tdx.errors import TdxError


@dataclass(frozen=True, slots=True)
class RawEnv:
    """A single Gymnasium env and the way from many of its values to tensors and back.

    What is kept of the steps becomes tensors at once in the end, which costs a tenth of a
    TensorDict each.

    Args:
        step: the env's own step.
        reset: the env's own reset, with the seed that waits, if any; returns the observation.
        keep: an observation as it can be kept: it shares no memory with the env.
        stack: kept observations, as entries ``[T, ...]``.
        one: a kept observation, as entries.
        decode: actions in a TensorDict ``[T]``, as a sequence of what ``step`` takes.
        decode_value: one action, the entry ``action``, as ``step`` takes it; ``None`` where the
            env's actions are several entries.
        conversion: from and to TensorDicts, for a single value.
        flat: whether an observation's entries are all at the root.
        dense: whether an observation is one array, not a dict of some.
        block: gives ``keep`` for so many observations, with memory for all of them.
    """

    step: Callable[[Any], Raw]
    reset: Callable[[], Any]
    keep: Callable[[Any], Any]
    stack: Callable[[Sequence[Any]], dict[str, Any]]
    one: Callable[[Any], dict[str, Any]]
    decode: Callable[[TensorDictBase], Sequence[Any]]
    decode_value: Callable[[Tensor], Any] | None
    conversion: Conversion
    flat: bool
    dense: bool
    block: Callable[[int], Callable[[Any], Any]] | None = None

    def mapping(self, function: Callable[..., Any], shape: tuple[int, ...]) -> RawEnv:
        """The same with each observation mapped as it is kept, to an array of its own.

        It is for envs that are ``dense``.

        Args:
            function: takes an observation and ``out``, an array to write to.
            shape: of what it makes, float32.
        """

        def block(length: int) -> Callable[[Any], Any]:
            rows = iter(np.empty((length, *shape), np.float32))
            return lambda observation: function(observation, next(rows))

        return replace(self, keep=function, block=block)

    def store(self, length: int) -> np.ndarray[Any, Any] | None:
        """An array for so many observations, if they are arrays and kept as they are."""
        codec = self.conversion.observation
        if not self.dense or self.block is not None or codec.held is None:
            return None
        ((_, spec),) = root_spec(codec).items()
        return np.empty((length, *spec.shape), codec.held)

    def keeping(self, length: int) -> Callable[[Any], Any]:
        """:attr:`keep` for up to so many observations, which then lie side by side."""
        return self.keep if self.block is None else self.block(length)

    def failure(self, phase: str, error: Exception) -> TdxError:
        """The error to raise instead of what the env raised."""
        return self.conversion.failure(None, phase, error)


def raw_env(env: Any, take_seed: Callable[[], int | None], conversion: Conversion) -> RawEnv | None:
    """The env without TensorDicts; ``None`` where more belongs to its step than can be kept.

    Args:
        env: a single Gymnasium env.
        take_seed: the seed for its next reset, once.
        conversion: from and to TensorDicts.
    """
    if conversion.readers or conversion.device.type != "cpu" or conversion.reward is not None:
        return None
    observation = conversion.observation
    dense = observation.held is not None
    keep, stack, one = _dense(observation) if dense else _sparse(observation)
    action = conversion.action

    def reset() -> Any:
        return env.reset(seed=take_seed())[0]

    flat = all(isinstance(key, str) for key in root_spec(observation).keys(True, True))
    decode, value = _decoder(action), action.decode_value
    return RawEnv(env.step, reset, keep, stack, one, decode, value, conversion, flat, dense)


_Keeping = tuple[
    Callable[[Any], Any],
    Callable[[Sequence[Any]], dict[str, Any]],
    Callable[[Any], dict[str, Any]],
]


def _dense(codec: Codec) -> _Keeping:
    array, held, tensor = np.array, codec.held, torch.from_numpy
    ((key, _),) = root_spec(codec).items()

    keep = partial(array, dtype=held)

    def stack(rows: Sequence[Any]) -> dict[str, Any]:
        if isinstance(rows, np.ndarray):
            return {key: tensor(rows)}
        block = rows[0].base if len(rows) > 1 else None
        if block is not None and rows[1].base is block and len(rows) <= len(block):
            first, last = rows[0], rows[-1]
            if _address(first) == _address(block) and _address(last) == _address(
                block[len(rows) - 1]
            ):
                return {key: tensor(block[: len(rows)])}
        return {key: tensor(array(rows))}

    def one(row: Any) -> dict[str, Any]:
        return {key: tensor(row)}

    return keep, stack, one


def _address(row: Any) -> int:
    return int(row.__array_interface__["data"][0])


def _sparse(codec: Codec) -> _Keeping:
    def stack(rows: Sequence[Any]) -> dict[str, Any]:
        return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

    return codec.encode, stack, lambda row: dict(row)


def _decoder(codec: Codec) -> Callable[[TensorDictBase], Sequence[Any]]:
    if codec.decode_rows is not None:
        return codec.decode_rows

    def decode(tensordict: TensorDictBase) -> Sequence[Any]:
        return [codec.decode(row) for row in tensordict.unbind(0)]

    return decode


def reward_column(rewards: Sequence[Any]) -> Tensor:
    """The rewards of ``T`` steps, float32, ``[T, 1]``.

    Args:
        rewards: numbers, or arrays of one number.
    """
    return torch.from_numpy(np.array(rewards, np.float32).reshape(-1, 1))
