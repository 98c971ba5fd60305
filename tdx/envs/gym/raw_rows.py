"""Gymnasium envs without TensorDicts, for loops over many steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.envs.gym.codec import Codec
from tdx.envs.gym.conversion import Conversion, Raw
from tdx.envs.gym.env_codecs import root_spec
from tdx.envs.gym.values import WrongValueError, checked_array, first_lost, reward_rows
from tdx.errors import TdxError


@dataclass(frozen=True, slots=True)
class RawEnv:
    """A single Gymnasium env, with the conversion of many of its values to and from tensors.

    Values of several steps are converted at once, which costs a tenth of a TensorDict per step.

    Args:
        step: The env's own step.
        reset: Resets the env with the pending seed, and returns the observation.
        keep: Copies an observation, so that it shares no memory with the env.
        stack: Converts copied observations to entries ``[T, ...]``.
        one: Converts one copied observation to entries.
        decode: Converts the actions in a TensorDict ``[T]`` to a sequence for ``step``.
        decode_value: Converts the entry ``action`` for ``step``. ``None``: the action has several
            entries.
        conversion: Conversion of single values from and to TensorDicts.
        flat: True if all entries of an observation are at the root.
        dense: True if an observation is a single array.
        block: Returns ``keep`` for a number of observations, with memory allocated for all.
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
        """Return the env with each observation mapped to a new array when it is kept.

        Only for envs with a single array as observation (``dense``).

        Args:
            function: Maps an observation; its second argument is the output array or ``None``.
            shape: Shape of the mapped observation, float32.
        """
        checked = self._checked

        def block(length: int) -> Callable[[Any], Any]:
            rows = iter(np.empty((length, *shape), np.float32))
            return lambda observation: function(checked(observation), next(rows))

        def keep(observation: Any, out: Any = None) -> Any:
            return function(checked(observation), out)

        return replace(self, keep=keep, block=block)

    def _checked(self, observation: Any) -> Any:
        """Convert an observation to the shape and dtype of the space."""
        key, shape, held = _dense_form(self.conversion.observation)
        is_array = type(observation) is np.ndarray
        if is_array and observation.shape == shape and observation.dtype is held:
            return observation
        return _convert(observation, key, shape, held)

    def store(self, length: int) -> DenseStore | None:
        """Allocate memory for observations; ``None`` unless they are single, unmapped arrays."""
        if not self.dense or self.block is not None:
            return None
        return DenseStore(self.conversion.observation, length)

    def keeping(self, length: int) -> Callable[[Any], Any]:
        """Return :attr:`keep` for a number of observations, which are stored contiguously."""
        return self.keep if self.block is None else self.block(length)

    def failure(self, phase: str, error: Exception, row: int | None = None) -> TdxError:
        """Create the error to raise for an error of the env, which is env ``row`` of a batch."""
        if row is not None and isinstance(error, WrongValueError):
            error.in_row(row)
        return self.conversion.failure(None, phase, error)


def raw_env(env: Any, take_seed: Callable[[], int | None], conversion: Conversion) -> RawEnv | None:
    """Create the env without TensorDicts; ``None`` if its step does more than that supports.

    Args:
        env: Single Gymnasium env.
        take_seed: Returns the seed for its next reset, once.
        conversion: Conversion from and to TensorDicts.
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


_DOUBLE = np.dtype(np.float64)
_Keeping = tuple[
    Callable[[Any], Any],
    Callable[[Sequence[Any]], dict[str, Any]],
    Callable[[Any], dict[str, Any]],
]


def _dense_form(codec: Codec) -> tuple[str, tuple[int, ...], np.dtype[Any]]:
    """Return key, shape and dtype of an observation that is a single array."""
    ((key, spec),) = root_spec(codec).items()
    assert codec.held is not None
    return str(key), tuple(spec.shape), codec.held


def _convert(
    observation: Any, key: str, shape: tuple[int, ...], held: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    try:
        return checked_array(observation, held, shape)
    except WrongValueError as wrong:
        raise wrong.below(key) from None


class DenseStore:
    """Memory for observations of many steps, each a single array.

    Float64 observations of a float32 space are stored as they are and converted together by
    :meth:`rows`, which costs less than a conversion in each step.

    Args:
        codec: Codec of the observation.
        length: Number of observations.
    """

    def __init__(self, codec: Codec, length: int) -> None:
        self._key, self._shape, self._held = _dense_form(codec)
        self._rows = np.empty((length, *self._shape), self._held)

    def putter(self) -> Callable[[int, Any], None]:
        """Return the function that stores an observation at a position.

        The function raises ``WrongValueError`` for an observation that is not in the space.
        """
        shape, held, key = self._shape, self._held, self._key
        rows, taken = self._rows, held

        def put(position: int, observation: Any) -> None:
            nonlocal rows, taken
            try:
                if observation.dtype is taken and observation.shape == shape:
                    rows[position] = observation
                    return
                if not position and _is_wider(observation.dtype, taken):
                    taken = observation.dtype
                    self._rows = rows = np.empty(rows.shape, taken)
                    put(position, observation)
                    return
            except AttributeError:
                pass
            rows[position] = _convert(observation, key, shape, held)

        return put

    def rows(self, length: int) -> np.ndarray[Any, Any]:
        """Return the first observations in the dtype of the space, ``[length, ...]``.

        Raises:
            WrongValueError: A number does not fit the dtype; ``index`` is its position.
        """
        rows = self._rows[:length]
        if rows.dtype == self._held:
            return rows
        with np.errstate(over="ignore"):
            held = rows.astype(self._held)
        lost = first_lost(rows, held)
        if lost is None:
            return held
        index = lost // max(math.prod(self._shape), 1)
        try:
            _convert(rows[index], self._key, self._shape, self._held)
        except WrongValueError as wrong:
            wrong.index = index
            raise
        raise AssertionError("the conversion of a single row did not fail")


def _is_wider(found: object, held: np.dtype[Any]) -> bool:
    return found is _DOUBLE and held.kind == "f" and held.itemsize < _DOUBLE.itemsize


def _dense(codec: Codec) -> _Keeping:
    tensor, array = torch.from_numpy, np.array
    key, shape, held = _dense_form(codec)

    def keep(observation: Any) -> Any:
        try:
            if observation.dtype is held and observation.shape == shape:
                return array(observation)
        except AttributeError:
            pass
        return _convert(observation, key, shape, held)

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
    """Convert the rewards of ``T`` steps to float32 of shape ``[T, 1]``.

    Args:
        rewards: Numbers, or arrays of one number.

    Raises:
        WrongValueError: A reward is not a number, or too large; ``index`` is its position.
    """
    return torch.from_numpy(reward_rows(rewards))
