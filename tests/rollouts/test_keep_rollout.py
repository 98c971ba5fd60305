"""Saving an existing rollout as a dump."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tdx import EnvConfig, Pipeline, build_env, keep_rollout, open_dump, record_dump
from tdx.foundation.errors import ArgumentError
from tdx.rollouts import verify
from tests.rollouts.recordings import same


@pytest.mark.parametrize("num_envs", [None, 3])
def test_saved_rollout_equals_a_recorded_dump(tmp_path: Path, num_envs: int | None) -> None:
    config = EnvConfig("CartPole-v1", num_envs=num_envs)
    pipeline = Pipeline.of(config, "RewardSum", "StepCounter(max_steps=12)", "VecNorm")
    wanted = record_dump(pipeline, tmp_path / "recorded", steps=40, seed=3)
    env = build_env(pipeline)
    env.set_seed(3)
    torch.manual_seed(3)
    rollout = env.rollout(40, break_when_any_done=False)
    manifest = keep_rollout(rollout, env, pipeline, tmp_path / "saved", seed=3, policy="random")
    saved, recorded = open_dump(tmp_path / "saved"), open_dump(tmp_path / "recorded")
    assert same(saved.data, recorded.data)
    assert list(manifest.episodes) == list(wanted.episodes)
    assert manifest.specs == wanted.specs
    assert manifest.pipeline == wanted.pipeline
    assert all(manifest.transforms[name] == value for name, value in wanted.transforms.items())
    assert verify(tmp_path / "saved").problems == ()


def test_existing_dumps_and_invalid_rollouts_are_refused(tmp_path: Path) -> None:
    pipeline = Pipeline.of("Pendulum-v1")
    env = build_env(pipeline)
    rollout = env.rollout(4)
    keep_rollout(rollout, env, pipeline, tmp_path / "a")
    with pytest.raises(ArgumentError, match="already has a dump"):
        keep_rollout(rollout, env, pipeline, tmp_path / "a")
    keep_rollout(rollout[:2], env, pipeline, tmp_path / "a", force=True)
    assert open_dump(tmp_path / "a").data.shape == (2,)
    with pytest.raises(ArgumentError, match=r"has shape \['T'\], this one has \[0\]"):
        keep_rollout(rollout[:0], env, pipeline, tmp_path / "b")
    with pytest.raises(ArgumentError, match=r"this one has \[\]"):
        keep_rollout(rollout[0], env, pipeline, tmp_path / "b")
    assert not (tmp_path / "b").exists()
