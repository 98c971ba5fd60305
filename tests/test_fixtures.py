"""Files of an earlier tdx are read with the values that were written.

The folder ``fixtures`` was written by tdx 0.1.0 (``version_1``: by earlier states of it), and is
never written again: what is new is added. ``expected.json`` has the values.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

import tdx
from tdx import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
)
from tdx.inspection.watch_records import read_watch
from tdx.pipeline.editing.documents import Document
from tdx.pipeline.editing.sessions import SessionStore
from tdx.profiling.saved import read_profile
from tdx.rollouts import resume, verify
from tdx.rollouts.dump import manifest
from tests.cli.processes import call_main

FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "expected.json").read_text())


def lists(data: TensorDictBase) -> dict[str, Any]:
    """Return all entries as nested lists, by their keys with dots."""
    return {
        ".".join((key,) if isinstance(key, str) else key): data[key].tolist()
        for key in data.keys(True, True)
    }


def test_dump() -> None:
    dump = tdx.open_dump(FIXTURES / "dump")
    assert lists(dump.data) == EXPECTED["dump"]["data"]
    assert dump.raw is not None
    assert lists(dump.raw) == EXPECTED["dump"]["raw"]
    assert dump.manifest.transforms == EXPECTED["dump"]["transforms"]
    assert [
        [episode.row, episode.start, episode.length, episode.total_reward]
        for episode in dump.manifest.episodes
    ] == EXPECTED["dump"]["episodes"]
    assert verify(FIXTURES / "dump").is_fine


def test_unfinished_dump_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(FIXTURES / "unfinished", folder)
    expected = EXPECTED["dump"]["data"]
    before = lists(tdx.open_dump(folder).data)
    assert before == {key: values[:3] for key, values in expected.items()}
    resume(folder)
    after = tdx.open_dump(folder).data
    assert lists(after[:3]) == before
    for key, values in lists(after).items():
        torch.testing.assert_close(torch.tensor(values), torch.tensor(expected[key]))


@pytest.mark.parametrize("name", ["sharded", "plan"])
def test_sharded_dump(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(FIXTURES / name, folder)
    assert lists(tdx.open_dump(folder).data[..., :]) == EXPECTED[name]["data"]
    assert verify(folder).is_fine


def test_missing_shard_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(FIXTURES / "plan", folder)
    # A shard is recorded by the versions of its plan only, which were those of another machine.
    versions = json.loads((folder / "manifest.json").read_text())["versions"]
    monkeypatch.setattr("platform.python_version", lambda: versions["python"])
    monkeypatch.setattr(manifest, "version", versions.get)
    request = ("rollout", "CartPole-v1", "-t", "StepCounter", "--steps", "6", "--seed", "1")
    with pytest.raises(SystemExit) as ended:
        call_main(*request, "--shards", "2", "--shard", "0", "--out", str(folder))
    assert not ended.value.code
    for key, values in lists(tdx.open_dump(folder).data[..., :]).items():
        torch.testing.assert_close(
            torch.tensor(values), torch.tensor(EXPECTED["sharded"]["data"][key])
        )


@pytest.mark.parametrize(
    ("name", "storage", "sampler"),
    [
        ("tensor", LazyTensorStorage(4), None),
        ("memmap", LazyMemmapStorage(8), SamplerWithoutReplacement()),
        ("priorities", LazyTensorStorage(8), PrioritizedSampler(8, 0.7, 0.5)),
        ("two_dims", LazyTensorStorage(8, ndim=2), None),
        ("list", ListStorage(4), None),
        ("version_1", LazyTensorStorage(4), None),
    ],
)
def test_replay_buffer(name: str, storage: Any, sampler: Any) -> None:
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=2)
    buffer.loads(FIXTURES / "buffers" / name)
    expected = EXPECTED["buffers"]["tensor" if name == "version_1" else name]
    content = buffer[:]
    if isinstance(content, TensorDictBase):
        assert lists(content) == expected["data"]
    else:
        assert [item.tolist() for item in content] == expected["data"]
    assert len(buffer) == expected["length"]
    assert len(buffer.sample()) == 2


def test_states_of_a_sampler_and_a_writer() -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(8), sampler=PrioritizedSampler(8, 0.7, 0.5), batch_size=2
    )
    buffer.sampler.loads(FIXTURES / "buffers/sampler")
    buffer.writer.loads(FIXTURES / "buffers/writer")
    state = {
        key: value.tolist() if isinstance(value, Tensor) else value
        for key, value in buffer.sampler.state_dict().items()
    }
    assert state == EXPECTED["sampler"]
    assert buffer.writer.state_dict() == EXPECTED["writer"]


@pytest.mark.parametrize("name", ["version_1", "version_2", "recorded"])
def test_contract(name: str) -> None:
    contract = tdx.load_contract(FIXTURES / "contracts" / name)
    expected = EXPECTED["contracts"][name]
    assert (contract.kind, contract.seed) == (expected["kind"], expected["seed"])
    assert [stage.name for stage in contract.stages] == expected["stages"]
    assert [segment.steps for segment in contract.inputs] == expected["steps"]
    assert (contract.recording is not None) == expected["has_recording"]
    values = {
        "/".join(map(str, place)): values.numbers.tolist()
        for place, values in contract.values.items()
    }
    assert values == expected["values"]


def test_profile() -> None:
    profile = read_profile(FIXTURES / "profile.json")
    expected = EXPECTED["profile"]
    assert (profile.subject, list(profile.stages)) == (expected["subject"], expected["stages"])
    for mode in profile.modes:
        numbers = expected["modes"][mode.mode]
        assert (mode.total_ns.tolist(), mode.steps.tolist()) == (
            numbers["total_ns"],
            numbers["steps"],
        )
        assert [[row.part.label, row.times_ns.tolist()] for row in mode.rows] == numbers["rows"]


def test_session(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "sessions", tmp_path / "sessions")
    (saved,), notices = SessionStore(tmp_path / "sessions").left()
    assert not notices
    session = saved.session
    assert session.draft.env is not None
    assert session.draft.env.id == "Pendulum-v1"
    assert session.base == "# text\n"
    assert [stage.config.name for stage in session.draft.stages] == ["StepCounter"]
    assert [stage.config.name for stage in session.saved.stages] == ["RewardSum", "StepCounter"]
    assert [change.label for change in session.done] == ["remove RewardSum"]


def test_watch_record() -> None:
    report = read_watch(FIXTURES / "watch.jsonl")
    assert list(report.steps) == EXPECTED["watch"]["steps"]
    drifts = [[drift.stage, drift.name, list(drift.values)] for drift in report.drifts]
    assert drifts == EXPECTED["watch"]["drifts"]


def test_pipeline_keeps_its_comments(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    shutil.copy(FIXTURES / "pipeline.yaml", path)
    document, pipeline = Document.load(path)
    assert pipeline.env.id == "Pendulum-v1"
    assert [stage.name for stage in pipeline.transforms] == ["StepCounter", "RewardSum"]
    assert pipeline.transforms[0].kwargs == {"max_steps": 9}
    document.save(replace(pipeline, transforms=pipeline.transforms[:1]))
    text = path.read_text()
    assert "# A comment that is kept." in text
    assert "max_steps: 9}  # steps" in text
    assert "RewardSum" not in text


@pytest.mark.parametrize("suffix", ["npz", "jsonl", "safetensors"])
def test_export(suffix: str, tmp_path: Path) -> None:
    tdx.import_dump(FIXTURES / "exports" / f"dump.{suffix}", tmp_path / "dump")
    dump = tdx.open_dump(tmp_path / "dump")
    assert lists(dump.data) == EXPECTED["dump"]["data"]
