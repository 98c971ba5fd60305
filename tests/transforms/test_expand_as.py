"""Values, specs and errors of ``ExpandAs``."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    ExpandAs,
    GymEnv,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, TdxError
from tdx.specs import Composite
from tdx.transforms import Transform
from tests.transforms.envs import GroupsEnv, RowsEnv

# ExpandAs


def test_flags_get_the_shape_of_agents() -> None:
    expand = ExpandAs("done", ("agents", "reward"), ("agents", "ended"))
    tensordict = TensorDict(
        {"done": torch.tensor([[True], [False]]), "agents": {"reward": torch.zeros(2, 3, 1)}},
        batch_size=[2],
    )
    ended = expand(tensordict)["agents", "ended"]
    assert ended.shape == (2, 3, 1)
    assert ended[0].all()
    assert not ended[1].any()
    ended[0, 0] = False
    assert ended[0].sum() == 2


def test_the_spec_keeps_its_ends() -> None:
    env = TransformedEnv(RowsEnv((4,)), ExpandAs("done", "observation", "wide"))
    spec = env.observation_spec["wide"]
    assert (spec.shape, spec.dtype) == (torch.Size([4, 3]), torch.bool)
    assert env.reset()["wide"].shape == (4, 3)


def test_an_expanded_flag_ends_no_episode() -> None:
    base = RowsEnv((4,))
    env = TransformedEnv(base, ExpandAs("done", "observation", "wide"))
    assert env.done_keys == base.done_keys
    assert env.reset_keys == ["_reset"]
    rollout = env.rollout(6, break_when_any_done=False)
    flags = rollout["next", "done"].expand(4, 6, 3)
    assert torch.equal(rollout["next", "wide"], flags)
    check_env_specs(env)
    replaced = TransformedEnv(RowsEnv((4,)), ExpandAs("done", "observation"))
    assert replaced.full_done_spec["done"].shape == (4, 3)


def test_reference_missing_after_a_reset() -> None:
    env = TransformedEnv(GroupsEnv(), ExpandAs(("solo", "done"), ("pair", "reward"), "ended"))
    assert env.reset()["ended"].shape == (2, 1)
    check_env_specs(env)


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        (ExpandAs("observation", "action"), KeyNotFoundError, "has no key 'action'"),
        (ExpandAs("observation", "reward"), ArgumentError, r"shape \(3,\) does not expand to the"),
        (ExpandAs("pixels", "image"), ArgumentError, "does not expand"),
    ],
)
def test_incompatible_shapes(transform: Transform, error: type[TdxError], message: str) -> None:
    with pytest.raises(error, match=message):
        TransformedEnv(RowsEnv(), transform).reset()


def test_a_category_in_one_hot_form_cannot_be_repeated() -> None:
    base = GymEnv("CartPole-v1")
    base.observation_spec = Composite(
        choice=base.action_spec.clone(), wide=Unbounded((2, 4)), shape=()
    )
    env = TransformedEnv(base, ExpandAs("choice", "wide"))
    with pytest.raises(ArgumentError, match="OneHot 'choice' cannot be expanded"):
        env.output_spec  # noqa: B018
