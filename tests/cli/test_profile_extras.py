"""``tdx profile``: comparisons, marginal costs, advice and sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tdx.cli.html import html_page
from tdx.cli.profile_runs import ProfileRequest
from tdx.cli.views.profile_sweep import sweep_view
from tdx.pipeline import Pipeline
from tdx.profiling.interleaved import MarginalCost, MarginalCosts, TimeDifference
from tdx.profiling.result import Profile
from tdx.profiling.saved import format_profile
from tdx.profiling.suggestions import Candidate, Suggestions, TriedChange
from tdx.profiling.sweep import SweepAxis, SweepCell, SweepResult
from tdx.stacks.device_calls import DeviceCalls
from tests.cli.conftest import assert_fits
from tests.cli.test_report import Page
from tests.profiling.sample_profile import MACHINE, mode_profile, sample_profile

if TYPE_CHECKING:
    from tests.cli.conftest import Golden, Tdx

WIDTHS = pytest.mark.parametrize("columns", [60, None], ids=["60", "pipe"])
PENDULUM = ("profile", "--env", "Pendulum-v1", "--t", "RewardSum", "--t", "ActionScaling")
ALIKE = ("--steps", "40", "--warmup", "10", "--repeat", "3")
GAIN = TimeDifference(80.0, 60.0, 20.0, 1.5, 5)
NO_GAIN = TimeDifference(80.0, 79.0, 1.0, 2.5, 5)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that replaces a measurement with a result."""
    monkeypatch.setattr("tdx.profiling.machine.detect_machine", lambda: MACHINE)

    def use(name: str, result: Any) -> None:
        monkeypatch.setattr(f"tdx.profiling.{name}", lambda *_, **__: result)

    use("run.profile_env", sample_profile())
    return use


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    kept = {
        "base": sample_profile(),
        "slow": sample_profile(mode_profile(scale=2)),
        "other": Profile("CartPole-v1", (), sample_profile().settings, MACHINE, (mode_profile(),)),
    }
    for name, profile in kept.items():
        Path(f"{name}.json").write_text(format_profile(profile), encoding="utf-8")
    return tmp_path


@WIDTHS
def test_table_of_a_comparison(tdx: Tdx, golden: Golden, files: Path, columns: int | None) -> None:
    limits = ("--fail-if", "RewardSum.p95:10%", "--fail-if", "max:1s", "--detail")
    found = tdx("profile", "compare", "base.json", "slow.json", *limits, columns=columns)
    assert (found.code, found.err) == (1, "")
    if columns is None:
        golden("profile_compare.txt", found.out)
    else:
        assert_fits(found.out, columns)


def test_comparison_leaves_out_what_did_not_change(tdx: Tdx, files: Path) -> None:
    Path("same.json").write_text(Path("base.json").read_text())
    found = tdx("profile", "compare", "base.json", "same.json")
    head, *lines = found.out.splitlines()
    assert head.startswith("base.json → same.json  the same, ")
    assert "whole step" in found.out
    assert "RewardSum" not in found.out
    assert "other figures: the same within the noise" in lines[-1]
    slower = tdx("profile", "compare", "base.json", "slow.json").out
    assert "slower" in slower.splitlines()[0]
    assert "0 RewardSum" in slower


def test_json_of_a_comparison(tdx: Tdx, golden: Golden, files: Path) -> None:
    found = tdx("profile", "compare", "base.json", "slow.json", "--format", "json")
    assert found.code == 0
    golden("profile_compare.json", found.out)


def test_baseline_fails_if_a_limit_is_exceeded(tdx: Tdx, stand_ins: Any, files: Path) -> None:
    same = tdx(*PENDULUM, *ALIKE, "--baseline", "base.json", "--fail-if", "p95:10%")
    assert (same.code, same.err) == (0, "")
    assert "comparison with base.json  within the limits; the same, " in same.out
    # The verdict stands before the profile.
    assert same.out.index("comparison with") < same.out.index("bound by")
    stand_ins("run.profile_env", sample_profile(mode_profile(scale=2)))
    slow = tdx(*PENDULUM, *ALIKE, "--baseline", "base.json", "--fail-if", "p95:10%")
    assert slow.code == 1
    assert "too slow: 0 RewardSum forward: p95" in slow.out
    document = json.loads(
        tdx(
            *(*PENDULUM, *ALIKE, "--baseline", "base.json", "--fail-if", "p95:10%"),
            *("--format", "json"),
        ).out
    )
    assert document["comparison"]["failed"] is True
    stand_ins("run.profile_env", sample_profile(mode_profile(error="the motor broke")))
    broken = tdx(*PENDULUM, *ALIKE, "--baseline", "base.json", "--fail-if", "p95:10%")
    assert broken.code == 3


