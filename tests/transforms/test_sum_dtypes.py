"""Sums of narrow dtypes use the wider dtype of their spec in every way of running a chain."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tdx import (
    ActionDiscretizer,
    ActionScaling,
    BinarizeReward,
    Bounded,
    Compose,
    DTypeCastTransform,
    FrameSkipTransform,
    GymEnv,
    NextObservationDelta,
    Reward2GoTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)
from tdx.core.envs import EnvBase
from tdx.core.transforms.spec_maps import sum_spec
from tdx.foundation.errors import ChainError
from tdx.specs import (
    Binary,
    Categorical,
    Composite,
    OneHot,
    TensorSpec,
    Unbounded,
)
from tdx.transforms import Transform
from tests.programs import sampled
from tests.transforms.fixed_rollouts import assert_same

NARROW = {
    torch.int8: torch.int64,
    torch.uint8: torch.int64,
    torch.bool: torch.int64,
    torch.int32: torch.int64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


class ConstantEnv(EnvBase):
    """Endless env whose reward is the largest value of its spec."""

    step_reads = ()

    def __init__(self, reward_spec: TensorSpec, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=batch_size)
        b = batch_size
        self.observation_spec = Composite(observation=Unbounded((*b, 1)), shape=b)
        self.action_spec = Bounded(-1.0, 1.0, shape=(*b, 1))
        self.reward_spec = reward_spec
        self.value = torch.ones(reward_spec.shape).to(reward_spec.dtype)
        if isinstance(reward_spec, Bounded):
            self.value = reward_spec.high.clone()

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        observation = torch.zeros(*self.batch_size, 1)
        return TensorDict(observation=observation, batch_size=self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        flag = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        entries = {
            "observation": torch.zeros(*self.batch_size, 1),
            "reward": self.value.clone(),
            "done": flag,
        }
        return TensorDict(entries, batch_size=self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        return None


def narrow_env(dtype: torch.dtype, batch_size: tuple[int, ...] = ()) -> ConstantEnv:
    return ConstantEnv(Unbounded((*batch_size, 1), dtype=dtype), batch_size)


def test_binarized_rewards_sum_to_their_number() -> None:
    chain = Compose(RewardScaling(20.0, 1.0), BinarizeReward(), RewardSum())
    env = TransformedEnv(GymEnv("Pendulum-v1"), chain)
    rewards = env.rollout(200)["next", "episode_reward"]
    assert rewards.flatten().tolist() == list(range(1, 201))
    assert env.observation_spec["episode_reward"].dtype is rewards.dtype is torch.int64


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("batch_size", [(), (3,)])
@sampled(5)
def test_sums_of_narrow_rewards(dtype: torch.dtype, batch_size: tuple[int, ...]) -> None:
    rollouts = []
    for planned in (True, False):
        env = TransformedEnv(narrow_env(dtype, batch_size), RewardSum(), planned=planned)
        torch.manual_seed(1)
        rollouts.append(env.rollout(300))
        assert env.observation_spec["episode_reward"].dtype is NARROW[dtype]
        check_env_specs(env)
    planned_one, eager_one = rollouts
    assert_same(planned_one, eager_one)
    sums = planned_one["next", "episode_reward"]
    assert sums.dtype is NARROW[dtype]
    assert sums.flatten().max() == 300
    torch.manual_seed(1)
    stored = narrow_env(dtype, batch_size).rollout(300)
    assert_same(RewardSum()(stored), planned_one)


@pytest.mark.parametrize("dtype", NARROW)
@sampled(3)
def test_rewards_of_skipped_frames(dtype: torch.dtype) -> None:
    env = TransformedEnv(narrow_env(dtype), FrameSkipTransform(200))
    reward = env.rollout(2)["next", "reward"]
    assert env.reward_spec.dtype is reward.dtype is NARROW[dtype]
    assert reward.flatten().tolist() == [200, 200]
    check_env_specs(env)


@pytest.mark.parametrize(
    ("spec", "most"),
    [
        (Binary(shape=(1,)), 300),
        (Categorical(5, shape=(1,)), 1200),
        (OneHot(3), 300),
        (Bounded(-100, 100, shape=(1,), dtype=torch.int8), 30_000),
        (Bounded(0.0, 60_000.0, shape=(1,), dtype=torch.float16), 18_000_000),
        (Bounded(0, 2**62, shape=(1,), dtype=torch.int64), torch.iinfo(torch.int64).max),
    ],
)
def test_the_spec_of_a_sum(spec: TensorSpec, most: float) -> None:
    found = sum_spec(spec, 300)
    assert isinstance(found, Bounded)
    assert found.high.max().item() == pytest.approx(most, rel=1e-3)
    assert bool((found.low <= found.high).all())


def test_skipped_frames_with_bounds_of_a_narrow_dtype() -> None:
    spec = Bounded(-100, 100, shape=(1,), dtype=torch.int8)
    env = TransformedEnv(ConstantEnv(spec), FrameSkipTransform(3))
    assert env.rollout(1)["next", "reward"].item() == 300
    check_env_specs(env)


@pytest.mark.parametrize("planned", [True, False])
def test_a_count_that_a_later_stage_casts_does_not_wrap(planned: bool) -> None:
    def cast(key: str, dtype: torch.dtype, narrow: torch.dtype) -> DTypeCastTransform:
        return DTypeCastTransform(dtype, narrow, in_keys=[key])

    chain = Compose(StepCounter(), cast("step_count", torch.int64, torch.uint8))
    env = TransformedEnv(narrow_env(torch.int8), chain, planned=planned)
    assert env.rollout(255)["next", "step_count"].flatten().tolist() == list(range(1, 256))
    sums = Compose(RewardSum(), cast("episode_reward", torch.int64, torch.uint8))
    env = TransformedEnv(narrow_env(torch.int8), sums, planned=planned)
    assert env.rollout(255)["next", "episode_reward"].flatten().tolist() == list(range(1, 256))


def test_returns_of_narrow_rewards() -> None:
    done = torch.zeros(4, 1, dtype=torch.bool)
    done[-1] = True
    for dtype in (torch.float16, torch.bfloat16, torch.int8):
        reward = torch.full((4, 1), 60_000 if dtype.is_floating_point else 100).to(dtype)
        stored = TensorDict({"next": {"reward": reward, "done": done}}, batch_size=[4])
        returns = Reward2GoTransform(out_keys=["returns"]).inv(stored)["returns"]
        assert returns.dtype is torch.float32
        assert returns[0] == 4 * reward[0].float()


@pytest.mark.parametrize(
    ("dtype", "before", "after", "wanted"),
    [
        (torch.uint8, 250, 3, -247),
        (torch.int8, -128, 127, 255),
        (torch.int32, 100_000, 100_001, 1),
        (torch.int64, 2**60, 2**60 + 1, 1),
        (torch.int64, -(2**63), 2**63 - 1, 2.0**64),
        (torch.float16, -60_000.0, 60_000.0, 120_000.0),
    ],
)
def test_differences_of_observations(
    dtype: torch.dtype, before: float, after: float, wanted: float
) -> None:
    delta = NextObservationDelta(["x"], delta_dtype=torch.float32, drop_delta=False)
    root, following = (torch.tensor([[value]], dtype=dtype) for value in (before, after))
    stored = TensorDict({"x": root, "next": {"x": following}}, batch_size=[1])
    assert delta(stored)["next", "delta", "x"].item() == wanted


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.bool])
@pytest.mark.parametrize("ends", [(-200, 300), (-200, None), (None, 300), (-1.5, 0.5)])
def test_the_spec_of_clipped_integers(
    dtype: torch.dtype, ends: tuple[float | None, float | None]
) -> None:
    clip = RewardClipping(*ends)
    spec: TensorSpec = Unbounded((1,), dtype=dtype)
    found = clip._transform_spec(spec)
    value = clip._apply_transform(torch.ones(1, dtype=dtype))
    assert found.dtype is value.dtype
    assert found.is_in(value)
    assert found.is_in(clip._apply_transform(torch.zeros(1, dtype=dtype)))


@pytest.mark.parametrize("transform", [ActionScaling(), ActionDiscretizer(5)])
@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(-3e38, 3e38, torch.float32), (2e38, 3e38, torch.float32), (-6e4, 6e4, torch.float16)],
)
def test_ranges_whose_width_overflows_are_refused(
    transform: Transform, low: float, high: float, dtype: torch.dtype
) -> None:
    env = narrow_env(torch.float32)
    env.action_spec = Bounded(low, high, shape=(1,), dtype=dtype)
    with pytest.raises(ChainError, match="without a finite, non-empty range"):
        TransformedEnv(env, transform.clone()).action_spec  # noqa: B018
