"""State dicts: bounds of rewards, and the form of affine maps."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from tdx import GymEnv, ObservationNorm, RewardClipping, RewardScaling, TransformedEnv
from tdx.foundation.errors import ArgumentError, ChainError
from tdx.specs import Bounded, Unbounded

REWARDS = torch.tensor([-3.0, 0.1, 0.7, 4.0], dtype=torch.float64)


def test_bounds_are_saved_and_loaded() -> None:
    saved = RewardClipping(0.1, 0.7).state_dict()
    assert list(saved) == ["clamp_min", "clamp_max"]
    for other in (RewardClipping(-9.0, 9.0), RewardClipping()):
        other.load_state_dict(saved)
        assert torch.equal(other(reward=REWARDS), REWARDS.clamp(0.1, 0.7))
        assert str(other).startswith("RewardClipping(clamp_min=0.1, clamp_max=0.7")


def test_a_single_bound_has_a_single_entry() -> None:
    clip = RewardClipping(clamp_max=0.5)
    assert list(clip.state_dict()) == ["clamp_max"]
    with pytest.raises(RuntimeError, match="clamp_min"):
        RewardClipping(-1.0, 1.0).load_state_dict(clip.state_dict())


def test_a_state_without_bounds_keeps_those_of_the_arguments() -> None:
    clip = RewardClipping(-1.0, 1.0)
    clip.load_state_dict({})
    assert torch.equal(clip(reward=REWARDS), REWARDS.clamp(-1.0, 1.0))


def test_loading_bounds_changes_the_spec_and_no_copy() -> None:
    clip = RewardClipping(-1.0, 1.0)
    env = TransformedEnv(GymEnv("Pendulum-v1"), clip)
    copies = [clip.clone(), deepcopy(clip)]
    clip.load_state_dict(RewardClipping(-0.5, 0.5).state_dict())
    assert isinstance(env.reward_spec, Bounded)
    assert env.reward_spec.high == 0.5
    rollouts = []
    for planned in (True, False):
        env.planned = planned
        env.set_seed(0)
        torch.manual_seed(0)
        rollouts.append(env.rollout(20)["next", "reward"])
    assert torch.equal(*rollouts)
    assert rollouts[0].min() == -0.5
    for copied in copies:
        assert torch.equal(copied(reward=REWARDS), REWARDS.clamp(-1.0, 1.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_casts_do_not_change_bounds(dtype: torch.dtype) -> None:
    clip = RewardClipping(0.1, 0.7).to(dtype)
    assert torch.equal(clip(reward=REWARDS), REWARDS.clamp(0.1, 0.7))
    assert {value.dtype for value in clip.state_dict().values()} == {torch.float64}
    assert RewardClipping(1, 2).half().clamp_min == 1


def test_bounds_can_be_assigned() -> None:
    clip = RewardClipping(-1.0, 1.0)
    clip.clamp_max = torch.tensor(0.25)
    assert torch.equal(clip(reward=REWARDS), REWARDS.clamp(-1.0, 0.25))
    clip.clamp_min = None
    assert list(clip.state_dict()) == ["clamp_max"]
    with pytest.raises(ArgumentError) as caught:
        setattr(clip, "clamp_max", "much")  # noqa: B010 - what a type checker would forbid
    assert caught.value.hint


def test_unreachable_bounds_are_refused() -> None:
    with pytest.raises(ChainError, match="is within the bounds") as caught:
        RewardClipping(200, None)._transform_spec(Unbounded((1,), dtype=torch.int8))
    assert caught.value.hint


@pytest.mark.parametrize("kind", [ObservationNorm, RewardScaling])
def test_the_form_of_an_affine_map_is_saved(kind: type[RewardScaling]) -> None:
    value = torch.tensor([3.0])
    saved = kind(1.0, 2.0, ["x"], standard_normal=True)
    state = saved.state_dict()
    assert set(state) == {"loc", "scale", "standard_normal"}
    other = kind(0.0, 1.0, ["x"])
    other.load_state_dict(state)
    assert torch.equal(other(x=value), saved(x=value))
    old = {name: held for name, held in state.items() if name != "standard_normal"}
    kept = kind(0.0, 1.0, ["x"])
    kept.load_state_dict(old)
    assert kept(x=value) == 7.0
