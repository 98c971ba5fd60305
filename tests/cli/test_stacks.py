"""Commands for an env of another library, from a module or a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

SOURCE = """
import gymnasium as gym
import numpy as np
from gymnasium import wrappers


class Halved(gym.ObservationWrapper):
    def observation(self, observation):
        return observation.astype(np.float64) / 2


def make(limit: int = 10):
    print("creating")
    env = gym.make("Pendulum-v1", max_episode_steps=limit)
    return wrappers.NormalizeReward(wrappers.FrameStackObservation(env, 2, padding_type="zero"))

def halved():
    return Halved(gym.make("Pendulum-v1", max_episode_steps=10))

def act(observation):
    return np.zeros(1, np.float32)

def raises():
    raise ValueError("no simulator")

def nothing():
    make()

def needs(size, name):
    pass

def closed():
    env = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    env.close()
    return env

def unknown():
    return {"a": 1}

def stepped():
    env = make()
    env.reset()
    env.step(env.action_space.sample())
    return env

class Vector:
    pass

def a_class():
    return Vector

value = 3

an_env = gym.make("CartPole-v1")

def __getattr__(name):
    if name == "a_tdx_env":
        import tdx
        return tdx.GymEnv("CartPole-v1")
    raise AttributeError(name)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "wrapped_envs.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("wrapped_envs", None)


def target(name: str) -> tuple[str, ...]:
    return ("--env", f"envs/wrapped_envs.py:{name}", "--allow-code")


def data_of(tdx: Tdx, *arguments: str) -> Any:
    outcome = tdx(*arguments, "--format", "json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


@pytest.mark.usefixtures("folder")
def test_inspect_shows_one_row_for_each_wrapper(tdx: Tdx) -> None:
    spec = data_of(tdx, "inspect", "spec", *target("make"))
    names = [stage["transform"] for stage in spec["stages"]]
    assert names[2:] == ["TimeLimit", "FrameStackObservation", "NormalizeReward"]
    assert spec["stages"][2]["call"] == "TimeLimit(max_episode_steps=10)"
    changed = {each["key"]: each["stages"] for each in spec["keys"] if each["stages"]}
    assert changed == {"observation": [3]}
    chain = data_of(tdx, "inspect", "chain", *target("make"))
    assert [each["key"] for each in chain["stages"][4]["forward"]["writes"]] == ["reward"]
    outcome = tdx("inspect", "values", *target("make"), "--steps", "3", "--seed", "0")
    assert "4 NormalizeReward" in outcome.out
    assert "creating" in outcome.err
    assert "creating" not in outcome.out
    keys = tdx("inspect", "keys", "reward", *target("make"))
    assert "reward@1" in keys.out


def test_factory_in_a_module_of_the_current_folder(
    tdx: Tdx, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "envs")
    arguments = ("--env", "wrapped_envs:make", "--allow-code", "--env-kwargs", '{"limit": 4}')
    spec = data_of(tdx, "inspect", "spec", *arguments)
    assert spec["stages"][2]["call"] == "TimeLimit(max_episode_steps=4)"


@pytest.mark.usefixtures("folder")
def test_policy_option_with_a_function(tdx: Tdx) -> None:
    policy = ("--policy", "wrapped_envs:act")
    report = data_of(tdx, "inspect", "values", *target("make"), *policy, "--steps", "2")
    (acted,) = [each for each in report["phases"][1]["stages"] if each["kind"] == "policy"]
    assert acted["values"][0]["max"] == 0
    refused = tdx("inspect", "values", *target("make"), "--policy", "zero")
    assert refused.code == 2
    assert "function that takes an observation" in refused.err


@pytest.mark.usefixtures("folder")
@exhaustive
def test_check_and_profile_of_wrapped_envs(tdx: Tdx) -> None:
    assert tdx("check", *target("make"), "--seed", "0").code == 0
    outcome = tdx("check", *target("halved"), "--seed", "0", "--format", "json")
    assert outcome.code == 1, outcome.err
    (finding,) = json.loads(outcome.out)["findings"]
    assert (finding["code"], finding["stage"], finding["key"]) == ("TDX401", 3, "observation")
    assert (finding["file"], finding["line"]) == ("envs/wrapped_envs.py", 7)
    ignored = tdx("check", *target("halved"), "--ignore", "TDX401")
    assert ignored.code == 0
    short = ("--steps", "20", "--warmup", "2", "--repeat", "2")
    profile = data_of(tdx, "profile", *target("make"), *short)
    (mode,) = profile["modes"]
    assert mode["mode"] == "observed"
    assert mode["steps"] == [20, 20]
    labels = [row["part"]["name"] for row in mode["rows"]]
    assert "NormalizeReward" in labels
    in_rollouts = data_of(tdx, "profile", *target("make"), *short, "--mode", "eager")
    assert in_rollouts["modes"][0]["mode"] == "eager"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "code", "message", "hint"),
    [
        ("raises", 3, "no simulator (envs/wrapped_envs.py:24)", "--debug"),
        ("nothing", 3, "nothing() returned nothing", "`return env`"),
        (
            "needs",
            2,
            "needs() needs the arguments size, name",
            "needs(size=…, name=…)' --allow-code; fill in size, name",
        ),
        ("closed", 3, "closed() returned a closed env", "without close()"),
        ("unknown", 2, "unknown() returned an object of type dict", "entry-point group"),
        ("a_class", 2, "a_class() returned the class Vector", "create an instance"),
        ("value", 2, "value is an object of type int and cannot be called", "returns an env"),
        ("an_env", 2, "an object of type TimeLimit, not a function", "create it in a function"),
        ("a_tdx_env", 2, "an object of type GymEnv, not a function", "create it in a function"),
        ("mak", 2, "has no mak", "did you mean make"),
    ],
)
def test_invalid_factory_is_a_one_line_error(
    tdx: Tdx, name: str, code: int, message: str, hint: str
) -> None:
    for command in (("inspect", "spec"), ("check",)):
        outcome = tdx(*command, *target(name))
        assert outcome.code == code
        assert outcome.out == ""
        (error,) = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
        assert message in error
        assert hint in outcome.err


