"""A chain as files that run without tdx: the same values, with explicit state and a proof."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tdx import (
    ActionScaling,
    CatFrames,
    Compose,
    DTypeCastTransform,
    GymEnv,
    ObservationNorm,
    RewardScaling,
    RewardSum,
    StepCounter,
    Timer,
    TransformedEnv,
    Unbounded,
    freeze,
)
from tdx.artifacts.artifact import export_chain
from tdx.artifacts.check import check_artifact
from tdx.artifacts.verifier import MANIFEST
from tdx.foundation.container import seal
from tdx.foundation.errors import ArgumentError, ChainError, CodeNotAllowedError
from tests.artifacts.random_chains import Vectors
from tests.programs import exhaustive


def pendulum(loc: float = 0.5) -> TransformedEnv:
    return TransformedEnv(
        GymEnv("Pendulum-v1"),
        Compose(
            ObservationNorm(loc, 2.0, in_keys=["observation"]),
            CatFrames(3, dim=-1, in_keys=["observation"]),
            StepCounter(5),
            RewardScaling(0.0, 0.1),
            RewardSum(),
            ActionScaling(),
        ),
    )


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact") / "chain"
    export_chain(pendulum(), "pt2", folder)
    return folder


@exhaustive
def test_the_artifact_verifies_itself_without_tdx(artifact: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-I", str(artifact / "verify.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "verified: 64 calls are within the stated bounds\n"


@exhaustive
def test_two_exports_are_equal(artifact: Path, tmp_path: Path) -> None:
    export_chain(pendulum(), "pt2", tmp_path / "chain")
    files = [
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (artifact, tmp_path / "chain")
    ]
    assert files[0] == files[1]


def test_state_is_an_input_and_an_output(artifact: Path) -> None:
    step = json.loads((artifact / MANIFEST).read_text())["functions"]["step"]
    state = [entry["name"] for entry in step["inputs"] if entry["state"]]
    assert state == [
        *("cat_frames_1_observation_0", "cat_frames_1_observation_1"),
        *("last_episode_reward", "last_step_count"),
    ]
    assert state == [entry["name"] for entry in step["outputs"] if entry["state"]]


@exhaustive
def test_it_agrees_with_the_contract_of_its_env_and_not_with_another(artifact: Path) -> None:
    parts = ("observation", "action", "reward", "done")
    same = check_artifact(artifact, freeze(pendulum(), compare=parts), allow_code=True)
    assert same.same
    assert same.calls == 20
    other = check_artifact(artifact, freeze(pendulum(0.25), compare=parts), allow_code=True)
    assert not other.same
    assert other.problems[0].startswith("observation: ")


def test_names_of_entries_do_not_collide(tmp_path: Path) -> None:
    env = Vectors(3, 2)
    nested, flat, state = ("a", "b"), "a_b", "last_step_count"
    observations = env.observation_spec.clone()
    for key in (nested, flat, state):
        observations[key] = Unbounded((1,))
    env.observation_spec = observations
    scale = ObservationNorm(0.0, 2.0, in_keys=[nested, flat, state])
    result = export_chain(TransformedEnv(env, Compose(scale, StepCounter())), "numpy", tmp_path)
    assert len(result.state) == 1
    step = json.loads((tmp_path / MANIFEST).read_text())["functions"]["step"]
    for side in ("inputs", "outputs"):
        names = {tuple(entry["path"]): entry["name"] for entry in step[side]}
        assert {("a", "b"), ("a_b",), ("last_step_count",)} <= names.keys()
        names[()] = result.state[0]
        assert len(set(names.values())) == len(names)
        assert all(name.isidentifier() for name in names.values())


def test_code_of_strangers_does_not_run(artifact: Path) -> None:
    with pytest.raises(CodeNotAllowedError, match=r"is code \(pt2\)"):
        check_artifact(artifact)


@exhaustive
def test_a_changed_constant_is_found_although_the_hashes_match(
    artifact: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    export_chain(pendulum(0.25), "pt2", other)
    manifest = json.loads((artifact / MANIFEST).read_text())
    del manifest["check"]
    for name in manifest["files"]:
        content = (artifact if name != "step.pt2" else other).joinpath(name).read_bytes()
        (tmp_path / name).write_bytes(content)
        manifest["files"][name]["sha256"] = hashlib.sha256(content).hexdigest()
    (tmp_path / MANIFEST).write_bytes(seal(manifest, indent=2)[0])
    report = check_artifact(tmp_path, allow_code=True)
    assert report.problems[0].startswith("observation of step in call ")


def test_what_cannot_be_exported_is_named_before_anything_is_written(tmp_path: Path) -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(), Timer()))
    with pytest.raises(ChainError, match=r"stage 1 \(Timer\): .* it reads a clock"):
        export_chain(env, "pt2", tmp_path / "chain")
    assert not (tmp_path / "chain").exists()


@exhaustive
def test_a_compiler_that_fails_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", sys.executable)
    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
    with pytest.raises(ChainError, match="the cpp files cannot be compiled"):
        export_chain(env, "cpp", tmp_path / "chain")
    assert not (tmp_path / "chain").exists()


@exhaustive
def test_split_exports_the_part_before_it(tmp_path: Path) -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(), Timer()))
    result = export_chain(env, "pt2", tmp_path / "chain", split=True)
    assert len(result.stages) == 1
    assert "it reads a clock" in result.left_out[0]


@exhaustive
def test_a_stage_that_counts_in_python_is_refused(tmp_path: Path) -> None:
    counted = iter(range(10**6))

    def count(td):  # type: ignore[no-untyped-def]
        return td.set("count", torch.full((1,), next(counted)))

    env = TransformedEnv(GymEnv("Pendulum-v1"), count)
    with pytest.raises(ChainError, match="does not return the 'count' of the chain"):
        export_chain(env, "pt2", tmp_path / "chain")


@exhaustive
def test_a_stage_that_fails_is_named(tmp_path: Path) -> None:
    is_bound = False

    def require_small(td):  # type: ignore[no-untyped-def]
        if is_bound:
            raise ValueError("too large")
        return td.set("small", td["observation"] * 0.5)

    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(), require_small))
    env.output_spec  # noqa: B018 - binds the stages, which runs the function
    is_bound = True
    with pytest.raises(ChainError, match=r"stage 1 \(CallableTransform\): .* too large"):
        export_chain(env, "pt2", tmp_path / "chain")


@exhaustive
def test_bfloat16_is_refused_because_numpy_lacks_it(tmp_path: Path) -> None:
    cast = DTypeCastTransform(torch.float32, torch.bfloat16, in_keys=["observation"])
    with pytest.raises(ChainError, match="observation is bfloat16"):
        export_chain(TransformedEnv(GymEnv("Pendulum-v1"), cast), "pt2", tmp_path / "chain")


def test_other_folders_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArgumentError, match="is not an artifact"):
        export_chain(pendulum(), "pt2", tmp_path, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
