"""``tdx init --from``: the file, the messages and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tdx.cli.documents import document_schema
from tdx.inspection import stack_import
from tdx.inspection.check_report import check_pipeline
from tdx.pipeline import EnvConfig, PipelineFile, parse_stage
from tdx.pipeline.arguments import bind_stage
from tdx.pipeline.values import CodeReference
from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Tdx

SOURCE = """
import gymnasium as gym
import numpy as np
from gymnasium import wrappers

def make(limit=20):
    env = gym.make("Pendulum-v1", max_episode_steps=limit)
    env = wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
    env = wrappers.NormalizeObservation(env)
    return wrappers.ClipReward(env, -1.0, 1.0)

def hopeless():
    return wrappers.NormalizeReward(gym.make("Pendulum-v1"))

def nameless():
    return wrappers.ClipReward(Nameless(), -1.0, 1.0)

class Nameless(gym.Env):
    observation_space = action_space = gym.spaces.Box(-1, 1, (1,))

def own_kind():
    import tdx
    from tests.stacks.toy_framework import make
    from tests.stacks.toy_package import ToyStack
    return ToyStack(make())

def sb3():
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
    return VecFrameStack(DummyVecEnv([lambda: make(limit=9)] * 2), 2)

def torchrl():
    from torchrl import envs

    class Negate(envs.Transform):
        def _apply_transform(self, reward):
            return -reward

    stages = envs.RewardScaling(0.0, 0.1), Negate(["reward"], ["reward"]), envs.RewardSum()
    return envs.TransformedEnv(envs.GymEnv("Pendulum-v1"), envs.Compose(*stages))

def own_torchrl():
    from torchrl import envs
    from tests.stacks.torchrl.chains import Camera
    return envs.TransformedEnv(Camera(), envs.StepCounter(5))

def whole():
    env = gym.make("HalfCheetah-v5")
    env = wrappers.NormalizeObservation(env)
    env.update_running_mean = False
    env.obs_rms.mean, env.obs_rms.var = env.obs_rms.mean + 0.3, env.obs_rms.var * 3
    return env

