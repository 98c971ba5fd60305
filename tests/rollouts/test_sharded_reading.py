"""Reading a sharded dump like one dump, without loading all of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from torch.utils.data import DataLoader

from tdx import (
    ArgumentError,
    Dump,
    DumpStorage,
    EnvConfig,
    ImmutableDatasetWriter,
    Pipeline,
    ReplayBuffer,
    build_env,
    export_dump,
    import_dump,
    open_dump,
)
from tdx.foundation.container import Container
from tdx.pipeline import parse_stage
from tdx.rollouts import (
    DumpRequest,
    Goal,
    Manifest,
    list_dumps,
    look_at,
    replay,
    roll_out_shard,
    verify,
)
from tdx.rollouts.dump import writing
from tdx.rollouts.dump.progress import ignore_progress
from tdx.rollouts.dump.sharded import ShardedFolder
from tdx.rollouts.dump.writing import DumpWriter
from tdx.rollouts.formats.jsonl import export_lines
from tdx.rollouts.recording.shards import complete_shards, open_shards
from tests.programs import exhaustive, is_exhaustive, sampled
from tests.rollouts.recordings import in_memory, request, same

SHARDS, TOTAL = 5, 203
MANY = 2048 if is_exhaustive() else 256
"""Shards of a large dump; the writer of each shard takes milliseconds."""


def record_shards(folder: Path, *stages: str, shards: int = SHARDS, **options: Any) -> Dump:
    """Record a sharded dump in this process."""
    wanted = request("CartPole-v1", *stages, **{"goal": Goal(steps=TOTAL), **options})
    for shard in range(shards):
        roll_out_shard(wanted, folder, SHARDS, shard, ignore_progress)
    return open_dump(folder)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Record a sharded dump."""
    with in_memory() as place:
        record_shards(Path(place) / "dump")
        yield Path(place) / "dump"


@pytest.fixture
def dump(folder: Path) -> Dump:
    """Open the sharded dump."""
    return open_dump(folder)


@pytest.fixture
def joined(dump: Dump) -> TensorDictBase:
    """Return the data of all shards, joined in memory."""
    return torch.cat([shard.data for shard in dump.shards], 0)


