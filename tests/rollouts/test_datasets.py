"""Minari datasets, dumps and the statistics of openpi as data."""

from __future__ import annotations

import json
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdx import (
    Pipeline,
    export_dump,
    freeze,
    import_dump,
    open_dump,
    open_stack,
    record_dump,
)
from tdx.foundation.array_files import FileColumn
from tdx.foundation.errors import ArgumentError, StorageError
from tdx.inspection.dataset_check import check_against_data, check_dataset, read_facts
from tdx.inspection.overview import EnvCache, inspect_overview
from tdx.inspection.values_report import inspect_values
from tdx.pipeline import EnvConfig
from tdx.rollouts import DumpRequest, Goal, roll_out_shards
from tdx.rollouts.datasets import read_data
from tdx.rollouts.samples import read_samples
from tdx.stacks.checkpoints import is_dataset, read_checkpoint
from tdx.stacks.checkpoints.minari import open_storage, read_episode, read_steps
from tests.programs import exhaustive
from tests.stacks.checkpoints.datasets import draw, write_dataset
from tests.stacks.checkpoints.folders import ACTION, IMAGE, STATE, Arrays, Folder, statistics


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps of two envs."""
    path = tmp_path_factory.mktemp("dumps") / "pendulum"
    record_dump(Pipeline(EnvConfig("Pendulum-v1", num_envs=2)), path, steps=300, seed=0)
    return path


@pytest.fixture(scope="module")
def minari_folder(dump: Path) -> Path:
    """The same steps as a Minari dataset."""
    return Path(export_dump(dump, dump.parent / "pendulum-v0", to="minari").path)


@pytest.mark.parametrize("kind", ["dump", "minari_folder"])
def test_statistics_are_those_of_all_steps(
    kind: str, dump: Path, request: pytest.FixtureRequest
) -> None:
    facts = read_facts(read_data(request.getfixturevalue(kind)))
    steps = open_dump(dump).data
    for key in ("observation", "action"):
        rows = steps[key].reshape(-1, steps[key].shape[-1]).numpy()
        result = facts.computed[key].result()
        assert result["count"].tolist() == [len(rows)]
        np.testing.assert_allclose(result["mean"], rows.mean(0), atol=1e-5)
        np.testing.assert_allclose(result["std"], rows.std(0), rtol=1e-4)
        np.testing.assert_array_equal(result["max"], rows.max(0))
    # Neither stores statistics that could be stale.
    assert check_dataset(facts).findings == ()


def test_dataset_of_minari_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari
    from gymnasium.spaces import Box, Dict, Discrete
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(0)
    observations = {
        "arm": rng.normal(size=(21, 3)).astype(np.float32),
        "still": np.full((21, 1), 2.5, np.float32),
    }
    observations["arm"][4, 1] = np.nan
    space = Dict({name: Box(-9, 9, value.shape[1:]) for name, value in observations.items()})
    episode = EpisodeBuffer(
        observations=observations,
        actions=rng.integers(0, 4, 20),
        rewards=np.zeros(20),
        terminations=np.zeros(20, bool),
        truncations=np.eye(20, dtype=bool)[-1],
    )
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an author and a link for a dataset to be published
        minari.create_dataset_from_buffers(
            "arm-v0", [episode, episode], observation_space=space, action_space=Discrete(4)
        )
    path = tmp_path / "arm-v0"
    assert is_dataset(path)
    report = check_dataset(read_facts(read_data(path)))
    assert {(finding.code, finding.where.key) for finding in report.findings} == {
        ("TDX624", "arm"),
        ("TDX625", "still"),
    }
    samples = read_samples(path)
    np.testing.assert_array_equal(samples[25]["arm"], observations["arm"][5])


def test_sharded_dump(tmp_path: Path) -> None:
    request = DumpRequest(Pipeline.of("Pendulum-v1"), Goal(steps=40), seed=0)
    roll_out_shards(request, tmp_path / "sharded", 2, workers=1)
    facts = read_facts(read_data(tmp_path / "sharded"))
    rows = open_dump(tmp_path / "sharded")[:]["observation"].reshape(-1, 3).numpy()
    assert facts.computed["observation"].count == len(rows) == facts.dataset.steps
    np.testing.assert_array_equal(facts.computed["observation"].result()["min"], rows.min(0))


def test_statistics_of_openpi_as_data(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(2, 3, (500, 6))
    named = {name: value.tolist() for name, value in statistics(rows).items()}
    stored = {
        key: {s: named[s] for s in ("mean", "std", "q01", "q99")} for key in ("state", "actions")
    }
    (tmp_path / "openpi").mkdir()
    (tmp_path / "openpi" / "norm_stats.json").write_text(json.dumps({"norm_stats": stored}))
    folder = Folder()
    for group in folder.both:
        group.update({key: statistics(rows) for key in (STATE, ACTION)})
    facts = read_facts(read_data(tmp_path / "openpi"))
    checkpoint = read_checkpoint(folder.write(tmp_path / "checkpoint"))
    assert check_against_data(checkpoint, facts).findings == ()
    folder.statistics["before"][STATE]["mean"] += 1
    checkpoint = read_checkpoint(folder.write(tmp_path / "checkpoint"))
    report = check_against_data(checkpoint, facts)
    assert [(f.code, f.where.key) for f in report.findings] == [("TDX621", STATE)]


def test_checkpoint_is_no_data(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is a policy checkpoint, not a dataset"):
        read_data(Folder().write(tmp_path / "checkpoint"))
    with pytest.raises(StorageError, match="is not a dataset: it has no"):
        read_data(tmp_path)


def write_minari(
    root: Path, observations: Any, space: Any, *, jpeg: bool = False, steps: int = 30
) -> Path:
    """Write a dataset of two equal episodes, and return its folder."""
    import minari
    from gymnasium.spaces import Discrete
    from minari.data_collector import EpisodeBuffer

    episode = EpisodeBuffer(
        observations=observations,
        actions=np.arange(steps) % 4,
        rewards=np.arange(steps, dtype=np.float64),
        terminations=np.zeros(steps, bool),
        truncations=np.zeros(steps, bool),
    )
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an author and a link for a dataset to be published
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        minari.create_dataset_from_buffers(
            "rows-v0",
            [episode, episode],
            observation_space=space,
            action_space=Discrete(4),
            jpeg_encoding=jpeg,
        )
    return root / "rows-v0"


@pytest.mark.parametrize("jpeg", [False, True])
def test_rows_of_minari_are_those_of_its_episodes(jpeg: bool, tmp_path: Path) -> None:
    from gymnasium.spaces import Box, Dict, Text

    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 200, 31)[:, None, None, None] + np.arange(3) * 20
    pixels = np.broadcast_to(ramp, (31, 40, 32, 3)).astype(np.uint8)
    arm, texts = rng.normal(size=(31, 3)), [f"go {index}" for index in range(31)]
    observations = {"camera": {"pixels": pixels}, "arm": arm, "mission": texts}
    space = Dict(
        camera=Dict(pixels=Box(0, 255, pixels.shape[1:], np.uint8)),
        arm=Box(-9, 9, (3,), np.float64),
        mission=Text(10),
    )
    path = write_minari(tmp_path, observations, space, jpeg=jpeg)
    whole = read_episode(open_storage(path), 0)
    with read_steps(path) as reader:
        columns = reader.columns()
        assert columns["camera.pixels"] == FileColumn(np.dtype(np.uint8), (60, 40, 32, 3))
        names = list(columns)
        # The last three steps of the first episode, and the first two of the second one.
        rows = reader.read_steps(names, 27, 32)
    for name, place in (
        ("camera.pixels", "observations/camera/pixels"),
        ("arm", "observations/arm"),
        ("mission", "observations/mission"),
    ):
        array = whole[place]
        before, after = (array[27:30], array[:2]), (array[28:], array[1:3])
        np.testing.assert_array_equal(rows[name], np.concatenate(before))
        np.testing.assert_array_equal(rows[f"next.{name}"], np.concatenate(after))
    assert rows["action"].tolist() == [3, 0, 1, 0, 1]
    assert rows["next.reward"].tolist() == [27, 28, 29, 0, 1]
    assert rows["next.done"].tolist() == [False, False, True, False, False]
    assert not rows["next.terminated"].any()


@exhaustive
def test_a_frame_of_minari_is_read_without_its_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gymnasium.spaces import Box

    pixels = np.zeros((1001, 48, 48, 3), np.uint8)
    path = write_minari(tmp_path, pixels, Box(0, 255, pixels.shape[1:], np.uint8), steps=1000)
    # Episodes that nothing reads as a whole may be of any size.
    monkeypatch.setattr("tdx.stacks.checkpoints.minari._MAX_EPISODE_BYTES", 1_000)
    dataset = read_data(path)
    next(iter(dataset.read_frames("observation")))  # imports what it needs
    tracemalloc.start()
    try:
        frame = next(iter(dataset.read_frames("observation")))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert frame.shape == (48, 48, 3)
    assert peak < pixels.nbytes / 4


def test_large_episode_that_is_read_as_a_whole_gets_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gymnasium.spaces import Text

    path = write_minari(tmp_path, ["left"] * 31, Text(10))
    assert read_data(path).steps == 60
    monkeypatch.setattr("tdx.stacks.checkpoints.minari._MAX_EPISODE_BYTES", 100)
    with pytest.raises(StorageError, match=r"episode_0 of .* bytes, more than 100"):
        read_data(path)


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes with an image of 8 bits, channels last, and one of floats, channels first."""
    import minari
    from gymnasium.spaces import Box, Dict
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(0)
    pixels = np.zeros((31, 24, 32, 3), np.uint8)
    pixels[..., 1] = 51
    floats = rng.random((31, 1, 24, 32), np.float32) * 255
    observations: Arrays = {"pixels": pixels, IMAGE: floats, "arm": floats[:, 0, 0, :3]}
    spaces = Dict(
        {
            name: Box(0, 255, value.shape[1:], value.dtype.type)
            for name, value in observations.items()
        }
    )
    episode = EpisodeBuffer(
        observations=observations,
        actions=np.zeros((30, 2), np.float32),
        rewards=np.zeros(30),
        terminations=np.zeros(30, bool),
        truncations=np.eye(30, dtype=bool)[-1],
    )
    root = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an author and a link for a dataset to be published
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        minari.create_dataset_from_buffers(
            "images-v0",
            [episode] * 3,
            observation_space=spaces,
            action_space=Box(-1, 1, (2,), np.float32),
        )
    return root / "images-v0"


