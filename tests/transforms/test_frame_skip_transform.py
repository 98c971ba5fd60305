"""Frame skips: repeated steps, ends of episodes, and rows that are done."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    BatchSizeTransform,
    BinarizeReward,
    Bounded,
    CartPoleEnv,
    CatFrames,
    Compose,
    Composite,
    FrameSkipTransform,
    GymEnv,
    ObservationNorm,
    ParallelEnv,
    RenameTransform,
    RewardScaling,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.transforms import Transform
from tests.inspection.live.stages import Team
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import assert_same, fixed_rollout


class Strict(RowsEnv):
    """Env that raises if it is stepped after its end."""

    def __init__(self, length: int = 5) -> None:
        super().__init__()
        self.lengths = torch.full_like(self.lengths, length)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        assert bool(self.count < self.lengths), "stepped after its end"
        return super()._step(tensordict)


class Fed(EnvBase):
    """Env without state, which counts from its input."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(count=Unbounded((1,)))
        self.state_spec = Composite(count=Unbounded((1,)))
        self.action_spec = Bounded(0.0, 1.0, shape=(1,))
        self.reward_spec = Bounded(1.0, 2.0, shape=(1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict(count=torch.zeros(1))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        count = tensordict["count"] + 1
        return TensorDict(count=count, reward=torch.ones(1), done=count > 50)

    def _set_seed(self, seed: int | None) -> None:
        return None


def skipping(make: Callable[[], EnvBase], frames: int = 3) -> EnvBase:
    return TransformedEnv(make(), FrameSkipTransform(frames))


def test_one_action_makes_several_steps() -> None:
    env, plain = skipping(partial(RowsEnv, endless=True)), RowsEnv(endless=True)
    action = torch.tensor([1.0, 0.75])
    skipped = env.step(env.reset().set("action", action))
    current, rewards = plain.reset(), []
    for _ in range(3):
        step = plain.step(current.set("action", action))
        rewards.append(step["next", "reward"])
        current = plain.step_mdp(step)
    assert torch.equal(skipped["next", "reward"], torch.stack(rewards).sum(0))
    for key in ("observation", "precise", "pixels"):
        assert torch.equal(skipped["next", key], current[key])


def test_repetition_stops_at_the_end_of_an_episode() -> None:
    env = skipping(partial(Strict, 5))
    rollout = env.rollout(10)
    assert rollout["next", "done"].flatten().tolist() == [False, True]
    counts = [1 + 2 + 3, 4 + 5]
    actions = rollout["action"].sum(-1) * torch.tensor([3, 2])
    torch.testing.assert_close(
        rollout["next", "reward"].flatten(), actions + torch.tensor(counts).float()
    )


def test_repetition_goes_on_when_an_agent_ends_before_its_env() -> None:
    rollout = TransformedEnv(Team(), FrameSkipTransform(3)).rollout(10)
    assert rollout["next", "agents", "count"].squeeze(-1).tolist() == [[3, 3], [4, 4]]
    assert rollout["next", "reward"].flatten().tolist() == [3, 1]


@pytest.mark.parametrize("batch", [SerialEnv, ParallelEnv, partial(ParallelEnv, use_buffers=False)])
@pytest.mark.timeout(120)
def test_done_rows_are_not_stepped(batch: Any) -> None:
    makers = [partial(Strict, length) for length in (2, 3, 5, 9)]
    inside = SerialEnv(4, [partial(skipping, make, 4) for make in makers])
    outside = TransformedEnv(batch(4, makers), FrameSkipTransform(4))
    try:
        assert_same(fixed_rollout(outside, 9), fixed_rollout(inside, 9))
    finally:
        outside.close()


def test_done_rows_of_a_nested_batch_are_not_stepped() -> None:
    makers = [partial(Strict, length) for length in (2, 3, 5, 9)]
    nested = SerialEnv(2, [partial(SerialEnv, 2, makers[:2]), partial(SerialEnv, 2, makers[2:])])
    flat = SerialEnv(4, makers)
    rollout = fixed_rollout(TransformedEnv(nested, FrameSkipTransform(4)), 9)
    expected = fixed_rollout(TransformedEnv(flat, FrameSkipTransform(4)), 9)
    assert_same(rollout.reshape(4, 9), expected)


def test_rows_of_an_env_that_steps_all_rows_keep_their_last_frame() -> None:
    rollout = fixed_rollout(skipping(partial(RowsEnv, (3,)), 4), 1)
    # The rows end after 2, 3 and 4 steps.
    assert rollout["next", "done"].all()
    expected = [10 * row + 2 + row for row in range(3)]
    seed = 3
    assert rollout["next", "observation"][:, 0, 0].tolist() == [e + seed for e in expected]


def test_gymnasium_is_never_stepped_after_an_end() -> None:
    env = TransformedEnv(SerialEnv(3, partial(GymEnv, "CartPole-v1")), FrameSkipTransform(4))
    env.set_seed(0)
    torch.manual_seed(0)
    rollout = env.rollout(40, break_when_any_done=False)
    assert rollout["next", "done"].any()
    assert set(rollout["next", "reward"].unique().tolist()) <= {1.0, 2.0, 3.0, 4.0}
    assert (rollout["next", "reward"][~rollout["next", "done"]] == 4.0).all()


# Other stages


def test_earlier_stages_see_every_frame_and_later_ones_do_not() -> None:
    chain = Compose(
        StepCounter(step_count_key="frames"),
        RewardScaling(0.0, 2.0),
        FrameSkipTransform(3),
        StepCounter(),
    )
    env = TransformedEnv(RowsEnv(endless=True), chain)
    rollout = env.rollout(3)
    assert rollout["next", "frames"].flatten().tolist() == [3, 6, 9]
    assert rollout["next", "step_count"].flatten().tolist() == [1, 2, 3]
    counts = torch.tensor([1 + 2 + 3, 4 + 5 + 6, 7 + 8 + 9])
    actions = rollout["action"].sum(-1) * 3
    torch.testing.assert_close(rollout["next", "reward"].flatten(), (actions + counts) * 2)


def test_an_upstream_limit_counts_frames() -> None:
    env = TransformedEnv(
        RowsEnv(endless=True), Compose(StepCounter(max_steps=4), FrameSkipTransform(3))
    )
    rollout = env.rollout(10)
    assert rollout["next", "step_count"].flatten().tolist() == [3, 4]


def test_frames_that_were_skipped_are_in_an_earlier_stack() -> None:
    chain = Compose(
        CatFrames(3, dim=-1, in_keys=["observation"], out_keys=["stack"]), FrameSkipTransform(3)
    )
    stack = TransformedEnv(RowsEnv(endless=True), chain).rollout(2)["next", "stack"][1]
    assert stack.reshape(3, 3)[:, 0].tolist() == [4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: [],
        lambda: [ObservationNorm(3.0, 2.0, ["count"], in_keys_inv=["count"])],
        lambda: [RenameTransform(["count"], ["seen"], ["count"], ["seen"])],
        lambda: [Compose(RenameTransform(["count"], ["seen"], ["count"], ["seen"]))],
    ],
    ids=["bare", "mapped", "renamed", "nested"],
)
def test_env_that_reads_its_own_state(make: Callable[[], list[Transform]]) -> None:
    """Its input passes through the earlier stages, also within a skip."""
    env = TransformedEnv(Fed(), Compose(*make(), FrameSkipTransform(4)))
    last = env.rollout(3)[-1]["next"]
    count = last["seen"] if "seen" in last.keys() else last["count"]
    assert count.item() in (12.0, 12.0 * 2 + 3)


@pytest.mark.parametrize("nested", [False, True])
def test_inside_and_outside_a_chain(nested: bool) -> None:
    bare = TransformedEnv(RowsEnv((4,)), FrameSkipTransform(3))
    skip = FrameSkipTransform(3)
    chain = Compose(Compose(skip)) if nested else Compose(skip)
    assert_same(fixed_rollout(TransformedEnv(RowsEnv((4,)), chain)), fixed_rollout(bare))


def test_a_batch_of_another_size_before_it() -> None:
    chain = Compose(BatchSizeTransform(batch_size=[2, 2]), FrameSkipTransform(4))
    makers = [partial(Strict, length) for length in (2, 3, 5, 9)]
    rollout = fixed_rollout(TransformedEnv(SerialEnv(4, makers), chain), 9)
    expected = fixed_rollout(TransformedEnv(SerialEnv(4, makers), FrameSkipTransform(4)), 9)
    assert_same(rollout.reshape(4, 9), expected)


# Specs and errors


def test_sums_of_binary_rewards_are_in_the_spec() -> None:
    env = TransformedEnv(CartPoleEnv(), Compose(BinarizeReward(), FrameSkipTransform(3)))
    check_env_specs(env)
    spec = env.reward_spec
    assert isinstance(spec, Bounded)
    assert (spec.low.item(), spec.high.item(), spec.dtype) == (0, 3, torch.int64)
    assert env.rollout(2)["next", "reward"].max() == 3


def test_the_bounds_are_those_of_a_sum() -> None:
    env = TransformedEnv(Fed(), FrameSkipTransform(4))
    spec = env.reward_spec
    assert isinstance(spec, Bounded)
    assert (spec.low.item(), spec.high.item()) == (1.0, 8.0)
    low = TransformedEnv(RowsEnv(), Compose(RewardScaling(0.0, 1.0), FrameSkipTransform(4)))
    assert isinstance(low.reward_spec, Unbounded)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4"])
def test_invalid_number_of_frames(value: object) -> None:
    with pytest.raises(ArgumentError, match="frame_skip must be an integer of at least 1"):
        FrameSkipTransform(cast(Any, value))


def test_frame_skip_without_an_env_is_refused() -> None:
    data = TensorDict(reward=torch.ones(1), done=torch.zeros(1, dtype=torch.bool))
    with pytest.raises(ChainError, match="needs an env to step"):
        FrameSkipTransform(2)._step(data, data.clone())


def test_a_batch_of_unlike_envs_skips_inside() -> None:
    names = ("CartPole-v1", "Acrobot-v1")
    around = TransformedEnv(
        SerialEnv(2, [partial(GymEnv, n) for n in names]), FrameSkipTransform(4)
    )
    with pytest.raises(ChainError, match="cannot step a batch of envs with different specs"):
        around.output_spec  # noqa: B018
    inside = SerialEnv(2, [partial(skipping, partial(GymEnv, name), 4) for name in names])
    rewards = inside.rand_step(inside.reset())["next", "reward"]
    assert rewards.flatten().tolist() == [4.0, -4.0]
