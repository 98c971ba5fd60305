"""The state of a checkpoint's steps, and the values that they write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tdx.foundation.errors import StorageError
from tdx.inspection.checkpoint_values import (
    checkpoint_state,
    checkpoint_values,
    draw_samples,
    read_samples,
)
from tdx.stacks.checkpoints import Checkpoint, read_checkpoint
from tests.stacks.checkpoints.folders import ACTION, STATE, Folder


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """A checkpoint without faults."""
    return read_checkpoint(Folder().write(tmp_path / "checkpoint"))


def test_state_is_that_of_the_files(checkpoint: Checkpoint) -> None:
    entries = {(entry.stage, entry.name): entry for entry in checkpoint_state(checkpoint).entries}
    mean = Folder().statistics["before"][STATE]["mean"]
    assert entries[3, f"{STATE}.mean"].value.tolist() == mean.tolist()
    assert {stage for stage, _ in entries} == {3, 4}


def test_values_of_each_step(checkpoint: Checkpoint) -> None:
    statistics = Folder().statistics["before"]
    states = statistics[STATE]["mean"] + statistics[STATE]["std"] * np.float32(2)
    actions = np.zeros((1, 6), np.float32)
    report = checkpoint_values(checkpoint, [{STATE: states, ACTION: actions}])
    (phase,) = report.phases
    values = {
        (stage.name, stats.key): (stats.minimum, stats.maximum)
        for stage in phase.stages
        for stats in stage.values
    }
    assert values["normalizer", STATE] == pytest.approx((2, 2), abs=1e-5)
    mean = statistics[ACTION]["mean"]
    assert values["unnormalizer", ACTION] == pytest.approx((mean.min(), mean.max()))


def test_drawn_samples_are_repeatable(checkpoint: Checkpoint) -> None:
    one, other = (draw_samples(checkpoint, 2, seed=3) for _ in range(2))
    assert len(one) == 2
    pairs = zip(one, other, strict=True)
    assert all(str(first[STATE]) == str(second[STATE]) for first, second in pairs)


def test_error_of_a_step_ends_the_report(tmp_path: Path) -> None:
    folder = Folder()
    folder.set_mode("STATE", "QUANTILES")
    del folder.statistics["before"][STATE]["q99"]
    checkpoint = read_checkpoint(folder.write(tmp_path / "checkpoint"))
    report = checkpoint_values(checkpoint, draw_samples(checkpoint, 3))
    assert report.steps == 0
    assert "needs 'q99' of 'observation.state'" in str(report.error)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_samples_of_a_file(suffix: str, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    states = np.arange(12, dtype=np.float32).reshape(2, 6)
    path = tmp_path / f"samples{suffix}"
    if suffix == ".npz":
        np.savez(path, **{STATE: states})  # type: ignore[arg-type]
    else:
        save_file({STATE: states}, path)
    samples = read_samples(path)
    assert [np.asarray(sample[STATE]).tolist() for sample in samples] == states.tolist()


def test_file_without_samples_gets_one_error(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    for damage in (lambda: None, lambda: path.write_bytes(b"PK nothing")):
        damage()
        with pytest.raises(StorageError):
            read_samples(path)
    np.savez(path, a=np.zeros(3), b=np.zeros(4))
    with pytest.raises(StorageError, match="'a': 3, 'b': 4"):
        read_samples(path)
    np.savez(path, a=np.asarray([object()], dtype=object))
    with pytest.raises(StorageError):
        read_samples(path)
