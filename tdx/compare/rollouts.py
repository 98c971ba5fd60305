"""Run two envs on the same actions, and compare their rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tdx.compare.edits import Explanation, Sides, renamed
from tdx.compare.explanations import explain, reproduces
from tdx.compare.values import (
    EXACT,
    Change,
    Tolerance,
    compare_entries,
    compare_tensors,
    float_tolerance,
)
from tdx.core.envs.done_flags import episode_end_keys
from tdx.foundation.keys import format_key, normalize_key, split_key
from tdx.foundation.text import dtype_name
from tdx.stacks.native import seed_run

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor

    from tdx.envs import EnvBase


_MAX_NUMBERS = 4_000_000
"""Numbers of a key that are explained: about 140 images of 84 x 84 pixels with four frames."""
_MIN_RECORDS = 8


def run_seeded_rollout(env: EnvBase, steps: int, seed: int) -> TensorDictBase:
    """Return a rollout ``[*B, T]`` with random actions that continues after the end of an episode.

    The actions of a step depend only on the seed, the step and the action spec, so two envs with
    the same action spec take the same actions.

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
    return compare_entries(_entries(a), _entries(b), tolerance, step_dim=a.ndim - 1)


def _entries(rollout: TensorDictBase) -> dict[str, Any]:
    keys = map(normalize_key, rollout.keys(True, True))
    return {format_key(key): rollout.get(key) for key in keys}


def explain_rollouts(
    a: TensorDictBase, b: TensorDictBase, changes: Mapping[str, Change | None]
) -> dict[str, Explanation]:
    """Return the edits that predict the values of a rollout from those of another one, by key.

    Nothing but both rollouts ``[*B, T]`` is known, so what a stage has received explains nothing.
    Of large images, the first steps are explained.

    Example:
        >>> from tdx import PendulumEnv
        >>> one = run_seeded_rollout(PendulumEnv(), 20, seed=0)
        >>> other = one.clone()
        >>> other["observation"] = 2 * other["observation"]
        >>> explain_rollouts(one, other, compare_rollouts(one, other))["observation"].text
        'it is multiplied by 2'
    """
    if a.shape != b.shape:
        return {}
    one, other = _entries(a), _entries(b)
    # Rows of a batch follow one another, each from the start of an episode.
    is_start = torch.zeros(a.shape, dtype=torch.bool)
    is_start[..., 0] = True
    following = a.get("next", a.empty())
    keys = [key for key in following.keys(True, True) if split_key(key)[-1] == "done"]
    for key in episode_end_keys(keys):
        is_start[..., 1:] |= following[key].reshape(*a.shape, -1).any(-1)[..., :-1].cpu()
    starts = tuple(is_start.flatten().nonzero().flatten().tolist())
    differing = {key: change for key, change in changes.items() if change is not None}
    extra = [key for key, change in differing.items() if change.kind == "extra"]
    explanations: dict[str, Explanation] = {}
    for key, change in differing.items():
        if change.kind == "missing":
            same = (name for name in extra if compare_tensors(one[key], other[name]) is None)
            if (name := next(same, None)) is not None:
                explanations[key] = renamed(key, name)
        # A dtype alone needs no explanation, and flags have too few values for one.
        is_value = change.kind in ("value", "spec") or change.size is not None
        values = [side[key] for side in (one, other)] if is_value else []
        if not values or not all(map(_is_number, values)):
            continue
        rows = [value.flatten(0, a.ndim - 1)[:, None] for value in values]
        count = max(_MAX_NUMBERS // max(value[:1].numel() for value in rows), _MIN_RECORDS)
        reference, target = (value[:count].cpu() for value in rows)
        tolerance = float_tolerance([dtype_name(value.dtype) for value in values])
        shown = tuple(start for start in starts if start < count)
        sides = Sides(reference, target, None, shown, tolerance)
        # What a step returns is most often what the next one starts from.
        known = explanations.get(key.removeprefix("next."))
        is_known = known is not None and reproduces(known, sides)
        explanation = known if is_known else explain(sides)
        if explanation is not None:
            explanations[key] = explanation
    if any(key.rpartition(".")[2] == "action" for key in differing):
        # Those of another rollout look like noise.
        explanations = {
            key: explanation
            for key, explanation in explanations.items()
            if explanation.kind != "noise"
        }
    return explanations


def _is_number(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype != torch.bool and not value.is_complex()


Record = tuple["Tensor", "Tensor", "Tensor | None"]
"""Values of a key in one step, ``[R, ...]`` each: of the reference, of the target, and what both
received, if it is known."""


def explain_records(
    records: Sequence[Record], starts: Sequence[int], tolerance: Tolerance
) -> Explanation | None:
    """Return the edits that predict the values of a target in consecutive steps.

    ``None``: no edit predicts the values, or their shapes change.
    """
    reference, target, received = (
        torch.stack([value for value in column if value is not None])
        if len({None if value is None else value.shape for value in column}) == 1
        and column[0] is not None
        else None
        for column in zip(*records, strict=True)
    )
    if reference is None or target is None:
        return None
    return explain(Sides(reference, target, received, tuple(starts), tolerance))
