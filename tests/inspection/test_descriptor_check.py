"""Findings about deployment descriptors: each fault is named, and sound ones have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tdx.foundation.errors import CheckError
from tdx.inspection.check_report import CheckReport
from tdx.inspection.descriptor_check import check_descriptor, compare_descriptors
from tdx.stacks.descriptors import Descriptor, Term, read_descriptor
from tests.stacks.descriptors.exports import (
    isaaclab_descriptors,
    mjlab_metadata,
    permuted,
    write_isaaclab,
    write_mjlab,
)

Change = Callable[[dict[str, Any]], object]


def codes(report: CheckReport) -> list[str]:
    return list(dict.fromkeys(finding.code for finding in report.findings))


def compare_mjlab(path: Path, **changes: str) -> CheckReport:
    one = write_mjlab(path / "one.onnx")
    other = write_mjlab(path / "other.onnx", mjlab_metadata() | changes)
    return compare_descriptors(read_descriptor(one), read_descriptor(other))


def compare_isaaclab(path: Path, change: Change) -> CheckReport:
    descriptors = isaaclab_descriptors()
    change(descriptors)
    one = write_isaaclab(path / "one.yaml")
    other = write_isaaclab(path / "other.yaml", descriptors)
    return compare_descriptors(read_descriptor(one), read_descriptor(other))


def test_equal_descriptors_have_no_findings(tmp_path: Path) -> None:
    assert compare_mjlab(tmp_path).findings == ()
    assert compare_isaaclab(tmp_path, dict.copy).findings == ()
    for name in ("one.onnx", "one.yaml"):
        assert check_descriptor(read_descriptor(tmp_path / name)).findings == ()


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    assert compare_mjlab(tmp_path, default_joint_pos="0.1004,-0.1,0.4,-0.4").findings == ()


def test_layout_of_a_single_frame_does_not_matter(tmp_path: Path) -> None:
    other = {"observation_terms_flatten_history_dim": "1,1,1,1,0"}
    assert compare_mjlab(tmp_path, **other).findings == ()


MJLAB_FAULTS = {
    "missing term": ("TDX641", {"command_names": "pose"}),
    "order of terms": ("TDX642", {
        "observation_names": "base_ang_vel,joint_pos,joint_vel,command,actions",
        "observation_terms_history_length": "5,5,5,0,5",
    }),
    "order of joints": ("TDX643", {
        "joint_names": "left_hip,left_knee,right_hip,right_knee",
        "default_joint_pos": "0.1,0.4,-0.1,-0.4",
        "joint_stiffness": "40.0,99.098,40.0,99.0",
        "joint_damping": "2.5,6.3,2.5,6.3",
        "action_scale": "0.548,0.351,0.548,0.351",
    }),
    "other joint": ("TDX644", {"joint_names": "left_hip,right_hip,left_knee,right_ankle"}),
    "default position": ("TDX645", {"default_joint_pos": "0.1,-0.1,0.5,-0.4"}),
    "action scale": ("TDX646", {"action_scale": "0.25"}),
    "length of the history": ("TDX647", {"observation_terms_history_length": "5,4,5,5,0"}),
    "layout of the history": ("TDX647", {"observation_terms_flatten_history_dim": "1,0,1,1,1"}),
    "scale": ("TDX648", {"observation_terms_scale": "1,1,1,1,1"}),
    "gains in another order": ("TDX650", {"joint_stiffness": "99.098,99.0,40.0,40.0"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", MJLAB_FAULTS)
def test_fault_of_mjlab(fault: str, tmp_path: Path) -> None:
    code, changes = MJLAB_FAULTS[fault]
    report = compare_mjlab(tmp_path, **changes)
    assert codes(report) == [code]
    assert report.exit_code() == 1


ISAACLAB_FAULTS: dict[str, tuple[str, Change]] = {
    "lost term": ("TDX641", lambda d: d["observations"]["policy"].pop()),
    "order of terms": ("TDX642", lambda d: d["observations"]["policy"].reverse()),
    "offset": ("TDX646", lambda d: d["actions"][0].update(offset=[0.0] * 4)),
    "history": (
        "TDX647",
        lambda d: d["observations"]["policy"][0]["overloads"].update(history_length=3),
    ),
    "clip": (
        "TDX648",
        lambda d: d["observations"]["policy"][0]["overloads"].update(clip=[-1.0, 1.0]),
    ),
    "shape": ("TDX649", lambda d: d["observations"]["policy"][0].update(shape=[2])),
    "control step": ("TDX651", lambda d: d["scene"].update(dt=0.01)),
    "order of joints": (
        "TDX643",
        lambda d: d["articulations"]["robot"].update(
            {name: permuted(values) for name, values in d["articulations"]["robot"].items()}
        ),
    ),
}


@pytest.mark.parametrize("fault", ISAACLAB_FAULTS)
def test_fault_of_isaaclab(fault: str, tmp_path: Path) -> None:
    code, change = ISAACLAB_FAULTS[fault]
    report = compare_isaaclab(tmp_path, change)
    assert codes(report) == [code]


def test_order_is_named(tmp_path: Path) -> None:
    report = compare_mjlab(tmp_path, joint_stiffness="40.0,99.098,40.0,99.0")
    assert [finding.message for finding in report.findings] == [
        "the stiffness has its values in another order, 0, 2, 1, 3"
    ]


def test_contradictions(tmp_path: Path) -> None:
    for changes in (
        {"default_joint_pos": "0.1,0.2"},
        {"joint_names": "left_hip,left_hip,left_knee,right_knee"},
        {"action_scale": "0.5,nan,0.5,0.5"},
    ):
        path = write_mjlab(tmp_path / "policy.onnx", mjlab_metadata() | changes)
        assert codes(check_descriptor(read_descriptor(path))) == ["TDX652"]


def test_what_one_descriptor_lacks_is_a_note(tmp_path: Path) -> None:
    metadata = mjlab_metadata()
    del metadata["joint_damping"]
    one, other = write_mjlab(tmp_path / "a.onnx"), write_mjlab(tmp_path / "b.onnx", metadata)
    report = compare_descriptors(read_descriptor(one), read_descriptor(other))
    assert report.findings == ()
    assert any("the damping" in note for note in report.hidden)


def test_descriptors_without_anything_in_common_are_not_called_equal() -> None:
    one = Descriptor(Path("one.onnx"), "mjlab", (Term("joint_pos"),))
    other = Descriptor(Path("other.yaml"), "Isaac Lab", (Term("joint_pos_rel"),))
    with pytest.raises(CheckError, match="not comparable"):
        compare_descriptors(one, other)


BARE = {"observation_names": mjlab_metadata()["observation_names"]}
"""Metadata of an export that names the terms only."""


def test_a_match_of_less_than_half_is_not_comparable(tmp_path: Path) -> None:
    full = read_descriptor(write_mjlab(tmp_path / "full.onnx"))
    bare = read_descriptor(write_mjlab(tmp_path / "bare.onnx", BARE))
    for one, other in ((full, bare), (bare, full)):
        with pytest.raises(CheckError, match=r"not comparable: compared 1 of \d+"):
            compare_descriptors(one, other)
    # What neither of them declares is counted, and is no reason to refuse.
    report = compare_descriptors(bare, bare)
    assert report.findings == ()
    assert any("are declared by neither side" in note for note in report.hidden)


def test_a_difference_is_reported_however_little_was_compared(tmp_path: Path) -> None:
    full = read_descriptor(write_mjlab(tmp_path / "full.onnx"))
    metadata = {"observation_names": "joint_pos,base_ang_vel,joint_vel,actions,command"}
    bare = read_descriptor(write_mjlab(tmp_path / "bare.onnx", metadata))
    assert codes(compare_descriptors(full, bare)) == ["TDX642"]
    # Without the finding, nothing is left that was compared.
    with pytest.raises(CheckError, match="not comparable"):
        compare_descriptors(full, bare, ignore=["TDX642"])


def test_what_a_format_cannot_declare_is_no_omission(tmp_path: Path) -> None:
    reference = read_descriptor(write_mjlab(tmp_path / "train.onnx"))
    other = read_descriptor(write_isaaclab(tmp_path / "deploy.yaml"))
    (note,) = [
        note for note in compare_descriptors(reference, other).hidden if "compared " in note[:9]
    ]
    # The metadata of mjlab has no shapes and no time step; the gains are not in this file.
    assert "only one side has the stiffness, the damping" in note
    assert "only one of the formats has shapes of actions" in note


def test_gains_of_explicit_actuators_are_not_compared(tmp_path: Path) -> None:
    reference = read_descriptor(write_mjlab(tmp_path / "train.onnx"))
    other = read_descriptor(write_isaaclab(tmp_path / "deploy.yaml"))
    assert other.robot.stiffness is None
    report = compare_descriptors(reference, other)
    assert "TDX650" not in codes(report)
    assert any("the stiffness" in note for note in report.hidden)


def test_summary_says_what_was_checked(tmp_path: Path) -> None:
    report = check_descriptor(read_descriptor(write_mjlab(tmp_path / "policy.onnx")))
    assert "observation terms" in report.subject
    assert "stage" not in report.subject
