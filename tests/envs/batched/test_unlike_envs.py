"""Batches of envs with different outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from tdx import (
    CatFrames,
    Compose,
    InitTracker,
    ObservationNorm,
    RenameTransform,
    RewardScaling,
    RewardSum,
    StepCounter,
    Transform,
    TransformedEnv,
    VecNorm,
)
from tdx.core.envs import EnvBase
from tdx.envs.batched import SerialEnv
from tdx.foundation.errors import ChainError, EnvError
from tdx.specs import Bounded, Stacked, StackedComposite
from tests.envs.batched.conftest import MakeBatch
from tests.envs.mocks import CountingEnv, WideEnv

WIDE = [partial(WideEnv, 2, stop=2), partial(WideEnv, 3, stop=4, extra=True)]


def test_their_specs_are_stacks(make_batch: MakeBatch) -> None:
    env = make_batch(2, WIDE)
    assert isinstance(env.observation_spec, StackedComposite)
    assert env.observation_spec[0]["observation"].shape == torch.Size([2])
    assert env.observation_spec[1]["extra"].shape == torch.Size([1])
    assert env.action_spec.shape == torch.Size([2, 2])


def test_rollouts_are_lazy_stacks(make_batch: MakeBatch) -> None:
    result = make_batch(2, WIDE).rollout(3, break_when_any_done=False)
    assert isinstance(result, LazyStackedTensorDict)
    assert result.batch_size == torch.Size([2, 3])
    assert result[0]["next", "observation"].tolist() == [[1, 1], [2, 2], [1, 1]]
    assert result[1]["next", "observation"][:, 2].tolist() == [1, 2, 3]
    assert result[1]["next", "extra"].tolist() == [[1], [1], [1]]


def test_each_row_equals_a_single_env(make_batch: MakeBatch) -> None:
    env = make_batch(2, WIDE)
    actions = torch.rand(3, 2, 2)
    current = env.reset()
    for action in actions:
        step = env.step(current.set("action", action))
        current = env.maybe_reset(env.step_mdp(step))
        assert (step["next", "reward"].squeeze(-1) == action.sum(-1)).all()
    assert [int(row["observation"][0]) for row in current.unbind(0)] == [1, 3]


def test_partial_resets_touch_their_rows_only(make_batch: MakeBatch) -> None:
    env = make_batch(2, WIDE)
    current = env.step_mdp(env.rand_step(env.reset()))
    current["_reset"] = torch.tensor([[False], [True]])
    after = env.reset(current)
    assert [row["observation"].tolist() for row in after.unbind(0)] == [[1, 1], [0, 0, 0]]
    assert env.resets == [1, 2]


def test_the_fake_tensordict_has_each_envs_keys(make_batch: MakeBatch) -> None:
    fake = make_batch(2, WIDE).fake_tensordict()
    assert fake[1]["next", "extra"].shape == torch.Size([1])
    assert "extra" not in fake[0].keys()


def test_batches_of_unlike_batches(make_batch: MakeBatch) -> None:
    result = make_batch(2, lambda: SerialEnv(2, WIDE)).rollout(3)
    assert result.batch_size == torch.Size([2, 2, 2])
    assert result[1][0]["next", "observation"].tolist() == [[1, 1], [2, 2]]


def test_chain_around_the_batch_transforms_common_entries(make_batch: MakeBatch) -> None:
    chain = Compose(RewardScaling(0.0, 2.0), RewardSum(), StepCounter(), InitTracker())
    result = TransformedEnv(make_batch(2, WIDE), chain).rollout(4, break_when_any_done=False)
    assert result[0]["next", "observation"].tolist() == [[1, 1], [2, 2], [1, 1], [2, 2]]
    assert result[1]["next", "observation"].shape == (4, 3)
    for row, counts in enumerate(([1, 2, 1, 2], [1, 2, 3, 4])):
        following = result[row]["next"]
        assert following["step_count"].flatten().tolist() == counts
        started = torch.tensor(counts) == 1
        assert torch.equal(following["episode_reward"][started], following["reward"][started])
    assert result[0]["is_init"].flatten().tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ObservationNorm(0.0, 1.0, in_keys=["observation"]),
        lambda: CatFrames(2, -1, in_keys=["observation"]),
        lambda: RenameTransform(["observation"], ["seen"]),
        lambda: VecNorm(["observation"]),
    ],
)
def test_chain_around_the_batch_rejects_entries_that_differ(
    make_batch: MakeBatch, make: Callable[[], Transform]
) -> None:
    with pytest.raises(ChainError, match="put the transform into the envs") as caught:
        _ = TransformedEnv(make_batch(2, WIDE), Compose(make())).output_spec
    assert caught.value.where.key == "observation"


class ScaledEnv(CountingEnv):
    """Env whose actions have the given bound."""

    def __init__(self, reach: float) -> None:
        super().__init__()
        self.action_spec = Bounded(-reach, reach, shape=(2,))


def test_envs_that_differ_in_bounds_only_still_give_one_block(make_batch: MakeBatch) -> None:
    env = make_batch(2, [partial(ScaledEnv, 1.0), partial(ScaledEnv, 5.0)])
    assert isinstance(env.action_spec, Stacked)
    result = env.rollout(30, break_when_any_done=False)
    assert isinstance(result, TensorDict)
    assert result["action"].shape == torch.Size([2, 30, 2])
    assert result["action"][0].abs().max() <= 1 < result["action"][1].abs().max()


class LyingEnv(CountingEnv):
    """Env that violates the declared shape."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def _reset(self, tensordict: object = None, **kwargs: object) -> TensorDict:
        return TensorDict(observation=torch.zeros(self.size, dtype=torch.int64))


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1)])
def test_env_that_violates_its_spec_is_named(make_batch: MakeBatch, sizes: tuple[int, int]) -> None:
    env = make_batch(2, [partial(LyingEnv, size) for size in sizes])
    with pytest.raises(EnvError, match=r"'observation': worker 0 wrote .* worker 1 wrote"):
        env.reset()


def test_spec_violation_is_not_hidden(make_batch: MakeBatch) -> None:
    env: EnvBase = make_batch(2, partial(LyingEnv, 2))
    assert env.reset()["observation"].shape == torch.Size([2, 2])
