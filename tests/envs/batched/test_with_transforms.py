"""Chains of transforms inside the workers and around the batch."""

from __future__ import annotations

import torch
from tensordict import assert_close

from tdx import (
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    InitTracker,
    ObservationNorm,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from tests.envs.batched.conftest import MakeBatch
from tests.programs import exhaustive


def chain() -> Compose:
    return Compose(
        ObservationNorm(0.1, 2.0, in_keys=["observation"]),
        RewardSum(),
        InitTracker(),
        CatFrames(3, dim=-1, in_keys=["observation"]),
        StepCounter(7),
    )


def lone() -> EnvBase:
    return TransformedEnv(GymEnv("CartPole-v1"), chain())


@exhaustive
def test_a_chain_in_each_worker_equals_one_around_all(make_batch: MakeBatch) -> None:
    results = []
    for env in (
        make_batch(2, lone),
        TransformedEnv(make_batch(2, lambda: GymEnv("CartPole-v1")), chain()),
    ):
        env.set_seed(3)
        torch.manual_seed(0)
        results.append(env.rollout(40, break_when_any_done=False))
    inside, outside = results
    assert_close(inside, outside, rtol=0, atol=0)
    assert inside["next", "done"].sum() > 4
    assert inside["next", "step_count"].max() == 7


@exhaustive
def test_each_row_equals_a_single_chain(make_batch: MakeBatch) -> None:
    batch = make_batch(2, lone)
    seed = batch.set_seed(3)
    assert seed is not None
    torch.manual_seed(0)
    together = batch.rollout(30, break_when_any_done=False)
    alone = lone()
    alone.set_seed(3)
    current = alone.reset()
    for index in range(30):
        current["action"] = together["action"][0, index]
        step, current = alone.step_and_maybe_reset(current)
        assert_close(step, together[0, index], rtol=0, atol=0)


def test_state_of_chains_in_workers_is_reached_through_the_batch(make_batch: MakeBatch) -> None:
    env = make_batch(2, lone)
    state = env.state_dict()
    loc = next(name for name in state if name.startswith("worker1.") and name.endswith("loc"))
    state[loc] = torch.full_like(state[loc], 50.0)
    env.load_state_dict(state)
    first = env.reset()["observation"]
    assert first[0].abs().max() < 25 < first[1].abs().min()
