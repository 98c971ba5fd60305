"""Values that stages write, and their spec violations."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

from tdx import (
    ArgumentError,
    Bounded,
    Categorical,
    CatFrames,
    Compose,
    Composite,
    EnvBase,
    FrameSkipTransform,
    GymEnv,
    NonTensor,
    OneHot,
    PendulumEnv,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorSpec,
    Transform,
    TransformedEnv,
    Unbounded,
)
from tdx.inspection.value_stats import (
    NumberSummary,
    RunningStats,
    StageValues,
    ValueStats,
    count_outside,
)
from tdx.inspection.values_report import ValuesReport, inspect_values
from tests.envs.mocks import CountingEnv


class Writes(Transform):
    """Writes a fixed tensor."""

    def __init__(self, key: str, value: torch.Tensor) -> None:
        super().__init__(in_keys=["observation"], out_keys=[key])
        self.value = value

    def _apply_transform(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.value.clone()


class Unwritten(Transform):
    """Declares an observation but does not write it."""

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        result = observation_spec.clone()
        result["declared"] = Unbounded((1,))
        return result


def stage(report: ValuesReport, place: str, phase: str = "step") -> StageValues:
    (found,) = (each for each in report.phases if each.phase == phase)
    return next(each for each in found.stages if each.place == place)


def value(report: ValuesReport, place: str, version: str) -> ValueStats:
    return next(each for each in stage(report, place).values if each.version == version)


def collect_stats(leaf: TensorSpec | None, *values: Any) -> ValueStats:
    stats = RunningStats("a", leaf)
    for value in values:
        stats.add(NumberSummary(value), None if leaf is None else count_outside(leaf, value))
    return stats.result("a@0", None)


def test_statistics_cover_all_steps() -> None:
    stats = collect_stats(
        Bounded(0.0, 1.0, (2,)), torch.tensor([0.5, float("nan")]), torch.tensor([-1.0, 1.0])
    )
    assert (stats.minimum, stats.maximum, stats.nans, stats.elements) == (-1.0, 1.0, 1, 4)
    assert stats.mean == pytest.approx(0.5 / 3)
    assert stats.outside == 0.5
    assert (stats.shape, stats.dtype, stats.device) == ((2,), "float32", "cpu")


def test_infinity_is_excluded_from_the_mean_and_is_text_in_json() -> None:
    stats = collect_stats(Unbounded((2,)), torch.tensor([2.0, float("inf")]))
    assert (stats.mean, stats.outside) == (2.0, 0.0)
    assert stats.to_dict()["max"] == "inf"
    assert collect_stats(None, torch.tensor([float("nan")])).minimum is None


def test_bools_count_as_0_and_1() -> None:
    stats = collect_stats(
        Categorical(2, (4,), dtype=torch.bool), torch.tensor([True, False, True, True])
    )
    assert (stats.minimum, stats.mean, stats.maximum, stats.outside) == (0, 0.75, 1, 0)


def test_non_tensor_data_and_different_shapes() -> None:
    assert collect_stats(NonTensor(()), NonTensorData("hello")).dtype == "NonTensorData"
    rows = collect_stats(None, [torch.zeros(3), torch.ones(2)])
    assert (rows.shape, rows.elements, rows.mean) == ((2, -1), 5, 0.4)
    assert (
        collect_stats(None, torch.zeros(2), torch.zeros(3).double()).dtype == "float32 or float64"
    )


@pytest.mark.parametrize(
    ("leaf", "tensor", "outside"),
    [
        (Bounded(-1, 1, (3,)), torch.tensor([-2.0, 0.0, 1.0]), 1),
        (Bounded(0, 255, (2,), dtype=torch.uint8), torch.tensor([0, 255], dtype=torch.uint8), 0),
        (Categorical(3, (4,)), torch.tensor([0, 3, -1, 2]), 2),
        (OneHot(3, (2, 3)), torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.bool), 3),
        (Unbounded((2,)), torch.tensor([float("nan"), 1.0]), 0),
        (Bounded(-1, 1, (3,)), torch.zeros(2), None),
        (Bounded(-1, 1, (3,)), torch.zeros(3).double(), None),
    ],
)
def test_elements_outside_a_spec(
    leaf: TensorSpec, tensor: torch.Tensor, outside: int | None
) -> None:
    assert count_outside(leaf, tensor) == outside


def test_stages_have_values_in_both_phases() -> None:
    chain = Compose(RewardScaling(0.0, 0.5), RewardClipping(-1.0, 1.0), RewardSum())
    report = inspect_values(TransformedEnv(CountingEnv(2), chain), steps=4, seed=0)
    assert (report.env, report.steps, report.resets) == ("CountingEnv", 4, 2)
    assert [(phase.phase, phase.count) for phase in report.phases] == [("reset", 2), ("step", 4)]
    assert value(report, "env", "observation@0").mean == 1.5
    scaled = value(report, "0 RewardScaling", "reward@1")
    base = value(report, "env", "reward@0")
    assert scaled.mean == pytest.approx(base.mean and base.mean * 0.5)
    assert scaled.spec is not None
    assert scaled.spec.part == "reward"
    assert stage(report, "2 RewardSum", "reset").values[0].version == "episode_reward@1"
    assert report.violations == ()


def test_violation_is_attributed_to_the_stage_that_causes_it() -> None:
    chain = Compose(
        RewardClipping(-1.0, 1.0), Writes("reward", torch.tensor([7.0])), RewardScaling(0.0, 1.0)
    )
    report = inspect_values(TransformedEnv(CountingEnv(99), chain), steps=3)
    (violation,) = report.violations
    assert (violation.index, violation.name, violation.key, violation.code) == (
        1,
        "Writes",
        "reward",
        "bounds",
    )
    assert (violation.phase, violation.step, violation.count) == ("reset", 0, 4)
    assert violation.message == "it holds 7 after a reset, outside [-1, 1]"
    assert violation.spec is not None
    assert (violation.spec.domain.low, violation.spec.domain.high) == (-1, 1)
    assert value(report, "1 Writes", "reward@2").violations == ("bounds",)
    assert value(report, "1 Writes", "reward@2").outside == 1.0
    assert value(report, "2 RewardScaling", "reward@3").violations == ()


@pytest.mark.parametrize(
    ("transform", "code", "message"),
    [
        (Writes("observation", torch.zeros(1)), "dtype", "its dtype is torch.float32 after a"),
        (Writes("observation", torch.zeros(2).long()), "shape", "its shape is (2,) after a reset"),
        (lambda td: td.set("extra", td["observation"]), "undeclared", "but no spec declares it"),
        (Unwritten(), "missing", "the spec declares it, but it is missing after a reset"),
    ],
    ids=["dtype", "shape", "undeclared", "missing"],
)
def test_each_kind_of_violation(transform: Any, code: str, message: str) -> None:
    report = inspect_values(
        TransformedEnv(CountingEnv(99), Compose(RewardSum(), transform)), steps=2
    )
    (violation,) = report.violations
    assert (violation.code, violation.kind, violation.index) == (code, "stage", 1)
    assert message in violation.message


def test_violations_of_env_and_policy_have_no_stage_index() -> None:
    class Violates(CountingEnv):
        def __init__(self) -> None:
            super().__init__(99)
            self.observation_spec = Composite(observation=Bounded(0, 1, (1,), dtype=torch.int64))

    env = TransformedEnv(Violates(), StepCounter())
    (violation,) = inspect_values(env, steps=3).violations
    assert (violation.kind, violation.index, violation.name, violation.step) == (
        "env",
        None,
        "Violates",
        1,
    )

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", torch.full((2,), 3.0))

    (violation,) = inspect_values(
        TransformedEnv(CountingEnv(99)), steps=1, policy=policy
    ).violations
    assert (violation.kind, violation.name, violation.key, violation.code) == (
        "policy",
        "policy",
        "action",
        "bounds",
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: TransformedEnv(
            TransformedEnv(PendulumEnv(batch_size=[3], max_episode_steps=3), RewardSum()),
            Compose(StepCounter(), CatFrames(2, -1, in_keys=["observation"])),
        ),
        lambda: TransformedEnv(
            GymEnv("CartPole-v1"), Compose(FrameSkipTransform(3), StepCounter(4))
        ),
        lambda: SerialEnv(2, lambda: GymEnv("Pendulum-v1")),
        lambda: TransformedEnv(
            SerialEnv(
                2, [lambda: GymEnv("Pendulum-v1"), lambda: GymEnv("MountainCarContinuous-v0")]
            ),
            RewardScaling(0.0, 2.0),
        ),
    ],
    ids=["nested", "frame skip", "no chain", "unlike rows"],
)
def test_correct_envs_have_no_violations(make: Any) -> None:
    env: EnvBase = make()
    report = inspect_values(env, steps=7, seed=1)
    assert report.error is None
    assert report.violations == ()
    env.close()


def test_seed_is_reproducible_and_restores_the_generator() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
    before = torch.get_rng_state()
    one, other = (inspect_values(env, steps=3, seed=4).to_dict() for _ in range(2))
    assert one == other
    assert bool((torch.get_rng_state() == before).all())


def test_error_is_reported_with_the_values_before_it() -> None:
    class Breaks(CountingEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDict:
            if int(self.count) == 2:
                raise ValueError("enough")
            return super()._step(tensordict)

    report = inspect_values(TransformedEnv(Breaks(99), RewardSum()), steps=9)
    assert report.steps == 2
    assert report.error is not None
    assert "in step 2: enough" in report.error.message
    assert value(report, "policy", "action@0").elements == 6
    assert value(report, "0 RewardSum", "episode_reward@1").elements == 2


def test_zero_steps_are_refused() -> None:
    with pytest.raises(ArgumentError, match="steps must be at least 1, got 0"):
        inspect_values(CountingEnv(), steps=0)


class EndsAtLoss(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Terminates where a reward is low, as EpisodicLifeEnv does at the loss of a life."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or float(reward) < LOW, truncated, info


class ClipsSome(gymnasium.RewardWrapper[Any, Any]):
    """Clips the rewards of some steps."""

    def reward(self, reward: Any) -> float:
        return max(float(reward), LOW)


class ClipsActions(gymnasium.ActionWrapper[Any, Any, Any]):
    """Clips the actions of some steps."""

    def action(self, action: Any) -> Any:
        return action.clip(-1, 1)


LOW = -6.0


def test_rows_of_gymnasium_wrappers_cover_the_steps_in_which_they_change_nothing() -> None:
    env = ClipsActions(EndsAtLoss(ClipsSome(gymnasium.make("Pendulum-v1"))))
    report = inspect_values(env, steps=60, seed=0)
    (steps,) = (phase for phase in report.phases if phase.phase == "step")
    rows = {
        (stage.name, stage.direction, value.key): value
        for stage in steps.stages
        for value in stage.values
    }
    assert {row.present for row in rows.values()} == {60}
    outside = rows["Pendulum-v1", "forward", "reward"]
    clipped = rows["ClipsSome", "forward", "reward"]
    assert outside.minimum is not None
    assert outside.minimum < LOW == clipped.minimum
    assert clipped.maximum == outside.maximum
    assert (clipped.elements, outside.changed) == (60, None)
    assert 0 < (clipped.changed or 0) < 60
    assert (clipped.version, clipped.mean and clipped.mean > LOW) == ("reward@1", True)
    assert "terminated" not in {key for name, _, key in rows if name == "ClipsSome"}
    chosen, passed = rows["random", "inverse", "action"], rows["ClipsActions", "inverse", "action"]
    assert (chosen.minimum or 0) < -1 == passed.minimum
    assert 0 < (passed.changed or 0) < 60
    assert passed.elements == 60


def test_rows_equal_the_numbers_of_stepping_by_hand() -> None:
    env = ClipsSome(gymnasium.make("Pendulum-v1"))
    seen: list[float] = []
    inner: list[float] = []

    def note(trace: Any) -> None:
        if trace.phase == "step":
            inner.append(float(trace.version("reward@0").value))
            seen.append(float(trace.env_tensordict["reward"]))

    report = inspect_values(env, steps=60, seed=0, on_trace=note)
    row = value(report, "3 ClipsSome", "reward@1")
    assert seen == [max(reward, LOW) for reward in inner]
    assert row.mean == pytest.approx(sum(seen) / 60)
    assert (row.minimum, row.maximum) == (min(seen), max(seen))
    assert row.changed == sum(a != b for a, b in zip(seen, inner, strict=True))


def test_flag_that_a_stage_sets_in_some_steps_has_its_mean_over_all_steps() -> None:
    env = EndsAtLoss(gymnasium.make("Pendulum-v1"))
    ends: list[bool] = []
    report = inspect_values(
        env,
        steps=60,
        seed=0,
        on_trace=lambda trace: (
            ends.append(bool(trace.env_tensordict["terminated"])) if trace.phase == "step" else None
        ),
    )
    row = value(report, "3 EndsAtLoss", "terminated@1")
    assert 0 < sum(ends) < 60
    assert row.mean == pytest.approx(sum(ends) / 60)
    assert row.changed == sum(ends)


def test_stages_of_tdx_count_the_steps_in_which_they_change_the_value() -> None:
    chain = Compose(RewardClipping(LOW, 0.0), StepCounter(20))
    report = inspect_values(TransformedEnv(GymEnv("Pendulum-v1"), chain), steps=60, seed=0)
    rewards, clipped = (
        value(report, "env", "reward@0"),
        value(report, "0 RewardClipping", "reward@1"),
    )
    assert (rewards.minimum or 0) < LOW == clipped.minimum
    assert clipped.present == 60
    assert 0 < (clipped.changed or 0) < 60
    assert value(report, "1 StepCounter", "truncated@1").changed == 3
    assert value(report, "1 StepCounter", "truncated@1").mean == pytest.approx(3 / 60)
