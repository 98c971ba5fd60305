"""Run two envs on the same actions, and compare their rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tdx.compare.edits import Explanation, Sides
from tdx.compare.explanations import explain
from tdx.compare.values import EXACT, Change, Tolerance, compare_entries
from tdx.foundation.keys import format_key, normalize_key
from tdx.stacks.native import seed_run

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor

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


Record = tuple["Tensor", "Tensor", "Tensor | None"]
"""Values of a key in one step, ``[R, ...]`` each: of the reference, of the target, and what both
received, if it is known."""


def explain_records(
    records: Sequence[Record], starts: Sequence[int], tolerance: Tolerance
) -> Explanation | None:
    """Return the edits that predict the values of a target in consecutive steps.

    Args:
        records: The values.
        starts: Records in which an episode starts.
        tolerance: Largest difference that counts as equal.

    Returns:
        The explanation; ``None`` if no edit predicts the values, their shapes change, or those of
        the reference are the same in all steps.
    """
    reference, target, received = (
        torch.stack([value for value in column if value is not None])
        if len({None if value is None else value.shape for value in column}) == 1
        and column[0] is not None
        else None
        for column in zip(*records, strict=True)
    )
    # Many edits turn a constant into another one.
    if reference is None or target is None or bool((reference == reference[:1]).all()):
        return None
    return explain(Sides(reference, target, received, tuple(starts), tolerance))
