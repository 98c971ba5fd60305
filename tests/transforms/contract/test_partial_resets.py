"""A partial reset changes only its rows."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDictBase

from tdx import TdxError, TransformedEnv
from tdx.core.envs import EnvBase
from tests.programs import sampled
from tests.transforms.contract.examples import example_of, made, rows_of, skip_if_lasting
from tests.transforms.envs import RowsEnv, flags_of_agents
from tests.transforms.fixed_rollouts import FixedActions, assert_same, fixed_rollout

BATCH = (2, 3)
NEED_ROOT_FLAGS = {
    "EndOfLifeTransform",
    "ExcludeTransform",
    "RandomTruncationTransform",
    "SuccessReward",
    "TrajCounter",
}
"""Transforms whose examples name a flag, or a counter, of the root."""


def steps_into_an_episode(env: EnvBase, steps: int) -> TensorDictBase:
    """Return the TensorDict before the next step."""
    torch.manual_seed(5)
    policy, current = FixedActions(env), env.reset()
    for _ in range(steps):
        current = env.step_mdp(env.step(policy(current)))
    return current


@pytest.mark.parametrize("which", ["arguments", "out"])
def test_partial_reset_does_not_change_other_rows(name: str, which: str) -> None:
    if getattr(example_of(name), which) is None:
        pytest.skip("it writes nothing in the forward direction")
    env = TransformedEnv(rows_of(name, BATCH, endless=True), made(name, which))
    before = steps_into_an_episode(env, 2)
    rows = torch.rand(BATCH) < 0.5
    rows.view(-1)[:2] = torch.tensor([True, False])
    mask = rows.unsqueeze(-1)
    given = before.clone().set("_reset", mask)
    asked = mask.clone()
    after = env.reset(given)
    assert torch.equal(mask, asked)
    assert_same(after[~rows], before.select(*after.keys(True, True))[~rows])


def test_reset_rows_equal_a_new_episode(name: str) -> None:
    skip_if_lasting(name)
    env = TransformedEnv(rows_of(name, BATCH, endless=True), made(name))
    first = env.reset()
    given = steps_into_an_episode(env, 2)
    rows = torch.zeros(BATCH, dtype=torch.bool)
    rows.view(-1)[1::2] = True
    after = env.reset(given.set("_reset", rows.unsqueeze(-1)))
    assert_same(after[rows].select(*first.keys(True, True)), first[rows])


@sampled(4)
def test_steps_after_a_partial_reset_equal_those_of_single_rows(name: str) -> None:
    """Resets of other rows do not affect a row."""
    skip_if_lasting(name)
    together = TransformedEnv(rows_of(name, (4,)), made(name))
    rollout = together.rollout(8, FixedActions(together), break_when_any_done=False)
    for row in (0, 2):
        alone = TransformedEnv(rows_of(name, (4,), endless=True), made(name))
        base = alone.base_env
        assert isinstance(base, RowsEnv)
        base.lengths[row] = 2 + row % 3
        expected = alone.rollout(8, FixedActions(alone), break_when_any_done=False)
        assert_same(rollout[row], expected[row])


def test_each_group_is_reset_by_its_own_mask(name: str) -> None:
    env = TransformedEnv(example_of(name).groups((2,)), made(name, "nested"))
    before = steps_into_an_episode(env, 1)
    if name == "RenameTransform":
        before["solo", "observation"] = before["seen"]
    mask = torch.tensor([[True], [False]])
    given = before.clone()
    given["solo", "_reset"] = mask
    after = env.reset(given)
    kept = after.select("pair", strict=False)
    assert_same(kept, before.select(*kept.keys(True, True)))
    assert_same(after[1], before.select(*after.keys(True, True))[1])


@pytest.mark.parametrize("planned", [True, False])
def test_episodes_end_alike_with_flags_of_the_root_and_of_agents(name: str, planned: bool) -> None:
    kind = example_of(name).rows
    agents_kind = flags_of_agents(kind)
    if name in NEED_ROOT_FLAGS:
        with pytest.raises(TdxError, match="agents"):
            fixed_rollout(TransformedEnv(agents_kind((4,)), made(name), planned=planned))
        return
    root, agents = (
        fixed_rollout(TransformedEnv(env((4,)), made(name), planned=planned))
        for env in (kind, agents_kind)
    )
    shared = agents.select(*root.keys(True, True), strict=False)
    assert_same(shared, root.select(*shared.keys(True, True)))
