"""Behavior common to ``SerialEnv`` and ``ParallelEnv``."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, assert_close

from tdx.core.envs import EnvBase
from tdx.envs.batched import EnvCreator, ParallelEnv, SerialEnv
from tdx.foundation.errors import ArgumentError, EnvError
from tests.envs.batched.conftest import MakeBatch
from tests.envs.mocks import CountingEnv, NoisyEnv, Noted, TensorClassEnv, TwoGroupsEnv, WordsEnv
from tests.programs import exhaustive


def actions(env: EnvBase, steps: int) -> list[Any]:
    torch.manual_seed(1)
    return [env.full_action_spec.rand() for _ in range(steps)]


def played(env: EnvBase, script: list[Any]) -> TensorDict:
    """Return the steps of a script of actions, with resets between episodes."""
    current, steps = env.reset(), []
    for action in script:
        done, current = env.step_and_maybe_reset(current.update(action))
        steps.append(done)
    return torch.stack(steps, env.ndim)


@pytest.mark.parametrize("used", [False, True])
def test_a_serial_batch_can_be_copied_and_pickled(used: bool) -> None:
    batch = SerialEnv(2, TwoGroupsEnv)
    if used:
        batch.rollout(1)
    for other in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert torch.equal(other.rollout(1)["next", "state"], batch.rollout(1)["next", "state"])


@pytest.mark.parametrize("make_env", [CountingEnv, NoisyEnv, TwoGroupsEnv])
def test_each_row_equals_a_single_env_with_the_same_seed(
    make_batch: MakeBatch, make_env: type[EnvBase]
) -> None:
    batch = make_batch(3, make_env)
    script = actions(batch, 7)
    batch.set_seed(5)
    together = played(batch, script)
    seed: int | None = 5
    for index in range(3):
        alone = make_env()
        seed = alone.set_seed(seed)
        assert_close(together[index], played(alone, [action[index] for action in script]))


def test_specs_have_the_batch_dim(make_batch: MakeBatch) -> None:
    env = make_batch(2, TwoGroupsEnv)
    assert env.batch_size == torch.Size([2])
    assert env.observation_spec["b", "observation"].shape == torch.Size([2, 2, 1])
    assert env.observation_spec["b"].shape == torch.Size([2, 2])
    assert env.full_done_spec["a", "done"].shape == torch.Size([2, 1])
    assert env.reset_keys == [("a", "_reset"), ("b", "_reset")]
    env.rollout(4, break_when_any_done=False)
    assert env.specs.is_in(env.specs.zero())


def test_nested_tensordicts_have_the_batch_size_of_their_spec(make_batch: MakeBatch) -> None:
    result = make_batch(2, TwoGroupsEnv).rollout(2)
    assert result["next", "b"].batch_size == torch.Size([2, 2, 2])
    assert result["next", "a"].batch_size == torch.Size([2, 2])


def test_rollouts_have_the_keys_and_shapes_of_the_fake_tensordict(make_batch: MakeBatch) -> None:
    env = make_batch(2, TwoGroupsEnv)
    fake, real = env.fake_tensordict(), env.rollout(1)[:, 0]
    shapes = [{key: value.shape for key, value in one.items(True, True)} for one in (fake, real)]
    assert shapes[0] == shapes[1]


def test_stored_observations_do_not_change_on_later_steps(make_batch: MakeBatch) -> None:
    env = make_batch(2, CountingEnv, create_env_kwargs={"stop": 100})
    start = env.reset()
    first = env.rand_step(start.clone())
    kept = first.clone()
    for _ in range(3):
        env.rand_step(env.step_mdp(first))
    env.reset()
    assert (first == kept).all()
    assert (start["observation"] == 0).all()


def test_a_batch_of_batched_envs_has_both_dims(make_batch: MakeBatch) -> None:
    env = make_batch(2, partial(CountingEnv, batch_size=(3,)))
    assert env.batch_size == torch.Size([2, 3])
    assert env.rollout(2)["next", "reward"].shape == torch.Size([2, 3, 2, 1])


def test_non_tensor_entries_are_sent(make_batch: MakeBatch) -> None:
    env = make_batch(2, WordsEnv)
    first = env.rand_step(env.reset())
    assert list(first["word"]) == ["count 0", "count 0"]
    assert list(first["next", "word"]) == ["count 1", "count 1"]


def test_non_tensor_entries_of_envs_that_are_not_reset_are_kept(make_batch: MakeBatch) -> None:
    env = make_batch(2, WordsEnv)
    after = env.step_mdp(env.rand_step(env.reset()))
    after["_reset"] = torch.tensor([[True], [False]])
    assert list(env.reset(after)["word"]) == ["count 0", "count 1"]


def test_each_worker_has_its_own_function_and_arguments(make_batch: MakeBatch) -> None:
    env = make_batch(
        2,
        [CountingEnv, lambda **kwargs: CountingEnv(**kwargs)],
        create_env_kwargs=[{"start": 1}, {"start": 2}],
    )
    assert env.reset()["observation"].tolist() == [[1], [2]]


def test_reset_passes_keyword_arguments_on(make_batch: MakeBatch) -> None:
    env = make_batch(2, CountingEnv)
    assert env.reset(start=4)["observation"].tolist() == [[4], [4]]
    own = [{"start": 1}, {}]
    assert env.reset(list_of_kwargs=own)["observation"].tolist() == [[1], [0]]
    with pytest.raises(ArgumentError, match="3 entries for 2 workers"):
        env.reset(list_of_kwargs=[{}] * 3)


def test_each_env_is_seeded_with_the_next_seed(make_batch: MakeBatch) -> None:
    env = make_batch(2, NoisyEnv)
    following = env.set_seed(3)
    first = env.reset()["observation"]
    assert not (first[0] == first[1]).all()
    assert following == NoisyEnv().set_seed(NoisyEnv().set_seed(3))
    env.set_seed(3)
    assert (env.reset()["observation"] == first).all()


def test_a_static_seed_is_the_same_for_all(make_batch: MakeBatch) -> None:
    env = make_batch(2, NoisyEnv)
    assert env.set_seed(3, static_seed=True) == 3
    first = env.reset()["observation"]
    assert (first[0] == first[1]).all()


def test_public_attributes_and_methods_are_those_of_each_env(make_batch: MakeBatch) -> None:
    env = make_batch(2, CountingEnv, create_env_kwargs=[{"stop": 1}, {"stop": 2}])
    assert env.stop == [1, 2]
    assert env.twice(4, plus=1) == [9, 9]
    assert not hasattr(env, "no_such_name")
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = env.no_such_name
    with pytest.raises(AttributeError):
        _ = env._private
    env.reset()


def test_workers_have_the_current_environment_variables(
    make_parallel: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_parallel(1, CountingEnv)
    monkeypatch.setenv("TDX_TEST_VARIABLE", "set later")
    assert make_parallel(1, CountingEnv).variable("TDX_TEST_VARIABLE") == ["set later"]


@exhaustive
def test_use_buffers_false_sends_tensors_by_value(make_parallel: MakeBatch) -> None:
    results = []
    for use_buffers in (True, False):
        env = make_parallel(2, TwoGroupsEnv, use_buffers=use_buffers)
        torch.manual_seed(0)
        results.append(env.rollout(7, break_when_any_done=False))
    assert_close(*results)


@pytest.mark.parametrize(("method", "count"), [("spawn", 1), (None, 2)])
@exhaustive
def test_other_start_methods(make_parallel: MakeBatch, method: str | None, count: int) -> None:
    creator = EnvCreator(CountingEnv)
    env = make_parallel(count, creator, mp_start_method=method, worker_timeout=280.0)
    env.rollout(3)
    assert int(creator.state_dict()["steps"]) == 3 * count


def test_a_single_env_needs_no_process(make_parallel: MakeBatch) -> None:
    env = make_parallel(1, CountingEnv, serial_for_single=True)
    assert type(env) is SerialEnv
    assert type(make_parallel(1, CountingEnv)) is ParallelEnv


def test_existing_env_can_be_used_for_one_worker(make_serial: MakeBatch) -> None:
    made = [CountingEnv(start=1), CountingEnv(start=2)]
    assert make_serial(2, made).reset()["observation"].tolist() == [[1], [2]]
    assert make_serial(1, made[0]).reset()["observation"].tolist() == [[1]]


def test_state_dicts_go_to_every_worker(make_batch: MakeBatch) -> None:
    env = make_batch(2, CountingEnv)
    env.rollout(3, break_when_any_done=False)
    state = env.state_dict()
    assert {name: int(value) for name, value in state.items()} == {
        "worker0.steps": 3,
        "worker1.steps": 3,
    }
    env.load_state_dict({"worker0.steps": torch.tensor(7), "worker1.steps": torch.tensor(9)})
    env.rand_step(env.reset())
    assert [int(value) for value in env.state_dict().values()] == [8, 10]
    with pytest.raises(RuntimeError, match=r"worker1\.steps"):
        env.load_state_dict({"worker0.steps": torch.tensor(7)})


def test_train_and_eval_reach_the_envs(make_batch: MakeBatch) -> None:
    env = make_batch(2, CountingEnv)
    env.eval()
    assert env.training is False
    assert _training(env) == [False, False]
    env.train()
    assert _training(env) == [True, True]


def _training(env: Any) -> list[bool]:
    return [bool(mode) for mode in env.is_training()]


def test_reset_restarts_a_closed_batch(make_batch: MakeBatch) -> None:
    env = make_batch(2, CountingEnv)
    current = env.reset()
    assert not env.is_closed
    env.close()
    env.close()
    assert env.is_closed
    with pytest.raises(EnvError, match="closed"):
        env.rand_step(current)
    assert env.rollout(2)["next", "observation"].flatten().tolist() == [1, 2, 1, 2]
    assert not env.is_closed


def test_context_manager_closes_the_batch(make_batch: MakeBatch) -> None:
    with make_batch(2, CountingEnv) as env:
        env.rollout(1)
    assert env.is_closed


def test_the_batch_size_of_the_input_is_checked(make_batch: MakeBatch) -> None:
    env = make_batch(2, CountingEnv)
    with pytest.raises(ArgumentError, match="batch size"):
        env.step(TensorDict({"action": torch.zeros(3, 2)}, batch_size=[3]))


def test_repr_has_env_and_batch_size(make_batch: MakeBatch) -> None:
    assert repr(make_batch(2, CountingEnv)).endswith("batch_size=torch.Size([2]))")


@pytest.mark.parametrize("number", [0, -1, 1.5, True])
def test_the_number_of_workers_is_checked(make_batch: MakeBatch, number: Any) -> None:
    with pytest.raises(ArgumentError, match="num_workers"):
        make_batch(number, CountingEnv)


def test_number_of_functions_must_match_the_workers(make_batch: MakeBatch) -> None:
    with pytest.raises(ArgumentError, match="create_env_fn has 3 entries for 2 workers"):
        make_batch(2, [CountingEnv] * 3)
    with pytest.raises(ArgumentError, match="create_env_kwargs has 1 entries"):
        make_batch(2, CountingEnv, create_env_kwargs=[{}])
    with pytest.raises(ArgumentError, match="is a str"):
        make_batch(2, "Pendulum-v1")
    with pytest.raises(ArgumentError, match="an env cannot be shared by several workers"):
        make_batch(2, CountingEnv())


def test_function_that_does_not_return_an_env_is_rejected(make_batch: MakeBatch) -> None:
    with pytest.raises(ArgumentError, match="returned a dict"):
        make_batch(1, dict)


def test_envs_of_different_batch_sizes_are_rejected(make_batch: MakeBatch) -> None:
    with pytest.raises(ArgumentError, match="worker 1 has batch size"):
        make_batch(2, [CountingEnv, partial(CountingEnv, batch_size=(2,))])


def test_arguments_without_effect_are_accepted(make_batch: MakeBatch) -> None:
    options = {"consolidate": False, "share_individual_td": True, "shared_memory": False}
    env = make_batch(2, CountingEnv, memmap=True, pin_memory=False, **options)
    assert env.rollout(2).shape == (2, 2)


def test_tensorclasses_are_rebuilt(make_batch: MakeBatch) -> None:
    env = make_batch(2, TensorClassEnv)
    current = env.reset()
    for number in (1.0, 2.0):
        assert isinstance(current["seen"], Noted)
        stepped = env.step(env.rand_action(current))
        assert isinstance(stepped["next", "seen"], Noted)
        assert stepped["next", "seen"].value.tolist() == [number, number]
        current = env.step_mdp(stepped)
