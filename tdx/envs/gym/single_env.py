"""Step and reset of a single Gymnasium env, with TensorDicts or with raw values for loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.error import ResetNeeded
from tensordict import TensorDict, TensorDictBase

from tdx.core.envs.capabilities import StepFields
from tdx.envs.gym.conversion import Conversion, root_spec
from tdx.envs.gym.interface import AnyEnv, Batch, Info, StepResult
from tdx.envs.gym.observation_store import (
    EntryRows,
    MappedStore,
    ObservationStore,
    create_store,
    stack_entries,
)
from tdx.envs.gym.values import WrongValueError, as_numbers, cast_numbers, wrong_value_error
from tdx.foundation.array_files import Array
from tdx.foundation.errors import TdxError
from tdx.foundation.tensordicts import make_tensordict_factory, read
from tdx.specs.arguments import Value

Step = Callable[[object], StepResult]

_CPU = torch.device("cpu")
# Copies of these are the cheapest way to a fresh flag tensor.
_TRUE, _FALSE = np.ones(1, np.bool_), np.zeros(1, np.bool_)


@dataclass(slots=True)
class PendingSeed:
    """Seed for the next reset, until it is used. Gymnasium seeds an env only in ``reset``."""

    value: int | None = None

    def take(self) -> int | None:
        """Return the seed and clear it."""
        taken, self.value = self.value, None
        return taken


class SingleEnv:
    """Steps and resets one env."""

    def __init__(self, env: AnyEnv, seed: PendingSeed, conversion: Conversion) -> None:
        self.env = env
        self._seed = seed
        self.use(conversion)

    def use(self, conversion: Conversion) -> None:
        """Replace the conversion."""
        env, seed = self.env, self._seed
        self.conversion, self._observe = conversion, _observer(conversion)
        self.finish = conversion.result_finisher()
        self._make = make_tensordict_factory(conversion.batch_size, _CPU)
        self._step_fields = _create_step(env.step, conversion, lambda: env.reset(seed=seed.take()))

    @property
    def raw(self) -> RawEnv | None:
        """The env without TensorDicts; ``None`` if a step needs more than the env's own step."""
        return create_raw_env(self.env, self._seed.take, self.conversion)

    @property
    def step_fields(self) -> StepFields | None:
        """Step function that returns a plain dict; ``None`` if results need further processing."""
        return self._step_fields if self.finish is None else None

    def step(self, tensordict: TensorDictBase) -> TensorDict:
        """Step the env."""
        fields, info = self._step_fields(tensordict)
        result = self._make(fields)
        return result if self.finish is None else self.finish(result, info)

    def reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """Start an episode, unless the ``_reset`` mask is false."""
        mask = None if tensordict is None else read(tensordict, "_reset")
        if tensordict is not None and mask is not None and not bool(mask.any()):
            return self.conversion.keep_current_values(tensordict)
        seed = kwargs.pop("seed", self._seed.take())
        try:
            observation, info = self.env.reset(seed=seed, **kwargs)
            fields = self._observe(observation)
        except Exception as error:
            raise self.conversion.failure(None, "reset", error) from error
        for flag in ("done", "terminated", "truncated"):
            fields[flag] = torch.from_numpy(_FALSE.copy())
        result = self._make(fields)
        return result if self.finish is None else self.finish(result, info)

    def probe(self, actions: Sequence[object]) -> list[Info]:
        """Return the infos of a reset and a few steps."""
        env = self.env
        infos = [env.reset()[1]]
        for action in actions:
            _, _, terminated, truncated, info = env.step(action)
            infos.append(info)
            if terminated or truncated:
                break
        return infos


def _array_action(tensordict: TensorDictBase) -> Array:
    """Return the action or the actions in a TensorDict, which need no conversion."""
    array: Array = read(tensordict, "action").numpy(force=True)
    return array


def _observer(conversion: Conversion) -> Callable[[object], dict[str, Value]]:
    """Return the function that converts an observation to root entries."""
    encode, form = conversion.observation.encode, conversion.array
    if form is None:
        return encode
    key, shape, dtype = form.key, form.shape, form.dtype
    array, tensor = np.ndarray, torch.from_numpy

    def observe(value: object) -> dict[str, Value]:
        if type(value) is array and value.dtype is dtype and value.shape == shape:
            return {key: tensor(value.copy())}
        return encode(value)

    return observe


def _create_step(
    env_step: Callable[[object], StepResult],
    conversion: Conversion,
    reset_env: Callable[[], object],
) -> StepFields:
    """Create the step function of a single env, which returns a plain dict and the info.

    ``reset_env`` is called if the env was never reset.
    """
    takes_array = conversion.action.array_dtype is not None and conversion.device.type == "cpu"
    act = _array_action if takes_array else conversion.action_decoder()
    observe = _observer(conversion)
    reward_of = None if conversion.reward is None else conversion.reward.encode
    tensor, failure = torch.from_numpy, conversion.failure
    true, false = _TRUE.copy, _FALSE.copy

    def step(tensordict: TensorDictBase) -> tuple[dict[str, Value], Info]:
        try:
            action = act(tensordict)
            try:
                observation, reward, terminated, truncated, info = env_step(action)
            except ResetNeeded:
                reset_env()
                observation, reward, terminated, truncated, info = env_step(action)
            fields = observe(observation)
            if reward_of is None:
                fields["reward"] = tensor(reward_array(reward))
            else:
                fields["reward"] = reward_of(reward)
        except Exception as error:
            raise failure(tensordict, "step", error) from error
        fields["done"] = tensor(true() if terminated or truncated else false())
        fields["terminated"] = tensor(true() if terminated else false())
        fields["truncated"] = tensor(true() if truncated else false())
        return fields, info

    return step


# Steps in loops

