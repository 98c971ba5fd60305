"""Output of the commands for dumps."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tdx import Pipeline, export_dump, record_dump
from tdx.cli.progress import activity_text, progress_text, shards_text
from tdx.rollouts import DumpRequest, Goal, Progress, ShardProgress, roll_out_shard
from tests.cli.conftest import GOLDEN, WIDTHS, assert_complete, assert_fits
from tests.programs import exhaustive

if TYPE_CHECKING:
    from tests.cli.conftest import Golden, Tdx

RUN = (
    *("rollout", "--env", "CartPole-v1", "--num-envs", "2", "--seed", "0"),
    *("--t", "StepCounter(max_steps=20)", "--t", "RewardSum"),
)
STORED = ("--keys", "action,reward,done", "--keys", "step_count")
FORMS = ["pipe", "json", *map(str, WIDTHS)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a temporary directory, with fixed package versions in manifests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tdx.rollouts.recording.request.package_versions", lambda: {"tdx": "0.1.0"})
    return tmp_path


def in_form(tdx: Tdx, golden: Golden, form: str, code: int, name: str, *arguments: str) -> None:
    """Compare the output with a golden file; in a narrow terminal, check that it is complete."""
    columns = int(form) if form.isdecimal() else None
    outcome = tdx(*arguments, "--format", "json" if form == "json" else "table", columns=columns)
    assert (outcome.code, outcome.err) == (code, "")
    if columns is None:
        golden(f"{name}.{'txt' if form == 'pipe' else form}", outcome.out)
    else:
        assert_fits(outcome.out, columns)
        assert_complete(outcome.out, json.loads((GOLDEN / f"{name}.json").read_text()))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("form", FORMS)
@exhaustive
def test_each_command_in_each_format(
    tdx: Tdx, golden: Golden, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (*RUN, *STORED, "--steps", "60", "--chunk", "25")
    in_form(tdx, golden, form, 0, "rollout", *made, "--out", "runs/cart")
    with monkeypatch.context() as patch:
        patch.setattr("tdx.rollouts.recording.request.measure_speed", lambda *_: 85_000.0)
        in_form(tdx, golden, form, 0, "rollout_dry", *made, "--out", "runs/other", "--dry-run")
    in_form(tdx, golden, form, 0, "dump", "show", "runs/cart")
    if form == "pipe":
        golden("dump_episodes.txt", tdx("show", "runs/cart", "--episodes").out)
    in_form(tdx, golden, form, 0, "verify", "verify", "runs/cart")
    plain = ("rollout", "--env", "CartPole-v1", "--seed", "0", "--steps", "30")
    assert tdx(*plain, "--out", "runs/plain").code == 0
    replay = ("replay", "runs/plain", "--t", "RewardSum", "--out", "runs/replayed")
    in_form(tdx, golden, form, 0, "replay", *replay)
    manifest = Path("runs/plain/manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 9}))
    in_form(tdx, golden, form, 0, "dumps", "list", "dumps", "runs")
    data = Path("runs/cart/data/next/step_count.memmap")
    data.write_bytes(b"\x63" + data.read_bytes()[1:])
    Path("runs/cart/data/action.memmap").unlink()
    in_form(tdx, golden, form, 1, "verify_bad", "verify", "runs/cart")


@pytest.mark.usefixtures("folder")
@exhaustive
def test_replay_is_compared_with_the_dump(tdx: Tdx) -> None:
    """The kind of the difference is named, and a repetition of the chain has none."""
    chain = ("--t", "RewardScaling(0.0, 2.0)", "--t", "RewardSum")
    made = tdx("rollout", "--env", "Pendulum-v1", "--steps", "9", *chain, "--raw", "--out", "raw")
    assert made.code == 0
    same = tdx("replay", "raw", *chain, "--compare")
    assert (same.code, same.err) == (0, "")
    assert same.out.startswith("raw → replay of raw  same")
    changed = ("--t", "RewardScaling(0.0, 3.0)", "--t", "RewardSum")
    shown = tdx("replay", "raw", *changed, "--compare", "--format", "json", "--out", "new")
    assert (shown.code, shown.err) == (1, "wrote new\n")
    report = json.loads(shown.out)
    (cause,) = report["differences"]
    assert cause["stage"] == 0
    assert cause["explanation"]["kind"] == "scale"
    assert cause["explanation"]["parameters"] == {"factor": 1.5, "offset": 0.0}
    assert cause["hint"] == "give RewardScaling the scale of the dump, or load its state"

    paged = tdx("replay", "raw", *changed, "--compare", "--html", "page.html")
    assert paged.err == "wrote page-smallest (3 steps of 12, stage 0 alone)\nwrote page.html\n"
    assert "python page-smallest/reproduce.py" in Path("page.html").read_text()
    target = ("page-smallest/target.yaml", "--against", "page-smallest/contract", "--stage", "0")
    assert tdx("contract", "check", *target).code == 1


@pytest.mark.usefixtures("folder")
def test_replay_without_out_writes_nothing(tdx: Tdx) -> None:
    assert tdx("rollout", "--env", "CartPole-v1", "--steps", "40", "--out", "plain").code == 0
    shown = tdx("replay", "plain", "--t", "RewardSum")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("replay of plain")
    assert "next.episode_reward" in shown.out
    assert [each.name for each in Path().iterdir()] == ["plain"]


@pytest.mark.usefixtures("folder")
@exhaustive
def test_json_says_how_many_episodes_it_leaves_out(tdx: Tdx) -> None:
    few = ("CartPole-v1", "-t", "StepCounter(max_steps=1)", "--steps", "1002")
    assert tdx("rollout", *few, "--out", "short").code == 0
    shown = json.loads(tdx("show", "dump", "short", "--format", "json").out)
    assert (shown["episodes_total"], shown["episodes_shown"]) == (1002, 1000)
    assert [episode["start"] for episode in shown["episodes"]] == [*range(1000)]
    whole = json.loads(tdx("show", "dump", "short", "--format", "json", "--episodes").out)
    assert (whole["episodes_shown"], len(whole["episodes"])) == (1002, 1002)
    assert len(tdx("show", "dump", "short", "--format", "jsonl").out.splitlines()) == 1002


@pytest.mark.usefixtures("folder")
def test_list_of_a_folder_without_dumps(tdx: Tdx) -> None:
    assert tdx("list", "dumps").out == "no dumps in .\n"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (RUN, "no folder is given", "--out DIR"),
        ((*RUN, "--out", "d"), "the rollout has no length", "--steps N"),
        ((*RUN, "--out", "d", "--steps", "5", "--episodes", "5"), "cannot be combined", ""),
        (
            (*RUN, "--out", "d", "--steps", "5", "--workers", "3"),
            "--workers 3 is more than the 2 envs",
            "at most --workers 2",
        ),
        (
            (*RUN, "--out", "d", "--steps", "5", "--keys", "rewrd"),
            "unknown entry 'rewrd'",
            "reward",
        ),
        ((*RUN, "--out", "d", "--steps", "5", "--policy", "randon"), "unknown policy", "random"),
        ((*RUN, "--out", "d", "--resume"), "reads all other options", "--out DIR --resume"),
        (("rollout", "--resume"), "no dump is given", "--out DIR"),
        (("rollout", "--resume", "--out", "none"), "none has no dump", "list dumps"),
        (("show", "./none"), "none has no dump", "list dumps"),
        (("verify", "none"), "none has no dump", "list dumps"),
        (("list", "dumps", "none"), "none is not a folder", "has dumps"),
        (("replay", "none", "--t", "RewardSum"), "none has no dump", "list dumps"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_errors_are_one_line(tdx: Tdx, arguments: tuple[str, ...], message: str, hint: str) -> None:
    outcome = tdx(*arguments)
    assert outcome.code in (2, 3)
    assert outcome.out == ""
    first, *rest = outcome.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert len(rest) <= 1
    assert hint in "".join(rest)


@pytest.mark.usefixtures("folder")
@exhaustive
def test_diff_of_two_dumps_of_one_chain_explains_their_values(tdx: Tdx) -> None:
    pipeline = Pipeline.of("CartPole-v1", "StepCounter(max_steps=20)")
    record_dump(pipeline, "one", steps=1_100, seed=0)
    shutil.copytree("one", "other")
    for file in Path("other").glob("data/**/observation.memmap"):
        values = np.fromfile(file, np.float32).reshape(-1, 4)
        values[:, [1, 0, 2, 3]].tofile(file)
    outcome = tdx("diff", "one", "other", "--format", "json")
    assert (outcome.code, outcome.err) == (1, "")
    report = json.loads(outcome.out)
    differing = [value for value in report["values"] if value["status"] != "same"]
    assert [value["key"] for value in differing] == ["observation", "next.observation"]
    for value in differing:
        explanation = value["explanation"]
        assert (explanation["kind"], explanation["steps"]) == ("permutation", 1_000)
        assert explanation["parameters"] == {"order": [1, 0, 2, 3]}
    assert report["differences"] == []
    assert report["notes"] == ["only 1,000 of 1,100 steps are compared"]
    shown = tdx("diff", "one", "other", "--steps", "40").out
    assert "observation, next.observation: features 0 and 1 are swapped" in shown


@pytest.mark.usefixtures("folder")
@exhaustive
def test_diff_of_a_dump_and_a_pipeline(tdx: Tdx) -> None:
    assert tdx(*RUN, "--steps", "60", "--out", "cart").code == 0
    stages = "transforms:\n  - StepCounter: {max_steps: 20}\n  - RewardSum\n"
    same = f"version: 1\nenv: {{id: CartPole-v1, num_envs: 2}}\n{stages}"
    Path("same.yaml").write_text(same)
    Path("other.yaml").write_text(f"{same}  - RewardScaling: {{loc: 0.0, scale: 2.0}}\n")
    equal = tdx("diff", "cart", "same.yaml", "--steps", "60")
    assert (equal.code, equal.err) == (0, "")
    assert tdx("diff", "same.yaml", "cart", "--steps", "60").code == 0
    assert tdx("diff", "cart", "cart", "--steps", "60").code == 0
    differs = tdx("diff", "cart", "other.yaml", "--steps", "60", "--format", "jsonl")
    assert differs.code == 1
    rows = [json.loads(line) for line in differs.out.splitlines()]
    assert [(row["section"], row["name"]) for row in rows] == [
        ("stage", "2"),
        ("value", "next.reward"),
        ("difference", "stage 2 (RewardScaling)"),
    ]
    more = tdx("diff", "cart", "same.yaml", "--steps", "61")
    assert (more.code, more.err.splitlines()[0]) == (2, "error: cart has 60 steps, not 61")


@pytest.mark.usefixtures("folder")
@exhaustive
def test_time_estimate_of_a_dry_run(tdx: Tdx) -> None:
    Path("actions.json").write_text("[[0.5], [-0.5], [1.0]]")
    long = json.loads(tdx(*RUN, "--steps", "10000000", "--dry-run", "--format", "json").out)
    assert long["steps_per_second"] > 100
    assert long["seconds"] == pytest.approx(1e7 / long["steps_per_second"], rel=0.01)
    text = tdx(*RUN, "--steps", "10000000", "--dry-run").out
    assert re.search(r"  about \d+ (h|min|s)\b.* at [\d,]+ steps/s  nothing is written", text)
    for arguments, has_speed in (
        ((*RUN, "--episodes", "3"), True),
        ((*RUN, "--steps", "1"), False),
        ((*RUN, "--steps", "100", "--shards", "2"), False),
        (("rollout", "Pendulum-v1", "--policy", "sequence:actions.json"), True),
    ):
        found = json.loads(tdx(*arguments, "--dry-run", "--format", "json").out)
        assert (found["steps_per_second"] is not None) == has_speed, arguments
        assert (found["seconds"] is not None) == (has_speed and "--episodes" not in arguments)
    assert not Path("dump").exists()


def test_dry_run_reports_an_env_that_fails_in_a_step(
    tdx: Tdx, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    Path("broken_env.py").write_text(
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "class Broken(PendulumEnv):\n"
        "    def step(self, action):\n"
        "        raise ValueError('no torque')\n"
    )
    run = ("rollout", "broken_env:Broken", "--allow-code", "--steps", "10", "--dry-run")
    outcome = tdx(*run)
    assert (outcome.code, "no torque" in outcome.err) == (3, True)


def test_progress_line_of_a_rollout() -> None:
    halfway = Progress(steps=5_000, episodes=3, goal=Goal(steps=20_000), new_steps=4_000)
    assert progress_text(halfway, 2.0) == "5,000 of 20,000 steps  2,000 steps/s  8 s left"
    counted = Progress(steps=5_000, episodes=3, goal=Goal(episodes=12), new_steps=5_000)
    assert progress_text(counted, 50.0) == "3 of 12 episodes  100 steps/s  2 min 30 s left"
    none_yet = Progress(steps=100, episodes=0, goal=Goal(episodes=12), new_steps=100)
    assert progress_text(none_yet, 1.0) == "0 of 12 episodes  100 steps/s"


SHARDED = ("rollout", "--env", "CartPole-v1", "--steps", "60", "--shards", "4", "--out", "d")


@exhaustive
def test_shards_are_shown_as_one_dump(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for shard in range(3):
        outcome = tdx(*SHARDED, "--seed", "1", "--shard", str(shard))
        assert (outcome.code, outcome.err) == (0, "")
    assert "unfinished: --resume continues it" in outcome.out
    assert "shards    3 of 4" in outcome.out
    assert "45 of 60" in outcome.out
    resumed = tdx("rollout", "--resume", "--out", "d", "--workers", "1", "--format", "json")
    assert resumed.code == 0
    data = json.loads(resumed.out)
    assert (data["shards"], data["recorded"]) == ({"committed": 4, "count": 4}, 1)
    assert (data["steps"], data["complete"], data["failures"]) == (60, True, [])
    (listed,) = json.loads(tdx("list", "dumps", "--format", "json").out)["dumps"]
    assert (listed["path"], listed["steps"]) == ("d", 60)
    rows = tdx("list", "dumps", "--format", "jsonl").out
    assert json.loads(rows)["shards"] == 4
    assert tdx("verify", "d").out == "d\nvalid: 4 chunks, 3,480 bytes\n"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (("--shard", "4"), "shard 4 does not exist: there are 4", "0 to 3"),
        (("--shard", "1", "--force"), "--shard and --force cannot be combined", ""),
        (("--shard", "1", "--on", "ray"), "--shard and --on cannot be combined", ""),
        (("--on", "rey"), "invalid value 'rey' for --on", "ray"),
        (("--steps", "1e30"), "--steps must be at most", ""),
        (("--resume",), "reads all other options", "--out DIR --resume"),
    ],
)
def test_invalid_shard_options_are_refused(
    tdx: Tdx, options: tuple[str, ...], message: str, hint: str
) -> None:
    outcome = tdx(*SHARDED, *options)
    assert outcome.code == 2
    assert message in outcome.err
    assert hint in outcome.err
    assert not Path("d").exists() or not list(Path("d/shards").iterdir())


@pytest.mark.usefixtures("folder")
def test_options_that_require_shards(tdx: Tdx) -> None:
    outcome = tdx(*RUN, "--steps", "10", "--out", "d", "--on", "local")
    assert outcome.err.startswith("error: --on needs --shards")
    assert tdx(*RUN, "--steps", "1e1", "--out", "d").code == 0
    outcome = tdx("rollout", "--resume", "--out", "d", "--on", "local")
    assert "reads all other options" in outcome.err


def test_progress_line_of_shards() -> None:
    before = ShardProgress(64, 10, 2, 0, 1_000, Goal(steps=6_400))
    now = ShardProgress(64, 20, 2, 1, 2_000, Goal(steps=6_400))
    assert shards_text(now, before, 2.0) == (
        "20 of 64 shards  2 running  1 failed  2,000 of 6,400 steps  500 steps/s  9 s left"
    )
    counted = ShardProgress(64, 20, 2, 0, 0, Goal(episodes=640))
    start = ShardProgress(64, 0, 2, 0, 0, Goal(episodes=640))
    assert shards_text(counted, start, 60.0) == "20 of 64 shards  2 running  2 min 12 s left"


@exhaustive
def test_follow_shows_shards_until_they_are_complete(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tdx(*SHARDED, "--seed", "1", "--shard", "0").code == 0
    request = DumpRequest(Pipeline.of("CartPole-v1"), Goal(steps=60), seed=1)
    missing = iter(range(1, 4))

    def record_next(seconds: float) -> None:
        roll_out_shard(request, Path("d"), 4, next(missing))

    monkeypatch.setattr("tdx.rollouts.dump.progress.time.sleep", record_next)
    outcome = tdx("show", "./d", "--follow")
    assert outcome.code == 0
    lines = outcome.err.splitlines()
    assert [line.partition(" shards")[0] for line in lines] == [
        "1 of 4",
        "2 of 4",
        "3 of 4",
        "4 of 4",
    ]
    assert "15 of 60 steps" in lines[0]
    assert lines[1].endswith("left")
    assert "CartPole-v1  complete" in outcome.out
    assert "shards    4" in outcome.out


def test_follow_of_a_complete_dump_returns(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tdx(*RUN, "--steps", "30", "--out", "d").code == 0
    outcome = tdx("show", "d", "--follow")
    assert outcome.err.startswith("30 of 30 steps")
    assert "episodes" in outcome.out
    assert tdx("show", "./none", "--follow").err.startswith("error: none has no dump")


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((0, 9, 0, 0.0), "reading x  0 of 9"),
        ((3, 9, 3, 0.5), "reading x  3 of 9"),
        ((3, 9, 3, 30.0), "reading x  3 of 9  1 min 0 s left"),
        ((0, 1, 0, 5.0), "reading x"),
    ],
)
def test_progress_line_of_an_activity(counts: tuple[int, int, int, float], text: str) -> None:
    assert activity_text("reading x", *counts) == text


@pytest.mark.parametrize(
    ("arguments", "file", "reason"),
    [
        (("show", "dump", "kept"), ".memmap", "cannot read kept: "),
        (("verify", "kept"), ".memmap", "cannot read kept: "),
        (("rollout", "--resume", "--out", "kept"), "manifest.json", "cannot read kept: "),
        (
            ("import", "kept.npz", "--out", "new"),
            "kept.npz",
            "reading or writing of kept.npz failed: ",
        ),
    ],
)
@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_errors_of_the_system_while_reading(
    tdx: Tdx,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    file: str,
    reason: str,
    number: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    record_dump(Pipeline.of("Pendulum-v1"), "kept", steps=5)
    export_dump("kept", "kept.npz")

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def opening(path: Any, *args: Any, **kwargs: Any) -> Any:
            if str(path).endswith(file):
                raise OSError(number, os.strerror(number), path)
            return call(path, *args, **kwargs)

        return opening

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(os.open))
        patch.setattr(io, "open", failing(io.open))
        outcome = tdx(*arguments)
    assert outcome.code == 3
    assert f"error: {reason}{os.strerror(number).lower()}" in outcome.err
    hint = "check the disk" if number == errno.EIO else "ulimit -n"
    assert hint in outcome.err
