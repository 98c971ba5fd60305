"""``step`` and ``reset``: written and preserved entries, and affected rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from tdx import (
    ArgumentError,
    Bounded,
    Categorical,
    Composite,
    EnvBase,
    EnvError,
    ExpandAs,
    Unbounded,
    check_env_specs,
    step_mdp,
)
from tests.envs.mocks import CountingEnv, TwoGroupsEnv

MASK = torch.tensor([[True], [False]])


def stepped(env: EnvBase, times: int = 2) -> TensorDictBase:
    """Return the input of the step after ``times`` steps."""
    tensordict = env.reset()
    for _ in range(times):
        tensordict = env.step_mdp(env.rand_step(tensordict))
    return tensordict


def test_step_writes_into_its_input() -> None:
    env = CountingEnv()
    tensordict = env.rand_action(env.reset())
    observation = tensordict["observation"].clone()
    assert env.step(tensordict) is tensordict
    assert set(tensordict["next"].keys()) == {
        "observation", "reward", "done", "terminated", "truncated",
    }  # fmt: skip
    assert torch.equal(tensordict["observation"], observation)
    assert tensordict["next", "observation"].item() == 1


def test_calling_the_env_is_a_step() -> None:
    env = CountingEnv()
    assert env(env.rand_action(env.reset()))["next", "observation"].item() == 1


def test_preset_next_entries_are_kept() -> None:
    env = CountingEnv(batch_size=(2,))
    tensordict = env.rand_action(env.reset())
    tensordict["next"] = TensorDict(
        observation=torch.full((2, 1), 9), extra=torch.ones(2), batch_size=[2]
    )
    following = env.step(tensordict)["next"]
    assert following["observation"].flatten().tolist() == [9, 9]
    assert following["extra"].flatten().tolist() == [1, 1]
    assert set(following.keys()) > {"reward", "done"}


@pytest.mark.parametrize("shape", ["plain", "lazy"])
def test_next_entries_of_an_earlier_step_are_replaced(shape: str) -> None:
    env = CountingEnv(stop=9, batch_size=(2,))
    tensordict = env.rand_action(env.reset())
    if shape == "lazy":
        tensordict = LazyStackedTensorDict.lazy_stack([row.clone() for row in tensordict], 0)
    counts = [env.step(tensordict)["next", "observation"].flatten().tolist() for _ in range(3)]
    assert counts == [[1, 1], [2, 2], [3, 3]]
    env.reset(tensordict)
    assert env.step(tensordict)["next", "observation"].flatten().tolist() == [1, 1]
    copied = tensordict.clone()
    assert env.step(copied)["next", "observation"].flatten().tolist() == [1, 1], "given on purpose"


def test_locked_tensordict_is_refused_before_the_step() -> None:
    env = CountingEnv()
    tensordict = env.rand_action(env.reset()).lock_()
    with pytest.raises(ArgumentError, match="the TensorDict is locked"):
        env.step(tensordict)
    assert env.step(tensordict.clone(recurse=False))["next", "observation"].item() == 1


class PartialEnv(EnvBase):
    """Env that writes only the given flags and reward."""

    def __init__(self, flags: dict[str, bool], declared: tuple[str, ...], reward: Any) -> None:
        super().__init__()
        self.action_spec = Unbounded((1,))
        self.done_spec = Composite(
            {name: Categorical(2, (1,), dtype=torch.bool) for name in declared}
        )
        self.flags, self.reward = flags, reward

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        result = TensorDict({name: torch.tensor([flag]) for name, flag in self.flags.items()})
        return result if self.reward is None else result.set("reward", self.reward)

    def _set_seed(self, seed: int | None) -> None:
        return None


ALL = ("done", "terminated", "truncated")


@pytest.mark.parametrize(
    ("flags", "declared", "expected"),
    [
        ({"done": True}, ALL, (True, True, False)),
        ({"done": False}, ALL, (False, False, False)),
        ({"terminated": True}, ALL, (True, True, False)),
        ({"truncated": True, "terminated": False}, ALL, (True, False, True)),
        ({"truncated": True, "terminated": True}, ALL, (True, True, True)),
        ({"truncated": True, "done": True}, ALL, (True, False, True)),
        ({"done": True}, ("done",), (True,)),
        ({"terminated": True}, ("done", "terminated"), (True, True)),
    ],
)
def test_missing_flags_are_filled_in(
    flags: dict[str, bool], declared: tuple[str, ...], expected: tuple[bool, ...]
) -> None:
    env = PartialEnv(flags, declared, torch.ones(1))
    first = env.reset()
    assert {name: first[name].item() for name in declared} == dict.fromkeys(declared, False)
    following = env.rand_step(first)["next"]
    assert tuple(following[name].item() for name in declared) == expected
    assert {following[name].shape for name in declared} == {torch.Size([1])}


def test_a_reward_gets_its_declared_shape() -> None:
    env = PartialEnv({"done": False}, ALL, torch.tensor(2.0))
    assert env.rand_step()["next", "reward"].shape == (1,)


def test_a_step_without_a_flag_or_reward_is_an_error() -> None:
    with pytest.raises(EnvError, match="key 'done': the env's step wrote no done flag"):
        PartialEnv({}, ("done",), torch.ones(1)).rand_step()
    with pytest.raises(EnvError, match="key 'reward': the env's step wrote no reward"):
        PartialEnv({"done": True}, ("done",), None).rand_step()
    with pytest.raises(EnvError, match=r"key 'reward': the env wrote shape \(2,\), its spec says"):
        PartialEnv({"done": True}, ("done",), torch.ones(2)).rand_step()


def test_an_env_can_declare_that_it_has_no_reward() -> None:
    env = PartialEnv({"done": False}, ALL, None)
    with pytest.raises(EnvError, match=r"full_reward_spec = Composite\(\)"):
        env.rand_step()
    env.full_reward_spec = Composite()
    check_env_specs(env)
    assert env.reward_keys == []
    assert ("next", "reward") not in env.rollout(3).keys(True)


def test_reset_writes_into_its_input() -> None:
    env = CountingEnv()
    given = TensorDict(mine=torch.ones(1))
    assert env.reset(given) is given
    assert set(given.keys()) == {"mine", "observation", "done", "terminated", "truncated"}


def test_arguments_of_a_reset_reach_the_env() -> None:
    assert CountingEnv().reset(start=7)["observation"].item() == 7


def test_a_partial_reset_touches_only_its_rows() -> None:
    env = CountingEnv(stop=9, batch_size=(2,))
    tensordict = stepped(env).set("mine", torch.randn(2, 3))
    kept = tensordict.clone()
    result = env.reset(tensordict.set("_reset", MASK))
    assert result is tensordict
    assert result["observation"].flatten().tolist() == [0, 2]
    assert torch.equal(result["mine"], kept["mine"])
    assert "_reset" not in result.keys()
    assert env.rand_step(result)["next", "observation"].flatten().tolist() == [1, 3]


@pytest.mark.parametrize("rows", [(True, True), (True, False), (False, False)])
def test_outputs_that_a_reset_does_not_write_are_zero(rows: tuple[bool, bool]) -> None:
    wide = ExpandAs("reward", "observation", ("group", "wide"))
    env = CountingEnv(stop=9, batch_size=(2,)).append_transform(wide)
    root = step_mdp(env.rand_step(stepped(env)), exclude_reward=False)
    root["mine"], root["_reset"] = torch.ones(2), torch.tensor(rows).unsqueeze(-1)
    kept = root.clone()
    result = env.reset(root)
    for row, is_reset in enumerate(rows):
        for key in ("reward", ("group", "wide")):
            assert kept[key][row].all()
            assert torch.equal(result[key][row], torch.zeros(1) if is_reset else kept[key][row])
    assert torch.equal(result["mine"], kept["mine"])


def test_rewards_of_groups_follow_their_own_reset() -> None:
    env = TwoGroupsEnv()
    root = step_mdp(env.rand_step(env.reset()))
    kept = root.clone()
    root["a", "_reset"] = torch.ones_like(root["a", "done"])
    root["b", "_reset"] = torch.zeros_like(root["b", "done"])
    result = env.reset(root)
    assert not result["a", "reward"].any()
    assert torch.equal(result["b", "reward"], kept["b", "reward"])


@pytest.mark.parametrize("rows", [(True, True), (True, False), (False, False)])
def test_the_mask_is_never_written_to(rows: tuple[bool, bool]) -> None:
    env = CountingEnv(stop=9, batch_size=(2,))
    mask = torch.tensor(rows).unsqueeze(-1)
    kept, version = mask.clone(), mask._version
    result = env.reset(stepped(env).set("_reset", mask))
    assert torch.equal(mask, kept)
    assert mask._version == version
    assert result["observation"].flatten().tolist() == [0 if row else 2 for row in rows]


def test_partial_reset_does_not_change_stored_steps() -> None:
    env = CountingEnv(stop=9, batch_size=(2,))
    step = env.rand_step(stepped(env))
    stored = step.clone()
    env.reset(env.step_mdp(step).set("_reset", MASK))
    assert (step == stored).all()


def test_rows_that_are_not_reset_keep_the_entries_of_the_input() -> None:
    env = CountingEnv(stop=9, batch_size=(2,))
    tensordict = stepped(env)
    tensordict["observation"] = torch.full((2, 1), 50)
    tensordict["done"] = torch.ones(2, 1, dtype=torch.bool)
    result = env.reset(tensordict.set("_reset", MASK))
    assert result["observation"].flatten().tolist() == [0, 50]
    assert result["done"].flatten().tolist() == [False, True]


def test_all_false_mask_keeps_entries_without_dims() -> None:
    class Scalar(CountingEnv):
        """Env that observes its count as a tensor without dims."""

        def __init__(self) -> None:
            super().__init__(stop=9)
            self.observation_spec = Composite(observation=Categorical(10))

        def _reset(self, tensordict: TensorDictBase | None = None, **kw: Any) -> TensorDictBase:
            result = super()._reset(tensordict, **kw)
            return result.set("observation", result["observation"].squeeze())

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            result = super()._step(tensordict)
            return result.set("observation", result["observation"].squeeze())

    env = Scalar()
    tensordict = stepped(env).set("_reset", torch.zeros(1, dtype=torch.bool))
    assert env.reset(tensordict)["observation"].item() == 2
    tensordict["_reset"] = torch.ones(1, dtype=torch.bool)
    assert env.reset(tensordict)["observation"].item() == 0


def test_masks_of_two_batch_dims() -> None:
    env = CountingEnv(stop=9, batch_size=(2, 3))
    mask = torch.eye(2, 3, dtype=torch.bool).unsqueeze(-1)
    result = env.reset(stepped(env).set("_reset", mask))
    assert torch.equal(result["observation"], torch.where(mask, 0, 2))


def test_each_group_resets_by_its_own_mask() -> None:
    env = TwoGroupsEnv()
    tensordict = stepped(env, 1)
    tensordict["a", "_reset"] = torch.tensor([True])
    tensordict["b", "_reset"] = torch.zeros(2, 1, dtype=torch.bool)
    result = env.reset(tensordict)
    assert result["a", "observation"].item() == 0
    assert result["b", "observation"].flatten().tolist() == [1, 1]
    assert not [key for key in result.keys(True, True) if key[-1] == "_reset"]


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (torch.ones(2, dtype=torch.bool), r"torch.bool of shape \(2,\)"),
        (torch.ones(2, 1), r"torch.float32 of shape \(2, 1\)"),
    ],
)
def test_a_wrong_mask_is_an_error(mask: torch.Tensor, said: str) -> None:
    env = CountingEnv(batch_size=(2,))
    with pytest.raises(EnvError, match=f"key '_reset': the reset mask is {said}"):
        env.reset(stepped(env).set("_reset", mask))


def test_maybe_reset_resets_done_rows() -> None:
    env = CountingEnv(stop=2, batch_size=(2,))
    tensordict = stepped(env, 1)
    assert env.maybe_reset(tensordict) is tensordict
    assert tensordict["observation"].flatten().tolist() == [1, 1]
    tensordict["done"] = torch.tensor([[True], [False]])
    assert env.maybe_reset(tensordict)["observation"].flatten().tolist() == [0, 1]


def test_step_and_maybe_reset_keeps_the_last_step_of_an_episode() -> None:
    env = CountingEnv(stop=2)
    step, following = env.step_and_maybe_reset(env.rand_action(stepped(env, 1)))
    assert step["next", "observation"].item() == 2
    assert step["next", "done"].item()
    assert following["observation"].item() == 0
    assert not following["done"].item()
    assert "reward" not in following.keys()


@pytest.mark.parametrize("call", ["step", "reset"])
def test_a_tensordict_of_another_batch_size_is_an_error(call: str) -> None:
    env = CountingEnv(batch_size=(2,))
    with pytest.raises(ArgumentError, match=r"got \(3,\), the env has \(2,\)"):
        getattr(env, call)(TensorDict(action=torch.zeros(3, 2), batch_size=[3]))


def test_a_random_action_is_added_to_the_other_entries() -> None:
    env = CountingEnv()
    env.action_spec = Composite({"hand": {"grip": Bounded(0.0, 1.0, (2,)), "turn": Categorical(3)}})
    tensordict = TensorDict(mine=torch.ones(1))
    assert env.rand_action(tensordict) is tensordict
    assert env.full_action_spec.is_in(tensordict.select("hand"))
    assert tensordict["mine"].item() == 1


def test_the_seed_of_the_next_env() -> None:
    assert CountingEnv().set_seed(5) == 6
    assert CountingEnv(batch_size=(2, 3)).set_seed(5) == 11
    assert CountingEnv(batch_size=(2, 3)).set_seed(5, static_seed=True) == 5
    assert CountingEnv().set_seed() is None


def test_closed_env_is_reported() -> None:
    with CountingEnv() as env:
        assert not env.is_closed
    assert env.is_closed


def test_missing_method_of_a_subclass_is_named() -> None:
    with pytest.raises(NotImplementedError):
        EnvBase().reset()
