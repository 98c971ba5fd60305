"""Stages, specs, values, state, profile and commands of a VecEnv."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

import tdx
from tdx.cli.process import run
from tdx.core import StepTrace
from tdx.foundation.errors import ArgumentError
from tdx.inspection.values_report import inspect_values
from tdx.stacks import open_stack
from tests.programs import exhaustive
from tests.stacks.sb3.envs import Images, make_classic, make_images, replaced_methods


def test_stages_are_the_wrappers_of_the_sub_envs_and_of_the_vec_env() -> None:
    stack = open_stack(make_classic())
    assert [(stage.name, stage.rows) for stage in stack.stages] == [
        ("PassiveEnvChecker", 2),
        ("OrderEnforcing", 2),
        ("TimeLimit", 2),
        ("Monitor", 2),
        ("DummyVecEnv", None),
        ("VecNormalize", None),
        ("VecFrameStack", None),
    ]
    assert stack.name == "CartPole-v1"
    assert stack.stages[6].call == "VecFrameStack(n_stack=4, channels_first=False)"
    assert stack.stages[5].arguments["training"] is True
    assert [stage.direction for stage in stack.stages[4:]] == ["both", "forward", "forward"]
    assert "vec_normalize.py:" in str(stack.stages[5].location)


class ClipsSome(gym.RewardWrapper[Any, Any]):
    """Clips the rewards of some steps."""

    def reward(self, reward: Any) -> float:
        return max(float(reward), -6.0)


class ClipsMore(VecEnvWrapper):
    """Clips the rewards of more steps."""

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations, rewards.clip(-3.0, None), dones, infos


@exhaustive
def test_values_cover_the_steps_in_which_a_wrapper_changes_nothing() -> None:
    def make() -> gym.Env[Any, Any]:
        return ClipsSome(gym.make("Pendulum-v1"))

    seen: list[torch.Tensor] = []

    def note(trace: StepTrace) -> None:
        if trace.phase == "step":
            seen.append(trace.env_tensordict["reward"])

    report = inspect_values(ClipsMore(DummyVecEnv([make] * 2)), steps=60, seed=0, on_trace=note)
    (steps,) = (phase for phase in report.phases if phase.phase == "step")
    rows = {
        stage.name: value
        for stage in steps.stages
        for value in stage.values
        if value.key == "reward"
    }
    outermost = rows["ClipsMore"]
    assert outermost.elements == 120
    assert outermost.mean == pytest.approx(float(torch.stack(seen).mean()))
    for name in ("ClipsSome", "ClipsMore"):
        assert rows[name].present == 60
        assert 0 < (rows[name].changed or 0) < 60


def test_settings_that_change_are_shown_as_they_are() -> None:
    env = make_classic()
    env.venv.training = env.venv.norm_reward = False
    arguments = open_stack(env).stages[5].arguments
    assert (arguments["training"], arguments["norm_reward"]) == (False, False)
    assert (arguments["clip_obs"], arguments["gamma"]) == (5.0, 0.99)


def test_specs_and_values() -> None:
    report = tdx.inspect(make_classic(), steps=30, seed=0)
    changes = {change.key: change.stages for change in report.spec.changes if change.stages}
    assert changes["observation"] == (5, 6)
    assert changes["done"] == (4,)
    assert report.values is not None
    assert report.values.violations == ()
    assert any(note.startswith("VecNormalize and VecFrameStack") for note in report.notes)
    assert report.chain is not None
    writes = {stage.name: [w.key for w in stage.forward.writes] for stage in report.chain.stages}
    assert writes["Monitor"][0] == ("info", "episode", "r")
    assert "done" in writes["DummyVecEnv"]
    assert set(writes["VecNormalize"]) == {
        "observation",
        "reward",
        ("info", "terminal_observation"),
    }
    assert json.loads(json.dumps(report.to_dict()))["kind"] == "stable-baselines3"


def test_dict_observations_are_followed_by_key() -> None:
    report = tdx.inspect(make_images(), steps=20, seed=0)
    changes = {change.key: change.stages for change in report.spec.changes if change.stages}
    assert changes[("observation", "image")] == (2, 3)
    assert changes[("observation", "speed")] == (3, 4)
    assert report.values is not None
    assert report.values.violations == ()
    assert "obs_rms.speed.mean" in report.state[4]


def test_terminal_observation_is_next() -> None:
    env = make_classic(limit=5)
    trace = tdx.trace(env).run(until="done").last
    assert trace is not None
    result = trace.tensordict["next"]
    done = result["done"]
    assert torch.equal(result["observation"][done], result["info", "terminal_observation"][done])
    returned = trace.after(6)["observation"].value
    assert not torch.equal(returned[done], result["observation"][done])
    before = trace.after(3)["observation"].value
    assert not torch.equal(before[done], trace.after(4)["observation"].value[done])


def test_state_is_named_and_copied() -> None:
    env = make_classic()
    stack = open_stack(env)
    stack.tracer().run(3)
    state = stack.state()
    names = ["obs_rms.count", "obs_rms.mean", "obs_rms.var"]
    names += ["ret_rms.count", "ret_rms.mean", "ret_rms.var", "returns"]
    assert sorted(state[5]) == names
    assert tuple(state[6]["stacked_obs.stacked_obs"].shape) == (2, 16)
    stack.tracer().run(1)
    assert not torch.equal(state[5]["obs_rms.mean"], stack.state()[5]["obs_rms.mean"])


def test_policies() -> None:
    env = make_classic()
    model = PPO("MlpPolicy", env)
    trace = tdx.trace(model, model).run(2).last
    assert trace is not None
    assert trace.stages[0].name == "PPO"
    with pytest.raises(ArgumentError, match="policy must be callable"):
        tdx.trace(env, 3)


def test_profile_has_a_row_for_each_wrapper() -> None:
    env = make_classic()
    with tdx.profile(env) as measured:
        env.reset()
        for _ in range(5):
            env.step([env.action_space.sample()] * 2)
    mode = measured.result.modes[0]
    steps = {row.part.name: row.statistics.n for row in mode.rows if row.part.lane == "step"}
    assert steps["VecNormalize"] == steps["DummyVecEnv"] == 5
    assert steps["CartPole-v1"] == 10
    assert mode.unattributed <= 0.05
    assert replaced_methods(open_stack(env)) == []


def test_different_sub_envs_are_one_stage() -> None:
    make = partial(gym.make, "CartPole-v1")
    env = DummyVecEnv([make, lambda: gym.wrappers.TransformReward(make(), float)])
    stack = open_stack(env)
    assert len(stack.stages) == 0
    assert "different wrappers" in stack.notes[0]
    assert stack.tracer().run(3).steps == 3


def test_check_of_a_dict_env_is_silent() -> None:
    report = tdx.check(make_vec_env(Images, n_envs=2), seed=0)
    assert report.ok


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "spec"],
        ["inspect", "values", "--steps", "10"],
        ["inspect", "chain"],
        ["check"],
        ["profile", "--steps", "10", "--repeat", "1", "--warmup", "0"],
    ],
)
def test_commands(command: list[str], capfd: Any) -> None:
    target = "tests.stacks.sb3.envs:make_classic"
    status = run([*command, "--env", target, "--allow-code"])
    assert "VecNormalize" in capfd.readouterr().out
    # `check` suggests that the frames are normalized after they are stacked.
    assert int(status) == 0
