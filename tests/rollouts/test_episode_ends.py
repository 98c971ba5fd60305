"""Episodes of an env whose agents end before it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tdx import EnvConfig, Pipeline
from tdx.inspection.pipeline_report import summarize_rollout
from tdx.rollouts import DumpRequest, Goal, Manifest, resume, roll_out, roll_out_shard, verify
from tdx.rollouts.dump.progress import ignore_progress
from tdx.stacks import open_stack
from tests.inspection.live.stages import Team
from tests.rollouts.recordings import CutError, interrupt_after


def team_request(**options: Any) -> DumpRequest:
    pipeline = Pipeline.of(EnvConfig("tests.inspection.live.stages:Team"))
    fields = {"goal": Goal(steps=12), "seed": 0, "chunk_steps": 3, "allow_code": True, **options}
    return DumpRequest(pipeline, **fields)


def lengths(manifest: Manifest) -> list[int]:
    values: list[int] = manifest.episodes.column("length").tolist()
    return values


def test_agent_that_ends_does_not_end_the_episode(tmp_path: Path) -> None:
    manifest = roll_out(team_request(goal=Goal(episodes=3)), tmp_path / "dump")
    report = summarize_rollout(open_stack(Team()), 12, 0)
    assert lengths(manifest) == [episode.steps for episode in report.episodes] == [4, 4, 4]
    assert manifest.episodes.column("return").tolist() == [4, 4, 4]


@pytest.fixture
def earlier_version(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Count the ends of agents, as earlier versions did, until it is undone."""
    monkeypatch.setattr("tdx.rollouts.dump.episodes.episode_end_keys", list)
    return monkeypatch


def test_dump_of_an_earlier_version_is_resumed_with_its_own_keys(
    tmp_path: Path, earlier_version: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dump"
    whole = roll_out(team_request(), tmp_path / "whole")
    with pytest.raises(CutError):
        roll_out(team_request(), folder, on_chunk=interrupt_after(2))
    earlier_version.undo()
    resumed = resume(folder, allow_code=True)
    assert resumed.to_dict() == whole.to_dict()
    assert lengths(resumed) == [2, 1, 1] * 3
    assert not verify(folder).problems


def test_shards_of_an_earlier_version_are_completed_with_their_own_keys(
    tmp_path: Path, earlier_version: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dump"
    roll_out_shard(team_request(), folder, 2, 0, ignore_progress)
    earlier_version.undo()
    roll_out_shard(team_request(), folder, 2, 1, ignore_progress)
    assert not verify(folder).problems
