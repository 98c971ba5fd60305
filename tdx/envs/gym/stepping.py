"""The step and the reset of a single Gymnasium env, put together once from what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.error import ResetNeeded
from tensordict import TensorDict, TensorDictBase

from tdx.envs.gym.codec import Codec
from tdx.envs.gym.failures import env_failed
from tdx.envs.gym.infos import InfoReader
from tdx.envs.gym.values import reward_array
from tdx.errors import KeyNotFoundError, TdxError, Where
from tdx.keys import NestedKey, format_key
from tdx.tensordicts import read, tensordict_maker

if TYPE_CHECKING:
    from tdx.envs.gym.raw_rows import RawEnv

StepFields = Callable[[TensorDictBase], tuple[dict[str, Any], Any]]
Raw = tuple[Any, Any, Any, Any, dict[str, Any]]

_CPU = torch.device("cpu")
# Copies of these are the cheapest way to a fresh flag tensor.
_TRUE, _FALSE = np.ones(1, np.bool_), np.zeros(1, np.bool_)


@dataclass(slots=True)
class PendingSeed:
    """The seed for the next reset; Gymnasium seeds nowhere else.

    Args:
        value: none once it is used.
    """

    value: int | None = None

    def take(self) -> int | None:
        """The seed, once."""
        taken, self.value = self.value, None
        return taken


@dataclass(frozen=True, slots=True)
class Conversion:
    """All that stands between an env's own values and TensorDicts.

    Args:
        name: the env, as the user named it.
        observation: ``encode`` gives the root's entries by key.
        action: ``decode`` takes the whole TensorDict.
        action_keys: where its parts are.
        reward: the codec of an env that declares a reward space; otherwise one number an env.
        readers: what is read from ``info``.
        batch_size: the env's.
        device: the env's.
    """

    name: str
    observation: Codec
    action: Codec
    action_keys: tuple[NestedKey, ...]
    reward: Codec | None
    readers: tuple[InfoReader, ...]
    batch_size: torch.Size
    device: torch.device

    def act(self) -> Callable[[TensorDictBase], Any]:
        """The action of a TensorDict as the env takes it."""
        decode, keys = self.action.decode, self.action_keys
        if self.device.type == "cpu":
            return decode
        return lambda tensordict: decode(tensordict.select(*keys).to(_CPU))

    def finish(self) -> Callable[[TensorDict, Any], TensorDict] | None:
        """What is left to do with a result and its info; nothing in the common case."""
        readers, device = self.readers, self.device
        if not readers and device.type == "cpu":
            return None

        def finished(result: TensorDict, info: Any) -> TensorDict:
            for reader in readers:
                read_into = reader(info, result)
                result = result if read_into is None else read_into
            return result if device.type == "cpu" else result.to(device)

        return finished

    def failure(self, tensordict: TensorDictBase | None, phase: str, error: Exception) -> TdxError:
        """The error to raise instead of ``error``."""
        if tensordict is not None:
            for key in self.action_keys:
                if read(tensordict, key) is None:
                    return KeyNotFoundError(
                        f"the step's input has no {format_key(key)!r}",
                        hint="write an action first: env.rand_action(td), or a policy",
                        where=Where(env=self.name),
                    )
        return env_failed(self.name, phase, error)


def single_step(
    env_step: Callable[[Any], Raw], conversion: Conversion, begin: Callable[[], Any]
) -> StepFields:
    """The step of a single env: from the action's TensorDict to a plain dict, and the info.

    Args:
        env_step: the env's own step.
        conversion: from and to TensorDicts.
        begin: called where the env says that it was never reset.
    """
    act, observe, failure = conversion.act(), conversion.observation.encode, conversion.failure
    reward_of = None if conversion.reward is None else conversion.reward.encode
    tensor = torch.from_numpy
    true, false = _TRUE.copy, _FALSE.copy

    def step(tensordict: TensorDictBase) -> tuple[dict[str, Any], Any]:
        try:
            try:
                observation, reward, terminated, truncated, info = env_step(act(tensordict))
            except ResetNeeded:
                begin()
                observation, reward, terminated, truncated, info = env_step(act(tensordict))
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


class SingleEnv:
    """Steps and resets one env.

    Args:
        env: the Gymnasium env.
        seed: for its next reset.
        conversion: from and to TensorDicts.
    """

    def __init__(self, env: Any, seed: PendingSeed, conversion: Conversion) -> None:
        self._env = env
        self._seed = seed
        self.use(conversion)

    def use(self, conversion: Conversion) -> None:
        """Convert in another way from now on."""
        env, seed = self._env, self._seed
        self._conversion = conversion
        self._finish = conversion.finish()
        self._make = tensordict_maker(conversion.batch_size, _CPU)
        self._fields = single_step(env.step, conversion, lambda: env.reset(seed=seed.take()))

    @property
    def raw(self) -> RawEnv | None:
        """The env without TensorDicts, where nothing but its step belongs to a step."""
        from tdx.envs.gym.raw_rows import raw_env

        return raw_env(self._env, self._seed.take, self._conversion)

    @property
    def step_fields(self) -> StepFields | None:
        """The step as a plain dict, where nothing else is to be done with it."""
        return self._fields if self._finish is None else None

    def step(self, tensordict: TensorDictBase) -> TensorDict:
        """One step."""
        fields, info = self._fields(tensordict)
        result = self._make(fields)
        return result if self._finish is None else self._finish(result, info)

    def reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """Begin an episode, unless the ``_reset`` mask says not to."""
        mask = None if tensordict is None else read(tensordict, "_reset")
        if tensordict is not None and mask is not None and not bool(mask.any()):
            return unchanged(tensordict, self._conversion)
        seed = kwargs.pop("seed", self._seed.take())
        try:
            observation, info = self._env.reset(seed=seed, **kwargs)
            fields = self._conversion.observation.encode(observation)
        except Exception as error:
            raise self._conversion.failure(None, "reset", error) from error
        for flag in ("done", "terminated", "truncated"):
            fields[flag] = torch.from_numpy(_FALSE.copy())
        result = self._make(fields)
        return result if self._finish is None else self._finish(result, info)

    def probe(self, actions: Sequence[Any]) -> list[dict[str, Any]]:
        """The infos of a reset and of a few steps."""
        env = self._env
        infos = [env.reset()[1]]
        for action in actions:
            _, _, terminated, truncated, info = env.step(action)
            infos.append(info)
            if terminated or truncated:
                break
        return infos


def unchanged(tensordict: TensorDictBase, conversion: Conversion) -> TensorDictBase:
    """What the TensorDict holds already, for a reset that resets no row."""
    others = ["_reset", "next", *conversion.action_keys]
    return tensordict.exclude(*others)
