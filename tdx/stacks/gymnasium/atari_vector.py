"""The preprocessing inside ALE's own vector env: it skips, resizes and stacks frames in C++."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

_CLASS = ("ale_py.vector_env", "AtariVectorEnv")
_NAMES = (
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


def preprocessing_arguments(env: Any) -> Mapping[str, object]:
    """Return the arguments of the preprocessing of an env; empty if there is none, or unknown.

    The env does not keep them. They are in the spec of an env that ``gymnasium.make_vec`` created.

    Args:
        env: Any env.
    """
    spec = getattr(env, "spec", None)
    if not _is_atari_vector(env) or spec is None:
        return {}
    defaults = inspect.signature(type(env).__init__).parameters
    return {
        name: spec.kwargs.get(name, defaults[name].default) for name in _NAMES if name in defaults
    }


def describe_preprocessing(env: Any) -> Iterator[str]:
    """Say what happens inside the vector env of ALE, where no stage is observed.

    Args:
        env: Any env.
    """
    if not _is_atari_vector(env):
        return
    arguments = preprocessing_arguments(env)
    name = type(env).__name__
    if not arguments:
        yield (
            f"{name} preprocesses frames inside, which is not shown, and does not keep its "
            "arguments: create it by gymnasium.make_vec to list them"
        )
        return
    text = ", ".join(f"{key}={value}" for key, value in arguments.items())
    yield f"{name} preprocesses frames inside, whose stages are not shown: {text}"


def _is_atari_vector(env: object) -> bool:
    return any((kind.__module__, kind.__name__) == _CLASS for kind in type(env).__mro__)
