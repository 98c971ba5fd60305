"""Rollouts that a seed repeats, whatever random numbers the chain draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.envs import EnvBase


def seeded_rollout(
    env: EnvBase, steps: int, seed: int, *, to_first_done: bool = False
) -> TensorDictBase:
    """A rollout with random actions, ``[*B, T]``; torch's own generator is left as it was.

    Args:
        env: the env; it is seeded and reset.
        steps: how many steps.
        seed: of the env, and of the actions: those of a step depend on it, on the step and on the
            action spec alone.
        to_first_done: whether it ends with the first episode instead of going on.

    Example:
        >>> from tdx import PendulumEnv
        >>> one, other = (seeded_rollout(PendulumEnv(), 3, seed=0) for _ in range(2))
        >>> bool((one["next", "reward"] == other["next", "reward"]).all())
        True
    """
    import torch

    count = 0

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        nonlocal count
        torch.manual_seed(seed * 1_000_003 + count)
        count += 1
        return env.rand_action(tensordict)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        env.set_seed(seed)
        result: TensorDictBase = env.rollout(steps, policy, break_when_any_done=to_first_done)
    return result
