"""Making Gymnasium envs, and the wrappers for pixels and frame skip."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tdx.envs.gym.containers import is_image
from tdx.envs.gym.failures import making_failed
from tdx.envs.gym.mujoco_warnings import logged_once
from tdx.envs.gym.registry import find_env
from tdx.errors import ArgumentError, EnvError, did_you_mean

AnyEnv = gymnasium.Env[Any, Any]
AnyVectorEnv = gymnasium.vector.VectorEnv[Any, Any, Any]

_MODES = ("sync", "async")


class RenderedPixels(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds what the env renders to its observation, at ``pixels``.

    Args:
        env: made with ``render_mode="rgb_array"``.
        pixels_only: whether the env's own observation is left out.
    """

    uses_own_generator = True

    def __init__(self, env: AnyEnv, pixels_only: bool) -> None:
        super().__init__(env)
        if env.render_mode != "rgb_array":
            raise ArgumentError(
                f"from_pixels needs an env that renders arrays, this one has render_mode "
                f"{env.render_mode!r}",
                hint='make it with gymnasium.make(..., render_mode="rgb_array")',
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
                hint='make the env with render_mode="rgb_array"',
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
    """Repeats every action and sums the rewards; stops early where the episode ends.

    Args:
        env: any single env.
        steps: how often an action is applied, at least 1.
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


def wrapped(env: AnyEnv, *, from_pixels: bool, pixels_only: bool, frame_skip: int | None) -> AnyEnv:
    """The env with frames skipped and pixels added as asked for.

    An env whose observation is an image (or has ``pixels``) already needs nothing rendered.
    """
    if frame_skip is not None:
        env = FrameSkip(env, frame_skip)
    if from_pixels and not _has_pixels(env.observation_space):
        env = RenderedPixels(env, pixels_only)
    return env


def _has_pixels(space: spaces.Space[Any]) -> bool:
    return is_image(space) or (isinstance(space, spaces.Dict) and "pixels" in space.spaces)


def check_frame_skip(frame_skip: int | None) -> None:
    """Raise where the number of frames is no positive integer."""
    if frame_skip is not None and (isinstance(frame_skip, bool) or frame_skip < 1):
        raise ArgumentError(
            f"frame_skip must be at least 1, got {frame_skip!r}",
            hint="1 applies each action once; leave it out for the env's own number of frames",
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
    """Make a registered env, or a vector env of it that never resets on its own.

    Args:
        env_id: see :func:`~tdx.envs.gym.registry.find_env`.
        num_envs: 0 for a single env.
        vectorization_mode: ``"sync"`` or ``"async"``.
        from_pixels: whether ``pixels`` are rendered.
        pixels_only: whether they replace the env's own observation.
        frame_skip: how often an action is repeated.
        kwargs: Arguments for the env, whatever their names.
        disable_env_checker: True leaves out Gymnasium's own checks of the env.
    """
    _check(num_envs, vectorization_mode)
    check_frame_skip(frame_skip)
    spec = find_env(env_id)
    own = sorted(kwargs.keys() & {"max_episode_steps", "disable_env_checker"})
    options = {"disable_env_checker": disable_env_checker, **{name: kwargs[name] for name in own}}
    kwargs = {name: value for name, value in kwargs.items() if name not in own}
    if from_pixels:
        kwargs = {"render_mode": "rgb_array", **kwargs}
    if frame_skip is not None and "frameskip" in spec.kwargs and "frameskip" not in kwargs:
        # Atari's envs skip frames themselves, 4 by default: the two would multiply.
        kwargs, frame_skip = {**kwargs, "frameskip": frame_skip}, None
    # In the spec no name of theirs can collide with a parameter of gymnasium.make.
    spec = replace(spec, kwargs={**spec.kwargs, **kwargs})
    build = partial(_make_single, spec, from_pixels, pixels_only, frame_skip, options)
    try:
        if not num_envs:
            return build()
        from tdx.envs.gym.vector_making import make_vector_env

        return make_vector_env([partial(build, row) for row in range(num_envs)], vectorization_mode)
    except Exception as error:
        raise making_failed(env_id, spec.entry_point, error) from error


def _check(num_envs: object, vectorization_mode: str) -> None:
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 0:
        raise ArgumentError(
            f"num_envs must be a whole number from 0, got {num_envs!r}",
            hint="0 is a single env without a batch dim",
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
    with logged_once(spec.entry_point):
        env = gymnasium.make(spec, **options)
    try:
        env = wrapped(env, from_pixels=from_pixels, pixels_only=pixels_only, frame_skip=frame_skip)
        if row is None:
            return env
        from tdx.envs.gym.vector_making import CheckedValues

        return CheckedValues(env, row)
    except Exception:
        env.close()
        raise
