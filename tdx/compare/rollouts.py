"""Run two envs on the same actions, and compare their rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tdx.compare.values import EXACT, Change, Tolerance, compare_entries
from tdx.foundation.keys import format_key, normalize_key
from tdx.stacks.native import seed_run

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.envs import EnvBase


def run_seeded_rollout(env: EnvBase, steps: int, seed: int) -> TensorDictBase:
    """Return a rollout ``[*B, T]`` with random actions that continues after the end of an episode.

    The actions of a step depend only on the seed, the step and the action spec, so two envs with
    the same action spec take the same actions.

    Args:
        env: Env; it is seeded and reset.
        steps: Number of steps.
        seed: Seed of the env and of the actions.

    Example:
        >>> from tdx import PendulumEnv
        >>> one, other = (run_seeded_rollout(PendulumEnv(), 3, seed=0) for _ in range(2))
        >>> any(compare_rollouts(one, other).values())
        False
    """
    step = 0

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        nonlocal step
        torch.manual_seed(seed * 1_000_003 + step)
        step += 1
        return env.rand_action(tensordict)

    with seed_run(env, seed):
        result: TensorDictBase = env.rollout(steps, policy, break_when_any_done=False)
    return result


def compare_rollouts(
    a: TensorDictBase, b: TensorDictBase, tolerance: Tolerance = EXACT
) -> dict[str, Change | None]:
    """Compare every key of two rollouts ``[*B, T]``; ``None`` for those that agree."""
    one, other = (
        {format_key(key): side.get(key) for key in map(normalize_key, side.keys(True, True))}
        for side in (a, b)
    )
    return compare_entries(one, other, tolerance, step_dim=a.ndim - 1)
