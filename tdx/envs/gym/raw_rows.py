"""A Gymnasium env without TensorDicts: what a loop over many steps calls by itself."""

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
        checked = self._checked

        def block(length: int) -> Callable[[Any], Any]:
            rows = iter(np.empty((length, *shape), np.float32))
            return lambda observation: function(checked(observation), next(rows))

        def keep(observation: Any, out: Any = None) -> Any:
            return function(checked(observation), out)

        return replace(self, keep=keep, block=block)

    def _checked(self, observation: Any) -> Any:
        """An observation of the shape and dtype of the space."""
        key, shape, held = _dense_form(self.conversion.observation)
        is_array = type(observation) is np.ndarray
        if is_array and observation.shape == shape and observation.dtype is held:
            return observation
        return _converted(observation, key, shape, held)

    def store(self, length: int) -> DenseStore | None:
        """Memory for so many observations, if they are arrays and kept as they are."""
        if not self.dense or self.block is not None:
            return None
        return DenseStore(self.conversion.observation, length)

    def keeping(self, length: int) -> Callable[[Any], Any]:
        """:attr:`keep` for up to so many observations, which then lie side by side."""
        return self.keep if self.block is None else self.block(length)

    def failure(self, phase: str, error: Exception, row: int | None = None) -> TdxError:
        """The error to raise instead of what the env raised, as env ``row`` of a batch."""
        if row is not None and isinstance(error, WrongValueError):
            error.in_row(row)
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


_DOUBLE = np.dtype(np.float64)
_Keeping = tuple[
    Callable[[Any], Any],
    Callable[[Sequence[Any]], dict[str, Any]],
    Callable[[Any], dict[str, Any]],
]


def _dense_form(codec: Codec) -> tuple[str, tuple[int, ...], np.dtype[Any]]:
    """Key, shape and dtype of an observation that is one array."""
    ((key, spec),) = root_spec(codec).items()
    assert codec.held is not None
    return str(key), tuple(spec.shape), codec.held


def _converted(
    observation: Any, key: str, shape: tuple[int, ...], held: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    try:
        return checked_array(observation, held, shape)
    except WrongValueError as wrong:
        raise wrong.below(key) from None


class DenseStore:
    """Memory for the observations of many steps, each one array.

    A chunk of float64 observations of a float32 space is kept as it comes and converted at once
    by :meth:`rows`, which costs less than a conversion in each step.

    Args:
        codec: of the observation.
        length: Number of observations.
    """

    def __init__(self, codec: Codec, length: int) -> None:
        self._key, self._shape, self._held = _dense_form(codec)
        self._rows = np.empty((length, *self._shape), self._held)

    def putter(self) -> Callable[[int, Any], None]:
        """Return what stores an observation at its place.

        The function raises ``WrongValueError`` for an observation that does not fit the space.
        """
        shape, held, key = self._shape, self._held, self._key
        rows, taken = self._rows, held

        def put(place: int, observation: Any) -> None:
            nonlocal rows, taken
            try:
                if observation.dtype is taken and observation.shape == shape:
                    rows[place] = observation
                    return
                if not place and _is_wider(observation.dtype, taken):
                    taken = observation.dtype
                    self._rows = rows = np.empty(rows.shape, taken)
                    put(place, observation)
                    return
            except AttributeError:
                pass
            rows[place] = _converted(observation, key, shape, held)

        return put

    def rows(self, length: int) -> np.ndarray[Any, Any]:
        """The first observations in the dtype of the space, ``[length, ...]``.

        Raises:
            WrongValueError: A number does not fit into the dtype; ``index`` says which one.
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
            _converted(rows[index], self._key, self._shape, self._held)
        except WrongValueError as wrong:
            wrong.index = index
            raise
        raise AssertionError("a number was lost and not found again")


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
        return _converted(observation, key, shape, held)

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

    Raises:
        WrongValueError: one is no number, or too large; ``index`` says which.
    """
    return torch.from_numpy(reward_rows(rewards))
