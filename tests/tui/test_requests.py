"""Answers of the worker to requests about a chain."""

from __future__ import annotations

from typing import Any

from tdx import GymEnv
from tdx.pipeline import EnvConfig, Pipeline
from tdx.tui.backend.messages import Job
from tdx.tui.backend.requests import CheckChain, InspectChain

created: list[GymEnv] = []


def make_env() -> GymEnv:
    """Create an env and remember it."""
    created.append(GymEnv("Pendulum-v1"))
    return created[-1]


def job(cache: dict[str, Any]) -> Job:
    return Job(lambda topic, value: None, cache)


def test_an_edited_chain_is_inspected_and_checked_with_one_env() -> None:
    created.clear()
    cache: dict[str, Any] = {}
    env = EnvConfig(f"{__name__}:make_env")
    for stages in (["RewardSum"], ["CatFrames(4, dim=-1)", "RewardSum"], ["RewardSum"] * 2):
        pipeline = Pipeline.of(env, *stages)
        InspectChain(pipeline, allow_code=True).answer(job(cache))
        CheckChain(pipeline, allow_code=True).answer(job(cache))
    assert len(created) == 1
    assert "observation" in created[0].reset()
    CheckChain(pipeline, allow_code=True, steps=True).answer(job(cache))
    assert len(created) == 2
    assert "observation" in created[0].reset()


def test_a_stage_that_cannot_be_created_leaves_the_env_open() -> None:
    created.clear()
    cache: dict[str, Any] = {}
    env = EnvConfig(f"{__name__}:make_env")
    broken = Pipeline.of(env, "RewardClipping(1.0, -1.0)")
    overview = InspectChain(broken, allow_code=True).answer(job(cache))
    findings = CheckChain(broken, allow_code=True).answer(job(cache))
    assert overview.stages[0].problem is not None
    assert [finding.where.stage for finding in findings] == [0]
    InspectChain(Pipeline.of(env, "RewardSum"), allow_code=True).answer(job(cache))
    assert len(created) == 1
    assert "observation" in created[0].reset()
