"""Rollouts that a seed repeats, whatever random numbers the chain draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.envs import EnvBase


def seeded_rollout(env: EnvBase, steps: int, seed: int) -> TensorDictBase:
    """A rollout with random actions, ``[*B, T]``, that goes on after the end of an episode.

    Args:
        env: the env; it is seeded and reset.
        steps: how many steps.
        seed: of the env, and of the actions: those of a step depend on it, on the step and on the
            action spec alone.

    Example:
        >>> from tdx import PendulumEnv
        >>> one, other = (seeded_rollout(PendulumEnv(), 3, seed=0) for _ in range(2))
        >>> bool((one["next", "reward"] == other["next", "reward"]).all())
        True
    """
    with seeded_run(env, seed):
        result: TensorDictBase = env.rollout(
            steps, seeded_policy(env, seed), break_when_any_done=False
        )
    return result


@contextmanager
def seeded_run(env: EnvBase, seed: int) -> Iterator[None]:
    """Seed the env and torch's generator, which is afterwards as it was before."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        env.set_seed(seed)
        yield


def seeded_policy(env: EnvBase, seed: int) -> Callable[[TensorDictBase], TensorDictBase]:
    """Random actions, those of each step by the seed and the step alone."""
    import torch

    count = 0

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        nonlocal count
        torch.manual_seed(seed * 1_000_003 + count)
        count += 1
        return env.rand_action(tensordict)

    return policy