@WIDTHS
def test_output_of_a_calibration(
    tdx: Tdx, golden: Golden, stand_ins: Any, columns: int | None
) -> None:
    found = tdx(*PENDULUM, *ALIKE, "--calibrate", columns=columns)
    assert (found.code, found.err) == (0, "")
    if columns is None:
        golden("profile_calibrate.txt", found.out)
    else:
        assert_fits(found.out, columns)
    document = json.loads(tdx(*PENDULUM, *ALIKE, "--calibrate", "--format", "json").out)
    assert (document["kind"], document["runs"]) == ("profile_calibration", 4)
    assert document["limit"] == "p50:5%"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--baseline", "other.json"), "pipeline: CartPole-v1 and Pendulum-v1"),
        (("--baseline", "base.json", "--steps", "41"), "steps: 40 and 41"),
        (("--baseline", "gone.json"), "cannot read gone.json"),
        (("--fail-if", "p95:10%"), "needs a profile to compare with"),
        (("--baseline", "base.json", "--fail-if", "p59:10%"), "did you mean p9"),
        (
            ("--baseline", "base.json", "--fail-if", "Reward.p95:1%"),
            "unknown row 'Reward' in the limit",
        ),
        (("--sweep", "num_envs=1,2", "--marginal"), "--sweep and --marginal cannot be combined"),
        (("--sweep", "num_envs=1,2", "--dry-run"), "--sweep and --dry-run cannot be combined"),
        (("--sweep", "num_envs=1,2", "--save", "x.json"), "--sweep and --out cannot"),
        (("--sweep", "num_envs=1,2", "--calibrate"), "--sweep and --calibrate cannot be combined"),
        (("--sweep", "num_env=1,2"), "did you mean num_envs"),
        (("--calibrate", "--marginal"), "--calibrate and --marginal cannot be combined"),
        (("--calibrate", "--save", "x.json"), "--calibrate and --out cannot be combined"),
    ],
)
def test_invalid_options_are_refused_before_measuring(
    tdx: Tdx, stand_ins: Any, files: Path, arguments: tuple[str, ...], message: str
) -> None:
    stand_ins("run.profile_env", None)
    found = tdx(*PENDULUM, *ALIKE, *arguments)
    assert (found.code, found.out) == (2, "")
    assert message in found.err


def test_comparing_another_pipeline_needs_force(tdx: Tdx, files: Path) -> None:
    refused = tdx("profile", "compare", "base.json", "other.json")
    assert refused.code == 2
    assert "--force" in refused.err
    forced = tdx("profile", "compare", "base.json", "other.json", "--force")
    assert forced.code == 0
    assert "different: pipeline: " in forced.out


@WIDTHS
def test_output_of_marginal_costs_and_advice(
    tdx: Tdx, golden: Golden, stand_ins: Any, columns: int | None
) -> None:
    costs = (
        MarginalCost(0, "RewardSum", 13.6, GAIN),
        MarginalCost(1, "ActionScaling", 10.2, None, "the policy gives no such action"),
    )
    stand_ins("interleaved.measure_marginal_costs", MarginalCosts("eager", 80.0, costs))
    bare = Pipeline.of("Pendulum-v1", "ActionScaling")
    tried = [
        TriedChange(
            Candidate("dead", (0,), "nobody reads it", "remove RewardSum", bare), saving, "same"
        )
        for saving in (GAIN, NO_GAIN)
    ]
    advice = Suggestions("eager", (tried[0],), (tried[1],), ("swap them: the values change",))
    stand_ins("suggestions.try_changes", advice)
    arguments = (*PENDULUM, "--mode", "eager", "--marginal", "--advice", "--top", "1")
    shown = tdx(*arguments, columns=columns)
    assert (shown.code, shown.err) == (0, "")
    part = shown.out[shown.out.index("marginal cost") :]
    if columns is None:
        golden("profile_extras.txt", part)
    else:
        assert_fits(part, columns)
    document = json.loads(tdx(*arguments, "--format", "json").out)
    assert document["marginal"][0]["stages"][0]["saved_us"] == 20.0
    assert document["advice"][0]["advice"][0]["chain"] == ["ActionScaling"]
    html = tdx(*arguments, "--html", "-").out
    assert "remove RewardSum" in Page(html).text


def swept() -> SweepResult:
    """Return a sweep over three numbers of envs; the last one fails."""
    cells = [
        SweepCell({"num_envs": number}, sample_profile(mode_profile("planned", scale=scale)))
        for number, scale in ((1, 1), (8, 2))
    ]
    cells.append(SweepCell({"num_envs": 64}, None, "does not fit into memory"))
    return SweepResult((SweepAxis("num_envs", (1, 8, 64)),), tuple(cells))


