"""Statistics of datasets and checkpoints against the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdx.foundation.errors import StorageError
from tdx.inspection.check_report import CheckReport
from tdx.inspection.dataset_check import DatasetFacts, check_against_data, check_dataset
from tdx.stacks.checkpoints import read_checkpoint, read_dataset
from tdx.stacks.checkpoints.dataset import RunningStatistics, compute_statistics, merge
from tests.stacks.checkpoints.datasets import draw, write_dataset, write_statistics
from tests.stacks.checkpoints.folders import ACTION, IMAGE, STATE, Arrays, Folder, statistics

SIZES = (400, 900, 100)
ORDER = [1, 0, 2, 3, 4, 5]


@pytest.fixture
def episodes() -> list[Arrays]:
    """Three episodes of different lengths."""
    return [draw(steps, seed) for seed, steps in enumerate(SIZES)]


def facts(path: Path) -> DatasetFacts:
    dataset = read_dataset(path)
    return DatasetFacts(dataset, compute_statistics(dataset))


def codes(report: CheckReport) -> list[tuple[str, object]]:
    return [(finding.code, finding.where.key) for finding in report.findings]


def joined(episodes: list[Arrays]) -> Arrays:
    return {key: np.concatenate([episode[key] for episode in episodes]) for key in episodes[0]}


def checkpoint_of(episodes: list[Arrays]) -> Folder:
    folder = Folder()
    for group in folder.both:
        group.update({key: statistics(rows) for key, rows in joined(episodes).items()})
        group[IMAGE] = {
            "mean": np.full((3, 1, 1), 0.5, np.float32),
            "std": np.full((3, 1, 1), 0.2, np.float32),
        }
    return folder


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_sound_dataset_has_no_findings(
    version: str, episodes: list[Arrays], tmp_path: Path
) -> None:
    report = check_dataset(facts(write_dataset(tmp_path / "data", episodes, version)))
    assert report.findings == ()
    assert report.hidden == (f"images were not decoded: {IMAGE}",)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_checkpoint_of_its_dataset_has_no_findings(
    version: str, episodes: list[Arrays], tmp_path: Path
) -> None:
    data = facts(write_dataset(tmp_path / "data", episodes, version))
    checkpoint = read_checkpoint(checkpoint_of(episodes).write(tmp_path / "checkpoint"))
    assert check_against_data(checkpoint, data).findings == ()


def test_statistics_of_another_dataset_are_named(episodes: list[Arrays], tmp_path: Path) -> None:
    data = facts(write_dataset(tmp_path / "data", episodes))
    folder = checkpoint_of(episodes)
    for group in folder.both:
        group[STATE]["mean"] = group[STATE]["mean"] + np.float32(0.5)
    checkpoint = read_checkpoint(folder.write(tmp_path / "checkpoint"))
    report = check_against_data(checkpoint, data)
    assert codes(report) == [("TDX621", STATE)]
    assert "mean at 0 (pan) is" in report.findings[0].message


@pytest.mark.parametrize(("fps", "found"), [(50, True), (30, False), (0, False), ("30", False)])
def test_policy_with_other_steps_per_second_than_the_data(
    fps: object, found: bool, episodes: list[Arrays], tmp_path: Path
) -> None:
    data = facts(write_dataset(tmp_path / "data", episodes))
    folder = checkpoint_of(episodes)
    folder.config["fps"] = fps
    checkpoint = read_checkpoint(folder.write(tmp_path / "checkpoint"))
    assert codes(check_against_data(checkpoint, data)) == [("TDX627", None)] * found


def test_permuted_joints_are_named_with_their_order(episodes: list[Arrays], tmp_path: Path) -> None:
    data = facts(write_dataset(tmp_path / "data", episodes))
    folder = checkpoint_of(episodes)
    for group in folder.both:
        for key in (STATE, ACTION):
            group[key] = {name: values[ORDER] for name, values in group[key].items()}
    report = check_against_data(read_checkpoint(folder.write(tmp_path / "checkpoint")), data)
    assert set(codes(report)) == {("TDX621", STATE), ("TDX621", ACTION)}
    assert all(
        "in another order, 1, 0, 2, 3, 4, 5 of pan, lift" in f.message for f in report.findings
    )


def test_feature_that_the_dataset_does_not_have(episodes: list[Arrays], tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", episodes)
    folder = checkpoint_of(episodes)
    for features in (folder.config["input_features"], folder.normalizer["features"]):
        features["observation.images.front"] = features.pop(IMAGE)
    for group in folder.both:
        group["observation.images.front"] = group.pop(IMAGE)
    checkpoint = read_checkpoint(folder.write(tmp_path / "checkpoint"))
    assert codes(check_against_data(checkpoint, facts(path))) == [
        ("TDX622", "observation.images.front")
    ]
    folder.before[0]["config"]["rename_map"] = {IMAGE: "observation.images.front"}
    checkpoint = read_checkpoint(folder.write(tmp_path / "checkpoint"))
    assert check_against_data(checkpoint, facts(path)).findings == ()


def test_statistics_of_a_part_of_the_episodes_are_stale(
    episodes: list[Arrays], tmp_path: Path
) -> None:
    path = write_dataset(tmp_path / "data", episodes)
    part = {key: rows[:50] for key, rows in joined(episodes).items()}
    write_statistics(path, {key: statistics(rows) for key, rows in part.items()})
    assert codes(check_dataset(facts(path))) == [("TDX623", STATE), ("TDX623", ACTION)]


def test_averaged_quantiles_are_named(tmp_path: Path) -> None:
    # Episodes in different places: the mean of their quantiles is no quantile of all steps.
    episodes = [draw(500, seed) for seed in range(3)]
    for index, episode in enumerate(episodes):
        episode[STATE] += 40 * index
    path = write_dataset(tmp_path / "data", episodes)
    parts = [statistics(episode[STATE]) for episode in episodes]
    whole = {key: statistics(rows) for key, rows in joined(episodes).items()}
    for name in ("q01", "q99"):
        whole[STATE][name] = np.mean([part[name] for part in parts], 0)
    write_statistics(path, whole)
    report = check_dataset(facts(path))
    assert codes(report) == [("TDX623", STATE)]
    assert "of the steps do not exceed it" in report.findings[0].message


def test_suspicious_statistics_are_named(episodes: list[Arrays], tmp_path: Path) -> None:
    for episode in episodes:
        episode[STATE][:, 2] = 1.5
    episodes[1][ACTION][7, 3] = np.nan
    path = write_dataset(tmp_path / "data", episodes)
    sound = {key: rows[np.isfinite(rows).all(1)] for key, rows in joined(episodes).items()}
    stats: dict[str, Any] = {key: statistics(rows) for key, rows in sound.items()}
    stats[IMAGE] = {name: [[[value]]] * 3 for name, value in (("mean", 120.0), ("std", 51.0))}
    write_statistics(path, stats)
    report = check_dataset(facts(path))
    assert set(codes(report)) == {("TDX624", ACTION), ("TDX625", STATE), ("TDX626", IMAGE)}
    assert "in 1 of 1,400 steps" in report.findings[0].message
    assert any("at 2 (elbow)" in finding.message for finding in report.findings)


def test_running_statistics_are_those_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal(1e4, 0.1, (5_000, 3))
    running = RunningStatistics(3)
    for part in np.array_split(rows, 7):
        running.add(part)
    result = running.result()
    np.testing.assert_allclose(result["mean"], rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(result["std"], rows.std(0), rtol=1e-8)
    np.testing.assert_array_equal(result["min"], rows.min(0))
    for share, name in ((0.01, "q01"), (0.5, "q50"), (0.99, "q99")):
        ranks = (rows.astype(np.float32) < result[name]).mean(0)
        np.testing.assert_allclose(ranks, share, atol=0.01)


def test_merged_episodes_have_the_statistics_of_all_rows(episodes: list[Arrays]) -> None:
    parts = []
    for episode in episodes:
        part = {name: value.astype(float) for name, value in statistics(episode[STATE]).items()}
        parts.append(part | {"count": np.asarray([len(episode[STATE])])})
    merged, whole = merge(parts), joined(episodes)[STATE]
    np.testing.assert_allclose(merged["mean"], whole.mean(0), rtol=1e-4)
    np.testing.assert_allclose(merged["std"], whole.std(0), rtol=1e-4)
    np.testing.assert_allclose(merged["max"], whole.max(0))


def remove_info(path: Path) -> None:
    (path / "meta" / "info.json").unlink()


def huge_shape(path: Path) -> None:
    info = path / "meta" / "info.json"
    document = json.loads(info.read_text())
    document["features"][STATE]["shape"] = [2**40, 2**40]
    info.write_text(json.dumps(document))


def other_shape(path: Path) -> None:
    info = path / "meta" / "info.json"
    document = json.loads(info.read_text())
    document["features"][STATE]["shape"] = [7]
    info.write_text(json.dumps(document))


def link(path: Path) -> None:
    file = path / "data" / "chunk-000" / "file-000.parquet"
    file.rename(path.parent / "secret.parquet")
    file.symlink_to(path.parent / "secret.parquet")


def no_data(path: Path) -> None:
    (path / "data" / "chunk-000" / "file-000.parquet").unlink()


def not_a_table(path: Path) -> None:
    (path / "data" / "chunk-000" / "file-000.parquet").write_bytes(b"PAR1 nothing")


@pytest.mark.parametrize(
    "damage",
    [remove_info, huge_shape, other_shape, link, no_data, not_a_table],
    ids=lambda damage: damage.__name__,
)
def test_damaged_dataset_gets_one_error(
    damage: Any, episodes: list[Arrays], tmp_path: Path
) -> None:
    path = write_dataset(tmp_path / "data", episodes)
    damage(path)
    with pytest.raises(StorageError):
        facts(path)
