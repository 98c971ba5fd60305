"""Gymnasium stacks as pipelines: the counterparts of wrappers, and the comparison of values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers

from tdx.foundation.errors import ArgumentError, EnvError
from tdx.inspection.stack_import import StackImport, import_stack
from tdx.pipeline import parse_stage
from tdx.stacks import open_stack
from tdx.stacks.conversion import Counterpart
from tdx.stacks.counterparts import TABLE, Row
from tdx.stacks.refusals import Missing
from tests.programs import exhaustive
from tests.stacks.comparing import proofs, stages

Make = Callable[[], Any]
ONE = np.float32(1)

ROOT = Path(__file__).parents[2]


def converted(make: Make, steps: int = 1_000) -> StackImport:
    return import_stack(lambda: open_stack(make()), steps=steps)


def pendulum() -> Any:
    env = gym.make("Pendulum-v1", g=9.0, max_episode_steps=50)
    env = wrappers.RescaleAction(env, -ONE, ONE)
    env = wrappers.FrameStackObservation(env, 3, padding_type="zero")
    env = wrappers.FlattenObservation(env)
    return wrappers.ClipReward(env, -5.0, 0.0)


@exhaustive
def test_pendulum_is_equal() -> None:
    found = converted(pendulum)
    assert found.pipeline.env.id == "Pendulum-v1"
    assert found.pipeline.env.kwargs == {"g": 9.0, "max_episode_steps": 50}
    assert stages(found) == [
        "ActionScaling",
        'UnsqueezeTransform(dim=-2, in_keys=["observation"])',
        'CatFrames(N=3, dim=-2, in_keys=["observation"], padding="constant")',
        'FlattenObservation(first_dim=-2, last_dim=-1, in_keys=["observation"])',
        "RewardClipping(clamp_min=-5.0, clamp_max=0.0)",
    ]
    assert proofs(found) == ["stages 0 to 6: equal for 1,000 steps"]


def cart_pole() -> Any:
    env: Any = wrappers.TimeLimit(gym.make("CartPole-v1"), 20)
    env = wrappers.DtypeObservation(env, np.float64)
    env = wrappers.TransformReward(env, lambda reward: max(min(float(reward), 0.5), -0.5))
    return wrappers.RecordEpisodeStatistics(env)


@exhaustive
def test_cart_pole_is_equal_with_episode_statistics() -> None:
    found = converted(cart_pole)
    assert found.pipeline.env.kwargs == {}
    assert stages(found) == [
        "StepCounter(max_steps=20)",
        "DTypeCastTransform(dtype_in=torch.float32, dtype_out=torch.float64, "
        'in_keys=["observation"])',
        "RewardClipping(clamp_min=-0.5, clamp_max=0.5)",
        'RewardSum(in_keys=["reward"], out_keys=["episode_reward"])',
        'StepCounter(step_count_key="step_count_2")',
    ]
    assert proofs(found) == ["stages 0 to 6: equal for 1,000 steps"]


def atari() -> Any:
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = wrappers.MaxAndSkipObservation(env, 4)
    env = wrappers.FrameStackObservation(env, 4)
    return wrappers.RecordEpisodeStatistics(wrappers.ClipReward(env, -1.0, 1.0))


@exhaustive
def test_atari_chain_is_equal_on_top_of_the_stage_without_counterpart() -> None:
    ale_py = pytest.importorskip("ale_py")
    gym.register_envs(ale_py)
    found = converted(atari, steps=60)
    assert found.pipeline.env.kwargs == {"frameskip": 1}
    missing = found.stages[2].result
    assert isinstance(missing, Missing)
    assert "the maximum of two" in missing.reason
    assert [each.name for each in found.pipeline.transforms] == [
        *("UnsqueezeTransform", "CatFrames", "RewardClipping", "RewardSum", "StepCounter")
    ]
    assert proofs(found) == [
        "stages 0 to 1: equal for 60 steps",
        "stages 3 to 5 on top of stage 2: equal for 60 steps",
    ]


def mujoco() -> Any:
    env = gym.make("InvertedPendulum-v5")
    env = wrappers.RescaleAction(env, -ONE, ONE)
    env = wrappers.NormalizeObservation(env)
    return wrappers.TransformReward(env, lambda reward: 0.1 * float(reward) + 2)


@exhaustive
def test_mujoco_chain_is_equal_around_the_normalizer() -> None:
    pytest.importorskip("mujoco")
    found = converted(mujoco, steps=300)
    assert stages(found)[1] == "RewardScaling(loc=2.0, scale=0.1)"
    missing = found.stages[4].result
    assert isinstance(missing, Missing)
    assert missing.suggestion is not None
    assert missing.suggestion.name == "VecNorm"
    assert not found.has_difference
    assert not found.is_equal


def with_statistics() -> Any:
    env = wrappers.NormalizeObservation(gym.make("Pendulum-v1"))
    env.obs_rms.mean, env.obs_rms.var = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0])
    env.update_running_mean = False
    return env


def pixels() -> Any:
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    return wrappers.AddRenderObservation(env)


def bounded() -> Any:
    return gym.make("MountainCarContinuous-v0")


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (with_statistics, ["ObservationNorm"]),
        (pixels, []),
        (lambda: wrappers.FlattenObservation(gym.make("FrozenLake-v1")), []),
        (lambda: wrappers.RescaleAction(gym.make("Pendulum-v1"), 0 * ONE, ONE), ["ActionScaling"]),
        (lambda: wrappers.RescaleAction(bounded(), 4 * -ONE, 4 * ONE), ["ActionScaling"]),
        (lambda: wrappers.DiscretizeAction(bounded(), 4), ["ActionDiscretizer"]),
        (lambda: wrappers.RescaleObservation(bounded(), -ONE, ONE), ["ObservationNorm"]),
        (lambda: gym.make("CartPole-v1", max_episode_steps=-1), []),
        (lambda: gym.make("CartPole-v1").unwrapped, []),
    ],
)
def test_other_wrappers_are_equal(make: Make, names: list[str]) -> None:
    found = converted(make, steps=60)
    assert found.is_equal, proofs(found)
    assert [stage.name for stage in found.pipeline.transforms] == names
    assert not any(stage.missing for stage in found.stages)


def test_entries_of_a_dict_are_selected() -> None:
    pytest.importorskip("minigrid")

    def make() -> Any:
        env: Any = wrappers.TimeLimit(gym.make("MiniGrid-Empty-5x5-v0"), 9)
        env = wrappers.RecordEpisodeStatistics(env)
        return wrappers.FilterObservation(env, ["direction", "image"])

    found = converted(make, steps=60)
    assert found.pipeline.env.kwargs == {"max_episode_steps": 9}
    assert stages(found) == [
        'RewardSum(in_keys=["reward"], out_keys=["episode_reward"])',
        "StepCounter",
        'SelectTransform("direction", "image", "episode_reward", "step_count")',
    ]
    assert found.is_equal, proofs(found)


def format_table(library: str) -> str:
    """Return the rows of a library as a Markdown table; rows with the same cells are one."""
    lines: dict[tuple[str, str], list[str]] = {}
    for module, rows in TABLE.items():
        if module.partition(".")[0] == library:
            for name, row in rows.items():
                lines.setdefault((row.becomes, row.values), []).append(f"`{name}`")
    cells = [f"| {', '.join(names)} | {' | '.join(cell)} |" for cell, names in lines.items()]
    return "\n".join(["| class | tdx | values |", "| --- | --- | --- |", *cells])


@pytest.mark.parametrize(
    "library", ["gymnasium", "stable_baselines3", "torchrl", "tianshou", "pufferlib"]
)
def test_page_has_the_table_of_counterparts(library: str) -> None:
    """``print(format_table(library))`` writes the table."""
    assert format_table(library) in (ROOT / "docs/stacks-import.md").read_text()


def test_wrapper_without_a_row_has_a_reason() -> None:
    found = converted(
        lambda: wrappers.ClipReward(wrappers.DelayObservation(pendulum(), 2), -1.0), steps=5
    )
    assert getattr(found.stages[-2].result, "reason", "") == "tdx has no DelayObservation"


def test_subclass_of_a_wrapper_is_not_taken_for_the_wrapper() -> None:
    class Clipped(wrappers.ClipReward[Any, Any]):
        def reward(self, reward: Any) -> Any:
            return 2 * reward

    found = converted(lambda: wrappers.ClipReward(Clipped(pendulum(), -1.0), -1.0), steps=5)
    assert found.stages[7].missing
    assert not found.has_difference
    assert not found.is_equal


def test_first_difference_names_step_key_stage_and_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(TABLE["gymnasium.wrappers"], "ClipReward", Row(Counterpart()))
    found = converted(lambda: wrappers.FlattenObservation(wrappers.ClipReward(cart_pole(), 2.0)))
    (comparison,) = found.comparisons
    assert comparison.difference is not None
    assert str(comparison) == (
        "first difference at step 0: TDX511 value: stage 7 (ClipReward), key 'reward': "
        "it is always 0.5 instead of 2"
    )
    assert not found.is_equal


def test_first_difference_is_explained_as_in_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLE["gymnasium.wrappers"]
    monkeypatch.setitem(
        table, "TransformReward", Row(Counterpart((parse_stage("RewardScaling(0.0, 3.0)"),)))
    )
    found = converted(
        lambda: wrappers.TransformReward(gym.make("Pendulum-v1"), lambda reward: 2 * float(reward)),
        steps=5,
    )
    (comparison,) = found.comparisons
    difference = comparison.difference
    assert difference is not None
    assert difference.title == "TDX506 scale"
    assert difference.message == "it is multiplied by 1.5"
    details = dict(difference.details())
    assert details["smallest case"].startswith("step 0, ")
    assert details["hint"] == "divide by 1.5"


def test_stages_that_do_not_fit_without_the_missing_one_are_left_out() -> None:
    def make() -> Any:
        env = wrappers.TransformObservation(
            gym.make("Pendulum-v1"), lambda each: each.reshape(3, 1), gym.spaces.Box(-9, 9, (3, 1))
        )
        return wrappers.ClipReward(wrappers.FlattenObservation(env), -1.0)

    found = converted(make, steps=30)
    assert [stage.name for stage in found.stages if stage.missing] == [
        *("TransformObservation", "FlattenObservation")
    ]
    assert stages(found) == ["RewardClipping(clamp_min=-1.0, clamp_max=None)"]
    assert found.gap.endswith("the pipeline as a whole is not equal")
    assert proofs(found)[-1] == "stage 5 on top of stage 4: equal for 30 steps"


def unregistered() -> Any:
    env = gym.make("Pendulum-v1").unwrapped
    env.spec = None
    return env


def with_function() -> Any:
    env = gym.make("Pendulum-v1").unwrapped
    assert env.spec is not None
    env.spec.kwargs["g"] = abs
    return env


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gym.make_vec("CartPole-v1", 2, "sync"), "a vector env cannot be converted"),
        (unregistered, "the env inside, PendulumEnv, was not created by an id"),
        (with_function, "the argument g of the env is builtin_function_or_method"),
        (
            lambda: wrappers.NormalizeReward(gym.make("Pendulum-v1")),
            "no stage has a counterpart: NormalizeReward: it divides by",
        ),
    ],
)
def test_stacks_that_cannot_be_converted(make: Make, message: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        converted(make, steps=3)
    assert raised.value.message.startswith(message)
    assert raised.value.hint


def test_stack_that_raises_is_reported() -> None:
    def fail(reward: Any) -> float:
        if float(reward) == 1.0:
            return 1.0
        raise ValueError("no reward")

    def make() -> Any:
        env = wrappers.TransformReward(gym.make("Pendulum-v1"), fail)
        return wrappers.ClipReward(env, -1.0)

    with pytest.raises(EnvError, match="step of the stack raised ValueError: no reward"):
        converted(make, steps=3)