class Image(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = env.observation_space["image"]

    def observation(self, observation):
        return observation["image"]

def with_text():
    from stable_baselines3.common.vec_env import DummyVecEnv
    import minigrid
    def row():
        env = gym.make("MiniGrid-Empty-5x5-v0", max_episode_steps=9)
        return Image(wrappers.ClipReward(env, -1.0, 1.0))
    return DummyVecEnv([row] * 2)

def text():
    import minigrid
    return wrappers.ClipReward(gym.make("MiniGrid-Empty-5x5-v0"), -1.0, 1.0)

def unchanged(tensordict):
    return tensordict

def native():
    import tdx
    stages = tdx.StepCounter(max_steps=9), unchanged, tdx.RewardScaling(0.0, 0.1)
    return tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1", g=9.0), tdx.Compose(*stages))

calls = []

def changing():
    calls.append(0)
    env = gym.make("Pendulum-v1")
    return wrappers.ClipReward(env, -1.0 / len(calls), 1.0)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "converted_envs.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("converted_envs", None)


@pytest.mark.parametrize("name", ["converted_envs:make", "converted_envs.py:make"])
@exhaustive
def test_written_pipeline_passes_the_check(tdx: Tdx, folder: Path, name: str) -> None:
    outcome = tdx("init", "out.yaml", "--from", name, "--allow-code")
    assert outcome.code == 1, outcome.err
    assert "stages 0 to 3: equal for 1,000 steps" in outcome.err
    assert "stage 5 on top of stage 4: equal for 1,000 steps" in outcome.err
    gap = "compared 5 of 6 stages; not converted: 4 NormalizeObservation; the pipeline as a whole"
    assert gap in outcome.err
    assert outcome.err.splitlines()[-1] == (
        "wrote out.yaml, which is incomplete: it lacks 4 NormalizeObservation; add what replaces "
        "it, as the comments in the file say; next: tdx check out.yaml"
    )
    assert f"# C{gap[1:]}" in (folder / "out.yaml").read_text()
    text = (folder / "out.yaml").read_text()
    assert f"# Converted from {name}." in text
    assert "# Stages 0 to 3: equal for 1,000 steps." in text
    assert "  # 4 NormalizeObservation(epsilon=1e-08): not converted\n  #   reason: VecNorm" in text
    assert "\n  #   to do: use VecNorm" in text
    file = PipelineFile.load("out.yaml")
    assert file.pipeline.env.kwargs == {"max_episode_steps": 20}
    assert [each.name for each in file.pipeline.transforms] == ["ActionScaling", "RewardClipping"]
    assert [each.stage.name for each in file.pipeline.off] == ["VecNorm"]
    assert check_pipeline(file.pipeline).ok


@pytest.mark.usefixtures("folder", "few_steps")
def test_arguments_of_the_function_are_converted(tdx: Tdx) -> None:
    arguments = ("--from", "converted_envs:make", "--allow-code", "--env-kwargs", "limit=7")
    outcome = tdx("init", "-", *arguments)
    assert outcome.code == 1, outcome.err
    assert PipelineFile(outcome.out).pipeline.env.kwargs == {"max_episode_steps": 7}


@pytest.mark.usefixtures("folder")
def test_different_values_are_shown_and_fail(tdx: Tdx) -> None:
    outcome = tdx("init", "-", "--from", "converted_envs:changing", "--allow-code")
    assert outcome.code == 1
    assert "first difference at step 0: TDX511 value: stage 3 (ClipReward), key" in outcome.err
    assert "\n  smallest case: step 0, " in outcome.err
    assert "\n#   smallest case: step 0, " in outcome.out
    assert "# Stages 0 to 3: first difference at step 0" in outcome.out


@pytest.mark.usefixtures("folder")
def test_json_has_the_difference_with_its_kind_and_evidence(tdx: Tdx) -> None:
    source = ("--from", "converted_envs:changing", "--allow-code", "--format", "json")
    outcome = tdx("init", "-o", "other.yaml", *source)
    assert outcome.code == 1
    document = json.loads(outcome.out)
    Draft202012Validator(document_schema("init")).validate(document)
    assert (document["kind"], document["path"]) == ("init", "other.yaml")
    conversion = document["conversion"]
    assert [stage["stages"] for stage in conversion["stages"]][-1] == document["stages"][-1:]
    (comparison,) = conversion["comparisons"]
    difference = comparison["difference"]
    assert (difference["kind"], difference["smallest"]["step"]) == ("value", 0)


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare 50 steps instead of 1,000."""
    monkeypatch.setattr(stack_import, "import_stack", partial(stack_import.import_stack, steps=50))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--from", "converted_envs:hopeless", "--allow-code"), 2, "no stage has a counterpart"),
        (("--from", "converted_envs:make"), 2, "--allow-code"),
        (("--from", "converted_envs:nameless", "--allow-code"), 2, "was not created by an id"),
        (("--from", "converted_envs:own_kind", "--allow-code"), 2, "Walk is a stack of toy, which"),
        (("--from", "Pendulum-v1", "--allow-code"), 2, "does not name a function"),
        (("--from", "converted_envs:mke", "--allow-code"), 2, "did you mean make?"),
        (("--from", "a:b", "--env", "Pendulum-v1"), 2, "--from and --env cannot be combined"),
        (("--from", "a:b", "--t", "RewardSum"), 2, "--from and -t cannot be combined"),
    ],
)
def test_errors_write_nothing(
    tdx: Tdx, folder: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    outcome = tdx("init", "out.yaml", *arguments)
    assert outcome.code == code
    assert message in outcome.err
    assert not (folder / "out.yaml").exists()


@pytest.mark.usefixtures("few_steps")
def test_existing_file_needs_force(tdx: Tdx, folder: Path) -> None:
    (folder / "out.yaml").write_text("mine")
    arguments = ("init", "out.yaml", "--from", "converted_envs:make", "--allow-code")
    refused = tdx(*arguments)
    assert (refused.code, (folder / "out.yaml").read_text()) == (2, "mine")
    assert tdx(*arguments, "--force").code == 1
    assert CodeReference.of("converted_envs:make") is not None
    assert PipelineFile.load("out.yaml").pipeline.env.id == "Pendulum-v1"


@pytest.mark.usefixtures("folder", "few_steps")
def test_program_of_tdx_becomes_its_pipeline(tdx: Tdx) -> None:
    outcome = tdx("init", "out.yaml", "--from", "converted_envs.py:native", "--allow-code")
    assert outcome.code == 0, outcome.err
    assert "stages 0 to 2: equal for 50 steps" in outcome.err
    assert outcome.err.splitlines()[-1].endswith("next: tdx check out.yaml --allow-code")
    stages = "StepCounter(max_steps=9)", "converted_envs.py:unchanged", "RewardScaling(0.0, 0.1)"
    env = EnvConfig("Pendulum-v1", {"g": 9.0})
    pipeline = PipelineFile.load("out.yaml").pipeline
    assert pipeline.env == env
    assert [bind_stage(stage).values for stage in pipeline.transforms] == [
        bind_stage(parse_stage(stage)).values for stage in stages
    ]
    assert tdx("check", "out.yaml", "--allow-code").code == 0


@pytest.mark.usefixtures("few_steps")
def test_stack_of_stable_baselines3_is_converted(tdx: Tdx, folder: Path) -> None:
    outcome = tdx("init", "out.yaml", "--from", "converted_envs:sb3", "--allow-code")
    assert outcome.code == 1, outcome.err
    assert "stages 0 to 3: equal for 50 steps" in outcome.err
    assert "stages 5 to 7 on top of stage 4: equal for 50 steps" in outcome.err
    file = PipelineFile.load("out.yaml")
    assert file.pipeline.env.num_envs == 2
    assert [each.name for each in file.pipeline.transforms] == [
        *("ActionScaling", "RewardClipping", "CatFrames")
    ]
    assert check_pipeline(file.pipeline).ok


@pytest.mark.usefixtures("few_steps")
@exhaustive
def test_stack_of_torchrl_is_converted(tdx: Tdx, folder: Path) -> None:
    outcome = tdx("init", "out.yaml", "--from", "converted_envs:torchrl", "--allow-code")
    assert outcome.code == 1, outcome.err
    assert "stage 2 on top of stage 1: equal for 50 steps" in outcome.err
    text = (folder / "out.yaml").read_text()
    assert "  # 1 Negate" in text
    assert ": not converted\n  #   reason: " in text
    assert [each.name for each in PipelineFile.load("out.yaml").pipeline.transforms] == [
        *("RewardScaling", "RewardSum")
    ]


@pytest.mark.usefixtures("few_steps")
@exhaustive
def test_env_without_a_counterpart_is_marked(tdx: Tdx, folder: Path) -> None:
    outcome = tdx("init", "out.yaml", "--from", "converted_envs:own_torchrl", "--allow-code")
    assert outcome.code == 1, outcome.err
    assert "stage 0 on top of the env: equal for 50 steps" in outcome.err
    assert "compared 1 of 1 stages; not converted: the env inside; the pipeline" in outcome.err
    assert "next: tdx check out.yaml --allow-code" in outcome.err
    text = (folder / "out.yaml").read_text()
    assert "# The env tests.stacks.torchrl.chains:Camera is a proposal, which was not" in text
    assert "#   to do: name a function as `env`" in text
    pipeline = PipelineFile.load("out.yaml").pipeline
    assert pipeline.env.id == "tests.stacks.torchrl.chains:Camera"
    assert [each.name for each in pipeline.transforms] == ["StepCounter"]
    assert tdx("check", "out.yaml", "--allow-code").code == 0


@pytest.mark.usefixtures("folder", "few_steps")
def test_frozen_statistics_of_a_float64_env(tdx: Tdx) -> None:
    outcome = tdx("init", "out.yaml", "--from", "converted_envs:whole", "--allow-code")
    assert outcome.code == 0, outcome.err
    assert "stages 0 to 3: equal for 50 steps" in outcome.err
    names = [stage.name for stage in PipelineFile.load("out.yaml").pipeline.transforms]
    assert names == ["ObservationNorm", "DTypeCastTransform"]


@pytest.mark.usefixtures("folder", "few_steps")
@exhaustive
def test_text_below_the_wrappers_of_a_vec_env(tdx: Tdx) -> None:
    """A ``DummyVecEnv`` cannot hold text, which the wrapper ``Image`` removes."""
    outcome = tdx("init", "out.yaml", "--from", "converted_envs:with_text", "--allow-code")
    assert outcome.code == 1, outcome.err
    assert "equal for 50 steps; not compared: mission\n" in outcome.err
    assert "not converted: 4 Image; the pipeline as a whole is not equal" in outcome.err
    assert PipelineFile.load("out.yaml").pipeline.env.num_envs == 2


@pytest.mark.usefixtures("folder", "few_steps")
def test_entries_that_are_not_compared_are_named(tdx: Tdx) -> None:
    outcome = tdx("init", "-", "--from", "converted_envs:text", "--allow-code")
    assert outcome.code == 0, outcome.err
    assert "# Stages 0 to 2: equal for 50 steps; not compared: mission." in outcome.out
