"""Gymnasium wrappers of tdx: frame skip, rendered pixels, and checks for vector envs."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from tdx.envs.gym.conversion import is_image, reward_encoder, reward_space_of
from tdx.envs.gym.interface import AnyEnv, AnySpace, AnyWrapper, Info, ResetResult, StepResult
from tdx.envs.gym.numeric_spaces import CodecOptions
from tdx.envs.gym.single_env import reward_array
from tdx.envs.gym.spaces import codec_of, entry_key
from tdx.envs.gym.values import (
    Check,
    WrongValueError,
    missing_value_error,
    require_elements,
    require_mapping,
    to_array,
)
from tdx.foundation.array_files import Array
from tdx.foundation.errors import ArgumentError, EnvError


class FrameSkip(AnyWrapper):
    """Repeats every action and sums the rewards. Stops early if the episode ends."""

    uses_own_generator = True

    def __init__(self, env: AnyEnv, steps: int) -> None:
        super().__init__(env)
        self._steps = steps

    def step(self, action: object) -> StepResult:
        total: Any = 0.0
        for _ in range(self._steps):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class RenderedPixels(AnyWrapper):
    """Adds the rendered frame of an env with ``render_mode="rgb_array"`` at ``pixels``."""

    uses_own_generator = True

    def __init__(self, env: AnyEnv, pixels_only: bool) -> None:
        super().__init__(env)
        if env.render_mode != "rgb_array":
            raise ArgumentError(
                f"from_pixels needs render_mode 'rgb_array', got {env.render_mode!r}",
                hint='create the env with gymnasium.make(..., render_mode="rgb_array")',
            )
        self._pixels_only = pixels_only
        env.reset()
        frame = self._frame()
        self._entries: dict[str, AnySpace] = {}
        if isinstance(env.observation_space, spaces.Dict):
            self._entries = dict(env.observation_space.spaces)
        elif not pixels_only:
            self._entries = {"observation": env.observation_space}
        if pixels_only:
            self._entries = {}
        pixels = spaces.Box(0, 255, frame.shape, np.uint8)
        self.observation_space = spaces.Dict({"pixels": pixels, **self._entries})

    def _frame(self) -> Array:
        frame = self.env.render()
        if not isinstance(frame, np.ndarray):
            raise EnvError(
                f"render() returned {type(frame).__name__} instead of an array",
                hint='create the env with render_mode="rgb_array"',
            )
        return frame

    def _with_pixels(self, observation: Any) -> dict[str, Any]:
        if self._pixels_only:
            return {"pixels": self._frame()}
        if isinstance(self.env.observation_space, spaces.Dict):
            return {"pixels": self._frame(), **observation}
        return {"pixels": self._frame(), "observation": observation}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> ResetResult:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_pixels(observation), info

    def step(self, action: object) -> StepResult:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_pixels(observation), reward, terminated, truncated, info


_SINGLE = CodecOptions(None, categorical=True, remap_state=True)


class CheckedValues(AnyWrapper):
    """Checks the observations and rewards of an env of a vector env.

    Gymnasium copies the values of all envs into one array, and ``None`` or a number that does
    not fit would change there unnoticed.
    """

    uses_own_generator = True

    def __init__(self, env: AnyEnv, row: int) -> None:
        super().__init__(env)
        self._row = row
        space = env.observation_space
        self._key = None
        if not isinstance(space, spaces.Dict):
            self._key = "pixels" if is_image(space) else "observation"
        self._check_observation = _check_of(space)
        reward_space = reward_space_of(env)
        self._check_reward: Check = reward_array
        if reward_space is not None:
            self._check_reward = reward_encoder(reward_space, _SINGLE)

    def reset(self, **kwargs: Any) -> ResetResult:
        observation, info = self.env.reset(**kwargs)
        self._check(observation)
        return observation, info

    def step(self, action: object) -> StepResult:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._check(observation)
        if type(reward) is not float:
            try:
                self._check_reward(reward)
            except WrongValueError as wrong:
                raise wrong.in_row(self._row) from None
        return observation, reward, terminated, truncated, info

    def _check(self, observation: object) -> None:
        try:
            self._check_observation(observation)
        except WrongValueError as wrong:
            if self._key is not None:
                wrong.below(self._key)
            raise wrong.in_row(self._row) from None


def _check_of(space: AnySpace) -> Check:
    """Create the check of a space, which raises ``WrongValueError`` and does not copy arrays."""
    if isinstance(space, spaces.Box):
        dtype, shape = np.dtype(space.dtype), space.shape

        def check_array(value: object) -> None:
            if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                to_array(value, dtype, shape)

        return check_array
    if isinstance(space, spaces.Dict):
        names = list(space.spaces)
        parts = [
            (name, entry_key(name, names, _SINGLE), _check_of(inner))
            for name, inner in space.spaces.items()
        ]

        def check_entries(value: object) -> None:
            mapping = require_mapping(value, names)
            for name, key, check_entry in parts:
                if name not in mapping:
                    raise missing_value_error(name).below(key)
                try:
                    check_entry(mapping[name])
                except WrongValueError as wrong:
                    raise wrong.below(key) from None

        return check_entries
    if isinstance(space, spaces.Tuple):
        checks = [_check_of(inner) for inner in space.spaces]

        def check_elements(value: object) -> None:
            elements = zip(checks, require_elements(value, len(checks)), strict=True)
            for index, (check, part) in enumerate(elements):
                try:
                    check(part)
                except WrongValueError as wrong:
                    raise wrong.below(str(index)) from None

        return check_elements
    return codec_of(space, _SINGLE).encode
