"""Vector envs that preprocess in C++, where no stage is observed: those of ALE and envpool."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from gymnasium.vector import VectorEnv

from tdx.foundation.errors import ArgumentError

_ATARI = ("ale_py.vector_env", "AtariVectorEnv")
_ATARI_NAMES = (
    "frameskip",
    "maxpool",
    "repeat_action_probability",
    "grayscale",
    "img_height",
    "img_width",
    "stack_num",
    "noop_max",
    "use_fire_reset",
    "episodic_life",
    "life_loss_info",
    "reward_clipping",
)
"""Arguments of the constructor, in the order in which they act."""
_ENVPOOL = ("envpool.python.envpool", "EnvPoolMixin")
_ENVPOOL_OTHERS = frozenset(
    {
        "base_path",
        "batch_size",
        "env_seed",
        "gym_reset_return_info",
        "max_num_players",
        "num_envs",
        "num_threads",
        "reward_threshold",
        "thread_affinity_offset",
    }
)
"""Settings of envpool that do not change what an env observes, or whose value is in the specs."""


def is_envpool(env: object) -> bool:
    """Return True for an env of envpool."""
    return _has_base(env, _ENVPOOL)


def check_envpool(env: Any) -> None:
    """Check that an env of envpool is a synchronous vector env; accept any other env."""
    if not is_envpool(env):
        return
    batch_size, num_envs = env.config["batch_size"], env.config["num_envs"]
    if not isinstance(env, VectorEnv):
        raise ArgumentError(
            f"{type(env).__name__} is no VectorEnv of Gymnasium",
            hint="update envpool: version 1.2 is tested",
        )
    if batch_size != num_envs:
        raise ArgumentError(
            "a vector env whose batches do not have all envs is not supported",
            hint="leave out batch_size",
        )


def preprocessing_arguments(env: Any) -> Mapping[str, object]:
    """Return the arguments of the preprocessing of an env; empty if there is none, or unknown.

    The vector env of ALE does not keep them. They are in the spec of one that
    ``gymnasium.make_vec`` created.
    """
    if is_envpool(env):
        return {name: value for name, value in env.config.items() if name not in _ENVPOOL_OTHERS}
    spec = getattr(env, "spec", None)
    if not _has_base(env, _ATARI) or spec is None:
        return {}
    defaults = inspect.signature(type(env).__init__).parameters
    return {
        name: spec.kwargs.get(name, defaults[name].default)
        for name in _ATARI_NAMES
        if name in defaults
    }


def describe_preprocessing(env: object) -> Iterator[str]:
    """Say what happens inside a vector env in C++."""
    arguments = preprocessing_arguments(env)
    name = type(env).__name__
    text = ", ".join(f"{key}={value}" for key, value in arguments.items())
    if is_envpool(env):
        yield f"{name} runs in C++, whose stages are not shown; a reset keeps its seed: {text}"
    elif text:
        yield f"{name} preprocesses frames inside, whose stages are not shown: {text}"
    elif _has_base(env, _ATARI):
        yield (
            f"{name} preprocesses frames inside, which is not shown, and does not keep its "
            "arguments: create it by gymnasium.make_vec to list them"
        )


def _has_base(env: object, name: tuple[str, str]) -> bool:
    return any((kind.__module__, kind.__name__) == name for kind in type(env).__mro__)
