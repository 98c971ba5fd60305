"""Checkpoints of openpi and GR00T: what is read, what their normalizers do, and the rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdx
from tdx.foundation.errors import StorageError
from tdx.inspection.checkpoint_check import check_checkpoint
from tdx.inspection.values_report import inspect_values
from tdx.stacks.checkpoints import SampleEntries, is_checkpoint, read_checkpoint
from tdx.stacks.checkpoints.steps import run
from tests.stacks.checkpoints.other_folders import (
    Processor,
    groot_metadata,
    openpi_statistics,
    statistics,
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
    rows = np.random.default_rng(0).normal(size=(500, 4, 7))
    processor.statistics["gr1"]["relative_action"] = {
        "left_arm": {
            "min": rows.min(0).tolist(),
            "max": rows.max(0).tolist(),
            "mean": rows.mean(0).tolist(),
            "std": rows.std(0).tolist(),
        }
    }
    path = processor.write(tmp_path / "sound")
    assert codes(path) == []
    assert any("action.left_arm become absolute" in note for note in read_checkpoint(path).notes)
    stack = tdx.open_stack(path)
    assert tdx.check_contract(stack, tdx.freeze(stack)).same


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
