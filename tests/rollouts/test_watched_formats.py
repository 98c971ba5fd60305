"""Exports for viewers, read back with the libraries of LeRobot, Rerun and TensorBoard."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import av
import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset, disable_progress_bars

from tdx import ArgumentError, Dump, EnvConfig, Pipeline, export_dump, open_dump, record_dump
from tdx.foundation.errors import OutputError
from tdx.rollouts.formats.rerun import check as check_complete
from tests.programs import exhaustive

disable_progress_bars()


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    """Record two episodes of 4 steps and an unfinished one, with float images of odd height."""
    folder = tmp_path_factory.mktemp("dumps") / "pixels"
    chain = ("ToTensorImage", "Resize(31, 40)", "StepCounter(max_steps=4)")
    env = EnvConfig("CartPole-v1", from_pixels=True)
    pipeline = Pipeline.of("CartPole-v1", *chain)
    record_dump(Pipeline(env, pipeline.transforms), folder, steps=10, seed=0)
    return open_dump(folder)


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    """Record two rows of CartPole with episodes of different lengths."""
    folder = tmp_path_factory.mktemp("dumps") / "batch"
    pipeline = Pipeline(EnvConfig("CartPole-v1", num_envs=2))
    record_dump(pipeline, folder, steps=40, seed=0)
    return open_dump(folder)


def read_parquet(folder: Path, pattern: str, cache: Path) -> Dataset:
    """Read a table with ``datasets``, without LeRobot."""
    files = [str(path) for path in sorted(folder.glob(pattern))]
    return Dataset.from_parquet(files, cache_dir=str(cache))


def test_lerobot_table_contains_the_steps_of_the_episodes(batch: Dump, tmp_path: Path) -> None:
    folder = Path(export_dump(batch, tmp_path / "set", to="lerobot", fps=20).path)
    table = read_parquet(folder, "data/*/*.parquet", tmp_path).with_format("numpy")
    rows = read_parquet(folder, "meta/episodes/*/*.parquet", tmp_path)
    assert table["index"][:].tolist() == list(range(80))
    episodes = list(batch.manifest.episodes)
    assert len(rows) == len(episodes)
    data = batch.data
    for row, episode in zip(rows, episodes, strict=True):
        steps = slice(episode.start, episode.start + episode.length)
        part = table.select(range(row["dataset_from_index"], row["dataset_to_index"]))
        assert row["length"] == episode.length
        for name, value in (
            ("observation.state", data["observation"]),
            ("action", data["action"]),
            ("next.reward", data["next", "reward"].squeeze(-1)),
            ("next.terminated", data["next", "terminated"].squeeze(-1)),
        ):
            assert np.array_equal(part[name][:], value[episode.row, steps].numpy()), name
        assert part["frame_index"][:].tolist() == list(range(episode.length))
        assert np.allclose(part["timestamp"][:], np.arange(episode.length) / 20)


def test_lerobot_metadata_describes_the_data(batch: Dump, tmp_path: Path) -> None:
    folder = Path(export_dump(batch, tmp_path / "set", to="lerobot").path)
    info = json.loads((folder / "meta/info.json").read_text())
    assert (info["codebase_version"], info["total_frames"], info["fps"]) == ("v3.0", 80, 30)
    assert info["video_path"] is None
    table = read_parquet(folder, "data/*/*.parquet", tmp_path)
    assert set(info["features"]) == set(table.column_names)
    assert (folder / info["data_path"].format(chunk_index=0, file_index=0)).is_file()
    tasks = pd.read_parquet(folder / "meta/tasks.parquet")
    assert tasks.loc["CartPole-v1", "task_index"] == 0
    statistics = json.loads((folder / "meta/stats.json").read_text())
    values = batch.data["observation"].reshape(-1, 4).double()
    expected = {"min": values.amin(0), "max": values.amax(0), "mean": values.mean(0)}
    expected["std"] = values.std(0, correction=0)
    for name, value in expected.items():
        assert np.allclose(statistics["observation.state"][name], value), name


def test_lerobot_videos_contain_the_frames(pixels: Dump, tmp_path: Path) -> None:
    folder = Path(export_dump(pixels, tmp_path / "set", to="lerobot", fps=10).path)
    info = json.loads((folder / "meta/info.json").read_text())
    name = "observation.images.pixels"
    assert info["features"][name]["shape"] == [32, 40, 3]
    file = folder / info["video_path"].format(video_key=name, chunk_index=0, file_index=0)
    with av.open(str(file)) as container:
        frames = [each.to_ndarray(format="rgb24") for each in container.decode(video=0)]
    expected = (pixels.data["pixels"].movedim(-3, -1) * 255).round().numpy()
    assert len(frames) == 10
    for frame, image in zip(frames, expected, strict=True):
        assert np.abs(frame[:31].astype(float) - image).mean() < 3
    rows = read_parquet(folder, "meta/episodes/*/*.parquet", tmp_path)
    assert rows[f"videos/{name}/from_timestamp"][:] == [0.0, 0.4, 0.8]
    assert rows[f"videos/{name}/to_timestamp"][:] == [0.4, 0.8, 1.0]


def read_rerun(path: Path) -> dict[str, list[Any]]:
    """Return the record batches of each entity."""
    from rerun.chunk import RrdReader

    found: dict[str, list[Any]] = {}
    for chunk in RrdReader(path).stream().to_chunks():
        found.setdefault(chunk.entity_path, []).append(chunk.to_record_batch())
    return found


def test_rerun_recording_has_values_on_timelines(batch: Dump, tmp_path: Path) -> None:
    entities = read_rerun(Path(export_dump(batch, tmp_path / "run.rrd").path))
    for row in range(2):
        columns: dict[str, list[Any]] = {}
        for part in entities[f"/env_{row}/observation"]:
            for name, values in part.to_pydict().items():
                columns.setdefault(name, []).extend(values)
        assert columns["step"] == list(range(40))
        assert torch.equal(
            torch.tensor(columns["Scalars:scalars"]), batch.data["observation"][row].double()
        )
        for episode in batch.manifest.episodes:
            if episode.row == row:
                assert columns["episode_step"][episode.start] == 0


def test_rerun_recording_has_images(pixels: Dump, tmp_path: Path) -> None:
    entities = read_rerun(Path(export_dump(pixels, tmp_path / "run.rrd").path))
    (part,) = entities["/pixels"]
    buffers = part.to_pydict()["Image:buffer"]
    expected = (pixels.data["pixels"].movedim(-3, -1) * 255).round().to(torch.uint8).numpy()
    assert len(buffers) == 10
    for (buffer,), image in zip(buffers, expected, strict=True):
        assert np.array_equal(np.array(buffer, np.uint8).reshape(31, 40, 3), image)


def test_incomplete_rerun_recording_raises(batch: Dump, tmp_path: Path) -> None:
    """Check truncated files, because the SDK only logs that the disk is full."""
    whole = Path(export_dump(batch, tmp_path / "run.rrd").path).read_bytes()
    for size in (0, 20, len(whole) // 2, len(whole) - 10):
        (tmp_path / "cut.rrd").write_bytes(whole[:size])
        with pytest.raises(OutputError, match=r"cut\.rrd: it is incomplete"):
            check_complete(tmp_path / "cut.rrd")


@exhaustive
def test_tensorboard_contains_scalars_and_images(pixels: Dump, batch: Dump, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(export_dump(batch, tmp_path / "one", to="tensorboard").path)
    events.Reload()
    rewards = [each.value for each in events.Scalars("next/reward/env_1")]
    assert rewards == batch.data["next", "reward"][1].flatten().tolist()
    returns = [(each.step, each.value) for each in events.Scalars("episode/return/env_0")]
    assert returns == [
        (each.start + each.length - 1, each.total_reward)
        for each in batch.manifest.episodes
        if each.row == 0 and each.finished
    ]
    images = EventAccumulator(
        export_dump(pixels, tmp_path / "two", to="tensorboard").path, {"images": 0}
    )
    images.Reload()
    assert [each.step for each in images.Images("pixels")] == list(range(10))
    assert {(each.height, each.width) for each in images.Images("pixels")} == {(31, 40)}


def test_full_disk_at_a_tensorboard_export_is_one_error(batch: Dump, tmp_path: Path) -> None:
    """No other thread writes, whose traceback would be printed, or whose error would be lost."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OutputError, match="file too large"):
            export_dump(batch, tmp_path / "one", to="tensorboard")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["lerobot", "rerun", "tensorboard"])
@exhaustive
def test_existing_exports_are_replaced_with_force(batch: Dump, tmp_path: Path, name: str) -> None:
    first = export_dump(batch, tmp_path / "target", to=name)
    again = export_dump(batch, tmp_path / "target", to=name, force=True)
    assert first.written
    assert again.written
    with pytest.raises(ArgumentError, match="already exists"):
        export_dump(batch, tmp_path / "target", to=name)
