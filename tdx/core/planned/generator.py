"""Whether an env draws from torch's global generator, as random actions do.

Actions for many steps are drawn at once, which gives the numbers of as many single draws only if
nothing else draws in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.core.envs import EnvBase
from tdx.envs.batched.parallel import ParallelEnv
from tdx.envs.batched.serial import SerialEnv
from tdx.envs.gym.wrapper import GymWrapper
from tdx.envs.native.native_env import NativeEnv

# Packages whose envs have generators of their own.
_OWN_GENERATORS = ("gymnasium.", "ale_py.", "minigrid.", "tdx.")
_FLAG = "_leaves_generator_alone"


def leaves_generator_alone(base: EnvBase) -> bool | None:
    """Whether the env does not touch the global generator; ``None`` if that is not known yet."""
    known: bool | None = base.__dict__.get(_FLAG)
    if known is not None:
        return known
    if isinstance(base, ParallelEnv):
        return True
    if isinstance(base, SerialEnv):
        return _all_of([leaves_generator_alone(env) for env in base._envs])
    if isinstance(base, NativeEnv):
        return True if _is_known(base) else None
    if isinstance(base, GymWrapper) and _is_known(base):
        return True if _made_of_known(base._env) else None
    return None


def remember(base: EnvBase, alone: bool) -> None:
    """Keep what was found out of an env."""
    base.__dict__[_FLAG] = alone


def _all_of(answers: list[bool | None]) -> bool | None:
    if all(answers):
        return True
    return False if any(answer is False for answer in answers) else None


def _is_known(value: object) -> bool:
    return type(value).__module__.startswith(_OWN_GENERATORS)


def _made_of_known(env: Any) -> bool:
    """Whether a Gymnasium env and all wrappers around it are of known packages."""
    if not _is_known(env):
        return False
    inner = getattr(env, "envs", None)
    if inner is not None:
        return all(_made_of_known(each) for each in inner)
    below = env.__dict__.get("env")
    return below is None or _made_of_known(below)


def same_state(one: Tensor, other: Tensor) -> bool:
    """Whether two states of a generator are the same; no operation of torch."""
    return bool(np.array_equal(one.numpy(), other.numpy()))


class Probe:
    """Draws one by one, and finds out whether anything else drew in between.

    Args:
        draw: draws once.
    """

    def __init__(self, draw: Callable[[], Any]) -> None:
        self._draw = draw
        self._count = 0
        self._before = torch.get_rng_state()

    def __call__(self) -> Any:
        """One draw."""
        self._count += 1
        return self._draw()

    def begin(self) -> None:
        """Look from here on."""
        self._count, self._before = 0, torch.get_rng_state()

    def was_alone(self) -> bool:
        """Whether as many draws alone lead to where the generator is now."""
        now = torch.get_rng_state()
        torch.set_rng_state(self._before)
        for _ in range(self._count):
            self._draw()
        alone = same_state(torch.get_rng_state(), now)
        torch.set_rng_state(now)
        return alone
