"""Vector envs of registered envs: checked values, and rewards of any shape."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tdx.envs.gym.codec import Layout
from tdx.envs.gym.containers import entry_key, is_image
from tdx.envs.gym.env_codecs import reward_encoder, reward_space_of
from tdx.envs.gym.spaces import codec_of
from tdx.envs.gym.values import (
    Check,
    WrongValueError,
    checked_array,
    checked_elements,
    checked_mapping,
    missing_value,
    reward_array,
)

_SINGLE = Layout(None, categorical=True, remap_state=True)

Build = Callable[[], gymnasium.Env[Any, Any]]


class CheckedValues(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Checks what an env of a vector env returns.

    Gymnasium copies the values of all envs into one array, and ``None`` or a number that does
    not fit would change there unnoticed.

    Args:
        env: The env.
        row: Its index in the vector env.
    """

    uses_own_generator = True

    def __init__(self, env: gymnasium.Env[Any, Any], row: int) -> None:
        super().__init__(env)
        self._row = row
        self._check = _root_check(env.observation_space)
        space = reward_space_of(env)
        self._check_reward = reward_array if space is None else reward_encoder(space, _SINGLE)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        self._checked(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._checked(observation)
        if type(reward) is not float:
            try:
                self._check_reward(reward)
            except WrongValueError as wrong:
                raise wrong.in_row(self._row) from None
        return observation, reward, terminated, truncated, info

    def _checked(self, observation: Any) -> None:
        try:
            self._check(observation)
        except WrongValueError as wrong:
            raise wrong.in_row(self._row) from None


def _root_check(space: spaces.Space[Any]) -> Check:
    if isinstance(space, spaces.Dict):
        return _check_of(space)
    check, key = _check_of(space), "pixels" if is_image(space) else "observation"

    def check_root(value: Any) -> None:
        try:
            check(value)
        except WrongValueError as wrong:
            raise wrong.below(key) from None

    return check_root


def _check_of(space: spaces.Space[Any]) -> Check:
    """What raises ``WrongValueError`` for a value that cannot be stored; arrays are not copied."""
    if isinstance(space, spaces.Box):
        return _box_check(space)
    if isinstance(space, spaces.Dict):
        return _dict_check(space)
    if isinstance(space, spaces.Tuple):
        checks = [_check_of(inner) for inner in space.spaces]

        def check_elements(value: Any) -> None:
            parts = zip(checks, checked_elements(value, len(checks)), strict=True)
            for index, (check, part) in enumerate(parts):
                try:
                    check(part)
                except WrongValueError as wrong:
                    raise wrong.below(str(index)) from None

        return check_elements
    return codec_of(space, _SINGLE).encode


def _box_check(space: spaces.Box) -> Check:
    held, shape = np.dtype(space.dtype), space.shape

    def check(value: Any) -> None:
        if type(value) is not np.ndarray or value.dtype is not held or value.shape != shape:
            checked_array(value, held, shape)

    return check


def _dict_check(space: spaces.Dict) -> Check:
    names = list(space.spaces)
    parts = [
        (name, entry_key(name, names, _SINGLE), _check_of(inner))
        for name, inner in space.spaces.items()
    ]

    def check(value: Any) -> None:
        given = checked_mapping(value, names)
        for name, key, check_entry in parts:
            if name not in given:
                raise missing_value(name).below(key)
            try:
                check_entry(given[name])
            except WrongValueError as wrong:
                raise wrong.below(key) from None

    return check


class SyncRows(SyncVectorEnv):
    """A ``SyncVectorEnv`` whose rewards may be arrays."""

    uses_own_generator = True

    def __init__(self, env_fns: list[Build], **kwargs: Any) -> None:
        super().__init__(env_fns, **kwargs)
        self.single_reward_space = reward_space_of(self.envs[0])
        if self.single_reward_space is not None:
            self._rewards = np.zeros((self.num_envs, *self.single_reward_space.shape))


class AsyncRows(AsyncVectorEnv):
    """An ``AsyncVectorEnv`` whose rewards may be arrays, and whose errors are only raised."""

    uses_own_generator = True

    def __init__(self, env_fns: list[Build], **kwargs: Any) -> None:
        found: list[spaces.Box | None] = []

        def first() -> gymnasium.Env[Any, Any]:
            env = env_fns[0]()
            found.append(reward_space_of(env))
            return env

        # It makes the first env in this process, to read the spaces.
        super().__init__([first, *env_fns[1:]], **kwargs)
        self.single_reward_space = found[0] if found else None

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        if all(successes):
            return
        with warnings.catch_warnings():
            # Gymnasium reports the traceback of the worker as warnings.
            warnings.simplefilter("ignore")
            super()._raise_if_errors(successes)


def make_vector_env(builds: list[Build], mode: str) -> SyncVectorEnv | AsyncVectorEnv:
    """Make a vector env that never resets on its own.

    Args:
        builds: Functions that make one env each.
        mode: ``"sync"``, all envs in this process, or ``"async"``, a process each.
    """
    kind: Any = SyncRows if mode == "sync" else AsyncRows
    made: SyncVectorEnv | AsyncVectorEnv = kind(
        builds, copy=False, autoreset_mode=AutoresetMode.DISABLED
    )
    return made
