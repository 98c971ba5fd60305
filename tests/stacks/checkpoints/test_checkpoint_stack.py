"""A policy checkpoint as a stack: its stages, specs, values and state, and contracts of it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.format import write_array_header_1_0

import tdx
from tdx.foundation.errors import ArgumentError, CodeNotAllowedError, StorageError
from tdx.inspection.chain import inspect_chain
from tdx.inspection.checkpoint_diff import compare_checkpoints
from tdx.inspection.spec_report import compare_specs, inspect_checkpoint
from tdx.inspection.values_report import inspect_state, inspect_values
from tdx.rollouts.samples import read_samples
from tdx.stacks.checkpoints import Processor, Step, read_checkpoint
from tdx.stacks.checkpoints.device_calls import count_checkpoint_calls
from tdx.stacks.checkpoints.stack import CheckpointStack
from tdx.stacks.checkpoints.steps import run
from tests.programs import exhaustive, sampled
from tests.stacks.checkpoints.folders import ACTION, IMAGE, STATE, Folder

Damage = Callable[[Folder], None]


def open_folder(folder: Folder, path: Path) -> CheckpointStack:
    return CheckpointStack(read_checkpoint(folder.write(path)))


@pytest.fixture
def stack(tmp_path: Path) -> CheckpointStack:
    """A checkpoint without faults."""
    return open_folder(Folder(), tmp_path / "checkpoint")


def test_path_opens_as_a_stack_from_robot_to_policy(tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "checkpoint")
    for target in (path, str(path)):
        stack = tdx.open_stack(target)
        assert [(stage.name, stage.direction) for stage in stack.stages] == [
            ("rename_observations", "forward"),
            ("to_batch", "forward"),
            ("device", "forward"),
            ("normalizer", "forward"),
            ("device", "inverse"),
            ("unnormalizer", "inverse"),
        ]


def test_specs_are_those_of_the_report_without_torch(stack: CheckpointStack) -> None:
    assert compare_specs(stack, stack.checkpoint.name) == inspect_checkpoint(stack.checkpoint)


def test_chain_shows_what_each_step_writes(stack: CheckpointStack) -> None:
    writes = {
        flow.name: [str(write.key) for write in (*flow.forward.writes, *flow.inverse.writes)]
        for flow in inspect_chain(stack).stages
    }
    assert writes["normalizer"] == [STATE, IMAGE]
    assert writes["unnormalizer"] == [ACTION]
    assert writes["rename_observations"] == []


def test_state_is_that_of_the_files(stack: CheckpointStack) -> None:
    entries = {(entry.stage, entry.name): entry for entry in inspect_state(stack).entries}
    mean = Folder().statistics["before"][STATE]["mean"]
    assert entries[3, f"{STATE}.mean"].value.tolist() == mean.tolist()
    assert {stage for stage, _ in entries} == {3, 5}


def test_values_of_recorded_samples(tmp_path: Path) -> None:
    statistics = Folder().statistics["before"]
    sample = {
        STATE: statistics[STATE]["mean"] + statistics[STATE]["std"] * np.float32(2),
        ACTION: np.zeros((1, 6), np.float32),
    }
    checkpoint = read_checkpoint(Folder().write(tmp_path / "checkpoint"))
    report = inspect_values(CheckpointStack(checkpoint, [sample, sample]))
    values = {
        (stage.name, str(stats.key).partition("@")[0]): (stats.minimum, stats.maximum)
        for stage in report.phases[-1].stages
        for stats in stage.values
    }
    assert values["normalizer", STATE] == pytest.approx((2, 2), abs=1e-5)
    mean = statistics[ACTION]["mean"]
    assert values["unnormalizer", ACTION] == pytest.approx((mean.min(), mean.max()))


def test_recorded_image_outside_its_spec_is_a_violation(tmp_path: Path) -> None:
    image = np.full((3, 96, 96), 200, np.float32)
    sample = {STATE: np.zeros(6, np.float32), IMAGE: image}
    checkpoint = read_checkpoint(Folder().write(tmp_path / "checkpoint"))
    report = inspect_values(CheckpointStack(checkpoint, [sample]))
    assert {violation.key for violation in report.violations} == {IMAGE}


def test_error_of_a_step_names_it(tmp_path: Path) -> None:
    folder = Folder()
    folder.set_mode("STATE", "QUANTILES")
    del folder.statistics["before"][STATE]["q99"]
    report = inspect_values(open_folder(folder, tmp_path / "checkpoint"), steps=3)
    assert report.steps == 0
    assert report.error is not None
    assert "needs 'q99' of 'observation.state'" in report.error.message
    assert (report.error.where.stage, report.error.where.transform) == (3, "normalizer")


def test_samples_without_features_are_refused(tmp_path: Path) -> None:
    folder = Folder()
    path = folder.write(tmp_path / "checkpoint")
    (path / "config.json").unlink()
    for file in path.glob("*.json"):
        text = file.read_text().replace('"features"', '"lost"')
        file.write_text(text)
    with pytest.raises(ArgumentError, match="no samples can be drawn"):
        tdx.open_stack(path)


@pytest.mark.parametrize("shape", [[100_000, 100_000], [-1], [2] * 40])
def test_shape_that_nothing_has_gets_one_error(shape: list[int], tmp_path: Path) -> None:
    folder = Folder()
    folder.config["input_features"][STATE]["shape"] = shape
    with pytest.raises(ArgumentError, match="shape"):
        open_folder(folder, tmp_path / "checkpoint")
    checkpoint = read_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(ArgumentError, match="shape"):
        compare_checkpoints(checkpoint, checkpoint)


def test_dtype_that_does_not_exist_gets_one_error(tmp_path: Path) -> None:
    folder = Folder()
    folder.before[2]["config"]["float_dtype"] = "os.system"
    with pytest.raises(ArgumentError, match=r"'os\.system'"):
        open_folder(folder, tmp_path / "checkpoint")


@exhaustive
def test_contract_of_a_checkpoint_is_its_own(stack: CheckpointStack) -> None:
    contract = tdx.freeze(stack)
    report = tdx.check_contract(stack, contract)
    assert report.same
    assert report.coverage.values == report.coverage.all_values > 0


def other_statistics(folder: Folder) -> None:
    folder.statistics["before"][STATE]["mean"][2] += 1


def permuted_joints(folder: Folder) -> None:
    for name, values in folder.statistics["after"][ACTION].items():
        folder.statistics["after"][ACTION][name] = values[[1, 0, 2, 3, 4, 5]]


def images_scaled_twice(folder: Folder) -> None:
    folder.insert(3, "xvla_image_scale", image_keys=None)


def lost_step(folder: Folder) -> None:
    del folder.before[1]


def other_mode(folder: Folder) -> None:
    folder.set_mode("STATE", "MIN_MAX")


@pytest.mark.parametrize(
    ("damage", "stage", "key"),
    [
        (other_statistics, "normalizer", f"{STATE}.mean"),
        (permuted_joints, "unnormalizer", f"{ACTION}.mean"),
        (images_scaled_twice, "xvla_image_scale", IMAGE),
        (lost_step, "to_batch", STATE),
        (other_mode, "normalizer", STATE),
    ],
)
@sampled(3)
def test_checkpoint_that_differs_fails_with_step_and_feature(
    damage: Damage, stage: str, key: str, stack: CheckpointStack, tmp_path: Path
) -> None:
    folder = Folder()
    damage(folder)
    other = open_folder(folder, tmp_path / "other")
    report = tdx.check_contract(other, tdx.freeze(stack))
    assert report.exit_code == 1
    assert report.first is not None
    assert (report.first.name, report.first.key) == (stage, key)


@exhaustive
def test_order_of_permuted_statistics_is_named(stack: CheckpointStack, tmp_path: Path) -> None:
    folder = Folder()
    permuted_joints(folder)
    report = tdx.check_contract(open_folder(folder, tmp_path / "other"), tdx.freeze(stack))
    assert report.first is not None
    assert f"{ACTION}.mean is in another order: 1, 0, 2, 3, 4, 5" in report.first.sentence


def test_steps_that_are_code_are_passed_over_and_named(tmp_path: Path) -> None:
    folder = Folder()
    folder.before.append({"class": "os.system", "config": {}})
    stack = open_folder(folder, tmp_path / "checkpoint")
    assert stack.notes == (
        "policy_preprocessor.json step 4 is passed over: os.system is a class, which is code: it "
        "is not imported",
    )
    assert inspect_values(stack).error is None


@pytest.mark.parametrize("angle", [0.0, 0.3, 2.0, 3.1])
def test_rotation_of_an_action_becomes_an_axis_times_its_angle(angle: float) -> None:
    axis = np.array([1.0, -2.0, 2.0]) / 3
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    matrix = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    action = np.concatenate([[1, 2, 3], 2 * matrix[:, 0], matrix[:, 1], [0.7]])[None]
    processor = Processor("postprocessor", "", (Step(0, "xvla_rotation_6d_to_axis_angle"),))
    result = np.asarray(run(processor, {ACTION: action}).samples[-1][ACTION])
    assert result[0] == pytest.approx([1, 2, 3, *(axis * angle), 1], abs=1e-5)


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


def test_size_of_samples_is_checked_before_they_are_read(tmp_path: Path) -> None:
    header = io.BytesIO()
    shape = (6, 10**13)
    write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "samples.npz", "w") as file:
        file.writestr("image.npy", header.getvalue())
    (tmp_path / "samples.safetensors").write_bytes(b"\xff" * 500)
    for name in ("samples.npz", "samples.safetensors"):
        with pytest.raises(StorageError):
            read_samples(tmp_path / name)


def test_simulated_device_runs_no_step_without_permission(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(Folder().write(tmp_path / "checkpoint"))
    with pytest.raises(CodeNotAllowedError, match="LeRobot, which is Python code"):
        count_checkpoint_calls(checkpoint, allow_code=False)


def test_simulated_device_refuses_steps_that_compute_with_numpy(tmp_path: Path) -> None:
    checkpoint = replace(read_checkpoint(Folder().write(tmp_path / "checkpoint")), library="openpi")
    with pytest.raises(ArgumentError, match="saved by openpi, whose transforms compute with NumPy"):
        count_checkpoint_calls(checkpoint, allow_code=True)