@pytest.mark.parametrize("kind", ["minari", "dump"])
def test_images_are_sampled_by_channel(kind: str, image_folder: Path, tmp_path: Path) -> None:
    path = image_folder
    if kind == "dump":
        path = tmp_path / "imported"
        import_dump(image_folder, path)
    facts = read_facts(read_data(path))
    pixels, floats = facts.images["pixels"], facts.images[IMAGE]
    assert "pixels" not in facts.computed
    assert pixels.total == 90
    assert 1 < pixels.frames <= 64
    np.testing.assert_allclose(pixels.statistics["mean"], [0, 0.2, 0], atol=1e-6)
    np.testing.assert_allclose(pixels.statistics["std"], 0, atol=1e-6)
    (mean,) = floats.statistics["mean"]
    assert 120 < mean < 135
    assert f"{pixels.frames} of 90 frames of pixels" in (check_dataset(facts).parts or "")


@exhaustive
def test_images_of_a_dataset_in_another_range_are_found(image_folder: Path, tmp_path: Path) -> None:
    facts = read_facts(read_data(image_folder))
    folder = Folder()

    def found() -> list[object]:
        checkpoint = read_checkpoint(folder.write(tmp_path / "checkpoint"))
        report = check_against_data(checkpoint, facts, select=["TDX626", "TDX621"])
        return [(finding.code, finding.where.key) for finding in report.findings]

    # The names of this dataset have no statistics that could differ, apart from the image.
    assert found() == [("TDX626", IMAGE)]
    step = {"registry_name": "xvla_image_to_float", "config": {}}
    folder.before.insert(0, step)
    assert found() == []


def test_minari_dataset_opens_like_one_of_lerobot(minari_folder: Path, tmp_path: Path) -> None:
    for path in (minari_folder, write_dataset(tmp_path / "lerobot", [draw(30)])):
        cache = EnvCache()
        overview = inspect_overview(Pipeline.of(str(path)), cache)
        cache.close()
        assert overview.stack is not None
        assert overview.stack.is_data
        stack = open_stack(path)
        assert stack.stages == ()
        assert len(inspect_values(stack, steps=5, seed=0).phases) == 2
        with pytest.raises(ArgumentError, match="dataset: recorded steps, without stages"):
            freeze(path)
