"""Statistics of datasets and checkpoints against the data."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdx.foundation.errors import StorageError
from tdx.inspection.check_report import CheckReport
from tdx.inspection.dataset_check import DatasetFacts, check_against_data, check_dataset, read_facts
from tdx.rollouts.datasets import read_data
from tdx.stacks.checkpoints import read_checkpoint
from tdx.stacks.checkpoints.dataset import RunningStatistics, merge
from tdx.stacks.checkpoints.steps import IMAGENET_MEAN, IMAGENET_STD
from tests.stacks.checkpoints.datasets import (
    add_image_column,
    draw,
    draw_frames,
    encode_image,
    image_statistics,
    write_dataset,
    write_statistics,
    write_video,
)
from tests.stacks.checkpoints.folders import ACTION, IMAGE, STATE, Arrays, Folder, statistics

SIZES = (400, 900, 100)
ORDER = [1, 0, 2, 3, 4, 5]


@pytest.fixture
def episodes() -> list[Arrays]:
    """Three episodes of different lengths."""
    return [draw(steps, seed) for seed, steps in enumerate(SIZES)]


def facts(path: Path) -> DatasetFacts:
    return read_facts(read_data(path))


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
    assert report.hidden == (f"{IMAGE} was not decoded: the dataset has no file of it",)


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


def test_stored_statistics_of_another_size_are_stale(
    episodes: list[Arrays], tmp_path: Path
) -> None:
    path = write_dataset(tmp_path / "data", episodes)
    whole = {key: statistics(rows) for key, rows in joined(episodes).items()}
    whole[STATE] = {name: values[:5] for name, values in whole[STATE].items()}
    write_statistics(path, whole)
    report = check_dataset(facts(path))
    assert codes(report) == [("TDX623", STATE)]
    assert "has 5 numbers instead of 6" in report.findings[0].message


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


def test_statistic_that_is_null_is_not_stored(episodes: list[Arrays], tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", episodes)
    file = path / "meta" / "stats.json"
    stored = json.loads(file.read_text())
    stored[STATE]["q01"] = None
    file.write_text(json.dumps(stored))
    assert check_dataset(facts(path)).findings == ()
    stored[STATE]["mean"] = ["zero"]
    file.write_text(json.dumps(stored))
    with pytest.raises(StorageError, match="'mean' in meta") as caught:
        facts(path)
    assert caught.value.hint == "download the dataset again"


VIDEO = f"videos/{IMAGE}/chunk-000/file-000.mp4"


def with_images(path: Path, episodes: list[Arrays], images: dict[str, Any]) -> Path:
    """Write a dataset whose stored statistics of images are given."""
    write_dataset(path, episodes)
    numeric = {key: statistics(rows) for key, rows in joined(episodes).items()}
    write_statistics(path, {**numeric, IMAGE: images})
    return path


@pytest.mark.parametrize("kind", ["video", "PNG", "JPEG"])
@pytest.mark.parametrize("brightness", [0.5, 0.1])
def test_images_are_compared_with_their_statistics(
    kind: str, brightness: float, episodes: list[Arrays], tmp_path: Path
) -> None:
    path = with_images(tmp_path / "data", episodes, image_statistics(draw_frames(4)))
    frames = draw_frames(40, brightness)
    if kind == "video":
        write_video(path / VIDEO, frames)
    else:
        add_image_column(path, [encode_image(frame, kind) for frame in frames])
    report = check_dataset(facts(path))
    assert report.hidden == ()
    assert f"frames of {IMAGE}" in (report.parts or "")
    assert codes(report) == ([] if brightness == 0.5 else [("TDX623", IMAGE)])


def test_videos_of_version_2_are_found(episodes: list[Arrays], tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", episodes, "v2.1")
    write_video(path / f"videos/chunk-000/{IMAGE}/episode_000000.mp4", draw_frames(8))
    assert facts(path).images[IMAGE].frames > 1


def test_images_without_stored_statistics_are_checked(
    episodes: list[Arrays], tmp_path: Path
) -> None:
    path = write_dataset(tmp_path / "data", episodes)
    write_statistics(path, {key: statistics(rows) for key, rows in joined(episodes).items()})
    write_video(path / VIDEO, [np.zeros((32, 32, 3), np.uint8)] * 4)
    assert codes(check_dataset(facts(path))) == [("TDX625", IMAGE)]


def test_normalizer_of_images_is_compared_with_them(episodes: list[Arrays], tmp_path: Path) -> None:
    frames = draw_frames(8, 0.2)
    path = with_images(tmp_path / "data", episodes, image_statistics(frames))
    write_video(path / VIDEO, frames)
    folder = checkpoint_of(episodes)
    checkpoint = read_checkpoint(folder.write(tmp_path / "checkpoint"))
    assert codes(check_against_data(checkpoint, facts(path))) == [("TDX621", IMAGE)]
    # LeRobot normalizes by the statistics of ImageNet by default.
    for group in folder.both:
        for name, values in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)):
            group[IMAGE][name] = np.asarray(values, np.float32)[:, None, None]
    checkpoint = read_checkpoint(folder.write(tmp_path / "checkpoint"))
    assert check_against_data(checkpoint, facts(path)).findings == ()


@pytest.mark.parametrize("package", ["av", "PIL"])
def test_missing_package_is_named_and_the_rest_is_checked(
    package: str, episodes: list[Arrays], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_images(tmp_path / "data", episodes, image_statistics(draw_frames(4)))
    if package == "av":
        write_video(path / VIDEO, draw_frames(4))
    else:
        add_image_column(path, [encode_image(frame) for frame in draw_frames(4)])
    monkeypatch.setitem(sys.modules, package, None)
    report = check_dataset(facts(path))
    assert report.findings == ()
    (line,) = report.hidden
    assert line.startswith(f"{IMAGE} was not decoded: ")
    assert line.endswith("is not installed (install tdx with its extra `video`)")


def not_a_video(path: Path) -> None:
    write_video(path / VIDEO, draw_frames(4))
    (path / VIDEO).write_bytes(b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n")


def video_is_a_link(path: Path) -> None:
    write_video(path.parent / "secret.mp4", draw_frames(4))
    (path / VIDEO).parent.mkdir(parents=True)
    (path / VIDEO).symlink_to(path.parent / "secret.mp4")


def huge_image(path: Path) -> None:
    data = bytearray(encode_image(draw_frames(1)[0]))
    data[16:24] = (60_000).to_bytes(4) * 2  # width and height
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4)
    add_image_column(path, [bytes(data)])


def not_an_image(path: Path) -> None:
    add_image_column(path, [b"GIF89a"])


@pytest.mark.parametrize(
    "damage",
    [not_a_video, video_is_a_link, huge_image, not_an_image],
    ids=lambda damage: damage.__name__,
)
def test_damaged_images_get_one_error(damage: Any, episodes: list[Arrays], tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", episodes)
    damage(path)
    with pytest.raises(StorageError) as raised:
        facts(path)
    assert "\n" not in str(raised.value)
