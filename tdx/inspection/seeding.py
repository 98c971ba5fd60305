"""Rollouts that are reproducible from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tdx.stacks.native import seed_run

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.envs import EnvBase


def run_seeded_rollout(env: EnvBase, steps: int, seed: int) -> TensorDictBase:
    """Return a rollout ``[*B, T]`` with random actions that continues after the end of an episode.

    Args:
        env: Env; it is seeded and reset.
        steps: Number of steps.
        seed: Seed of the env and of the actions. The actions of a step depend only on the seed, the
            step and the action spec.

    Example:
        >>> from tdx import PendulumEnv
        >>> one, other = (run_seeded_rollout(PendulumEnv(), 3, seed=0) for _ in range(2))
        >>> bool((one["next", "reward"] == other["next", "reward"]).all())
        True
    """
    with seed_run(env, seed):
        result: TensorDictBase = env.rollout(
            steps, make_seeded_policy(env, seed), break_when_any_done=False
        )
    return result


def make_seeded_policy(env: EnvBase, seed: int) -> Callable[[TensorDictBase], TensorDictBase]:
    """Return a random policy whose actions depend only on the seed and the step."""
    import torch

    step = 0

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        nonlocal step
        torch.manual_seed(seed * 1_000_003 + step)
        step += 1
        return env.rand_action(tensordict)

    return policy
