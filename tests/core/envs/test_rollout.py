"""The arguments of ``EnvBase.rollout``."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import nn

from tdx import ArgumentError, EnvBase, EnvError, Unbounded
from tdx.specs import Composite
from tests.envs.mocks import CountingEnv, TwoGroupsEnv, WideEnv
from tests.inspection.live.stages import Team


class StaggeredEnv(CountingEnv):
    """Env whose row ``i`` ends at count ``i + 1``."""

    def __init__(self, rows: int = 3) -> None:
        super().__init__(stop=0, batch_size=(rows,))
        self.ends = torch.arange(1, rows + 1).unsqueeze(-1)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict).set("done", self.count >= self.ends)


def push(tensordict: TensorDictBase) -> TensorDictBase:
    return tensordict.set("action", torch.ones(*tensordict.batch_size, 2))


def test_rollout_stops_at_the_first_done_flag() -> None:
    rollout = CountingEnv(stop=3).rollout(10)
    assert rollout.shape == (3,)
    assert rollout["next", "done"].flatten().tolist() == [False, False, True]
    assert rollout["observation"].flatten().tolist() == [0, 1, 2]
    assert rollout["next", "observation"].flatten().tolist() == [1, 2, 3]
    assert StaggeredEnv().rollout(10).shape == (3, 1)


def test_rollout_makes_at_most_max_steps() -> None:
    assert CountingEnv(stop=100).rollout(4).shape == (4,)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_time_is_the_last_dim(batch: tuple[int, ...]) -> None:
    rollout = CountingEnv(100, batch).rollout(4)
    assert rollout.shape == (*batch, 4)
    assert rollout.names == [*[None] * len(batch), "time"]
    assert rollout["action"].shape == (*batch, 4, 2)


def test_continuing_resets_done_rows() -> None:
    rollout = StaggeredEnv().rollout(4, break_when_any_done=False)
    assert rollout["observation"].squeeze(-1).tolist() == [[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 0]]
    assert rollout["next", "observation"].squeeze(-1).tolist() == [
        [1, 1, 1, 1], [1, 2, 1, 2], [1, 2, 3, 1],
    ]  # fmt: skip
    assert not rollout["done"].any()


def test_continuing_resets_done_groups() -> None:
    rollout = TwoGroupsEnv().rollout(6, break_when_any_done=False)
    assert rollout["next", "a", "observation"].flatten().tolist() == [1, 2, 1, 2, 1, 2]
    assert rollout["next", "b", "observation"][:, 0, 0].tolist() == [1, 2, 3, 1, 2, 3]


def test_rollout_can_stop_when_all_rows_are_done() -> None:
    rollout = StaggeredEnv().rollout(10, break_when_any_done=False, break_when_all_done=True)
    assert rollout.shape == (3, 3)
    assert rollout["next", "done"][:, -1].all()


def test_agent_that_goes_on_does_not_keep_its_env_from_being_done() -> None:
    rollout = Team().rollout(10, break_when_any_done=False, break_when_all_done=True)
    assert rollout["next", "done"].flatten().tolist() == [False, False, False, True]


def counts_of_team(rollout: TensorDictBase) -> list[list[float]]:
    counts: list[list[float]] = rollout["agents", "count"].squeeze(-1).tolist()
    return counts


def test_agent_that_ends_is_reset_with_its_env() -> None:
    env = Team()
    rollout = env.rollout(6, break_when_any_done=False)
    assert counts_of_team(rollout) == [[0, 0], [1, 1], [2, 2], [3, 3], [0, 0], [1, 1]]
    assert not rollout["agents", "done"][4].any()
    assert len(env.rollout(10)) == 4


def test_mask_of_an_env_decides_for_its_agents() -> None:
    env = Team()
    current = env.step_mdp(env.rand_step(env.reset()))
    mask = torch.tensor([[True], [False]])
    after = env.reset(current.clone().set(("agents", "_reset"), mask))
    assert after["agents", "count"].flatten().tolist() == [0, 1]
    for whole in (True, False):
        given = current.clone().set("_reset", torch.tensor([whole]))
        expected = [0, 0] if whole else [1, 1]
        assert env.reset(given.clone())["agents", "count"].flatten().tolist() == expected
        given["agents", "_reset"] = mask
        assert env.reset(given)["agents", "count"].flatten().tolist() == expected


def test_a_policy_writes_the_actions() -> None:
    rollout = CountingEnv(100).rollout(3, push)
    assert (rollout["action"] == 1).all()
    assert (rollout["next", "reward"] == 2).all()


def test_a_policy_may_return_a_new_tensordict() -> None:
    rollout = CountingEnv(100).rollout(3, lambda td: push(td.clone()))
    assert (rollout["action"] == 1).all()


def test_a_policy_that_returns_nothing_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="the policy returned None"):
        CountingEnv().rollout(3, lambda td: None)


class TwoInputs(nn.Module):
    def forward(self, state: torch.Tensor, observation: torch.Tensor) -> torch.Tensor:
        return (observation + state.sum()).expand(2).float()


class Named(nn.Module):
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return push(tensordict)


class Unnamed(nn.Module):
    def forward(self, data: TensorDictBase) -> TensorDictBase:
        return push(data)


class Pair(nn.Module):
    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return observation, observation


class Observing(CountingEnv):
    """Env with a float observation and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)), state=Unbounded((3,)))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._seen(super()._reset(tensordict, **kwargs))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._seen(super()._step(tensordict))

    def _seen(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict["observation"] = tensordict["observation"].float()
        return tensordict.set("state", torch.ones(3))


@pytest.mark.parametrize(
    ("policy", "actions"),
    [
        (nn.Sequential(nn.Linear(1, 2), nn.Flatten(0)), None),
        (nn.Linear(1, 2), None),
        (TwoInputs(), [3.0, 4.0, 5.0]),
        (Named(), [1.0, 1.0, 1.0]),
        (Unnamed(), [1.0, 1.0, 1.0]),
    ],
)
@pytest.mark.parametrize("cast", [False, True])
def test_a_policy_may_be_a_module_over_tensors(
    policy: nn.Module, actions: list[float] | None, cast: bool
) -> None:
    rollout = Observing().rollout(3, policy, auto_cast_to_device=cast)
    assert rollout["action"].shape == (3, 2)
    if actions is None:
        assert rollout["action"].requires_grad
    else:
        assert rollout["action"][:, 0].tolist() == actions


def test_a_module_that_returns_no_action_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="the policy returned tuple") as caught:
        Observing().rollout(1, Pair())
    assert caught.value.hint == "pass a TensorDictModule, which names its out_keys"