INDICES = [
    *(0, -1, 40, 41, 202, slice(None), slice(3, 7), slice(35, 130), slice(-3, None), slice(9, 2)),
    *(slice(0, 200, 7), [1, 202, 41, 41, 0], torch.tensor([-1, 3]), np.array([100, 50])),
    torch.tensor([], dtype=torch.int64),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_steps_are_indexed_like_a_tensordict(
    dump: Dump, joined: TensorDictBase, index: Any
) -> None:
    wanted = joined[index] if isinstance(index, (int, slice)) else joined[torch.as_tensor(index)]
    assert same(dump[index], wanted)
    assert same(dump.data[index], wanted)
    assert same(dump.data[..., index], wanted)


def test_mask_selects_steps(dump: Dump, joined: TensorDictBase) -> None:
    mask = joined["next", "done"].squeeze(-1)
    assert 0 < int(mask.sum()) < TOTAL
    assert same(dump[mask], joined[mask])


@pytest.mark.parametrize("index", [203, -204, [0, 203], (0, 0, 0)])
def test_index_out_of_range_raises(dump: Dump, index: Any) -> None:
    with pytest.raises(IndexError):
        dump.data[index]


def test_single_entries_can_be_read(dump: Dump, joined: TensorDictBase) -> None:
    assert dump.data.shape == joined.shape
    assert set(dump.data.keys(True, True)) == set(joined.keys(True, True))
    assert torch.equal(dump.data["next", "reward"], joined["next", "reward"])
    assert torch.equal(dump.data.get("action"), joined["action"])
    assert dump.data.get("nothing", 7) == 7
    with pytest.raises(KeyError):
        dump.data["nothing"]


@exhaustive
def test_steps_of_a_batch_of_envs_are_indexed_like_a_tensordict(tmp_path: Path) -> None:
    dump = record_shards(tmp_path / "dump", num_envs=3, batching="serial")
    joined: Any = torch.cat([shard.data for shard in dump.shards], 1)
    assert dump.data.shape == (3, TOTAL)
    assert same(dump[39:44], joined[:, 39:44])
    assert same(dump[[41, 7]], joined[:, [41, 7]])
    assert same(dump.data[1], joined[1])
    assert same(dump.data[1, 100], joined[1, 100])
    assert torch.equal(dump.data["action"], joined["action"])
    buffer: Any = ReplayBuffer(storage=DumpStorage(dump), writer=ImmutableDatasetWriter())
    batch, info = buffer.sample(64, return_info=True)
    steps, rows = info["index"]
    assert same(batch, joined[rows, steps])


def test_episodes_and_chunks_of_all_shards_are_listed(dump: Dump, joined: TensorDictBase) -> None:
    manifest = dump.manifest
    episodes = list(manifest.episodes)
    assert len(manifest.episodes) == sum(each.finished for each in episodes)
    assert sum(each.length for each in episodes) == TOTAL
    for each in episodes:
        rewards = joined.get(("next", "reward"))[each.start : each.start + each.length]
        assert each.total_reward == rewards.sum()
    assert manifest.episodes.column("start").tolist() == [e.start for e in episodes if e.finished]
    assert len(manifest.chunks) == len(list(manifest.chunks)) == 2 * SHARDS
    assert manifest.chunks[-1] == dump.shards[-1].manifest.chunks[-1]
    assert manifest.size == sum(shard.manifest.size for shard in dump.shards)


def test_overview_shows_all_shards(dump: Dump, joined: TensorDictBase, folder: Path) -> None:
    shown = look_at(dump)
    rewards = next(each for each in shown.entries if each.key == ("next", "episode_reward"))
    assert rewards.mean == pytest.approx(joined["next", "episode_reward"].mean().item())
    assert shown.summary["shards"] == {"committed": SHARDS, "count": SHARDS}
    assert [listed.path for listed in list_dumps(folder.parent)] == [str(folder)]


def test_unfinished_dump_contains_the_committed_shards(tmp_path: Path) -> None:
    dump = record_shards(tmp_path / "dump", shards=2)
    assert (len(dump), dump.manifest.complete, len(dump.shards)) == (82, False, 2)
    assert verify(tmp_path / "dump").complete is False


def test_data_loader_reads_shuffled_batches(dump: Dump, joined: TensorDictBase) -> None:
    loader: Any = DataLoader(
        dump,  # type: ignore[arg-type]
        batch_size=32,
        shuffle=True,
        collate_fn=lambda steps: steps,
        generator=torch.Generator().manual_seed(0),
    )
    batches = list(loader)
    assert [len(batch) for batch in batches] == [32] * 6 + [11]
    found: torch.Tensor = torch.cat([batch.get("observation") for batch in batches])
    assert not torch.equal(found, joined["observation"])
    assert torch.equal(found.sort(0).values, joined["observation"].sort(0).values)


def test_data_loader_reads_a_dump_without_shards(dump: Dump) -> None:
    shard = dump.shards[0]
    loader: Any = DataLoader(shard, batch_size=16, collate_fn=lambda steps: steps)  # type: ignore[arg-type]
    assert same(torch.cat(list(loader)), shard.data)


def test_replay_buffer_reads_the_dump(dump: Dump, joined: TensorDictBase) -> None:
    buffer: Any = ReplayBuffer(
        storage=DumpStorage(dump), writer=ImmutableDatasetWriter(), batch_size=50
    )
    assert len(buffer) == TOTAL
    batch, info = buffer.sample(return_info=True)
    assert same(batch, joined[info["index"]])
    assert same(buffer[:], joined)
    for change in (lambda: buffer.storage.append(batch[0]), buffer.empty, buffer.state_dict):
        with pytest.raises(ArgumentError, match="cannot be changed or saved"):
            change()


def test_few_shards_are_open_at_a_time(
    folder: Path, joined: TensorDictBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdx.rollouts.dump.sharded._MAX_OPEN", 2)
    dump = open_dump(folder)
    assert same(dump[:], joined)
    assert same(dump[[200, 1, 90]], joined[[200, 1, 90]])
    assert dump.data._shards._open_item.cache_info().currsize == 2
    assert look_at(dump).entries


# Jobs


@pytest.mark.parametrize("form", ["npz", "jsonl", "safetensors", "parquet", "zarr", "minari"])
@sampled(3)
def test_export_writes_one_file_per_shard(dump: Dump, tmp_path: Path, form: str) -> None:
    for package in {"parquet": ["pyarrow"], "zarr": ["zarr"], "minari": ["h5py", "minari"]}.get(
        form, []
    ):
        pytest.importorskip(package)
    target = tmp_path / "out"
    exported = export_dump(dump, target, to=form)
    assert (exported.steps, exported.path) == (TOTAL, str(target))
    files = sorted(target.iterdir())
    assert [each.name[:5] for each in files] == [f"{shard:05}" for shard in range(SHARDS)]
    with pytest.raises(ArgumentError, match="already exists"):
        export_dump(dump, target, to=form)
    export_dump(dump, target, to=form, force=True)
    import_dump(files[3], tmp_path / "again")
    assert same(open_dump(tmp_path / "again").data, dump.shards[3].data)


def test_large_dumps_are_exported_by_several_processes(
    dump: Dump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_dump(dump, tmp_path / "one", to="npz", keys=["reward"])
    monkeypatch.setattr("tdx.rollouts.formats.conversion._PARALLEL_BYTES", 0)
    exported = export_dump(dump, tmp_path / "many", to="npz", keys=["reward"])
    assert (exported.steps, len(exported.entries)) == (TOTAL, 1)
    names = sorted(each.name for each in (tmp_path / "one").iterdir())
    assert names == sorted(each.name for each in (tmp_path / "many").iterdir())
    for name in names:
        one, many = (np.load(tmp_path / each / name) for each in ("one", "many"))
        assert np.array_equal(one["next.reward"], many["next.reward"])


def test_exported_tables_are_one_data_set(dump: Dump, tmp_path: Path) -> None:
    dataset = pytest.importorskip("pyarrow.dataset")
    export_dump(dump, tmp_path / "out", to="parquet")
    assert dataset.dataset(tmp_path / "out").count_rows() == TOTAL


def test_exported_lines_contain_all_shards(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    with path.open("wb") as stream:
        export_lines(folder, stream, keys=["reward"])
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum("next" in step for step in steps) == TOTAL


def test_dry_run_of_an_export_writes_nothing(dump: Dump, tmp_path: Path) -> None:
    planned = export_dump(dump, tmp_path / "out", to="npz", dry_run=True)
    assert (planned.steps, planned.written) == (TOTAL, False)
    assert not (tmp_path / "out").exists()


@exhaustive
def test_replay_equals_a_rollout_with_the_chain(tmp_path: Path) -> None:
    dump = record_shards(tmp_path / "plain", bare=True)
    stages = (parse_stage("RewardSum"), parse_stage("StepCounter"))
    manifest = replay(dump, stages, tmp_path / "replayed")
    assert (manifest.complete, manifest.shards, manifest.steps) == (True, (SHARDS, SHARDS), TOTAL)
    rolled_out = record_shards(tmp_path / "wanted", "RewardSum", "StepCounter")
    assert same(open_dump(tmp_path / "replayed")[:], rolled_out[:])
    assert verify(tmp_path / "replayed").is_fine
    unfinished = record_shards(tmp_path / "unfinished", bare=True, shards=2)
    with pytest.raises(ArgumentError, match="are not complete"):
        replay(unfinished, stages, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_actions_of_all_shards_can_be_replayed(dump: Dump, folder: Path, tmp_path: Path) -> None:
    from tdx import record_dump

    pipeline = Pipeline.of("CartPole-v1")
    record_dump(pipeline, tmp_path / "again", steps=TOTAL, policy=f"sequence:{folder}")
    assert torch.equal(open_dump(tmp_path / "again").data["action"], dump.data["action"])


# Growth


@pytest.fixture(scope="module")
def many_shards() -> Iterator[Path]:
    """Write a dump with many small shards that contain the same steps."""
    pipeline = Pipeline.of(EnvConfig("CartPole-v1"), "RewardSum")
    chunk = build_env(pipeline).rollout(2)
    with (
        in_memory() as place,
        pytest.MonkeyPatch.context() as patch,
        ThreadPoolExecutor(2) as pool,
    ):
        patch.setattr(os, "fsync", lambda descriptor: None)
        # Starting threads for each shard would take half of the time.
        patch.setattr(writing, "ThreadPoolExecutor", lambda *_: nullcontext(pool))
        folder = Path(place) / "dump"
        wanted = DumpRequest(pipeline, Goal(steps=2 * MANY), seed=3)
        with open_shards(wanted, folder, MANY, alone=True) as plan:
            for shard in range(MANY):
                target, manifest = folder / "shards" / f"{shard:05}", plan.shard_manifest(shard)
                target.mkdir()
                with Container.open(target) as root:
                    manifest.save_header(root, manifest.start())
                    with DumpWriter(root, manifest, manifest.start()) as writer:
                        writer.append(chunk, None, None)
                        writer.finish()
        complete_shards(folder)
        yield folder


@pytest.mark.programs
@exhaustive
def test_many_shards_open_without_reading_them(
    many_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    load = ShardedFolder._load

    def counted(self: ShardedFolder, place: int) -> Manifest:
        opened.append(place)
        return load(self, place)

    monkeypatch.setattr(ShardedFolder, "_load", counted)
    dump = open_dump(many_shards)
    (listed,) = list_dumps(many_shards)
    assert opened == []
    assert (len(dump), len(dump.shards)) == (2 * MANY, MANY)
    assert listed.summary is not None
    assert listed.summary["bytes"] == dump.manifest.size > 0
    assert (many_shards / "shards.jsonl").stat().st_size < MANY * 250
    assert dump[MANY - 1 : MANY + 2]["action"].shape == (3, 2)
    dump.shards[MANY // 2]
    assert opened == [MANY // 2]
