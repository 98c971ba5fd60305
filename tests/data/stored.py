"""Data to store, whose every step says which episode it is of."""

from __future__ import annotations

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor


def rollout(lengths: list[int], first: int = 0, ended: bool = True) -> TensorDictBase:
    """Whole episodes one behind the other, ``[T]``, as ``EnvBase.rollout`` gives them.

    Args:
        lengths: the number of steps of each episode.
        first: the number of the first episode.
        ended: whether the last one is done; else it is cut.
    """
    episode = torch.cat([torch.full((n,), first + i) for i, n in enumerate(lengths)])
    step = torch.cat([torch.arange(n) for n in lengths])
    done = torch.cat([torch.arange(n) == n - 1 for n in lengths])
    if not ended:
        done[-1] = False
    count = len(step)
    return TensorDict(
        {
            "observation": observed(episode, step),
            "action": torch.arange(2.0 * count).reshape(count, 2),
            "episode": episode,
            "step": step,
            "next": {
                "observation": observed(episode, step + 1),
                "reward": step.float().unsqueeze(-1) + 1,
                "done": done.unsqueeze(-1),
                "terminated": done.unsqueeze(-1).clone(),
                "truncated": torch.zeros(count, 1, dtype=torch.bool),
            },
        },
        batch_size=[count],
        names=["time"],
    )


def observed(episode: Tensor, step: Tensor) -> Tensor:
    """What is observed: the episode and the step, ``[T, 2]``."""
    return torch.stack([episode, step], -1).float()


def batched(lengths: list[list[int]]) -> TensorDictBase:
    """One :func:`rollout` a row, ``[B, T]``."""
    rows = [rollout(row, first=100 * i) for i, row in enumerate(lengths)]
    return torch.stack(rows)