NEVER = 2**62
"""A step that no rollout reaches."""


@dataclass(frozen=True, slots=True)
class RawEnv:
    """A single Gymnasium env, with the conversion of many of its values to and from tensors.

    Values of several steps are converted at once, which costs a tenth of a TensorDict per step.
    """

    step: Step
    reset: Callable[[], object]  # with the pending seed; returns the observation
    # copies an observation, so that it shares no memory with the env
    keep: Callable[[object], object]
    stack: Callable[[Batch], dict[str, Value]]  # converts copied observations to entries [T, ...]
    # Converts the actions in a TensorDict [T] to a sequence for step().
    decode: Callable[[TensorDictBase], Batch]
    conversion: Conversion
    create_store: Callable[[int], ObservationStore]  # returns memory for a number of observations

    @property
    def flat(self) -> bool:
        """True if all entries of an observation are at the root."""
        spec = root_spec(self.conversion.observation)
        return all(isinstance(key, str) for key in spec.keys(True, True))

    @property
    def observes_array(self) -> bool:
        """True if an observation is a single array."""
        return self.conversion.array is not None

    def mapping(self, function: Callable[..., Array], shape: tuple[int, ...], kept: int) -> RawEnv:
        """Return the env with each observation mapped to a new float32 array when it is copied.

        Only for envs with a single array as observation. The second argument of ``function`` is the
        output array or ``None``. The last observations of ``kept`` envs are kept as they are.
        """
        form = self.conversion.array
        assert form is not None

        def create(length: int) -> ObservationStore:
            return MappedStore(form, length, function, shape, kept)

        def keep(observation: object) -> object:
            return function(form.check(observation), None)

        return replace(self, keep=keep, create_store=create)

    def step_with_first_reset(self) -> Step:
        """Return the step; it resets an env that was never reset, as a single step does."""
        step, reset = self.step, self.reset

        def step_after_reset(action: object) -> StepResult:
            try:
                return step(action)
            except ResetNeeded:
                reset()
                return step(action)

        return step_after_reset

    def failure(self, phase: str, error: Exception, row: int | None = None) -> TdxError:
        """Create the error to raise for an error of the env, which is env ``row`` of a batch."""
        if row is not None and isinstance(error, WrongValueError):
            error.in_row(row)
        failure = self.conversion.failure(None, phase, error)
        if row is not None:
            failure.at(row=row)
        return failure


def create_raw_env(
    env: AnyEnv, take_seed: Callable[[], int | None], conversion: Conversion
) -> RawEnv | None:
    """Create the env without TensorDicts; ``None`` if its step does more than that supports.

    ``take_seed`` returns the seed for its next reset, once.
    """
    if conversion.readers or conversion.device.type != "cpu" or conversion.reward is not None:
        return None
    form, action = conversion.array, conversion.action
    tensor, array = torch.from_numpy, np.array

    def keep_array(observation: object) -> Array:
        assert form is not None
        checked = form.check(observation)
        return array(checked) if checked is observation else checked

    def stack_arrays(rows: Batch) -> dict[str, Value]:
        assert form is not None
        return {form.key: tensor(rows if isinstance(rows, np.ndarray) else array(rows))}

    def stack_encoded(rows: Batch) -> dict[str, Value]:
        return rows.stack() if isinstance(rows, EntryRows) else stack_entries(list(rows))

    def reset() -> object:
        return env.reset(seed=take_seed())[0]

    def decode(tensordict: TensorDictBase) -> Sequence[object]:
        return [action.decode(row) for row in tensordict.unbind(0)]

    many: Callable[[TensorDictBase], Batch] = action.decode_rows or decode
    if action.array_dtype is not None:
        many = _array_action
    create = partial(create_store, conversion)
    if form is None:
        keep, stack = conversion.observation.encode, stack_encoded
    else:
        keep, stack = keep_array, stack_arrays
    return RawEnv(env.step, reset, keep, stack, many, conversion, create)


# Rewards

_REWARD_DTYPE = np.dtype(np.float32)
_REWARD_MAX = float(np.finfo(_REWARD_DTYPE).max)
_REWARD_HINT = (
    "fix the env: step must return a number; for vector rewards the env needs a reward_space"
)
_REWARD_RANGE_HINT = f"fix the env: rewards are stored as float32, which ends at {_REWARD_MAX:g}"


def reward_array(reward: object) -> Array:
    """Convert one reward to a new float32 array of shape ``[1]``."""
    # np.float64, which most envs return, is a float too.
    if isinstance(reward, float) and -_REWARD_MAX <= reward <= _REWARD_MAX:
        return np.array(reward, _REWARD_DTYPE, ndmin=1)
    return reward_rows([reward])[0]


def reward_rows(rewards: Sequence[object]) -> Array:
    """Convert the rewards of ``T`` steps to a float32 array of shape ``[T, 1]``.

    Raises:
        WrongValueError: A reward is not a number, or too large for float32; ``index`` is its
            position.
    """
    try:
        source: Array = np.asarray(rewards)
    except ValueError:
        source = np.empty(0, object)
    if source.dtype.kind in "biuf" and source.size == len(rewards):
        with np.errstate(over="ignore"):
            rows = source.astype(_REWARD_DTYPE).reshape(-1, 1)
        if np.isfinite(rows).all():
            return rows
    converted = []
    for index, reward in enumerate(rewards):
        hint = _REWARD_HINT
        try:
            source = as_numbers(reward, "a number")
            if source.size != 1:
                raise wrong_value_error(source, "a number")
            hint = _REWARD_RANGE_HINT
            converted.append(cast_numbers(source, _REWARD_DTYPE).reshape(1))
        except WrongValueError as wrong:
            raise WrongValueError(wrong.problem, hint, ("reward",), index=index) from None
    return np.stack(converted)
