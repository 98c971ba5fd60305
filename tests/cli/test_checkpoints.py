"""Policy checkpoints and datasets as targets of commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tdx import open_dump
from tests.programs import exhaustive
from tests.stacks.checkpoints.datasets import (
    add_image_column,
    draw,
    draw_frames,
    encode_image,
    write_dataset,
    write_statistics,
    write_table,
    write_video,
)
from tests.stacks.checkpoints.folders import ACTION, IMAGE, JOINTS, STATE, Folder

if TYPE_CHECKING:
    from tests.cli.conftest import Layout, Tdx

HEAVY = ("torch", "tensordict", "gymnasium", "pyarrow", "textual")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint without faults."""
    return Folder().write(tmp_path / "checkpoint")


@pytest.mark.parametrize("command", ["check", "inspect spec"])
@exhaustive
def test_command_loads_no_heavy_modules(command: str, folder: Path) -> None:
    program = (
        "import sys\n"
        f"sys.argv = ['tdx', *{command.split()!r}, {str(folder)!r}]\n"
        "from tdx.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("[]\n")


@exhaustive
def test_a_processor_file_is_a_target(tdx: Tdx, folder: Path) -> None:
    file = str(folder / "policy_preprocessor.json")
    result = tdx("check", file)
    assert result.code == 0
    assert f"{file}, 4 stages" in result.out
    assert tdx("diff", file, str(folder)).out.startswith(f"{file} → {folder}  different")


def test_findings_exit_with_1_and_can_be_selected(tdx: Tdx, tmp_path: Path) -> None:
    damaged = Folder()
    damaged.config["n_action_steps"] = 101
    path = str(damaged.write(tmp_path / "damaged"))
    result = tdx("check", path, "--format", "json")
    assert result.code == 1
    assert [finding["code"] for finding in json.loads(result.out)["findings"]] == ["TDX613"]
    assert tdx("check", path, "--ignore", "TDX613").code == 0
    assert tdx("check", path, "--select", "TDX62").code == 0


def test_options_of_pipelines_do_not_apply(tdx: Tdx, folder: Path) -> None:
    for options in (["-t", "StepCounter"], ["--fix"], ["--policy", "random"]):
        result = tdx("check", str(folder), *options)
        assert result.code == 2
        assert "policy checkpoint" in result.err


def test_command_that_takes_no_checkpoint_says_which_do(tdx: Tdx, folder: Path) -> None:
    result = tdx("inspect", "plan", str(folder))
    assert result.code == 2
    assert "is a policy checkpoint" in result.err
    assert "check, contract, diff, profile, report, and inspect spec, chain" in result.err
    result = tdx("inspect", "chain", str(folder), "-t", "StepCounter")
    assert result.code == 2
    assert "its processors are its stages" in result.err


def test_chain_and_keys(tdx: Tdx, folder: Path) -> None:
    result = tdx("inspect", "chain", str(folder))
    assert result.code == 0
    assert "5 unnormalizer" in result.out
    result = tdx("inspect", "keys", str(folder), STATE)
    assert result.code == 0
    assert f"{STATE}@2" in result.out
    assert ACTION not in result.out.partition("lane")[2]


@exhaustive
def test_contract(tdx: Tdx, folder: Path, tmp_path: Path) -> None:
    contract = str(tmp_path / "contract")
    assert tdx("contract", "record", str(folder), "--out", contract).code == 0
    result = tdx("contract", "check", str(folder), "--against", contract)
    assert result.code == 0
    assert "compared 6 of 6 stages" in result.out
    other = Folder()
    other.statistics["after"][ACTION]["std"][3] *= 2
    path = str(other.write(tmp_path / "other"))
    result = tdx("contract", "check", path, "--against", contract)
    assert result.code == 1
    assert "stage 5 (unnormalizer), key 'action.std'" in result.out


@pytest.mark.parametrize(("count", "is_enough"), [(2, True), (8, False)])
@exhaustive
def test_steps_that_are_not_run_do_not_count_as_compared(
    tdx: Tdx, folder: Path, tmp_path: Path, count: int, is_enough: bool
) -> None:
    file = folder / "policy_preprocessor.json"
    document = json.loads(file.read_text())
    code = [{"class": f"my_robot.Step{index}", "config": {}} for index in range(count)]
    file.write_text(json.dumps(document | {"steps": [*code, *document["steps"]]}))
    contract = str(tmp_path / "contract")
    result = tdx("contract", "record", str(folder), "--out", contract)
    if not is_enough:
        assert result.code != 0
        assert "too little of the stack is run" in result.err
        return
    assert result.code == 0, result.err
    result = tdx("contract", "check", str(folder), "--against", contract)
    assert result.code == 0, result.err
    assert "2 not compared" in result.out
    assert "stage 0 (Step0) of the contract is not run" in result.out


@exhaustive
def test_contract_has_the_settings_of_the_policy(tdx: Tdx, tmp_path: Path) -> None:
    contract, policy = str(tmp_path / "contract"), Folder()
    policy.config["fps"] = 30
    trained = str(policy.write(tmp_path / "trained"))
    assert tdx("contract", "record", trained, "--out", contract).code == 0
    assert tdx("contract", "check", trained, "--against", contract).code == 0
    policy.config |= {"n_action_steps": 8, "fps": 50}
    deployed = str(policy.write(tmp_path / "deployed"))
    result = tdx("contract", "check", deployed, "--against", contract, "--format", "json")
    assert result.code == 1
    report = json.loads(result.out)
    assert [(d["code"], d["message"]) for d in report["differences"]] == [
        ("TDX515", "fps is 50 instead of 30"),
        ("TDX515", "n_action_steps is 8 instead of 100"),
    ]
    # A deployment that does not declare them is not another one.
    for name in ("fps", "n_action_steps", "chunk_size"):
        del policy.config[name]
    undeclared = str(policy.write(tmp_path / "undeclared"))
    assert tdx("contract", "check", undeclared, "--against", contract).code == 0


def test_profile(tdx: Tdx, folder: Path) -> None:
    options = ("--steps", "3", "--repeat", "1", "--warmup", "0", "--format", "json")
    result = tdx("profile", str(folder), *options)
    assert result.code == 0, result.err
    assert "normalizer" in result.out
    assert "--t" not in result.out + result.err
    summary = tdx("profile", str(folder), *options[:-2]).out
    assert "µs per step" in summary.splitlines()[0]
    assert "bound by: " in summary
    result = tdx("profile", str(folder), "--mode", "eager")
    assert result.code == 2
    assert "do not apply to a policy checkpoint" in result.err


def write_snapshot(folder: Path, cache: Path, name: str) -> Path:
    """Put a checkpoint into a cache of the Hub, and return its snapshot."""
    repository, revision = cache / f"models--{name.replace('/', '--')}", "a" * 40
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    for index, file in enumerate(sorted(folder.iterdir())):
        blob = f"{index:040x}"
        shutil.copy(file, repository / "blobs" / blob)
        os.symlink(f"../../blobs/{blob}", snapshot / file.name)
    return snapshot


def test_snapshot_of_the_hub_is_found_by_its_id(
    tdx: Tdx, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    write_snapshot(folder, cache, "lab/policy")
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    assert tdx("check", "lerobot:lab/policy").code == 0
    result = tdx("check", "lerobot:lab/other")
    assert result.code == 3
    assert "hf download lab/other" in result.err
    assert "lerobot:lab/other is not in the cache" in result.err


@exhaustive
def test_snapshot_of_the_hub_is_called_by_its_id(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = Folder()
    del faulty.statistics["before"][STATE]
    cache, name = tmp_path / "cache", "lerobot:lab/policy"
    snapshot = write_snapshot(faulty.write(tmp_path / "faulty"), cache, "lab/policy")
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    commands = [
        ("check", name),
        ("check", name, "--format", "json"),
        ("check", name, "--format", "sarif"),
        ("diff", name, name),
        ("report", name, "-o", str(tmp_path / "report.html")),
        ("contract", "record", name, "--out", str(tmp_path / "contract")),
        ("contract", "check", name, "--against", str(tmp_path / "contract")),
        *(("inspect", part, name) for part in ("spec", "chain", "keys", "values", "state")),
        ("profile", name, "--steps", "5", "--warmup", "0", "--repeat", "1"),
    ]
    results = [tdx(*command) for command in commands]
    for command, result in zip(commands, results, strict=True):
        assert "a" * 40 not in result.out + result.err, command
        assert result.code <= 1, result.err
    assert f"{name}/policy_preprocessor.json: TDX601" in results[0].out
    assert json.loads(results[1].out)["env"] == name
    assert "a" * 40 not in (tmp_path / "report.html").read_text("utf-8")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text("[]")
    result = tdx("check", name)
    assert result.code == 3
    assert "a" * 40 not in result.err
    (snapshot / "config.json").unlink()
    os.symlink("../../../secret", snapshot / "config.json")
    result = tdx("check", name)
    assert result.code == 3
    assert "a" * 40 not in result.err


def test_link_of_a_snapshot_that_leads_elsewhere_is_refused(
    tdx: Tdx, folder: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshots" / "x"
    snapshot.mkdir(parents=True)
    (tmp_path / "secret").write_text("{}")
    os.symlink("../../secret", snapshot / "policy_preprocessor.json")
    result = tdx("check", str(snapshot))
    assert result.code != 0
    assert "symbolic link" in result.err


def test_values_of_samples(tdx: Tdx, folder: Path, tmp_path: Path) -> None:
    result = tdx("inspect", "values", str(folder), "--steps", "3", "--format", "json")
    assert result.code == 0
    phase = json.loads(result.out)["phases"][-1]
    written = {
        (stage["name"], stage["direction"]): [value["key"] for value in stage["values"]]
        for stage in phase["stages"]
    }
    assert written["normalizer", "forward"] == [STATE, IMAGE]
    assert written["unnormalizer", "inverse"] == [ACTION]
    samples = str(tmp_path / "samples.npz")
    np.savez(samples, x=np.zeros(3))
    assert tdx("inspect", "values", "Pendulum-v1", "--samples", samples).code == 2


def test_samples_without_a_feature_of_the_checkpoint(
    tdx: Tdx, folder: Path, tmp_path: Path
) -> None:
    other, part = tmp_path / "other.npz", tmp_path / "part.npz"
    np.savez(other, state=np.zeros((4, JOINTS), np.float32))
    arrays: dict[str, Any] = {STATE: np.zeros((4, JOINTS), np.float32)}
    np.savez(part, **arrays)
    result = tdx("inspect", "values", str(folder), "--samples", str(other))
    assert result.code == 2
    assert f"the samples have none of the features {STATE}" in result.err
    result = tdx("inspect", "values", str(folder), "--samples", str(part))
    assert result.code == 0
    assert f"note: the samples do not have {IMAGE}" in result.err


def test_a_recorded_action_is_what_the_policy_returned(
    tdx: Tdx, folder: Path, tmp_path: Path
) -> None:
    samples = str(tmp_path / "samples.npz")
    action = np.full((3, 1, JOINTS), 0.5, np.float32)
    recorded: dict[str, Any] = {STATE: np.zeros((3, JOINTS), np.float32), ACTION: action}
    np.savez(samples, **recorded)
    result = tdx("inspect", "values", str(folder), "--samples", samples, "--format", "json")
    assert result.code == 0
    report = json.loads(result.out)
    assert not [item for item in report["violations"] if item["key"] == ACTION]
    stages = report["phases"][-1]["stages"]
    written = {
        (stage["name"], stage["direction"]): {value["key"]: value for value in stage["values"]}
        for stage in stages
    }
    # It passes the postprocessor only.
    assert ACTION not in written["normalizer", "forward"]
    (given,) = [s for s in stages if ACTION in {value["key"] for value in s["values"]}][:1]
    (value,) = [value for value in given["values"] if value["key"] == ACTION]
    assert (value["min"], value["max"]) == (0.5, 0.5)
    assert ACTION in written["unnormalizer", "inverse"]


def test_samples_of_a_dataset_and_of_a_dump(tdx: Tdx, folder: Path, tmp_path: Path) -> None:
    data = str(write_dataset(tmp_path / "data", [draw(300)]))
    result = tdx("inspect", "values", str(folder), "--samples", data, "--steps", "20")
    assert result.code == 0
    assert "20 steps" in result.out
    dump = str(tmp_path / "dump")
    assert tdx("rollout", "Pendulum-v1", "--steps", "5", "--out", dump).code == 0
    result = tdx("inspect", "values", str(folder), "--samples", dump)
    assert result.code == 0
    assert "observation" in result.out


def test_dataset_is_a_source_of_values(tdx: Tdx, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [draw(300)])
    result = tdx("inspect", "values", str(data), "--steps", "299", "--format", "json")
    assert result.code == 0
    assert "its steps are read without images" in result.err
    report = json.loads(result.out)
    assert report["violations"] == []
    (stage,) = [s for s in report["phases"][-1]["stages"] if s["values"]]
    assert [value["key"] for value in stage["values"]] == [STATE, ACTION]
    assert tdx("inspect", "spec", str(data)).code == 0


@exhaustive
def test_statistics_of_a_dataset(
    tdx: Tdx, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = draw(300)
    data = write_dataset(tmp_path / "data", [rows])
    add_image_column(data, [encode_image(draw_frames(1)[0])])
    stored = json.loads((data / "meta" / "stats.json").read_text())
    stored[ACTION]["mean"][2] += 5
    write_statistics(data, stored)
    monkeypatch.chdir(tmp_path)
    layout("dataset", "inspect", "values", "data")
    result = tdx("inspect", "values", "data", columns=80).out
    assert all(name in result for name in ("mean", "std", "min", "q01", "q50", "q99", "max"))
    assert max(map(len, result.splitlines())) <= 80
    report = json.loads(tdx("inspect", "values", "data", "--format", "json").out)
    state, action, image = report["features"]
    assert (report["steps"], report["fps"]) == (300, 30)
    for feature in (state, action):
        assert (feature["read"], feature["total"], feature["nonfinite"]) == (300, 300, 0)
        values = rows[feature["key"]]
        for name, expected in {
            "mean": values.mean(0),
            "std": values.std(0),
            "min": values.min(0),
            "q50": np.quantile(values, 0.5, axis=0, method="inverted_cdf"),
            "max": values.max(0),
        }.items():
            shown = [component[name] for component in feature["components"]]
            np.testing.assert_allclose(shown, expected, rtol=1e-5)
    assert [part["name"] for part in state["components"]][:2] == ["pan", "lift"]
    assert (state["stored"], state["difference"]) == ("agree", None)
    assert action["stored"] == "differ"
    assert "mean at 2 (elbow) is" in action["difference"]
    assert (image["read"], image["total"], image["stored"]) == (64, 300, "agree")
    assert [(part["index"], part["q50"]) for part in image["components"]] == [
        *((0, None), (1, None), (2, None))
    ]


def test_statistics_of_a_long_feature_are_folded(tdx: Tdx, tmp_path: Path) -> None:
    rows = np.arange(10 * 40, dtype=np.float32).reshape(10, 40)
    data = write_dataset(tmp_path / "data", [{STATE: rows, ACTION: draw(10)[ACTION]}])
    info = data / "meta" / "info.json"
    document = json.loads(info.read_text())
    document["features"][STATE] |= {"shape": [40], "names": None}
    info.write_text(json.dumps(document))
    result = tdx("inspect", "values", str(data)).out
    assert f"24 more: --key {STATE} shows all" in result
    assert "\n15 " in result
    assert "\n16 " not in result
    result = tdx("inspect", "values", str(data), "--key", STATE).out
    assert "\n39 " in result
    assert "more" not in result
    assert ACTION not in result
    result = tdx("inspect", "values", str(data), "--format", "json").out
    assert len(json.loads(result)["features"][0]["components"]) == 40


def test_statistics_without_stored_or_finite_values(tdx: Tdx, tmp_path: Path) -> None:
    rows = draw(20)
    data = write_dataset(tmp_path / "data", [rows])
    write_statistics(data, {})
    rows[STATE][:5] = np.nan
    rows[ACTION][:] = np.inf
    write_table(data / "data" / "chunk-000" / "file-000.parquet", rows)
    result = tdx("inspect", "values", str(data))
    assert result.code == 0
    assert "NaN or infinite: 5 steps, left out" in result.out
    assert "no stored statistics" in result.out
    report = json.loads(tdx("inspect", "values", str(data), "--format", "json").out)
    state, action, image = report["features"]
    assert (state["read"], state["nonfinite"], state["stored"]) == (20, 5, "missing")
    assert (action["nonfinite"], action["components"], action["stored"]) == (20, [], None)
    assert (image["read"], image["skipped"]) == (0, "the dataset has no file of it")


@pytest.mark.parametrize(
    "option", ["--each", "--policy zero", "--samples x.npz", "-t RewardSum", "--seed 0"]
)
@pytest.mark.parametrize("kind", ["dataset", "dump"])
def test_option_that_runs_an_env_does_not_apply_to_recorded_values(
    kind: str, option: str, tdx: Tdx, tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    if kind == "dataset":
        write_dataset(tmp_path / "data", [draw(20)])
    else:
        assert tdx("rollout", "Pendulum-v1", "--steps", "3", "--out", data).code == 0
    result = tdx("inspect", "values", data, *option.split())
    assert result.code == 2
    assert f"{option.split()[0]} does not apply to" in result.err
    assert "recorded values" in result.err
    result = tdx("inspect", "values", data, "--key", "actoin")
    assert result.code == 2
    assert "did you mean action?" in result.err


@pytest.mark.parametrize("batch", [(), ("--num-envs", "2")])
def test_values_of_a_dump_are_those_that_it_recorded(
    batch: tuple[str, ...], tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dump"
    stages = ("-t", "RewardScaling(0, 2)")
    rollout = ("CartPole-v1", *stages, *batch, "--steps", "40", "--seed", "0")
    assert tdx("rollout", *rollout, "--out", str(path)).code == 0
    # Nothing of its pipeline runs, which cannot be built now.
    monkeypatch.setattr("tdx.stacks.building.build_env", None)
    dump = open_dump(path)[:]
    result = tdx("inspect", "values", str(path), "--format", "json")
    assert (result.code, result.err) == (0, "")
    document = json.loads(result.out)
    assert (document["kind"], document["title"]) == ("dataset", "a dump")
    assert document["steps"] == dump.numel()
    features = {feature["key"]: feature for feature in document["features"]}
    for key in ("observation", "next.reward", "next.done"):
        values = dump[tuple(key.split("."))].flatten(0, -2).numpy().astype(np.float64)
        for name in ("mean", "min", "max"):
            expected = getattr(values, name)(0)
            stored = [component[name] for component in features[key]["components"]]
            assert stored == pytest.approx(expected.tolist(), rel=1e-6)
    result = tdx("inspect", "values", str(path), "--steps", "2", "--key", "next.reward")
    assert (result.code, result.err) == (0, "")
    assert "2 steps  combined" in result.out


@exhaustive
def test_state_and_difference(tdx: Tdx, folder: Path, tmp_path: Path) -> None:
    result = tdx("inspect", "state", str(folder), "--format", "json")
    assert result.code == 0
    assert f"{STATE}.mean" in result.out
    other = Folder()
    other.config["n_action_steps"] = 8
    path = str(other.write(tmp_path / "other"))
    assert tdx("diff", str(folder), str(folder)).code == 0
    result = tdx("diff", str(folder), path)
    assert result.code == 1
    assert "n_action_steps" in result.out
    assert tdx("diff", str(folder), "Pendulum-v1").code == 2


@exhaustive
def test_difference_on_recorded_samples(tdx: Tdx, folder: Path, tmp_path: Path) -> None:
    data = str(write_dataset(tmp_path / "data", [draw(30)]))
    other = Folder()
    other.statistics["before"][STATE]["mean"] += np.float32(1)
    path = str(other.write(tmp_path / "other"))
    assert "values  8 drawn samples, seed 0" in tdx("diff", str(folder), path).out
    result = tdx("diff", str(folder), path, "--samples", data)
    assert (result.code, result.err) == (1, "")
    assert "values  30 recorded samples" in result.out
    assert (
        "explanation\nTDX511 value: stage 3 (normalizer), key 'observation.state.mean'"
        in result.out
    )
    assert "the samples do not have observation.images.top" in result.out
    assert tdx("diff", str(folder), path, "--steps", "3").code == 2


def test_difference_names_the_steps_that_are_not_run(tdx: Tdx, tmp_path: Path) -> None:
    checkpoint = Folder()
    checkpoint.before.append({"class": "os.system", "config": {}})
    path = str(checkpoint.write(tmp_path / "opaque"))
    result = tdx("diff", path, path)
    assert result.code == 0
    note = "1 of 7 steps of {} not run, only settings and statistics are compared: os.system"
    assert note.format(path) in " ".join(result.out.split())
    document = json.loads(tdx("diff", path, path, "--format", "json").out)
    assert document["notes"] == [note.format(path)]


def test_dataset(tdx: Tdx, folder: Path, tmp_path: Path) -> None:
    data = str(write_dataset(tmp_path / "data", [draw(300)]))
    assert tdx("check", data).code == 0
    result = tdx("check", str(folder), "--data", data)
    assert result.code == 1
    assert "TDX621" in result.out
    result = tdx("check", "Pendulum-v1", "--data", data)
    assert result.code == 2
    assert "--data needs a policy checkpoint" in result.err


def test_kinds_that_can_be_opened_are_listed(tdx: Tdx) -> None:
    result = tdx("list", "kinds", "checkpoint")
    assert result.code == 0
    assert "norm_stats.json (openpi)" in result.out
    assert "no kind matches 'nothing'" in tdx("list", "kinds", "nothing").out


@exhaustive
def test_minari_dataset_is_a_target_and_data(tdx: Tdx, folder: Path, tmp_path: Path) -> None:
    dump, data = str(tmp_path / "pendulum"), str(tmp_path / "pendulum-v0")
    tdx("rollout", "Pendulum-v1", "--steps", "30", "--seed", "0", "--out", dump)
    assert tdx("export", dump, "--to", "minari", "--out", data).code == 0
    assert "30 steps of 2 features: all checks passed" in tdx("check", data).out
    statistics = tdx("inspect", "values", data).out
    assert "a Minari dataset  30 steps  no stored statistics" in statistics
    report = json.loads(tdx("inspect", "values", data, "--format", "json").out)
    rows = open_dump(dump).data["observation"].numpy()
    observation, action = report["features"]
    shown = [[part[name] for name in ("min", "max")] for part in observation["components"]]
    np.testing.assert_array_equal(shown, np.stack([rows.min(0), rows.max(0)], 1))
    assert (observation["stored"], action["read"]) == (None, 30)
    assert "observation@0" in tdx("inspect", "values", data, "--steps", "29").out
    assert tdx("inspect", "spec", data).code == 0
    for recorded in (dump, data):
        result = tdx("check", str(folder), "--data", recorded)
        assert result.code == 1
        assert f"the policy reads {STATE!r}, which the dataset does not have" in result.out
    _refused_by_commands_that_need_stages(tdx, data, "a Minari dataset")


def _refused_by_commands_that_need_stages(tdx: Tdx, data: str, name: str) -> None:
    for command in (
        *("inspect plan", "profile", "contract record", "show env", "init --from"),
        "rollout --dry-run",
    ):
        result = tdx(*command.split(), data)
        assert result.code == 2
        assert f"{data} is {name}: recorded steps, without stages" in result.err
        assert "tdx inspect values and tdx report read it" in result.err
        assert f"--samples {data}" in result.err


def test_command_that_needs_stages_says_what_reads_a_dataset(tdx: Tdx, tmp_path: Path) -> None:
    data = str(write_dataset(tmp_path / "data", [draw(20)]))
    _refused_by_commands_that_need_stages(tdx, data, "a LeRobot dataset")


def test_report_of_a_dataset_has_its_findings_and_statistics(tdx: Tdx, tmp_path: Path) -> None:
    episode = draw(50)
    episode[STATE][3, 0] = np.nan
    data = str(write_dataset(tmp_path / "data", [episode]))
    target = tmp_path / "report.md"
    assert tdx("report", data, "-o", str(target)).code == 0
    text = target.read_text("utf-8")
    assert "a LeRobot dataset" in text
    assert "TDX624" in text
    assert "50 steps of 2 features" in text
    shown = json.loads(tdx("inspect", "values", data, "--format", "json").out)
    for feature in shown["features"]:
        for component in feature["components"]:
            assert f"{component['mean']:.4g}" in text
    page = tmp_path / "report.html"
    assert tdx("report", data, "-o", str(page)).code == 0
    assert "TDX624" in page.read_text("utf-8")
    for options in (["-o", str(tmp_path / "x.svg")], ["-t", "RewardSum"], ["--steps", "3"]):
        result = tdx("report", data, *options)
        assert result.code == 2
        assert "does not apply to" in result.err


@exhaustive
def test_images_of_a_dataset_are_sampled(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset(tmp_path / "data", [draw(300)])
    write_video(data / f"videos/{IMAGE}/chunk-000/file-000.mp4", draw_frames(80))
    result = tdx("inspect", "values", str(data), "--key", IMAGE, "--format", "json")
    (image,) = json.loads(result.out)["features"]
    assert image["total"] == 300
    assert 1 < image["read"] <= 64
    np.testing.assert_allclose([part["mean"] for part in image["components"]], 0.5, atol=0.05)
    for command in (["inspect", "values"], ["check"]):
        assert f"{image['read']} of 300 frames" in tdx(*command, str(data)).out
    # With --key, nothing else is read.
    shutil.rmtree(data / "data")
    assert tdx("inspect", "values", str(data), "--key", IMAGE).code == 0
    monkeypatch.setitem(sys.modules, "av", None)
    result = tdx("inspect", "values", str(data), "--key", IMAGE)
    assert result.code == 0
    assert "not decoded: PyAV is not installed" in result.out


def test_images_of_samples_in_another_range_are_found(
    tdx: Tdx, folder: Path, tmp_path: Path
) -> None:
    samples = str(tmp_path / "samples.npz")
    images = np.random.default_rng(0).random((5, 3, 96, 96), np.float32)
    pixels: Any = {IMAGE: images * 255}
    np.savez(samples, **pixels)
    result = tdx("check", str(folder), "--samples", samples)
    assert result.code == 1
    assert "TDX626" in result.out
    assert "in 5 of 5 frames" in result.out
    scaled: Any = {IMAGE: images}
    np.savez(samples, **scaled)
    assert tdx("check", str(folder), "--samples", samples).code == 0
