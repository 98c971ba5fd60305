"""Construction of single and vector Gymnasium envs, with wrappers for pixels and frame skip."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tdx.envs.gym.codec import Layout
from tdx.envs.gym.env_codecs import entry_key, is_image, reward_encoder, reward_space_of
from tdx.envs.gym.failures import construction_error, log_mujoco_warnings
from tdx.envs.gym.registry import find_env
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
from tdx.errors import ArgumentError, EnvError, did_you_mean

AnyEnv = gymnasium.Env[Any, Any]
AnyVectorEnv = gymnasium.vector.VectorEnv[Any, Any, Any]

_MODES = ("sync", "async")


class RenderedPixels(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the rendered frame to the observation, at ``pixels``.

    Args:
        env: Env with ``render_mode="rgb_array"``.
        pixels_only: True to leave out the env's own observation.
    """

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
        self._entries: dict[str, spaces.Space[Any]] = {}
        if isinstance(env.observation_space, spaces.Dict):
            self._entries = dict(env.observation_space.spaces)
        elif not pixels_only:
            self._entries = {"observation": env.observation_space}
        if pixels_only:
            self._entries = {}
        pixels = spaces.Box(0, 255, frame.shape, np.uint8)
        self.observation_space = spaces.Dict({"pixels": pixels, **self._entries})

    def _frame(self) -> np.ndarray[Any, Any]:
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

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_pixels(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_pixels(observation), reward, terminated, truncated, info


class FrameSkip(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats every action and sums the rewards. Stops early if the episode ends.

    Args:
        env: Single env.
        steps: Number of times that an action is applied, at least 1.
    """

    uses_own_generator = True

    def __init__(self, env: AnyEnv, steps: int) -> None:
        super().__init__(env)
        self._steps = steps

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total: Any = 0.0
        for _ in range(self._steps):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def wrap_env(
    env: AnyEnv, *, from_pixels: bool, pixels_only: bool, frame_skip: int | None
) -> AnyEnv:
    """Wrap an env to skip frames and add pixels.

    An env whose observation is an image, or has ``pixels``, is not rendered.
    """
    if frame_skip is not None:
        env = FrameSkip(env, frame_skip)
    if from_pixels and not _has_pixels(env.observation_space):
        env = RenderedPixels(env, pixels_only)
    return env


def _has_pixels(space: spaces.Space[Any]) -> bool:
    return is_image(space) or (isinstance(space, spaces.Dict) and "pixels" in space.spaces)


def check_frame_skip(frame_skip: int | None) -> None:
    """Check the number of frames to skip.

    Raises:
        ArgumentError: It is not a positive integer.
    """
    if frame_skip is not None and (isinstance(frame_skip, bool) or frame_skip < 1):
        raise ArgumentError(
            f"frame_skip must be at least 1, got {frame_skip!r}",
            hint="use 1 to apply each action once, or leave it out for the env's default",
        )


def make_env(
    env_id: str,
    *,
    num_envs: int,
    vectorization_mode: str,
    from_pixels: bool,
    pixels_only: bool,
    frame_skip: int | None,
    kwargs: dict[str, Any],
    disable_env_checker: bool = True,
) -> AnyEnv | AnyVectorEnv:
    """Create a registered env, or a vector env of it that never resets by itself.

    Args:
        env_id: Id of the env, see :func:`~tdx.envs.gym.registry.find_env`.
        num_envs: Number of envs in a vector env. 0: a single env.
        vectorization_mode: ``"sync"`` or ``"async"``.
        from_pixels: True to add ``pixels``.
        pixels_only: True to leave out the env's own observation.
        frame_skip: Number of times that an action is applied. ``None``: the env's default.
        kwargs: Arguments for the env, whatever their names.
        disable_env_checker: True to disable Gymnasium's checks of the env.
    """
    _check_arguments(num_envs, vectorization_mode)
    check_frame_skip(frame_skip)
    spec = find_env(env_id)
    own = sorted(kwargs.keys() & {"max_episode_steps", "disable_env_checker"})
    options = {"disable_env_checker": disable_env_checker, **{name: kwargs[name] for name in own}}
    kwargs = {name: value for name, value in kwargs.items() if name not in own}
    if from_pixels:
        kwargs = {"render_mode": "rgb_array", **kwargs}
    if frame_skip is not None and "frameskip" in spec.kwargs and "frameskip" not in kwargs:
        # Atari envs skip 4 frames by default, which would be multiplied by frame_skip.
        kwargs, frame_skip = {**kwargs, "frameskip": frame_skip}, None
    # Set in the spec, since names could collide with parameters of gymnasium.make.
    spec = replace(spec, kwargs={**spec.kwargs, **kwargs})
    build = partial(_make_single, spec, from_pixels, pixels_only, frame_skip, options)
    try:
        if not num_envs:
            return build()
        return make_vector_env([partial(build, row) for row in range(num_envs)], vectorization_mode)
    except Exception as error:
        raise construction_error(env_id, spec.entry_point, error) from error


def _check_arguments(num_envs: object, vectorization_mode: str) -> None:
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 0:
        raise ArgumentError(
            f"num_envs must be an integer of at least 0, got {num_envs!r}",
            hint="use 0 for a single env without a batch dim",
        )
    if vectorization_mode not in _MODES:
        raise ArgumentError(
            f"vectorization_mode must be one of {', '.join(_MODES)}, got {vectorization_mode!r}",
            hint=did_you_mean(str(vectorization_mode), _MODES, f"use {next(iter(_MODES))!r}"),
        )


def _make_single(
    spec: Any,
    from_pixels: bool,
    pixels_only: bool,
    frame_skip: int | None,
    options: dict[str, Any],
    row: int | None = None,
) -> AnyEnv:
    with log_mujoco_warnings(spec.entry_point):
        env = gymnasium.make(spec, **options)
    try:
        env = wrap_env(env, from_pixels=from_pixels, pixels_only=pixels_only, frame_skip=frame_skip)
        if row is None:
            return env
        return CheckedValues(env, row)
    except Exception:
        env.close()
        raise


_SINGLE = Layout(None, categorical=True, remap_state=True)

Build = Callable[[], gymnasium.Env[Any, Any]]


class CheckedValues(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Checks the observations and rewards of an env of a vector env.

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
        self._check_observation = _root_check(env.observation_space)
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
            self._check_observation(observation)
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
    """Create the check of a space, which raises ``WrongValueError`` and does not copy arrays."""
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
    """Create a vector env that never resets by itself.

    Args:
        builds: Functions that create one env each.
        mode: ``"sync"``: all envs in this process; ``"async"``: one process for each.
    """
    kind: Any = SyncRows if mode == "sync" else AsyncRows
    created: SyncVectorEnv | AsyncVectorEnv = kind(
        builds, copy=False, autoreset_mode=AutoresetMode.DISABLED
    )
    return created