@WIDTHS
def test_table_of_a_sweep(tdx: Tdx, golden: Golden, stand_ins: Any, columns: int | None) -> None:
    stand_ins("sweep.run_sweep", swept())
    shown = tdx(*PENDULUM, "--sweep", "num_envs=1,8,64", columns=columns)
    assert (shown.code, shown.err) == (0, "")
    if columns is None:
        golden("profile_sweep.txt", shown.out)
    else:
        assert_fits(shown.out, columns)


def test_json_csv_and_html_of_a_sweep(tdx: Tdx, golden: Golden, stand_ins: Any) -> None:
    stand_ins("sweep.run_sweep", swept())
    arguments = (*PENDULUM, "--sweep", "num_envs=1,8,64")
    document = json.loads(tdx(*arguments, "--format", "json").out)
    assert [cell["problem"] for cell in document["cells"]] == [
        *(None, None, "does not fit into memory")
    ]
    whole = document["growth"][0]
    assert (whole["label"], whole["values"]) == ("step", [1.0, 8.0])
    golden("profile_sweep.csv", tdx(*arguments, "--format", "csv").out)
    page = Page(html_page(sweep_view("--env Pendulum-v1", swept()).blocks()))
    assert "along num_envs" in page.text
    assert "does not fit into memory" in page.text
    assert not {"script", "iframe", "object", "embed", "base"} & {*page.tags}


def test_failed_or_interrupted_sweep_shows_its_cells(tdx: Tdx, stand_ins: Any) -> None:
    cells = (SweepCell({"num_envs": 1}, None, "the motor broke"),)
    axes = (SweepAxis("num_envs", (1, 2)),)
    stand_ins("sweep.run_sweep", SweepResult(axes, cells))
    failed = tdx(*PENDULUM, "--sweep", "num_envs=1,2")
    assert failed.code == 3
    assert "the motor broke" in failed.out
    stand_ins("sweep.run_sweep", SweepResult(axes, (), interrupted=True))
    stopped = tdx(*PENDULUM, "--sweep", "num_envs=1,2")
    assert stopped.code == 130
    assert "incomplete: interrupted" in stopped.out


def test_advice_tries_lint_fixes(tdx: Tdx) -> None:
    chain = ("--t", "RewardClipping(-1.0, 1.0)", "--t", "RewardScaling(0.0, 0.1)")
    quick = ("--steps", "5", "--warmup", "0", "--repeat", "2", "--passes", "none")
    found = tdx("profile", "--env", "Pendulum-v1", *chain, *quick, "--advice", "--marginal")
    assert (found.code, found.err) == (0, "")
    assert "advice, planned" in found.out
    assert "move RewardClipping after RewardScaling: the values change" in found.out
    assert "marginal cost, planned" in found.out


@pytest.mark.parametrize(("given", "steps"), [((), 100), (("--steps", "1000"), 1000)])
def test_simulated_device_runs_fewer_steps_by_default(
    tdx: Tdx, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], steps: int
) -> None:
    def count(request: ProfileRequest) -> DeviceCalls:
        return DeviceCalls("Pendulum-v1", request.plan.steps, 1, (), (), 0)

    monkeypatch.setattr("tdx.cli.commands.profile.count_calls", count)
    result = tdx("profile", "Pendulum-v1", "--device", "simulated", *given, "--format", "json")
    assert json.loads(result.out)["steps"] == steps


def test_simulated_device_has_a_page_and_no_trace(
    tdx: Tdx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("profile", "tdx/Pendulum", "-t", "FiniteTensorDictCheck", "--steps", "3")
    shown = tdx(*short, "--device", "simulated", "--html", "calls.html")
    assert (shown.code, shown.err) == (0, "wrote calls.html\n")
    page = Path("calls.html").read_text()
    assert "finite_tensor_dict_check.py:" in page
    assert "finite_tensor_dict_check.py:" in shown.out
    assert "per step, over 3 steps" in shown.out
    batch = tdx(*short, "--device", "simulated", "--num-envs", "2")
    assert "per step of 2 envs, over 3 steps" in batch.out
    assert tdx(*short, "--device", "simulated", "--html", "-").out == page
    traced = tdx(*short, "--device", "simulated", "--record-trace", "run.json")
    assert traced.code == 2
    assert "hint: add --device cuda on a machine with a GPU" in traced.err
    # What the hint offers works here, too.
    assert tdx(*short, "--record-trace", "run.json", "--warmup", "0", "--repeat", "1").code == 0
