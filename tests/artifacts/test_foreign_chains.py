"""Chains of other libraries as artifacts: the stages of their stacks become those of tdx."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import wrappers

import tdx
from tdx.artifacts.artifact import export_chain, exportable_env
from tdx.artifacts.check import check_artifact
from tdx.artifacts.functions import chain_functions
from tdx.foundation.errors import ChainError
from tdx.stacks.checkpoints import read_checkpoint
from tdx.stacks.checkpoints.steps import run
from tdx.stacks.native import format_stages
from tests.programs import exhaustive
from tests.stacks.checkpoints.folders import ACTION, IMAGE, STATE, Folder


def names(stages: Sequence[str]) -> list[str]:
    """Return the class names of stages."""
    return [stage.partition("(")[0] for stage in stages]


@pytest.fixture
def folder() -> Folder:
    """Return a checkpoint without its camera."""
    folder = Folder()
    for features in (folder.config["input_features"], folder.normalizer["features"]):
        del features[IMAGE]
    return folder


@pytest.mark.parametrize(("state", "action"), [("MIN_MAX", "QUANTILES"), ("QUANTILES", "MIN_MAX")])
@exhaustive
def test_a_checkpoint_has_the_bits_of_its_processors(
    folder: Folder, state: str, action: str, tmp_path: Path
) -> None:
    folder.set_mode("STATE", state)
    folder.set_mode("ACTION", action)
    folder.config["input_features"]["observation.joints"] = folder.config["input_features"].pop(
        STATE
    )
    folder.before[0]["config"]["rename_map"] = {"observation.joints": STATE}
    folder.after.append({"registry_name": "torch2numpy_action_processor", "config": {}})
    checkpoint = read_checkpoint(folder.write(tmp_path / "policy"))
    with exportable_env(tdx.open_stack(str(tmp_path / "policy"))) as (env, left_out):
        chain = chain_functions(env, "chain", format_stages(env, expanded=True))
    assert left_out == []
    rng = np.random.default_rng(0)
    for _ in range(20):
        joints = rng.normal(0, 10, 6).astype(np.float32)
        policy = rng.normal(0, 2, (1, 6)).astype(np.float32)
        for name, key, value, processor in (
            ("step", "observation.joints", joints, checkpoint.processors[0]),
            ("act", ACTION, policy, checkpoint.processors[1]),
        ):
            function = next(part for part in chain.functions if part.name == name)
            expected = run(processor, {key: value}).samples[-1][STATE if name == "step" else ACTION]
            (source,) = (entry for entry in function.inputs if not entry.is_state)
            (result,) = function.runner()({source.name: torch.from_numpy(value)}).values()
            np.testing.assert_array_equal(result.numpy(), np.asarray(expected))
            assert result.dtype is torch.float32


@exhaustive
def test_an_artifact_of_a_checkpoint_agrees_with_its_contract(
    folder: Folder, tmp_path: Path
) -> None:
    stack: Any = tdx.open_stack(str(folder.write(tmp_path / "policy")))
    with exportable_env(stack) as (env, _):
        export_chain(env, "pt2", tmp_path / "chain")
    report = check_artifact(tmp_path / "chain", tdx.freeze(stack), allow_code=True)
    assert report.same
    assert report.calls > 10
    assert report.notes == ()


@exhaustive
def test_steps_without_counterpart_are_named_and_split_off(folder: Folder, tmp_path: Path) -> None:
    folder.insert(3, "tokenizer_processor")
    folder.before.append({"class": "my_robot.Gripper", "config": {}})
    stack = tdx.open_stack(str(folder.write(tmp_path / "policy")))
    with (
        pytest.raises(ChainError, match=r"stage 3 \(tokenizer\): .* it maps text"),
        exportable_env(stack),
    ):
        pass
    with exportable_env(stack, split=True) as (env, left_out):
        result = export_chain(env, "pt2", tmp_path / "chain", left_out=left_out)
    assert names(result.stages) == [
        "UnsqueezeTransform",
        "ObservationNorm",
    ]
    assert names(result.left_out) == [*("tokenizer", "Gripper", "device", "unnormalizer")]


@exhaustive
def test_wrappers_up_to_one_without_counterpart(tmp_path: Path) -> None:
    env = wrappers.FrameStackObservation(gymnasium.make("Pendulum-v1"), 2)
    stack = tdx.open_stack(wrappers.ClipReward(wrappers.NormalizeObservation(env), -1.0, 1.0))
    with pytest.raises(ChainError, match=r"\(NormalizeObservation\): has no counterpart") as error:
        exportable_env(stack).__enter__()
    assert "--split" in str(error.value)
    with exportable_env(stack, split=True) as (chain, left_out):
        result = export_chain(chain, "numpy", tmp_path / "chain", left_out=left_out)
    assert names(result.stages) == ["UnsqueezeTransform", "CatFrames"]
    assert names(result.left_out) == [*("NormalizeObservation", "ClipReward")]
    env.close()


@exhaustive
def test_several_envs_with_the_same_stages_become_one(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    envs = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")] * 2), clip_obs=5.0)
    envs.reset()
    for _ in range(5):
        envs.step(np.zeros((2, 1), np.float32))
    envs.training = False
    with exportable_env(tdx.open_stack(envs)) as (env, _):
        result = export_chain(env, "numpy", tmp_path / "chain")
    assert result.stages[0].startswith("ObservationNorm")
    namespace: dict[str, Any] = {}
    exec((tmp_path / "chain" / "chain.py").read_text(), namespace)
    raw = np.array([0.3, -0.9, 4.0], np.float32)
    (observation, *_) = namespace["reset"](raw)
    np.testing.assert_allclose(observation, np.asarray(envs.normalize_obs(raw)), rtol=1e-5)
    envs.close()


@exhaustive
def test_a_split_at_an_operator_of_the_form(tmp_path: Path) -> None:
    env = tdx.TransformedEnv(
        tdx.GymEnv("Pendulum-v1"),
        tdx.Compose(
            tdx.StepCounter(),
            tdx.UnaryTransform(["observation"], ["error"], fn=torch.erf),
            tdx.RewardSum(),
        ),
    )
    with pytest.raises(ChainError, match=r"stage 1 \(UnaryTransform\): numpy cannot express"):
        export_chain(env, "numpy", tmp_path / "chain")
    result = export_chain(env, "numpy", tmp_path / "chain", split=True)
    assert names(result.stages) == ["StepCounter"]
    assert "cannot express" in result.left_out[0]
    assert result.left_out[1].startswith("RewardSum")


def test_a_batch_is_refused(tmp_path: Path) -> None:
    env = tdx.SerialEnv(2, lambda: tdx.GymEnv("Pendulum-v1"))
    chain = tdx.TransformedEnv(env, tdx.StepCounter())
    with pytest.raises(ChainError, match="one env"):
        export_chain(chain, "pt2", tmp_path / "chain")
    chain.close()
