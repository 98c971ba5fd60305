"""Differences between two policy checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tdx.contracts import diff_stacks
from tdx.foundation.errors import ArgumentError, StorageError
from tdx.inspection.checkpoint_diff import compare_checkpoints
from tdx.inspection.diff import DiffReport
from tdx.stacks.checkpoints import read_checkpoint
from tdx.stacks.checkpoints.stack import CheckpointStack
from tests.programs import exhaustive
from tests.stacks.checkpoints.folders import ACTION, STATE, Arrays, Folder

Statistics = dict[str, Arrays]


def compare(a: Folder, b: Folder, path: Path) -> DiffReport:
    return compare_checkpoints(
        read_checkpoint(a.write(path / "a")), read_checkpoint(b.write(path / "b"))
    )


def different_keys(report: DiffReport) -> list[str]:
    return [value.key for value in report.values if value.status != "same"]


def test_equal_checkpoints_are_the_same(tmp_path: Path) -> None:
    report = compare(Folder(), Folder(), tmp_path)
    assert report.same
    assert len(report.values) == 3


def test_order_of_statistics_is_named(tmp_path: Path) -> None:
    other = Folder()
    for statistics in other.both:
        for name, values in statistics[ACTION].items():
            statistics[ACTION][name] = values[[1, 0, 2, 3, 4, 5]]
    report = compare(Folder(), other, tmp_path)
    changed = [stage for stage in report.stages if stage.status == "changed"]
    assert [stage.a_index for stage in changed] == [3, 5]
    assert all("another order: 1, 0, 2, 3, 4, 5" in c.b for s in changed for c in s.arguments)
    assert different_keys(report) == [ACTION]


def test_number_of_executed_actions_is_named(tmp_path: Path) -> None:
    other = Folder()
    other.config["n_action_steps"] = 8
    report = compare(Folder(), other, tmp_path)
    assert [(change.name, change.a, change.b) for change in report.env] == [
        ("n_action_steps", "100", "8")
    ]
    assert not report.same
    assert different_keys(report) == []


@pytest.mark.parametrize("file", ["config.json", "train_config.json"])
def test_steps_per_second_are_named(file: str, tmp_path: Path) -> None:
    paths = []
    for fps in (30, 50):
        folder = Folder()
        path = folder.write(tmp_path / str(fps))
        document = folder.config | {"fps": fps} if file == "config.json" else {"env": {"fps": fps}}
        (path / file).write_text(json.dumps(document))
        paths.append(path)
    one, other = map(read_checkpoint, paths)
    report = compare_checkpoints(one, other)
    assert [(c.name, c.a, c.b) for c in report.env] == [("fps", "30", "50")]
    assert compare_checkpoints(one, one).same


def test_missing_step_is_named(tmp_path: Path) -> None:
    one = Folder()
    one.insert(1, "xvla_image_scale", image_keys=None)
    report = compare(one, Folder(), tmp_path)
    assert [(s.status, s.a) for s in report.stages if s.status != "same"] == [
        ("removed", "xvla_image_scale()")
    ]


def test_statistics_that_one_side_lacks(tmp_path: Path) -> None:
    other = Folder()
    del other.statistics["before"][STATE]
    report = compare(Folder(), other, tmp_path)
    (changed,) = [stage for stage in report.stages if stage.status == "changed"]
    assert {change.b for change in changed.arguments} == {"missing"}
    assert different_keys(report) == [STATE]


def test_all_samples_are_compared(tmp_path: Path) -> None:
    other = Folder()
    statistics = other.statistics["before"][STATE]
    statistics["std"] = statistics["std"] * 2
    one = read_checkpoint(Folder().write(tmp_path / "a"))
    two = read_checkpoint(other.write(tmp_path / "b"))
    # The mean is 0 after both normalizers.
    samples = [{STATE: statistics["mean"] + np.float32(n)} for n in (0, 0, 1, 2)]
    report = compare_checkpoints(one, two, samples)
    assert (report.steps, report.samples, report.seed) == (4, "recorded", None)
    assert report.notes == ("the samples do not have observation.images.top: not compared",)
    (change,) = [value for value in report.values if value.status != "same"]
    expected = float((1 / statistics["std"]).max())
    assert (change.key, change.first_step) == (STATE, 2)
    assert change.largest == pytest.approx(2 * expected, rel=1e-5)
    (change,) = [v for v in compare_checkpoints(one, two).values if v.status != "same"]
    assert change.key == STATE


def test_samples_without_a_feature_of_the_checkpoints(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(Folder().write(tmp_path))
    with pytest.raises(ArgumentError, match="none of the features"):
        compare_checkpoints(checkpoint, checkpoint, [{"state": np.zeros(6, np.float32)}])
    with pytest.raises(ArgumentError, match="there are no samples"):
        compare_checkpoints(checkpoint, checkpoint, [])
    assert compare_checkpoints(checkpoint, checkpoint, [{ACTION: np.zeros(6, np.float32)}]).same


def test_a_sample_that_a_step_cannot_process_is_named(tmp_path: Path) -> None:
    folder = Folder()
    del folder.statistics["before"][STATE]["mean"]
    checkpoint = read_checkpoint(folder.write(tmp_path))
    with pytest.raises(ArgumentError) as error:
        compare_checkpoints(checkpoint, checkpoint)
    assert error.value.where.step == 0


def test_a_side_that_fails_is_a_difference(tmp_path: Path) -> None:
    other = Folder()
    for name, values in other.statistics["before"][STATE].items():
        other.statistics["before"][STATE][name] = np.append(values, values[:1])
    report = compare(Folder(), other, tmp_path)
    assert not report.same
    assert (report.values, report.steps) == ((), None)
    assert "'mean' of 'observation.state' has the shape [7]" in report.notes[0]
    (changed,) = [stage for stage in report.stages if stage.status == "changed"]
    assert "(shape [7] instead of [6])" in changed.arguments[0].b


def make_fresh(statistics: Statistics) -> None:
    statistics[STATE]["mean"] = np.zeros(6, np.float32)
    statistics[STATE]["std"] = np.ones(6, np.float32)


def swap(statistics: Statistics) -> None:
    statistics[STATE], statistics[ACTION] = statistics[ACTION], statistics[STATE]


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (make_fresh, "state fresh", "observation.state.mean is 0, and observation.state.std is 1"),
        (swap, "value", "action.mean and observation.state.mean are swapped"),
    ],
)
@exhaustive
def test_statistics_are_explained(
    change: Callable[[Statistics], None], kind: str, text: str, tmp_path: Path
) -> None:
    other = Folder()
    change(other.statistics["before"])
    a, b = (
        CheckpointStack(read_checkpoint(folder.write(tmp_path / name)))
        for name, folder in (("a", Folder()), ("b", other))
    )
    (cause,) = diff_stacks(a, b, steps=4).causes
    assert (cause.kind, cause.stage) == (kind, 3)
    assert text in cause.message
    assert cause.explanation is not None
    if change is swap:
        assert cause.explanation.kind == "swapped statistics"
        assert cause.explanation.parameters == {"key": STATE}


def test_statistics_of_another_run(tmp_path: Path) -> None:
    other = Folder()
    other.statistics["before"][STATE]["mean"] += np.float32(1e-3)
    report = compare(Folder(), other, tmp_path)
    (changed,) = [stage for stage in report.stages if stage.status == "changed"]
    assert [change.name for change in changed.arguments] == ["observation.state.mean"]
    assert different_keys(report) == [STATE]


@pytest.mark.parametrize("text", ['{"env": 3}', '{"env": {"fps": 1e400}}', '{"env": {"fps": []}}'])
def test_training_without_a_number_of_steps_per_second(text: str, tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "checkpoint")
    (path / "train_config.json").write_text(text)
    assert read_checkpoint(path).fps is None


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_options_of_a_training_that_are_malformed(text: str, tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "checkpoint")
    (path / "train_config.json").write_text(text)
    with pytest.raises(StorageError, match=r"train_config\.json"):
        read_checkpoint(path)
