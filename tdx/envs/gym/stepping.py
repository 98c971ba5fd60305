"""Step and reset of a single Gymnasium env."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.error import ResetNeeded
from tensordict import TensorDict, TensorDictBase

from tdx.envs.gym.conversion import Conversion, PendingSeed, Raw, keep_current_values
from tdx.envs.gym.raw_rows import RawEnv, raw_env
from tdx.envs.gym.values import reward_array
from tdx.tensordicts import make_tensordict_factory, read

StepFields = Callable[[TensorDictBase], tuple[dict[str, Any], Any]]

_CPU = torch.device("cpu")
# Copies of these are the cheapest way to a fresh flag tensor.
_TRUE, _FALSE = np.ones(1, np.bool_), np.zeros(1, np.bool_)


def make_step(
    env_step: Callable[[Any], Raw], conversion: Conversion, reset_env: Callable[[], Any]
) -> StepFields:
    """Create the step function of a single env, which returns a plain dict and the info.

    Args:
        env_step: The env's own step.
        conversion: Conversion from and to TensorDicts.
        reset_env: Resets the env; called if the env was never reset.
    """
    act, observe, failure = (
        conversion.action_decoder(),
        conversion.observation.encode,
        conversion.failure,
    )
    reward_of = None if conversion.reward is None else conversion.reward.encode
    tensor = torch.from_numpy
    true, false = _TRUE.copy, _FALSE.copy

    def step(tensordict: TensorDictBase) -> tuple[dict[str, Any], Any]:
        try:
            try:
                observation, reward, terminated, truncated, info = env_step(act(tensordict))
            except ResetNeeded:
                reset_env()
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
        env: Gymnasium env.
        seed: Seed for its next reset.
        conversion: Conversion from and to TensorDicts.
    """

    def __init__(self, env: Any, seed: PendingSeed, conversion: Conversion) -> None:
        self._env = env
        self._seed = seed
        self.use(conversion)

    def use(self, conversion: Conversion) -> None:
        """Replace the conversion."""
        env, seed = self._env, self._seed
        self._conversion = conversion
        self._finish = conversion.result_finisher()
        self._make = make_tensordict_factory(conversion.batch_size, _CPU)
        self._fields = make_step(env.step, conversion, lambda: env.reset(seed=seed.take()))

    @property
    def raw(self) -> RawEnv | None:
        """The env without TensorDicts; ``None`` if a step needs more than the env's own step."""
        return raw_env(self._env, self._seed.take, self._conversion)

    @property
    def step_fields(self) -> StepFields | None:
        """Step function that returns a plain dict; ``None`` if results need further processing."""
        return self._fields if self._finish is None else None

    def step(self, tensordict: TensorDictBase) -> TensorDict:
        """Step the env."""
        fields, info = self._fields(tensordict)
        result = self._make(fields)
        return result if self._finish is None else self._finish(result, info)

    def reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """Start an episode, unless the ``_reset`` mask is false."""
        mask = None if tensordict is None else read(tensordict, "_reset")
        if tensordict is not None and mask is not None and not bool(mask.any()):
            return keep_current_values(tensordict, self._conversion)
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
        """Return the infos of a reset and a few steps."""
        env = self._env
        infos = [env.reset()[1]]
        for action in actions:
            _, _, terminated, truncated, info = env.step(action)
            infos.append(info)
            if terminated or truncated:
                break
        return infos