def test_rollout_starts_from_the_middle_of_another() -> None:
    env = CountingEnv(stop=9)
    first = env.rollout(3, push)
    going = env.rollout(2, push, auto_reset=False, tensordict=first[-1])
    assert going["next", "observation"].flatten().tolist() == [4, 5]
    assert first["next", "observation"].flatten().tolist() == [1, 2, 3]


def test_the_callback_sees_each_step() -> None:
    seen: list[tuple[EnvBase, int]] = []
    env = CountingEnv(stop=3)
    env.rollout(10, callback=lambda env, td: seen.append((env, td["next", "observation"].item())))
    assert seen == [(env, 1), (env, 2), (env, 3)]


def test_rollout_without_auto_reset_starts_from_the_given_tensordict() -> None:
    env = CountingEnv(100)
    start = env.step_mdp(env.rand_step(env.reset()))
    kept = start.clone()
    rollout = env.rollout(2, auto_reset=False, tensordict=start)
    assert rollout["observation"].flatten().tolist() == [1, 2]
    assert env.resets == 1
    assert set(start.keys()) == set(kept.keys())
    assert (start == kept).all()


def test_rollout_without_auto_reset_needs_a_start() -> None:
    with pytest.raises(ArgumentError, match=re.escape("(pass tensordict=env.reset())")):
        CountingEnv().rollout(2, auto_reset=False)


def test_auto_reset_receives_the_tensordict() -> None:
    env = CountingEnv(100)
    given = TensorDict(mine=torch.ones(1))
    rollout = env.rollout(2, tensordict=given)
    assert rollout["mine"].shape == (2, 1)
    assert list(given.keys()) == ["mine"]


def test_policy_input_is_on_the_device_of_the_policy() -> None:
    class Policy(nn.Linear):
        def forward(self, tensordict: TensorDictBase) -> Any:
            devices.append(tensordict["observation"].device.type)
            return TensorDict(action=torch.zeros(2), done=torch.zeros(1, dtype=torch.bool))

    devices: list[str] = []
    policy = Policy(1, 1, device="meta")
    CountingEnv(100).rollout(1, policy, auto_cast_to_device=True)
    CountingEnv(100).rollout(1, policy)
    assert devices == ["meta", "cpu"]


def test_lazy_stack_keeps_entries_of_different_shapes() -> None:
    class GrowingEnv(WideEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            self.width += 1
            return super()._step(tensordict)

    env = GrowingEnv(1, stop=100)
    env.observation_spec = Composite(observation=Unbounded((-1,)))
    with pytest.raises(EnvError, match=re.escape("rollout(..., return_contiguous=False)")):
        env.rollout(3)
    assert isinstance(env.rollout(3, return_contiguous=None), LazyStackedTensorDict)
    lazy = env.rollout(3, return_contiguous=False)
    assert isinstance(lazy, LazyStackedTensorDict)
    assert lazy.names == ["time"]
    widths = [moment["next", "observation"].shape[0] for moment in lazy.unbind(0)]
    assert widths == [widths[0], widths[0] + 1, widths[0] + 2]


def test_last_step_can_be_marked_as_truncated() -> None:
    rollout = CountingEnv(100, (2,)).rollout(3, set_truncated=True)
    assert rollout["next", "truncated"].squeeze(-1).tolist() == [[False, False, True]] * 2
    assert rollout["next", "done"].squeeze(-1).tolist() == [[False, False, True]] * 2
    assert not rollout["next", "terminated"].any()
    assert not CountingEnv(100).rollout(3)["next", "done"].any()


def test_marking_the_last_step_needs_a_truncated_flag() -> None:
    with pytest.raises(ArgumentError, match="set_truncated was set to True"):
        TwoGroupsEnv().rollout(1, set_truncated=True)


def test_max_steps_is_at_least_one() -> None:
    with pytest.raises(ArgumentError, match="max_steps must be an integer of at least 1, got 0"):
        CountingEnv().rollout(0)


def test_the_same_seeds_give_the_same_rollout() -> None:
    env = CountingEnv(100, (2,))
    torch.manual_seed(3)
    first = env.rollout(5)
    torch.manual_seed(3)
    assert (env.rollout(5) == first).all()
