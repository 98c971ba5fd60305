"""Replay with goals that were achieved later."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx import (
    ArgumentError,
    HERReplayBuffer,
    KeyNotFoundError,
    LazyTensorStorage,
    ListStorage,
    RenameTransform,
)

GOAL = 1000.0


def episodes(*lengths: int, start: int = 0) -> TensorDict:
    """Return episodes in which the goal achieved by a step is the number of the step plus 1."""
    number = torch.arange(start, start + sum(lengths), dtype=torch.float32).unsqueeze(1)
    done = torch.cat([torch.arange(length) == length - 1 for length in lengths]).unsqueeze(1)
    following = TensorDict(
        achieved_goal=number + 1,
        desired_goal=torch.full_like(number, GOAL),
        reward=torch.full_like(number, -1.0),
        done=done,
        batch_size=number.shape[:1],
    )
    return TensorDict(
        achieved_goal=number,
        desired_goal=torch.full_like(number, GOAL),
        next=following,
        batch_size=number.shape[:1],
    )


def is_reached(steps: TensorDictBase) -> Tensor:
    following = steps["next"]
    return (following["achieved_goal"] == following["desired_goal"]).float()


def make(size: int = 100, ndim: int = 1, **arguments: Any) -> HERReplayBuffer:
    arguments = {"her_ratio": 1.0, "batch_size": 200, **arguments}
    return HERReplayBuffer(is_reached, storage=LazyTensorStorage(size, ndim=ndim), **arguments)


def relabeled(buffer: HERReplayBuffer) -> set[tuple[int, int]]:
    """Return the pairs of a step and the step whose achieved goal it got."""
    batch = buffer.sample()
    goal = batch["desired_goal"]
    assert torch.equal(goal, batch["next", "desired_goal"])
    assert torch.equal(batch["next", "reward"], (batch["next", "achieved_goal"] == goal).float())
    steps = batch["achieved_goal"].flatten().int().tolist()
    return set(zip(steps, (goal.flatten().int() - 1).tolist(), strict=True))


@pytest.mark.parametrize(
    ("strategy", "sources"),
    [
        ("future", {0: {0, 1}, 1: {1}, 2: {2, 3, 4}, 3: {3, 4}, 4: {4}}),
        ("final", {0: {1}, 1: {1}, 2: {4}, 3: {4}, 4: {4}}),
        ("episode", {0: {0, 1}, 1: {0, 1}, **{key: {2, 3, 4} for key in (2, 3, 4)}}),
        ("random", {key: set(range(5)) for key in range(5)}),
    ],
)
def test_goals_are_achieved_in_the_same_episode(
    strategy: str, sources: dict[int, set[int]]
) -> None:
    buffer = make(strategy=strategy, generator=torch.Generator().manual_seed(0))
    buffer.extend(episodes(2, 3))
    expected = {(step, source) for step, choice in sources.items() for source in choice}
    assert relabeled(buffer) == expected


def test_an_episode_goes_on_after_the_start_of_the_ring() -> None:
    buffer = make(6, strategy="final")
    buffer.extend(episodes(5))
    buffer.extend(episodes(3, start=5))  # overwrites steps 0 and 1
    assert relabeled(buffer) == {(2, 4), (3, 4), (4, 4), (5, 7), (6, 7), (7, 7)}
    buffer.extend(episodes(2, start=8))
    assert relabeled(buffer) == {(4, 4), (5, 7), (6, 7), (7, 7), (8, 9), (9, 9)}


def test_goals_of_a_batch_of_envs_are_those_of_the_same_env() -> None:
    data = torch.stack([episodes(2, 3), episodes(4, 1, start=10)])
    buffer = make(ndim=2, strategy="final")
    buffer.extend(data)
    first = {(0, 1), (1, 1), (2, 4), (3, 4), (4, 4)}
    assert relabeled(buffer) == first | {(10, 13), (11, 13), (12, 13), (13, 13), (14, 14)}


def test_a_part_of_the_batch_is_relabeled_and_stored_steps_stay() -> None:
    buffer = make(her_ratio=0.25, batch_size=8)
    buffer.extend(episodes(4))
    batch = buffer.sample()
    assert ((batch["desired_goal"] == GOAL).flatten().tolist()) == [False] * 2 + [True] * 6
    assert (batch["next", "reward"][2:] == -1).all()
    assert (buffer[:]["desired_goal"] == GOAL).all()


def test_transforms_map_relabeled_batches() -> None:
    buffer = make(transform=RenameTransform(["desired_goal"], ["goal"]), strategy="final")
    buffer.extend(episodes(4))
    assert (buffer.sample()["goal"] == 4).all()


def test_mistakes_are_named() -> None:
    with pytest.raises(ArgumentError, match="her_ratio"):
        make(her_ratio=1.5)
    with pytest.raises(ArgumentError, match="future, final, episode, random"):
        make(strategy="last")
    with pytest.raises(ArgumentError, match="LazyTensorStorage"):
        HERReplayBuffer(is_reached, storage=ListStorage(5))
    buffer = make(goal_key="target")
    buffer.extend(episodes(4))
    with pytest.raises(KeyNotFoundError, match=r"no key 'target'.*relabeled as goal_key"):
        buffer.sample()
    buffer = HERReplayBuffer(
        lambda steps: torch.zeros(3), storage=LazyTensorStorage(9), batch_size=10
    )
    buffer.extend(episodes(4))
    with pytest.raises(ArgumentError, match=r"shape \(3,\) for 8 steps"):
        buffer.sample()