@pytest.mark.usefixtures("folder")
def test_stepped_env_is_reset_first(tdx: Tdx) -> None:
    report = data_of(tdx, "inspect", "values", *target("stepped"), "--steps", "10")
    assert report["steps"] == 10
    assert report["resets"] == 1


@pytest.mark.usefixtures("folder")
def test_code_and_files_require_allow_code(tdx: Tdx) -> None:
    outcome = tdx("inspect", "spec", *target("make")[:2])
    assert outcome.code == 2
    assert "--allow-code" in outcome.err
    missing = tdx("inspect", "spec", "--env", "envs/other.py:make", "--allow-code")
    assert missing.code == 2
    assert "no file envs/other.py" in missing.err


TORCHRL = """
from torchrl.envs import Compose, GymEnv, RewardScaling, StepCounter, TransformedEnv

def make():
    return TransformedEnv(GymEnv("Pendulum-v1"), Compose(RewardScaling(0.0, 0.5), StepCounter(10)))
"""


@exhaustive
def test_spec_and_check_of_a_torchrl_env(tdx: Tdx, folder: Path) -> None:
    (folder / "torchrl_envs.py").write_text(TORCHRL)
    env = ("--env", "torchrl_envs.py:make", "--allow-code")
    spec = data_of(tdx, "inspect", "spec", *env)
    assert [stage["transform"] for stage in spec["stages"]] == ["RewardScaling", "StepCounter"]
    changed = {each["key"]: each["stages"] for each in spec["keys"] if each["stages"]}
    assert changed == {"step_count": [1]}
    assert tdx("check", *env, "--seed", "0").code == 0
