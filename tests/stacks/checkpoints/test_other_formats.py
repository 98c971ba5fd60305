"""Checkpoints of openpi and GR00T: what is read, what their normalizers do, and the rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from torchvision.transforms import v2

import tdx
from tdx.foundation.errors import ArgumentError, StorageError
from tdx.inspection.checkpoint_check import check_checkpoint
from tdx.inspection.spec_report import compare_specs, inspect_checkpoint
from tdx.inspection.values_report import inspect_values
from tdx.stacks.checkpoints import SampleEntries, Step, is_checkpoint, read_checkpoint
from tdx.stacks.checkpoints.groot_images import resize_by_area
from tdx.stacks.checkpoints.poses import to_absolute
from tdx.stacks.checkpoints.stack import CheckpointStack
from tdx.stacks.checkpoints.steps import run
from tdx.stacks.kinds import open_stack
from tdx.stacks.samples import Sample
from tests.programs import exhaustive
from tests.stacks.checkpoints.other_folders import (
    Processor,
    groot_metadata,
    openpi_statistics,
    statistics,
    statistics_of,
    write_metadata,
    write_openpi,
)

Array = np.ndarray[Any, Any]


@pytest.fixture
def openpi(tmp_path: Path) -> Path:
    """A checkpoint of openpi without faults."""
    features = {"state": openpi_statistics(8), "actions": openpi_statistics(7, 1)}
    return write_openpi(tmp_path / "openpi", {"lab/libero": features})


@pytest.fixture
def n15(tmp_path: Path) -> Path:
    """A checkpoint of GR00T N1.5 without faults."""
    return write_metadata(tmp_path / "n15", groot_metadata())


@pytest.fixture
def n16(tmp_path: Path) -> Path:
    """A checkpoint of GR00T N1.6 without faults."""
    return Processor().write(tmp_path / "n16")


@pytest.fixture(params=["openpi", "n15", "n16"])
def folder(request: pytest.FixtureRequest) -> Path:
    """A checkpoint without faults, of each format."""
    path: Path = request.getfixturevalue(request.param)
    return path


def codes(path: Path) -> list[tuple[str, object]]:
    report = check_checkpoint(read_checkpoint(path))
    return [(finding.code, finding.where.key) for finding in report.findings]


def normalized(path: Path, sample: SampleEntries) -> SampleEntries:
    return run(read_checkpoint(path).processors[0], sample).samples[-1]


def unnormalized(path: Path, action: SampleEntries) -> SampleEntries:
    return run(read_checkpoint(path).processors[1], action).samples[-1]


def array(values: list[Any]) -> Array:
    return np.asarray(values)


def same_bits(one: object, other: Array) -> bool:
    assert isinstance(one, np.ndarray)
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@exhaustive
def test_sound_checkpoint_has_no_findings_and_keeps_its_contract(folder: Path) -> None:
    assert is_checkpoint(folder)
    assert codes(folder) == []
    stack = tdx.open_stack(folder)
    report = inspect_values(stack, steps=3)
    assert report.error is None
    assert report.violations == ()
    assert tdx.check_contract(stack, tdx.freeze(stack)).same


def test_what_is_code_is_said_to_be_unread(folder: Path) -> None:
    assert check_checkpoint(read_checkpoint(folder)).hidden


# ------------------------------------------------------------------------------- openpi


def test_openpi_normalizes_by_mean_and_standard_deviation(openpi: Path) -> None:
    sample = {"state": np.random.default_rng(3).normal(size=8).astype(np.float32)}
    known = openpi_statistics(8)
    mean, std = array(known["mean"]), array(known["std"])
    assert same_bits(normalized(openpi, sample)["state"], (sample["state"] - mean) / (std + 1e-6))
    action = {"actions": np.random.default_rng(4).normal(size=(10, 7)).astype(np.float32)}
    known = openpi_statistics(7, 1)
    mean, std = array(known["mean"]), array(known["std"])
    expected = action["actions"] * (std + 1e-6) + mean
    assert same_bits(unnormalized(openpi, action)["actions"], expected)


def test_padding_of_openpi_is_no_finding_and_passes(tmp_path: Path) -> None:
    features = {"state": openpi_statistics(8, 0, 24), "actions": openpi_statistics(7, 1, 25)}
    path = write_openpi(tmp_path / "padded", {"droid": features})
    assert codes(path) == []
    checkpoint = read_checkpoint(path)
    assert checkpoint.config is not None
    assert checkpoint.config.inputs["state"].shape == (8,)
    action = np.ones((1, 32), np.float32)
    assert np.array_equal(
        np.asarray(unnormalized(path, {"actions": action})["actions"])[0, 7:], action[0, 7:]
    )


def test_assets_have_keys_of_their_own(tmp_path: Path) -> None:
    features = {"state": openpi_statistics(8), "actions": openpi_statistics(7, 1)}
    path = write_openpi(tmp_path / "base", {"droid": features, "lab/aloha": features})
    checkpoint = read_checkpoint(path)
    assert checkpoint.config is not None
    assert list(checkpoint.config.inputs) == ["droid/state", "lab/aloha/state"]
    assert is_checkpoint(path / "assets" / "droid")
    assert is_checkpoint(path / "assets" / "droid" / "norm_stats.json")


def test_faults_of_openpi_are_named(tmp_path: Path) -> None:
    stuck = openpi_statistics(7, 1)
    stuck["q99"][6] = stuck["q01"][6]
    swapped = openpi_statistics(8)
    swapped["q01"], swapped["q99"] = swapped["q99"], swapped["q01"]
    lost = {"state": openpi_statistics(8)}
    for name, features, expected in (
        ("stuck", {"state": openpi_statistics(8), "actions": stuck}, [("TDX604", "actions")]),
        (
            "swapped",
            {"state": swapped, "actions": openpi_statistics(7)},
            [("TDX605", "state")],
        ),
        ("lost", lost, [("TDX601", "actions"), ("TDX601", "actions")]),
    ):
        assert codes(write_openpi(tmp_path / name, {"droid": features})) == expected


def test_deltas_of_deltas_are_named(tmp_path: Path) -> None:
    # openpi#1047: the state was subtracted from actions that were deltas.
    rng = np.random.default_rng(0)
    state = rng.normal(2, 0.5, (500, 8))
    motion = rng.normal(0, 0.02, (500, 7))
    for name, actions, expected in (
        ("absolute", state[:, :7] + motion, []),
        ("deltas", motion, []),
        ("twice", motion - state[:, :7], [("TDX614", "actions")]),
    ):
        features = {"state": statistics_of(state), "actions": statistics_of(actions)}
        assert codes(write_openpi(tmp_path / name, {"droid": features})) == expected


@exhaustive
def test_other_statistics_of_openpi_differ_in_their_step(openpi: Path, tmp_path: Path) -> None:
    features = {"state": openpi_statistics(8), "actions": openpi_statistics(7, 2)}
    other = write_openpi(tmp_path / "other", {"lab/libero": features})
    report = tdx.check_contract(other, tdx.freeze(openpi))
    assert report.first is not None
    assert (report.first.name, report.first.key) == ("openpi_normalize", "actions.mean")


# -------------------------------------------------------------------------------- GR00T


def test_n15_normalizes_by_the_range(n15: Path) -> None:
    sample = {"state.single_arm": np.random.default_rng(3).normal(size=5).astype(np.float32)}
    known = statistics(5, 0)
    low, high = (np.asarray(known[name], np.float32) for name in ("min", "max"))
    expected = 2 * ((sample["state.single_arm"] - low) / (high - low)) - 1
    assert same_bits(normalized(n15, sample)["state.single_arm"], expected)


def test_cameras_of_n15_have_the_sizes_and_the_rate_of_the_metadata(tmp_path: Path) -> None:
    metadata = groot_metadata()
    checkpoint = read_checkpoint(write_metadata(tmp_path / "one", metadata))
    assert checkpoint.config is not None
    assert checkpoint.config.inputs["video.front"].shape == (1, 480, 640, 3)
    assert checkpoint.settings == {"fps": 30.0}
    (note,) = [note for note in checkpoint.notes if "not run" in note]
    assert note.startswith("3 parts of the preprocessing not run, which only code has: the crop")
    videos = metadata["new_embodiment"]["modalities"]["video"]
    videos["wrist"] = {"resolution": [320, 240], "channels": 3, "fps": 15.0}
    assert read_checkpoint(write_metadata(tmp_path / "two", metadata)).fps is None


def test_flags_and_rotations_of_n15(tmp_path: Path) -> None:
    metadata = groot_metadata()
    modalities = metadata["new_embodiment"]["modalities"]
    for part in ("state", "action"):
        modalities[part] = {name: dict(group) for name, group in modalities[part].items()}
        modalities[part]["gripper"]["continuous"] = False
    modalities["state"]["single_arm"]["rotation_type"] = "quaternion"
    # A flag that is rarely set: its quantiles are equal, and nothing divides by their distance.
    metadata["new_embodiment"]["statistics"]["action"]["gripper"] |= {
        **{"min": [0.0], "q01": [0.0], "q99": [0.0], "max": [1.0]},
        **{"mean": [0.005], "std": [0.07]},
    }
    path = write_metadata(tmp_path / "flags", metadata)
    assert codes(path) == []
    sample = {"state.gripper": np.asarray([0.7], np.float32)}
    assert same_bits(normalized(path, sample)["state.gripper"], np.ones(1, np.float32))
    action = {"action.gripper": np.asarray([[0.2]], np.float32)}
    assert same_bits(unnormalized(path, action)["action.gripper"], np.zeros((1, 1), np.float32))
    assert "rotations state.single_arm (quaternion)" in read_checkpoint(path).notes[-1]


@pytest.mark.parametrize("resolution", [[-1, 5], [2**40, 2**40], "large"])
def test_camera_of_n15_with_an_impossible_size(resolution: object, tmp_path: Path) -> None:
    metadata = groot_metadata()
    videos = metadata["new_embodiment"]["modalities"]["video"]
    videos["front"]["resolution"] = resolution
    path = write_metadata(tmp_path / "damaged", metadata)
    if isinstance(resolution, str):
        assert "video.front" not in str(inspect_checkpoint(read_checkpoint(path)))
        return
    with pytest.raises(ArgumentError, match="shape"):
        tdx.open_stack(path)


def test_faults_of_n15_are_named(tmp_path: Path) -> None:
    metadata = groot_metadata()
    embodiment = metadata["new_embodiment"]
    embodiment["statistics"]["action"]["single_arm"] = statistics(7)
    del embodiment["statistics"]["state"]["gripper"]
    assert set(codes(write_metadata(tmp_path / "damaged", metadata))) == {
        ("TDX601", "state.gripper"),
        ("TDX603", "action.single_arm"),
    }


def test_n16_clips_what_it_normalizes(n16: Path) -> None:
    known = statistics(7, 0)
    low, high = array(known["min"]), array(known["max"])
    state = np.linspace(low - 1, high + 1, 4).astype(np.float32)
    expected = np.zeros_like(state)
    expected[:] = (state - low) / (high - low)
    expected = np.clip(2 * expected - 1, -1, 1)
    assert same_bits(normalized(n16, {"state.left_arm": state})["state.left_arm"], expected)
    known = statistics(3, 11)
    low, high = array(known["min"]), array(known["max"])
    action = np.random.default_rng(0).normal(0, 2, (4, 3)).astype(np.float32)
    expected = (np.clip(action, -1, 1) + 1) / 2 * (high - low) + low
    assert same_bits(unnormalized(n16, {"action.waist": action})["action.waist"], expected)


def test_each_key_of_n16_has_its_own_mode(tmp_path: Path) -> None:
    processor = Processor()
    processor.settings |= {"use_percentiles": True, "apply_sincos_state_encoding": True}
    processor.modalities["state"]["sin_cos_embedding_keys"] = ["left_arm"]
    processor.modalities["state"]["mean_std_embedding_keys"] = ["waist"]
    stack = tdx.open_stack(processor.write(tmp_path / "modes"))
    assert stack.calls[0] == (
        "groot_normalize(state.left_arm: SIN_COS, state.waist: MEAN_STD, action.left_arm: "
        "QUANTILES, action.waist: QUANTILES)"
    )
    assert stack.specs()[-1].output_spec["full_observation_spec", "state.left_arm"].shape == (14,)
    report = inspect_values(stack, steps=2)
    assert report.error is None
    assert report.violations == ()


def test_relative_actions_need_their_own_statistics(tmp_path: Path) -> None:
    processor = Processor()
    processor.settings["use_relative_action"] = True
    processor.modalities["action"]["action_configs"][0]["rep"] = "RELATIVE"
    path = processor.write(tmp_path / "lost")
    assert ("TDX601", "action.left_arm") in codes(path)
    processor.set_relative()
    assert codes(processor.write(tmp_path / "sound")) == []


@exhaustive
def test_relative_actions_become_absolute_by_the_last_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = Processor()
    processor.set_relative()
    path = processor.write(tmp_path / "relative")
    samples = [
        {
            "state.left_arm": np.full(7, step, np.float32),
            "state.waist": np.zeros(3, np.float32),
            "action.left_arm": np.zeros((4, 7), np.float32),
            "action.waist": np.zeros((4, 3), np.float32),
        }
        for step in range(1, 4)
    ]
    stack = open_stack(path, samples)
    assert isinstance(stack, CheckpointStack)
    known = processor.statistics["gr1"]["relative_action"]["left_arm"]
    middle = (array(known["min"]) + array(known["max"])) / 2
    robot: list[Any] = []
    step_source = stack.source.step

    def step(action: Sample) -> Any:
        robot.append(action)
        return step_source(action)

    monkeypatch.setattr(stack.source, "step", step)
    stack.target.reset(seed=0)
    for _ in range(2):
        stack.target.step(stack.sample_action())
    for state, action in enumerate(robot, start=1):
        # The state before the step, and before it was normalized.
        assert np.allclose(action["action.left_arm"], middle + state)
    stack = open_stack(path, samples)
    assert tdx.check_contract(stack, tdx.freeze(stack)).same


def poses(layout: str, count: int, seed: int) -> Array:
    """Return random poses ``[count, D]``; rotations stay below half a turn."""
    rng = np.random.default_rng(seed)
    vectors = rng.uniform(-1, 1, (count, 3))
    rotation = vectors if layout == "XYZ_ROTVEC" else matrices(vectors)[:, :2].reshape(count, 6)
    return np.concatenate([rng.normal(size=(count, 3)), rotation], 1)


def matrices(vectors: Array) -> Array:
    """Return rotations as matrices, by the exponential series."""
    x, y, z = vectors.T
    zero = np.zeros_like(x)
    generator = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).reshape(-1, 3, 3)
    result, term = np.tile(np.eye(3), (len(x), 1, 1)), np.eye(3)
    for order in range(1, 30):
        term = term @ generator / order
        result = result + term
    return result


def rotations(layout: str, values: Array) -> Array:
    if layout == "XYZ_ROTVEC":
        return matrices(values[:, 3:])
    rows = values[:, 3:].reshape(-1, 2, 3)
    return np.concatenate([rows, np.cross(rows[:, 0], rows[:, 1])[:, None]], 1)


@pytest.mark.parametrize("layout", ["XYZ_ROT6D", "XYZ_ROTVEC"])
def test_relative_poses_are_in_the_frame_of_the_state(layout: str) -> None:
    state, relative = poses(layout, 1, 0), poses(layout, 4, 1)
    step = Step(0, "groot_absolute_actions", config={"relative": {"action": ["state", layout]}})
    result = to_absolute(step, {"action": relative, "state": state})["action"]
    assert isinstance(result, np.ndarray)
    frame, turn = rotations(layout, state), rotations(layout, relative)
    assert np.allclose(result[:, :3], state[:, :3] + relative[:, :3] @ frame[0].T, atol=1e-12)
    assert np.allclose(rotations(layout, result), frame @ turn, atol=1e-12)


def test_a_pose_without_a_turn_is_a_shift() -> None:
    step = Step(0, "groot_absolute_actions", config={"relative": {"action": ["s", "XYZ_ROTVEC"]}})
    still = np.zeros((2, 6))
    result = to_absolute(step, {"action": still, "s": np.array([1.0, 2, 3, 0, 0, 0])})["action"]
    assert np.array_equal(np.asarray(result), [[1, 2, 3, 0, 0, 0]] * 2)


def test_a_relative_action_without_its_state_is_named(tmp_path: Path) -> None:
    processor = Processor()
    processor.set_relative()
    processor.modalities["action"]["action_configs"][0]["state_key"] = "right_arm"
    with pytest.raises(ArgumentError, match="which the sample lacks"):
        tdx.freeze(tdx.open_stack(processor.write(tmp_path / "lost")))
    processor.modalities["action"]["action_configs"][0]["state_key"] = "waist"
    with pytest.raises(ArgumentError, match="does not fit"):
        tdx.freeze(tdx.open_stack(processor.write(tmp_path / "other")))


def test_an_unknown_layout_is_counted_as_not_run(tmp_path: Path) -> None:
    processor = Processor()
    processor.set_relative("XYZ_QUAT")
    notes = read_checkpoint(processor.write(tmp_path / "unknown")).notes
    assert any("action.left_arm" in note and "'XYZ_QUAT' is not known" in note for note in notes)


@pytest.mark.parametrize("use_albumentations", [False, True])
@exhaustive
def test_images_are_cropped_and_resized_as_in_a_deployment(
    tmp_path: Path, use_albumentations: bool
) -> None:
    processor = Processor()
    processor.set_images(use_albumentations=use_albumentations)
    path = processor.write(tmp_path / "images")
    image = np.random.default_rng(0).integers(0, 256, (1, 30, 40, 3), dtype=np.uint8)
    result = normalized(path, {"video.ego_view": image, "task": "Pick up, please: the cup!"})
    assert result["task"] == "pick up please the cup"
    if use_albumentations:
        first = cv2.resize(image[0], (32, 24), interpolation=cv2.INTER_AREA)
        crop = first[1 : 1 + 21, 2 : 2 + 28]
        expected = cv2.resize(crop, (32, 24), interpolation=cv2.INTER_AREA)
    else:
        transform = v2.Compose([v2.Resize([24, 24]), v2.CenterCrop([21, 21]), v2.Resize([24, 24])])
        expected = transform(v2.functional.to_image(image[0])).numpy().transpose(1, 2, 0)
    actual = np.asarray(result["video.ego_view"])[0].transpose(1, 2, 0)
    assert actual.shape == expected.shape
    assert np.abs(actual.astype(int) - expected).max() <= use_albumentations
    stack = tdx.open_stack(path)
    report = inspect_values(stack, steps=2)
    assert report.error is None
    assert report.violations == ()
    assert tdx.check_contract(stack, tdx.freeze(stack)).same
    # What a checkpoint is inspected as without torch is what its stack says.
    checkpoint = read_checkpoint(path)
    assert inspect_checkpoint(checkpoint) == compare_specs(stack, checkpoint.name)


@pytest.mark.parametrize(
    ("source", "target"), [((48, 64), (24, 32)), ((50, 61), (24, 30)), ((21, 28), (24, 32))]
)
def test_areas_are_those_of_opencv(source: tuple[int, int], target: tuple[int, int]) -> None:
    image = np.random.default_rng(1).integers(0, 256, (*source, 3), dtype=np.uint8)
    expected = cv2.resize(image, target[::-1], interpolation=cv2.INTER_AREA)
    # Sums of single precision may round another way.
    assert np.abs(resize_by_area(image, *target).astype(int) - expected).max() <= 1


def test_images_get_the_size_of_recorded_ones(tmp_path: Path) -> None:
    processor = Processor()
    processor.set_images(use_albumentations=False)
    processor.settings["letter_box_transform"] = True
    rng = np.random.default_rng(0)
    sample = {
        "video.ego_view": rng.integers(0, 256, (1, 20, 32, 3), dtype=np.uint8),
        "state.left_arm": np.zeros(7, np.float32),
        "state.waist": np.zeros(3, np.float32),
    }
    report = inspect_values(open_stack(processor.write(tmp_path / "n17"), [sample]), steps=1)
    assert report.error is None
    assert report.violations == ()


@exhaustive
def test_another_crop_differs_in_the_images(tmp_path: Path) -> None:
    processor = Processor()
    processor.set_images(use_albumentations=True)
    contract = tdx.freeze(processor.write(tmp_path / "training"))
    processor.settings["crop_fraction"] = 1.0
    report = tdx.check_contract(processor.write(tmp_path / "robot"), contract)
    assert report.first is not None
    assert report.first.name == "groot_images"


def test_impossible_image_sizes_get_one_error(tmp_path: Path) -> None:
    for name, value in (("image_target_size", [10**9, 24]), ("image_crop_size", ["a", 3])):
        processor = Processor()
        processor.set_images(use_albumentations=False)
        processor.settings[name] = value
        with pytest.raises(ArgumentError, match=name):
            tdx.open_stack(processor.write(tmp_path / name))


def test_what_is_not_run_is_counted(tmp_path: Path) -> None:
    processor = Processor()
    (note,) = [n for n in read_checkpoint(processor.write(tmp_path / "a")).notes if "not run" in n]
    assert note.startswith("3 parts of the processor not run: ")
    assert "the images" in note
    processor.set_images(use_albumentations=False)
    (note,) = [n for n in read_checkpoint(processor.write(tmp_path / "b")).notes if "not run" in n]
    assert note.startswith("2 parts of the processor not run: ")


@exhaustive
def test_other_mode_of_n16_differs_in_its_key(n16: Path, tmp_path: Path) -> None:
    processor = Processor()
    processor.modalities["state"]["mean_std_embedding_keys"] = ["waist"]
    other = processor.write(tmp_path / "other")
    report = tdx.check_contract(other, tdx.freeze(n16))
    assert report.first is not None
    assert (report.first.name, report.first.key) == ("groot_normalize", "state.waist")


# --------------------------------------------------------------------------- hostile files


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"norm_stats": []}',
        '{"norm_stats": {"state": {"mean": ["x"]}}}',
        '{"norm_stats": {"state": {"mean": [[1], [2, 3]]}}}',
        '{"norm_stats": {"state": 3}}',
    ],
)
def test_malformed_statistics_get_one_error(text: str, openpi: Path) -> None:
    (openpi / "assets" / "lab" / "libero" / "norm_stats.json").write_text(text)
    with pytest.raises(StorageError):
        read_checkpoint(openpi)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"processor_kwargs": {"modality_configs": {"gr1": 3}}},
        {"processor_kwargs": {"modality_configs": {"gr1": {"state": {"modality_keys": 3}}}}},
    ],
)
def test_malformed_processor_gets_one_error_or_is_empty(
    document: dict[str, Any], n16: Path
) -> None:
    (n16 / "processor_config.json").write_text(json.dumps(document))
    try:
        checkpoint = read_checkpoint(n16)
    except StorageError:
        return
    assert checkpoint.config is not None
    assert not checkpoint.config.inputs


def test_link_to_statistics_elsewhere_is_refused(openpi: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"norm_stats": {}}))
    file = openpi / "assets" / "lab" / "libero" / "norm_stats.json"
    file.unlink()
    file.symlink_to(secret)
    with pytest.raises(StorageError, match="symbolic link"):
        read_checkpoint(openpi)
