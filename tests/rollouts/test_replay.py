"""Replays equal rollouts with the same chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tdx import ArgumentError, EnvError, open_dump
from tdx.cli.views.dumps import summary_view
from tdx.foundation.container import Container
from tdx.pipeline import parse_stage
from tdx.rollouts import Goal, Manifest, replay, resume, verify
from tests.programs import exhaustive, sampled
from tests.rollouts.recordings import assert_same_bits, record, same


def replay_stages(source: Path, target: Path, *stages: str) -> Manifest:
    """Replay a dump with a chain."""
    chain = tuple(map(parse_stage, stages))
    return replay(open_dump(source), chain, target, allow_code=True)


TEAM = "tests.inspection.live.stages:Team"
NOOPS = "NoopResetEnv(3, random=False)"
FRAMES = 'CatFrames(3, dim=-1, in_keys=["observation"])'


@pytest.mark.parametrize(
    ("env", "recorded", "wanted", "options"),
    [
        ("Pendulum-v1", (), ("RewardSum", FRAMES, "VecNorm"), {}),
        ("CartPole-v1", (), (FRAMES, "InitTracker"), {"num_envs": 3}),
        (
            "CartPole-v1",
            ("StepCounter(max_steps=12)", FRAMES),
            ("StepCounter(max_steps=12)", "RewardScaling(0.0, 2.0)", "RewardSum"),
            {"num_envs": 2, "raw": True},
        ),
        ("Pendulum-v1", ("ActionScaling", FRAMES), ("ActionScaling", "VecNorm"), {"raw": True}),
        (
            "Pendulum-v1",
            ("FrameSkipTransform(2)", FRAMES),
            ("FrameSkipTransform(2)", "RewardSum"),
            {"raw": True},
        ),
        ("CartPole-v1", (NOOPS,), (NOOPS, FRAMES), {"raw": True}),
        ("tdx/CartPole", ("RewardSum",), (FRAMES,), {"num_envs": 3, "raw": True}),
        (TEAM, ("StepCounter",), ("StepCounter", "RewardSum"), {"raw": True, "allow_code": True}),
    ],
    ids=["plain", "batch", "ends", "inverse", "skipped frames", "noops", "native", "agents"],
)
@sampled(3)
def test_replay_equals_a_rollout(
    tmp_path: Path,
    env: str,
    recorded: tuple[str, ...],
    wanted: tuple[str, ...],
    options: dict[str, Any],
) -> None:
    record(tmp_path / "source", env, *recorded, **{"bare": not recorded, **options})
    found = replay_stages(tmp_path / "source", tmp_path / "replayed", *wanted)
    options = {name: value for name, value in options.items() if name != "raw"}
    direct = record(tmp_path / "direct", env, *wanted, **options)
    data = [open_dump(tmp_path / name).data for name in ("replayed", "direct")]
    assert_same_bits(*data)
    assert found.source == str(tmp_path / "source")
    assert found.episodes == direct.episodes
    assert found.transforms == direct.transforms
    assert found.specs == direct.specs
    assert verify(tmp_path / "replayed").is_fine


def test_raw_steps_have_the_length_of_the_rollout(tmp_path: Path) -> None:
    stage = "StepCounter(max_steps=12)"
    record(tmp_path / "source", "CartPole-v1", stage, raw=True, goal=Goal(episodes=3))
    dump = open_dump(tmp_path / "source")
    assert dump.manifest.raw_steps == dump.manifest.steps
    replay_stages(tmp_path / "source", tmp_path / "replayed", stage)
    assert same(open_dump(tmp_path / "replayed").data, dump.data)
    assert verify(tmp_path / "source").is_fine


@exhaustive
def test_replay_without_inverse_stages_has_raw_actions(tmp_path: Path) -> None:
    record(tmp_path / "scaled", "Pendulum-v1", "ActionScaling", raw=True)
    replay_stages(tmp_path / "scaled", tmp_path / "replayed", "RewardSum")
    scaled, bare = open_dump(tmp_path / "scaled"), open_dump(tmp_path / "replayed")
    assert scaled.raw is not None
    assert bool((bare.data["action"] == scaled.raw["action"]).all())
    assert bool((bare.data["next", "observation"] == scaled.data["next", "observation"]).all())


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (("StepCounter(max_steps=5)",), "the chain resets at step 5"),
        (("ActionScaling",), "'action' differs from the recording at step 0"),
    ],
)
def test_chain_that_needs_other_steps_is_refused(
    tmp_path: Path, stages: tuple[str, ...], message: str
) -> None:
    record(tmp_path / "source", "Pendulum-v1", bare=True)
    with pytest.raises(EnvError, match=message) as raised:
        replay_stages(tmp_path / "source", tmp_path / "replayed", *stages)
    assert "roll out the chain instead" in (raised.value.hint or "")


@exhaustive
def test_chain_without_a_recorded_reset_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "source", "Pendulum-v1", "StepCounter(max_steps=10)", raw=True)
    with pytest.raises(EnvError, match="does not reset at step 10"):
        replay_stages(tmp_path / "source", tmp_path / "replayed", "RewardSum")


def test_dump_without_raw_steps_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "chained", "Pendulum-v1", "RewardSum")
    with pytest.raises(ArgumentError, match="does not have the raw steps of the env") as raised:
        replay_stages(tmp_path / "chained", tmp_path / "replayed", "RewardSum")
    assert "--raw" in (raised.value.hint or "")
    record(tmp_path / "some", "Pendulum-v1", bare=True, keys=("observation",))
    with pytest.raises(ArgumentError, match="has only some of the entries"):
        replay_stages(tmp_path / "some", tmp_path / "replayed", "RewardSum")
    assert not (tmp_path / "replayed").exists()


def test_replay_cannot_be_resumed(tmp_path: Path) -> None:
    record(tmp_path / "source", "Pendulum-v1", bare=True)
    manifest = replay_stages(tmp_path / "source", tmp_path / "replayed", "RewardSum")
    manifest.complete = False
    with Container.open(tmp_path / "replayed") as root:
        manifest.save(root)
    with pytest.raises(ArgumentError, match="is a replay"):
        resume(tmp_path / "replayed")


@pytest.mark.parametrize("exists", [False, True])
def test_failed_replay_keeps_the_existing_dump(tmp_path: Path, exists: bool) -> None:
    record(tmp_path / "source", "Pendulum-v1", bare=True)
    if exists:
        record(tmp_path / "replayed", "CartPole-v1", bare=True)
    stages = (parse_stage("StepCounter(max_steps=30)"),)
    with pytest.raises(EnvError, match="the chain resets at step 30"):
        replay(open_dump(tmp_path / "source"), stages, tmp_path / "replayed", force=exists)
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == ["replayed", "source"][not exists :]
    if exists:
        assert open_dump(tmp_path / "replayed").pipeline.env.id == "CartPole-v1"
        assert verify(tmp_path / "replayed").is_fine


def test_unfinished_replay_is_not_offered_for_resuming(tmp_path: Path) -> None:
    record(tmp_path / "source", "Pendulum-v1", bare=True)
    manifest = replay_stages(tmp_path / "source", tmp_path / "replayed", "RewardSum")
    manifest.complete = False
    with Container.open(tmp_path / "replayed") as root:
        manifest.save(root)
    view = summary_view("replayed", Manifest.load(tmp_path / "replayed"))
    shown = str(next(iter(view.blocks())))
    assert "--resume" not in shown
    assert f"replay {tmp_path / 'source'} again with --force" in shown
