"""What a stack declares about itself: its chain of tdx, and itself as one env of tdx."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import wrappers
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import tdx
from tdx.foundation.errors import ArgumentError, EnvError
from tdx.inspection.overview import inspect_stack
from tdx.inspection.values_report import inspect_state
from tdx.stacks import open_stack
from tests.programs import exhaustive
from tests.stacks.toy_framework import make as make_toy
from tests.stacks.toy_package import ToyStack


def limited() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=7)


def test_only_a_chain_of_tdx_has_a_chain_env() -> None:
    env = tdx.TransformedEnv(tdx.PendulumEnv(), tdx.RewardSum())
    stack = open_stack(env)
    assert stack.chain_env is env
    assert stack.as_env() is env
    assert open_stack(limited()).chain_env is None


def test_gymnasium_env_steps_with_its_wrappers() -> None:
    env = wrappers.TransformReward(limited(), lambda reward: 3 * float(reward))
    rollout = open_stack(env).as_env().rollout(3)
    assert rollout["next", "reward"].flatten().tolist() == [3.0, 3.0, 3.0]


def test_vec_env_gives_the_terminal_observation_and_the_kind_of_end() -> None:
    vec_env = DummyVecEnv([limited, limited])
    env = open_stack(vec_env).as_env()
    assert env.batch_size == (2,)
    env.set_seed(0)
    rollout = env.rollout(40, break_when_any_done=False)
    done = rollout["next", "done"][..., :-1, 0]
    assert done.any()
    observed, following = rollout["next", "observation"][:, :-1], rollout["observation"][:, 1:]
    assert (observed[done] != following[done]).any(-1).all()
    assert torch.equal(observed[~done], following[~done])
    ends = rollout["next", "terminated"] ^ rollout["next", "truncated"]
    assert torch.equal(ends, rollout["next", "done"])


def test_values_of_a_vec_env_are_those_of_its_own_loop() -> None:
    def make() -> VecNormalize:
        return VecNormalize(DummyVecEnv([limited, limited]))

    env = open_stack(make()).as_env()
    env.set_seed(3)
    rollout = env.rollout(20, break_when_any_done=False)
    expected = make()
    expected.seed(3)
    observation: Any = expected.reset()
    for step in range(20):
        assert torch.equal(rollout["observation"][:, step], torch.from_numpy(observation))
        action = rollout["action"][:, step]
        taken = action.argmax(-1) if action.ndim > 1 else action
        observation, reward, _, _ = expected.step(taken.numpy())
        got = rollout["next", "reward"][:, step, 0]
        assert torch.equal(got, torch.from_numpy(reward).to(got.dtype))


def test_kind_without_as_env_says_so() -> None:
    stack = ToyStack(make_toy())
    assert stack.chain_env is None
    with pytest.raises(ArgumentError, match="a stack of the kind 'toy' cannot be the env"):
        stack.as_env()


def test_a_chain_can_be_added_in_the_app_to_each_kind_with_as_env() -> None:
    class Steppable(ToyStack):
        def as_env(self) -> Any:
            raise NotImplementedError

    native = open_stack(tdx.TransformedEnv(tdx.PendulumEnv(), tdx.RewardSum()))
    stacks = [ToyStack(make_toy()), Steppable(make_toy()), open_stack(limited()), native]
    found = [inspect_stack(stack, "my_envs:make").stack for stack in stacks]
    assert [facts is not None and facts.can_extend for facts in found] == [False, True, True, True]


def test_stages_of_a_chain_have_their_arguments() -> None:
    env = tdx.TransformedEnv(tdx.PendulumEnv(), tdx.RewardScaling(0.0, 0.5))
    (stage,) = open_stack(env).stages
    assert (stage.arguments["loc"], stage.arguments["scale"]) == (0.0, 0.5)
    assert stage.call.startswith("RewardScaling(")


def test_state_says_what_the_steps_changed() -> None:
    env = tdx.TransformedEnv(tdx.PendulumEnv(), tdx.Compose(tdx.RewardScaling(0, 1), tdx.VecNorm()))
    before = inspect_state(env)
    assert {entry.changed for entry in before.entries} == {None}
    after = inspect_state(env, steps=3, seed=0)
    assert {entry.stage for entry in after.entries if entry.changed} == {1}


@pytest.mark.parametrize("job", [tdx.inspect, tdx.trace, tdx.profile, tdx.check])
def test_closed_env_is_refused(job: Any) -> None:
    vector = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    native = tdx.PendulumEnv()
    for env in (vector, native):
        env.close()
        with pytest.raises(EnvError, match="is closed"):
            job(env)


@pytest.mark.parametrize("job", [tdx.inspect, tdx.trace, tdx.profile, tdx.check])
@pytest.mark.parametrize(
    ("target", "hint"),
    [
        (None, "with `return env`"),
        (tdx.PendulumEnv, "create an instance: PendulumEnv()"),
        (limited, "call it: limited()"),
        (3, "entry-point group"),
    ],
)
def test_other_objects_are_refused_with_the_next_step(job: Any, target: Any, hint: str) -> None:
    with pytest.raises(ArgumentError, match=r"pass a tdx env, a gymnasium.Env") as error:
        job(target)
    assert hint in str(error.value.hint)


class Several:
    """Several envs, as the vector envs of other libraries are."""

    num_envs = 2

    def reset(self) -> None: ...

    def step(self, action: Any) -> None: ...


class Processor:
    """Object that processes data when it is called."""

    def __call__(self, data: Any) -> Any:
        return data


@pytest.mark.parametrize(
    ("library", "base", "hint"),
    [
        ("envpool.python.envpool:EnvPoolMixin", Several, "create it by envpool.make_gymnasium"),
        ("brax.envs.base:Env", Several, "from outside: torchrl.envs.BraxWrapper(env)"),
        (
            "brax.envs.wrappers.gym:VectorGymWrapper",
            Several,
            "open the env inside: torchrl.envs.BraxWrapper(env)",
        ),
        ("lerobot.processor.pipeline:DataProcessorPipeline", Processor, "needs samples"),
        (
            "ray.rllib.connectors.connector_v2:ConnectorV2",
            Processor,
            "pass the pipeline that calls it, or the env runner: algo.env_runner",
        ),
        ("my_library:Pipeline", Processor, "needs samples"),
        ("my_library:Envs", Several, "wrap it in a subclass of gymnasium.vector.VectorEnv"),
    ],
)
def test_objects_of_other_libraries_are_refused_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, library: str, base: type, hint: str
) -> None:
    module, _, name = library.partition(":")
    kind = type(name, (base,), {})
    fake = ModuleType(module)
    setattr(fake, name, kind)
    monkeypatch.setitem(sys.modules, module, fake)
    with pytest.raises(ArgumentError) as error:
        tdx.inspect(kind())
    assert hint in str(error.value.hint)


class EnvPoolMixin:
    """What identifies an env of envpool."""

    def __init__(self, size: int = 2) -> None:
        self.config = {"num_envs": 2, "batch_size": size, "seed": 42, "stack_num": 4}


EnvPoolMixin.__module__ = "envpool.python.envpool"


class Pool(EnvPoolMixin, gym.vector.VectorEnv[Any, Any, Any]):
    """Two envs, with the spaces of one, as envpool declares them."""

    def __init__(self, size: int = 2) -> None:
        super().__init__(size)
        self.num_envs = 2
        self.metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
        self.observation_space = gym.spaces.Box(-9, 9, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self.single_observation_space, self.single_action_space = (
            self.observation_space,
            self.action_space,
        )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        assert seed is None
        return self._observe(0), {}

    def _observe(self, action: Any) -> Any:
        return np.zeros((2, 2), np.float32) + np.reshape(action, (-1, 1)).astype(np.float32)

    def step(self, actions: Any) -> Any:
        flags = np.zeros(2, bool)
        return self._observe(actions), np.ones(2), flags, flags, {}


@pytest.mark.filterwarnings("ignore:.*batched single observation space:UserWarning")
@exhaustive
def test_env_of_envpool_shows_its_settings_and_the_wrappers_around_it() -> None:
    env = gym.wrappers.vector.TransformObservation(Pool(), lambda value: value / 2)
    stack = tdx.open_stack(env)
    assert [stage.name for stage in stack.stages] == ["TransformObservation"]
    report = tdx.check(stack, seed=0, steps=8)
    assert not report.findings
    (note,) = stack.notes
    assert note.endswith("whose stages are not shown; a reset keeps its seed: seed=42, stack_num=4")
    assert tdx.check_contract(env, tdx.freeze(env)).verdict == "same"


def test_other_envs_of_envpool_are_refused_also_inside_wrappers() -> None:
    pool = Pool(size=1)
    for env in (pool, gym.wrappers.vector.RecordEpisodeStatistics(pool)):
        with pytest.raises(ArgumentError, match="batches do not have all envs"):
            tdx.open_stack(env)
    old = type("OldPool", (EnvPoolMixin, gym.Env), {})()
    with pytest.raises(ArgumentError) as error:
        tdx.open_stack(old)
    assert "update envpool" in str(error.value.hint)


class Custom(tdx.Transform):
    pass


def test_check_of_a_chain_applies_the_lint_rules() -> None:
    chain = tdx.Compose(tdx.RewardClipping(-1, 1), Custom(), tdx.RewardScaling(0.0, 0.5))
    report = tdx.check(tdx.TransformedEnv(tdx.PendulumEnv(), chain), seed=0)
    assert report.checks == ("arguments", "specs", "steps", "lints")
    assert ("TDX421", 0) in [(each.code, each.where.stage) for each in report.findings]
    plain = tdx.check(tdx.TransformedEnv(tdx.PendulumEnv(), tdx.RewardClipping(-1, 1)), seed=0)
    assert plain.findings == ()
