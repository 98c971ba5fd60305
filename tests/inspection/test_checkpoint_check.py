"""Faults of policy checkpoints that were published, each rebuilt, and named by ``tdx check``."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tdx.foundation.errors import StorageError
from tdx.inspection.checkpoint_check import DEFAULT_STEPS, check_checkpoint
from tdx.inspection.spec_report import inspect_checkpoint
from tdx.stacks.checkpoints import read_checkpoint
from tests.stacks.checkpoints.folders import ACTION, IMAGE, JOINTS, STATE, Folder

Damage = Callable[[Folder], None]


def findings(folder: Folder, path: Path) -> list[tuple[str, str | None, object]]:
    report = check_checkpoint(read_checkpoint(folder.write(path)))
    return [
        (finding.code, finding.where.transform, finding.where.key) for finding in report.findings
    ]


def statistics_under_another_name(folder: Folder) -> None:
    for statistics in folder.both:
        statistics["so100.buffer.action"] = statistics.pop(ACTION)


def statistics_are_empty(folder: Folder) -> None:
    for statistics in folder.both:
        statistics.clear()


def images_in_0_to_255(folder: Folder) -> None:
    for name, values in folder.statistics["before"][IMAGE].items():
        folder.statistics["before"][IMAGE][name] = values * 255


def normalized_by_imagenet_too(folder: Folder) -> None:
    folder.insert(3, "xvla_imagenet_normalize", image_keys=None)


def two_normalizers(folder: Folder) -> None:
    folder.before.append(folder.before[-1])


def zero_std(folder: Folder) -> None:
    for statistics in folder.both:
        statistics[STATE]["std"][2] = 0


def tiny_std_of_an_image(folder: Folder) -> None:
    folder.statistics["before"][IMAGE]["std"][:] = 0.006


def equal_quantiles(folder: Folder) -> None:
    folder.set_mode("STATE", "QUANTILES")
    folder.statistics["before"][STATE]["q99"][1] = folder.statistics["before"][STATE]["q01"][1]


def no_quantiles(folder: Folder) -> None:
    folder.set_mode("STATE", "QUANTILES")
    del folder.statistics["before"][STATE]["q01"]


def mean_of_another_dataset(folder: Folder) -> None:
    folder.statistics["before"][STATE]["mean"][0] += 100


def std_of_another_dataset(folder: Folder) -> None:
    folder.statistics["before"][STATE]["std"][3] *= 10


def averaged_quantiles(folder: Folder) -> None:
    quantiles = folder.statistics["before"][STATE]
    quantiles["q01"][4] = quantiles["q50"][4] + 1


def not_a_number(folder: Folder) -> None:
    folder.statistics["before"][STATE]["mean"][0] = np.nan


def other_mode(folder: Folder) -> None:
    folder.normalizer["norm_map"]["STATE"] = "MIN_MAX"


def action_unnormalized_in_another_mode(folder: Folder) -> None:
    folder.unnormalizer["norm_map"]["ACTION"] = "MIN_MAX"


def joints_permuted_in_one_processor(folder: Folder) -> None:
    statistics = folder.statistics["after"][ACTION]
    for name, values in statistics.items():
        statistics[name] = values[[1, 0, 2, 3, 4, 5]]


def action_statistics_of_another_robot(folder: Folder) -> None:
    statistics = folder.statistics["after"][ACTION]
    for name, values in statistics.items():
        statistics[name] = values * 3


def no_unnormalizer(folder: Folder) -> None:
    del folder.after[0]


def steps_lost(folder: Folder) -> None:
    folder.config["type"] = "smolvla"


def rename_to_what_nothing_reads(folder: Folder) -> None:
    folder.before[0]["config"]["rename_map"] = {"observation.images.cam": "observation.images.tp"}


def rename_behind_the_normalizer(folder: Folder) -> None:
    folder.before[0]["config"]["rename_map"] = {"observation.images.cam": IMAGE}
    folder.before.append(folder.before.pop(0))


def camera_has_another_name(folder: Folder) -> None:
    features = folder.normalizer["features"]
    features["observation.images.front"] = features.pop(IMAGE)
    statistics = folder.statistics["before"]
    statistics["observation.images.front"] = statistics.pop(IMAGE)


def other_number_of_joints(folder: Folder) -> None:
    folder.config["input_features"][STATE]["shape"] = [JOINTS + 1]


def statistics_of_other_joints(folder: Folder) -> None:
    for name, values in folder.statistics["before"][STATE].items():
        folder.statistics["before"][STATE][name] = np.append(values, values[-1])


def more_actions_than_the_chunk(folder: Folder) -> None:
    folder.config["n_action_steps"] = 101


def deltas_of_deltas(folder: Folder) -> None:
    # The state was subtracted from small motions: what is left is the state, negated.
    rng = np.random.default_rng(0)
    state = rng.normal(2, 0.5, (500, JOINTS))
    for statistics in folder.both:
        for key, rows in ((STATE, state), (ACTION, rng.normal(0, 0.01, state.shape) - state)):
            named = {"mean": rows.mean(0), "std": rows.std(0)}
            statistics[key] = {name: value.astype(np.float32) for name, value in named.items()}


FAULTS: dict[Damage, tuple[str, str | None, str | None]] = {
    statistics_under_another_name: ("TDX601", "normalizer", ACTION),
    statistics_are_empty: ("TDX601", "normalizer", STATE),
    no_quantiles: ("TDX602", "normalizer", STATE),
    statistics_of_other_joints: ("TDX603", "normalizer", STATE),
    zero_std: ("TDX604", "normalizer", STATE),
    tiny_std_of_an_image: ("TDX604", "normalizer", IMAGE),
    equal_quantiles: ("TDX604", "normalizer", STATE),
    mean_of_another_dataset: ("TDX605", "normalizer", STATE),
    std_of_another_dataset: ("TDX605", "normalizer", STATE),
    averaged_quantiles: ("TDX605", "normalizer", STATE),
    not_a_number: ("TDX605", "normalizer", STATE),
    images_in_0_to_255: ("TDX606", "normalizer", IMAGE),
    normalized_by_imagenet_too: ("TDX607", "normalizer", IMAGE),
    two_normalizers: ("TDX607", "normalizer", STATE),
    other_mode: ("TDX608", "normalizer", None),
    camera_has_another_name: ("TDX609", "normalizer", IMAGE),
    other_number_of_joints: ("TDX609", "normalizer", STATE),
    rename_to_what_nothing_reads: ("TDX610", "rename_observations", "observation.images.cam"),
    rename_behind_the_normalizer: ("TDX610", "normalizer", None),
    action_unnormalized_in_another_mode: ("TDX611", "unnormalizer", ACTION),
    joints_permuted_in_one_processor: ("TDX611", "unnormalizer", ACTION),
    action_statistics_of_another_robot: ("TDX611", "unnormalizer", ACTION),
    no_unnormalizer: ("TDX611", None, ACTION),
    steps_lost: ("TDX612", None, None),
    more_actions_than_the_chunk: ("TDX613", None, None),
    deltas_of_deltas: ("TDX614", "normalizer", ACTION),
}


@pytest.mark.parametrize("damage", FAULTS, ids=lambda damage: damage.__name__)
def test_published_fault_is_named(damage: Damage, tmp_path: Path) -> None:
    folder = Folder()
    damage(folder)
    assert FAULTS[damage] in findings(folder, tmp_path / "checkpoint")


def test_sound_checkpoint_has_no_findings(tmp_path: Path) -> None:
    report = check_checkpoint(read_checkpoint(Folder().write(tmp_path / "checkpoint")))
    assert report.findings == ()
    assert report.stages == 6


@pytest.mark.parametrize("mode", ["IDENTITY", "MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10"])
def test_each_mode_is_sound(mode: str, tmp_path: Path) -> None:
    folder = Folder()
    folder.set_mode("STATE", mode)
    folder.set_mode("ACTION", mode)
    assert findings(folder, tmp_path / "checkpoint") == []


@pytest.mark.parametrize("policy", DEFAULT_STEPS)
def test_policy_with_its_default_steps_is_sound(policy: str, tmp_path: Path) -> None:
    folder = Folder(policy)
    for name in DEFAULT_STEPS[policy]["preprocessor"]:
        if name not in [step["registry_name"] for step in folder.before]:
            folder.insert(2, name)
    for name in DEFAULT_STEPS[policy]["postprocessor"]:
        if name not in [step["registry_name"] for step in folder.after]:
            folder.after.insert(0, {"registry_name": name, "config": {}})
    if policy == "xvla":
        folder.set_mode("VISUAL", "IDENTITY")
    assert findings(folder, tmp_path / "checkpoint") == []


def test_reward_classifier_normalizes_inputs_and_outputs_in_two_steps(tmp_path: Path) -> None:
    folder = Folder("reward_classifier")
    second = copy.deepcopy(folder.before[-1])
    folder.normalizer["features"].pop(ACTION)
    second["config"]["features"] = {ACTION: second["config"]["features"][ACTION]}
    folder.before.append(second)
    assert findings(folder, tmp_path / "checkpoint") == []


def test_rounded_statistics_of_the_unnormalizer_agree(tmp_path: Path) -> None:
    folder = Folder()
    statistics = folder.statistics["after"][ACTION]
    for name, values in statistics.items():
        statistics[name] = values * np.float32(1.000005)
    assert findings(folder, tmp_path / "rounded") == []
    statistics["mean"][2] += 0.5
    report = check_checkpoint(read_checkpoint(folder.write(tmp_path / "moved")))
    [message] = [finding.message for finding in report.findings if finding.code == "TDX611"]
    wanted = folder.statistics["before"][ACTION]["mean"][2]
    assert f"instead of {wanted:.4g} at 2" in message


def test_the_same_nan_in_both_processors_is_no_difference(tmp_path: Path) -> None:
    folder = Folder()
    for side in ("before", "after"):
        folder.statistics[side][ACTION]["mean"][0] = np.nan
    codes = {code for code, *_ in findings(folder, tmp_path / "checkpoint")}
    assert "TDX605" in codes
    assert "TDX611" not in codes


def test_hint_names_the_key_of_the_statistics(tmp_path: Path) -> None:
    folder = Folder()
    statistics_under_another_name(folder)
    report = check_checkpoint(read_checkpoint(folder.write(tmp_path / "checkpoint")))
    hints = {finding.hint for finding in report.findings if finding.code == "TDX601"}
    assert hints == {"the statistics have 'so100.buffer.action': rename it to 'action'"}


def test_crop_changes_the_spec(tmp_path: Path) -> None:
    folder = Folder()
    folder.insert(1, "image_crop_resize_processor", crop_params_dict=None, resize_size=[24, 32])
    report = inspect_checkpoint(read_checkpoint(folder.write(tmp_path / "checkpoint")))
    (image,) = [change for change in report.stages[1].changes if change.change != "same"]
    assert image.after is not None
    assert (image.key, image.after.shape) == (IMAGE, (3, 24, 32))


def test_class_of_a_checkpoint_is_not_imported(tmp_path: Path) -> None:
    folder = Folder()
    folder.before.insert(2, {"class": "os.system", "config": {"command": "touch /nonexistent"}})
    report = check_checkpoint(read_checkpoint(folder.write(tmp_path / "checkpoint")))
    assert report.findings == ()
    assert report.hidden == (
        "preprocessor step 2 is passed over: os.system is a class, which is code: it is not "
        "imported",
    )


def link_to_a_secret(path: Path) -> None:
    file = path / "policy_preprocessor_step_3_normalizer_processor.safetensors"
    file.rename(path.parent / "secret")
    file.symlink_to(path.parent / "secret")


def state_file_outside(path: Path) -> None:
    file = path / "policy_preprocessor.json"
    document = json.loads(file.read_text())
    document["steps"][3]["state_file"] = "../secret.safetensors"
    file.write_text(json.dumps(document))


def huge_shape(path: Path) -> None:
    header = json.dumps({"a.mean": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}})
    file = path / "policy_preprocessor_step_3_normalizer_processor.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode())


def nested_json(path: Path) -> None:
    (path / "policy_preprocessor.json").write_text('{"steps": ' + "[" * 5000 + "]" * 5000 + "}")


def too_many_steps(path: Path) -> None:
    steps = [{"registry_name": "to_batch_processor", "config": {}}] * 10_000
    (path / "policy_preprocessor.json").write_text(json.dumps({"steps": steps}))


def state_missing(path: Path) -> None:
    (path / "policy_preprocessor_step_3_normalizer_processor.safetensors").unlink()


@pytest.mark.parametrize(
    "damage",
    [link_to_a_secret, state_file_outside, huge_shape, nested_json, too_many_steps, state_missing],
    ids=lambda damage: damage.__name__,
)
def test_hostile_folder_gets_one_error(damage: Callable[[Path], None], tmp_path: Path) -> None:
    path = Folder().write(tmp_path / "checkpoint")
    damage(path)
    with pytest.raises(StorageError):
        read_checkpoint(path)
