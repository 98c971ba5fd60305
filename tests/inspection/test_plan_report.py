"""Report of a plan."""

from __future__ import annotations

import pytest

from tdx import (
    ActionScaling,
    CatFrames,
    EnvBase,
    KeyNotFoundError,
    PendulumEnv,
    RewardSum,
    StepCounter,
    TransformedEnv,
)
from tdx.foundation.keys import format_key
from tdx.inspection.plan_report import inspect_plan
from tests.envs.mocks import TwoGroupsEnv


def chained(planned: bool = True) -> EnvBase:
    """Frames, a count, sums and scaled actions on Pendulum."""
    env = TransformedEnv(PendulumEnv(), planned=planned)
    for stage in (
        CatFrames(4, -1, in_keys=["observation"]),
        StepCounter(max_steps=5),
        RewardSum(),
        ActionScaling(),
    ):
        env.append_transform(stage)
    return env


def test_without_a_policy_all_stages_are_deferred() -> None:
    report = inspect_plan(chained())
    assert (report.plan.executor, report.immediate, report.acts_by_chunk) == ("planned", (), True)
    assert [stage.name for stage in report.deferred] == [
        *("CatFrames", "StepCounter", "RewardSum", "ActionScaling")
    ]


@pytest.mark.parametrize(
    ("reads", "immediate"),
    [
        ("observation", ["CatFrames"]),
        ("done", ["StepCounter"]),
        ("terminated", []),
        ("episode_reward", ["RewardSum"]),
    ],
)
def test_keys_that_the_policy_reads_are_computed_in_each_step(
    reads: str, immediate: list[str]
) -> None:
    report = inspect_plan(chained(), policy_reads=[reads])
    assert [stage.name for stage in report.immediate] == immediate
    assert not report.acts_by_chunk
    read = [version.key for version in report.plan.versions if version.policy]
    assert read == [reads]


def test_reason_for_eager_execution() -> None:
    report = inspect_plan(chained(planned=False), "pendulum")
    assert (report.plan.executor, report.plan.why_eager) == ("eager", "planned=False")
    assert report.deferred == ()
    shown = report.to_dict()
    assert (shown["env"], shown["acts_by"], shown["rows"]) == ("pendulum", "step", "tensordict")


def test_groups_are_expanded_and_done_flags_are_readable() -> None:
    report = inspect_plan(TwoGroupsEnv(), policy_reads=["a"])
    assert report.plan.policy_reads == ("a.observation", "a.done", "a.terminated")
    read = {format_key(version.key) for version in report.plan.versions if version.policy}
    assert read == set(report.plan.policy_reads)


def test_unknown_policy_key_is_refused() -> None:
    with pytest.raises(KeyNotFoundError, match="does not receive the key 'reward'"):
        inspect_plan(chained(), policy_reads=["reward"])
