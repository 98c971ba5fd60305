"""Envs of each family, and every wrapper of Gymnasium with arguments that fit an env."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector

# HumanRendering opens a window, which this driver does not show.
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def _made(name: str, limit: int = 20, **fixed: Any) -> Callable[..., Any]:
    def make(**kwargs: Any) -> Any:
        options = {"disable_env_checker": True, "max_episode_steps": limit, **fixed, **kwargs}
        return gym.make(name, **options)

    return make


def _pong(**kwargs: Any) -> Any:
    import ale_py

    gym.register_envs(ale_py)
    return _made("ALE/Pong-v5", frameskip=1)(**kwargs)


def _atari(**kwargs: Any) -> Any:
    return wrappers.AtariPreprocessing(_pong(**kwargs), noop_max=3)


def _grid(**kwargs: Any) -> Any:
    import minigrid  # noqa: F401 - registers its envs

    env = _made("MiniGrid-Empty-5x5-v0")(**kwargs)
    return wrappers.FilterObservation(env, ["image", "direction"])


def _grid_image(**kwargs: Any) -> Any:
    env = _grid(**kwargs)
    space = env.observation_space["image"]
    return wrappers.TransformObservation(env, lambda value: value["image"], space)


ENVS: dict[str, Callable[..., Any]] = {
    "CartPole": _made("CartPole-v1"),
    "Pendulum": _made("Pendulum-v1"),
    "MountainCarContinuous": _made("MountainCarContinuous-v0"),
    "FrozenLake": _made("FrozenLake-v1"),
    "Blackjack": _made("Blackjack-v1"),
    "InvertedPendulum": _made("InvertedPendulum-v5"),
    "HalfCheetah": _made("HalfCheetah-v5"),
    "Pong": _pong,
    "Pong, preprocessed": _atari,
    "MiniGrid": _grid,
    "MiniGrid, image": _grid_image,
}
"""Classic control, toy text, MuJoCo, Atari and MiniGrid."""
RENDERED = {"CartPole", "Pong", "MiniGrid"}
"""Envs that draw without OpenGL, one of each kind of image."""

Fits = Callable[[Any, Any], bool]
"""Returns True if a wrapper takes an env with this observation and action space."""


def _any(observation: Any, action: Any) -> bool:
    return True


def _box(observation: Any, action: Any) -> bool:
    return isinstance(observation, spaces.Box)


def _bounded(observation: Any, action: Any) -> bool:
    return _box(observation, action) and observation.is_bounded()


def _bounded_floats(observation: Any, action: Any) -> bool:
    return _bounded(observation, action) and observation.dtype.kind == "f"


def _vector(observation: Any, action: Any) -> bool:
    return _box(observation, action) and len(observation.shape) == 1


def _small_vector(observation: Any, action: Any) -> bool:
    return _vector(observation, action) and observation.is_bounded() and observation.shape[0] < 4


def _frame(observation: Any, action: Any) -> bool:
    return _bounded(observation, action) and len(observation.shape) in (2, 3)


def _color(observation: Any, action: Any) -> bool:
    return _frame(observation, action) and observation.shape[-1] == 3


def _nested(observation: Any, action: Any) -> bool:
    return isinstance(observation, spaces.Dict)


def _arrays(observation: Any, action: Any) -> bool:
    return isinstance(observation, spaces.Box | spaces.Discrete)


def _continuous(observation: Any, action: Any) -> bool:
    return isinstance(action, spaces.Box)


def _limited(observation: Any, action: Any) -> bool:
    return isinstance(observation, spaces.Dict | spaces.Tuple) or _vector(observation, action)


def _raw_atari(observation: Any, action: Any) -> bool:
    return _color(observation, action) and observation.shape == (210, 160, 3)


@dataclass(frozen=True)
class Recipe:
    """How a wrapper is created.

    Args:
        wrap: Returns the wrapper around an env.
        fits: Returns True if the wrapper takes the spaces of an env.
        renders: True if the env has to draw.
        state: Names of the state that the wrapper keeps.
    """

    wrap: Callable[[Any], Any]
    fits: Fits = _any
    renders: bool = False
    state: tuple[str, ...] = ()


_RMS = ("count", "mean", "var")
_MINUS: Any = np.float32(-1)
_PLUS: Any = np.float32(1)


def _first_keys(env: Any) -> list[str]:
    return sorted(env.observation_space.spaces)[:1]


def _reversed_shape(space: Any) -> tuple[int, ...]:
    return (*space.shape[::-1], 1)


def _quick(env: Any) -> Any:
    """Do not wait between two drawn frames."""
    env.metadata = {**env.metadata, "render_fps": 100_000}
    return env


RECIPES: dict[str, Recipe] = {
    "AddRenderObservation": Recipe(
        lambda env: wrappers.AddRenderObservation(env, render_only=True), renders=True
    ),
    "AddWhiteNoise": Recipe(lambda env: wrappers.AddWhiteNoise(env, 0.3), renders=True),
    "AtariPreprocessing": Recipe(
        lambda env: wrappers.AtariPreprocessing(env, noop_max=4, scale_obs=True),
        _raw_atari,
        state=("lives", "obs_buffer"),
    ),
    "Autoreset": Recipe(wrappers.Autoreset, state=("autoreset",)),
    "ClipAction": Recipe(wrappers.ClipAction, _continuous),
    "ClipReward": Recipe(lambda env: wrappers.ClipReward(env, -0.5, 0.5)),
    "DelayObservation": Recipe(
        lambda env: wrappers.DelayObservation(env, 2), _box, state=("observation_queue",)
    ),
    "DiscretizeAction": Recipe(lambda env: wrappers.DiscretizeAction(env, 3), _continuous),
    "DiscretizeObservation": Recipe(
        lambda env: wrappers.DiscretizeObservation(env, 5), _small_vector
    ),
    "DtypeObservation": Recipe(lambda env: wrappers.DtypeObservation(env, np.float64), _arrays),
    "FilterObservation": Recipe(
        lambda env: wrappers.FilterObservation(env, _first_keys(env)), _nested
    ),
    "FlattenObservation": Recipe(wrappers.FlattenObservation),
    "FrameStackObservation": Recipe(
        lambda env: wrappers.FrameStackObservation(env, 3), _box, state=("obs_queue",)
    ),
    "GrayscaleObservation": Recipe(wrappers.GrayscaleObservation, _color),
    "HumanRendering": Recipe(lambda env: wrappers.HumanRendering(_quick(env)), renders=True),
    "MaxAndSkipObservation": Recipe(lambda env: wrappers.MaxAndSkipObservation(env, 2), _box),
    "NormalizeObservation": Recipe(
        wrappers.NormalizeObservation, _box, state=tuple(f"obs_rms.{each}" for each in _RMS)
    ),
    "NormalizeReward": Recipe(
        wrappers.NormalizeReward,
        state=("discounted_reward", *(f"return_rms.{each}" for each in _RMS)),
    ),
    "ObstructView": Recipe(lambda env: wrappers.ObstructView(env, 0.3, 4), renders=True),
    "OrderEnforcing": Recipe(wrappers.OrderEnforcing, state=("_has_reset",)),
    "PassiveEnvChecker": Recipe(wrappers.PassiveEnvChecker, state=("checked_step",)),
    "RecordEpisodeStatistics": Recipe(
        wrappers.RecordEpisodeStatistics, state=("episode_lengths", "episode_returns")
    ),
    "RenderCollection": Recipe(wrappers.RenderCollection, renders=True),
    "RepeatAction": Recipe(lambda env: wrappers.RepeatAction(env, 2)),
    "RescaleAction": Recipe(lambda env: wrappers.RescaleAction(env, _MINUS, _PLUS), _continuous),
    "RescaleObservation": Recipe(
        lambda env: wrappers.RescaleObservation(env, _MINUS, _PLUS), _bounded_floats
    ),
    "ReshapeObservation": Recipe(
        lambda env: wrappers.ReshapeObservation(env, _reversed_shape(env.observation_space)), _box
    ),
    "ResizeObservation": Recipe(lambda env: wrappers.ResizeObservation(env, (12, 10)), _frame),
    "StickyAction": Recipe(lambda env: wrappers.StickyAction(env, 0.3, 2), state=("last_action",)),
    "TimeAwareObservation": Recipe(wrappers.TimeAwareObservation, _limited, state=("timesteps",)),
    "TimeLimit": Recipe(lambda env: wrappers.TimeLimit(env, 6), state=("_elapsed_steps",)),
    "TransformAction": Recipe(
        lambda env: wrappers.TransformAction(env, lambda action: action, env.action_space)
    ),
    "TransformObservation": Recipe(
        lambda env: wrappers.TransformObservation(
            env, lambda value: value[::-1], env.observation_space
        ),
        _frame,
    ),
    "TransformReward": Recipe(
        lambda env: wrappers.TransformReward(env, lambda reward: float(reward) + 1)
    ),
}
VECTOR_RECIPES: dict[str, Recipe] = {
    "ClipAction": Recipe(vector.ClipAction, _continuous),
    "ClipReward": Recipe(lambda env: vector.ClipReward(env, -0.5, 0.5)),
    "DictInfoToList": Recipe(vector.DictInfoToList),
    "DtypeObservation": Recipe(lambda env: vector.DtypeObservation(env, np.float64), _arrays),
    "FilterObservation": Recipe(lambda env: vector.FilterObservation(env, ["image"]), _nested),
    "FlattenObservation": Recipe(vector.FlattenObservation, _box),
    "GrayscaleObservation": Recipe(vector.GrayscaleObservation, _color),
    "HumanRendering": Recipe(lambda env: vector.HumanRendering(_quick(env)), renders=True),
    "NormalizeObservation": Recipe(
        vector.NormalizeObservation, _box, state=tuple(f"obs_rms.{each}" for each in _RMS)
    ),
    "NormalizeReward": Recipe(
        vector.NormalizeReward,
        state=("accumulated_reward", *(f"return_rms.{each}" for each in _RMS)),
    ),
    "RecordEpisodeStatistics": Recipe(
        vector.RecordEpisodeStatistics, state=("episode_lengths", "episode_returns")
    ),
    "RescaleAction": Recipe(lambda env: vector.RescaleAction(env, _MINUS, _PLUS), _continuous),
    "RescaleObservation": Recipe(
        lambda env: vector.RescaleObservation(env, _MINUS, _PLUS), _bounded_floats
    ),
    "ReshapeObservation": Recipe(
        lambda env: vector.ReshapeObservation(env, _reversed_shape(env.single_observation_space)),
        _box,
    ),
    "ResizeObservation": Recipe(lambda env: vector.ResizeObservation(env, (12, 10)), _frame),
    "TransformAction": Recipe(
        lambda env: vector.TransformAction(env, lambda actions: actions, env.action_space)
    ),
    "TransformObservation": Recipe(
        lambda env: vector.TransformObservation(env, lambda values: values[::1]), _box
    ),
    "TransformReward": Recipe(lambda env: vector.TransformReward(env, lambda reward: reward + 1)),
    "VectorizeTransformAction": Recipe(
        lambda env: vector.VectorizeTransformAction(env, wrappers.ClipAction), _continuous
    ),
    "VectorizeTransformObservation": Recipe(
        lambda env: vector.VectorizeTransformObservation(env, wrappers.FlattenObservation), _box
    ),
    "VectorizeTransformReward": Recipe(
        lambda env: vector.VectorizeTransformReward(
            env, wrappers.TransformReward, func=lambda reward: reward / 2
        )
    ),
}
NEEDS: dict[str, str] = {
    "ArrayConversion": "array_api_compat",
    "JaxToNumpy": "jax",
    "JaxToTorch": "jax",
    "NumpyToTorch": "array_api_compat",
    "RecordVideo": "moviepy",
}
"""Wrappers that need a package which is not among the dependencies of the tests."""


def make_wrapped(recipe: Recipe, env_name: str, num_envs: int | None = None) -> Any:
    """Create a wrapper around an env.

    Args:
        recipe: The wrapper.
        env_name: Name of the env.
        num_envs: Number of sub-envs of a vector env. ``None``: a single env.
    """
    make = partial(ENVS[env_name], **({"render_mode": "rgb_array"} if recipe.renders else {}))
    return recipe.wrap(make() if num_envs is None else SyncVectorEnv([make] * num_envs))


@cache
def _spaces(env_name: str) -> tuple[Any, Any]:
    env = ENVS[env_name]()
    env.close()
    return env.observation_space, env.action_space


def _fitting(recipe: Recipe) -> list[str]:
    """Return the names of the envs that a wrapper takes."""
    if recipe.renders:
        return [name for name in ENVS if name in RENDERED]
    return [name for name in ENVS if recipe.fits(*_spaces(name))]


def chosen(recipes: dict[str, Recipe], env_name: str, everything: bool = False) -> list[str]:
    """Return the names of the wrappers to test on an env.

    Args:
        recipes: The wrappers.
        env_name: Name of the env.
        everything: Return all wrappers that take it. Otherwise each wrapper is tested on one env.
    """
    found = []
    for index, (name, recipe) in enumerate(recipes.items()):
        envs = _fitting(recipe)
        # Frames of Atari games are slow.
        quick = [env for env in envs if not env.startswith("Pong")] or envs
        if env_name in (envs if everything else [quick[index % len(quick)]]):
            found.append(name)
    return found
