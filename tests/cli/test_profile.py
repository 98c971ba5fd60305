"""``tdx profile`` with fixed and with real measurements."""

from __future__ import annotations

import io
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tdx.cli.charts import flame_chart, growth_plot
from tdx.cli.html import html_page
from tdx.cli.progress import activity_on
from tdx.cli.views.profile import profile_view
from tdx.core.meter import Lane, Part
from tdx.profiling.result import Profile
from tdx.profiling.saved import format_profile, read_profile
from tdx.profiling.traces import build_mean_step
from tests.cli.conftest import assert_complete, assert_fits
from tests.cli.test_report import Page
from tests.profiling.sample_profile import STEPS, Simulated, mode_profile, on_device, sample_profile
from tests.programs import BROWSERS, exhaustive, require_program

if TYPE_CHECKING:
    from tests.cli.conftest import Golden, Tdx

PENDULUM = ("profile", "--env", "Pendulum-v1", "--t", "RewardSum")
QUICK = (*PENDULUM, "--steps", "8", "--warmup", "0", "--repeat", "2", "--passes", "none")


def both() -> Profile:
    return sample_profile(on_device(mode_profile()), mode_profile("planned", many=True))


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that replaces the measurement with a profile."""

    def use(profile: Profile) -> None:
        monkeypatch.setattr("tdx.profiling.run.profile_env", lambda *_: profile)

    return use


@pytest.mark.parametrize("columns", [60, 80, None], ids=["60", "80", "pipe"])
def test_table_matches_the_golden_file(
    tdx: Tdx, golden: Golden, measures: Any, columns: int | None
) -> None:
    measures(both())
    outcome = tdx(*PENDULUM, "--detail", columns=columns)
    assert (outcome.code, outcome.err) == (0, "")
    document = json.loads(tdx(*PENDULUM, "--format", "json").out)
    assert_complete(outcome.out, [mode["rows"] for mode in document["modes"]])
    if columns is None:
        golden("profile.txt", outcome.out)
    else:
        assert_fits(outcome.out, columns)


@pytest.mark.parametrize("columns", [60, 80, None], ids=["60", "80", "pipe"])
def test_summary_has_the_most_expensive_parts_and_what_bounds_them(
    tdx: Tdx, golden: Golden, measures: Any, columns: int | None
) -> None:
    measures(sample_profile(on_device(mode_profile())))
    outcome = tdx(*PENDULUM, "--top", "2", columns=columns)
    assert (outcome.code, outcome.err) == (0, "")
    assert "bound by: env" in outcome.out
    if columns is None:
        golden("profile_summary.txt", outcome.out)
    else:
        assert_fits(outcome.out, columns)


def test_summary_of_two_modes_starts_with_the_faster_one(tdx: Tdx, measures: Any) -> None:
    measures(sample_profile(mode_profile(scale=2), mode_profile("planned")))
    outcome = tdx(*PENDULUM)
    assert "fastest: planned" in outcome.out.splitlines()[0]
    assert outcome.out.count("bound by: env") == 2


def test_markdown_has_everything(tdx: Tdx, measures: Any) -> None:
    measures(both())
    markdown = tdx(*PENDULUM, "--format", "md").out
    assert "aten::where" in markdown
    assert "p95" in markdown


def test_summary_names_changes_to_try(tdx: Tdx) -> None:
    shown = tdx(*QUICK, "-t", "RewardScaling(0.0, 0.1, in_keys=['episode_reward'])").out
    assert "may help: " in shown
    stages = ("-t", "DoubleToFloat", "-t", "DTypeCastTransform('float32', 'float64')")
    shown = tdx("profile", "Pendulum-v1", *QUICK[5:], *stages).out
    assert "may help: remove DoubleToFloat and DTypeCastTransform" in shown
    assert "--advice measures these changes" in shown


def test_summary_of_a_requested_pass(tdx: Tdx) -> None:
    shown = tdx(*QUICK[:-1], "memory").out
    assert "memory  bytes per step" in shown
    assert "operators" not in shown.partition("memory")[0]


def test_json_matches_the_golden_file(tdx: Tdx, golden: Golden, measures: Any) -> None:
    measures(sample_profile())
    document = json.loads(tdx(*PENDULUM, "--format", "json").out)
    for row in document["modes"][0]["rows"]:
        row["samples"] = sorted(row["samples"])
    golden("profile.json", json.dumps(document, indent=2) + "\n")


def test_sort_top_and_histogram_options(tdx: Tdx, golden: Golden, measures: Any) -> None:
    measures(sample_profile())
    shown = tdx(*PENDULUM, "--sort", "p95", "--top", "2", "--histogram", columns=80)
    golden("profile_top.80.txt", shown.out)


def test_trace_files_and_flame_chart(golden: Golden, tdx: Tdx, measures: Any) -> None:
    measures(sample_profile())
    trace = json.loads(tdx(*PENDULUM, "--trace", "-").out)
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
    scope = json.loads(tdx(*PENDULUM, "--speedscope", "-").out)
    assert scope["profiles"][0]["events"][0]["type"] == "O"
    golden("profile_flames.svg", flame_chart(build_mean_step(mode_profile())) + "\n")


def test_summary_lists_a_slow_kernel_first(tdx: Tdx, measures: Any) -> None:
    mode = on_device(mode_profile())
    key: tuple[str, Lane] = ("1 ActionScaling", "inverse")
    slow = replace(mode.on_device[key], time_us=900.0, busy_us=890.0)
    measures(sample_profile(replace(mode, on_device={**mode.on_device, key: slow})))
    lines = tdx(*PENDULUM, "--top", "2").out.splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("part "))
    assert lines[head + 1].split()[:6] == ["1", "ActionScaling", "10.2", "900", "890", "kernels"]
    assert lines[head + 2].startswith("env Pendulum-v1")
    assert "  cuda:0: busy for 38% of a traced step, 1.0% of its work is unattributed" in lines


def test_html_page_is_self_contained() -> None:
    html = html_page(profile_view(both()).blocks())
    page = Page(html)
    assert all(load.startswith(("data:", "#")) for load in page.loads)
    assert not {"script", "iframe", "object", "embed", "base"} & {*page.tags}
    assert "default-src 'none'" in html
    for part in ("modes", "eager", "planned"):
        assert re.search(f"<h2 [^>]*><a [^>]*>{part}</a>", html)
    for part in ("mean step", "distribution of times", "device", "memory", "operators"):
        assert f"<h3>{part} " in html
    assert page.tags.count("svg") == 2 * (1 + 5)
    assert "aten::where" in page.text
    assert "bound by launches" in page.text
    assert "in cudaStreamSynchronize at reward_sum.py:40" in page.text
    assert "Example CPU" in page.text


@pytest.mark.programs
@exhaustive
def test_html_page_in_a_browser(tdx: Tdx, measures: Any, tmp_path: Path) -> None:
    measures(both())
    target = tmp_path / "profile.html"
    assert tdx(*PENDULUM, "--html", str(target)).err == f"wrote {target}\n"
    browser = require_program(*BROWSERS)
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *(f"--user-data-dir={tmp_path / 'chromium'}", "--dump-dom", target.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "distribution of times" in Page(done.stdout).text
    assert "CONSOLE" not in done.stderr


def test_growth_plot_has_a_line_for_each_part() -> None:
    drawn = growth_plot("num_envs", [1, 8, 64], [("a", [1.0, 2.0, None]), ("b", [3.0, 3.0, 9.0])])
    assert drawn.count("<polyline") == 2
    assert growth_plot("num_envs", [1], [("a", [1.0])]) == ""


def test_real_profile_in_each_format(tdx: Tdx, tmp_path: Path) -> None:
    names = {kind: str(tmp_path / f"p.{kind}") for kind in ("save", "trace", "speedscope", "html")}
    files = [word for kind, path in names.items() for word in (f"--{kind}", path)]
    shown = tdx(*QUICK, "--mode", "planned,eager", "--seed", "0", *files)
    assert shown.code == 0, shown.err
    assert shown.err == "".join(f"wrote {path}\n" for path in names.values())
    assert "whole step" in shown.out
    saved = read_profile(names["save"])
    assert [mode.mode for mode in saved.modes] == ["planned", "eager"]
    assert saved.subject == "Pendulum-v1 -t RewardSum"
    assert saved.settings.seed == 0
    assert all(mode.steps.tolist() == [8, 8] for mode in saved.modes)
    assert format_profile(saved) == Path(names["save"]).read_text()
    refused = tdx(*QUICK, "--save", names["save"])
    assert refused.code == 2
    assert "already exists" in refused.err
    assert tdx(*QUICK, "--save", names["save"], "--force").code == 0


def test_dry_run_measures_few_steps(tdx: Tdx) -> None:
    found = tdx(*PENDULUM, "--mode", "all", "--dry-run", "--steps", "1000000", "--format", "json")
    document = json.loads(found.out)
    assert document["kind"] == "profile_estimate"
    assert [mode["steps"] for mode in document["modes"]] == [5_000_100] * 2
    assert document["seconds"] > 0
    assert "about" in tdx(*PENDULUM, "--dry-run").out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "no env is given"),
        (("missing.yaml",), 2, "cannot read missing.yaml"),
        (
            (*QUICK[1:], "--mode", "plannd"),
            2,
            "invalid value 'plannd' for --mode\nhint: did you mean planned",
        ),
        ((*QUICK[1:], "--passes", "memry"), 2, "did you mean memory"),
        ((*QUICK[1:], "--sort", "p96"), 2, "did you mean p9"),
        ((*QUICK[1:], "--device", "cuda:7"), 3, "device cuda:7 is not available"),
        ((*QUICK[1:], "--steps", "0"), 2, "--steps must be an integer"),
        ((*QUICK[1:], "--save", "-", "--html", "-"), 2, "cannot both write to stdout"),
        (("--env", "Pendulm-v1"), 2, "did you mean Pendulum"),
    ],
)
def test_usage_errors(tdx: Tdx, arguments: tuple[str, ...], code: int, message: str) -> None:
    outcome = tdx("profile", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert message in outcome.err


def test_progress_only_on_terminals() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with activity_on(io.StringIO()) as on_progress:
        assert on_progress is None
    terminal = Terminal()
    with activity_on(terminal) as on_progress:
        assert on_progress is not None
        on_progress("eager: time", 2, 5)
    assert terminal.getvalue() == "\r\x1b[Keager: time  2 of 5\r\x1b[K"


def test_summary_counts_the_resets_of_fused_stages_to_their_group(tdx: Tdx, measures: Any) -> None:
    rollout = Simulated()
    rollout.call(Part("stage", 0, "ToTensorImage", "reset"), 1_000)
    rollout.call(Part("stage", 1, "GrayScale", "reset"), 28_000)
    rollout.call(Part("stage", 2, "RewardSum", "reset"), 5_000)
    rollout.call(Part("env", -1, "Pendulum-v1", "reset"), 7_000)
    for _ in range(STEPS):
        rollout.call(Part("env", -1, "Pendulum-v1", "step"), 40_000)
        rollout.call(Part("stage", 0, "ToTensorImage + GrayScale", "forward", 1), 6_000)
        rollout.call(Part("stage", 2, "RewardSum", "forward"), 2_000)
    rollout.end_repeat(10_000)
    fused = replace(
        mode_profile("planned"),
        rows=rollout.rows(),
        total_ns=np.array(rollout.totals),
        steps=np.array([STEPS]),
        frames=np.array([STEPS]),
    )
    measures(sample_profile(fused))
    shown = [line.strip() for line in tdx(*PENDULUM).out.splitlines()]
    parts = [
        "env Pendulum-v1",
        "0-1 ToTensorImage + GrayScale",
        "2 RewardSum",
        "tdx itself",
    ]
    listed = [part for line in shown for part in parts if re.match(rf"{re.escape(part)}\s", line)]
    assert listed == parts


def recorded_trace(folder: Path, name: str) -> str:
    """Write a trace of torch with a range of this name, which launches a kernel of 1,234 µs."""
    entries = [
        ("user_annotation", name, 0, 20, 1),
        ("cuda_runtime", "cudaLaunchKernel", 5, 2, 1),
        ("kernel", "matmul", 10, 1234, 7),
    ]
    events = [
        {"ph": "X", "cat": cat, "name": title, "ts": start, "dur": length, "tid": thread}
        | {"args": {"correlation": 3}}
        for cat, title, start, length, thread in entries
    ]
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return str(path)


@pytest.mark.parametrize("name", ["decode", "Q" * 128], ids=["short", "long"])
def test_recorded_trace_shows_the_work_of_its_ranges(tdx: Tdx, tmp_path: Path, name: str) -> None:
    outcome = tdx("profile", "--trace", recorded_trace(tmp_path, name), columns=80)
    assert (outcome.code, outcome.err) == (0, "")
    # A long name is wrapped.
    assert outcome.out.count("Q") == name.count("Q")
    assert re.search(r" 1,234 +kernels +1\b", outcome.out)
    assert_fits("\n".join(outcome.out.splitlines()[2:]), 80)


def test_recorded_trace_has_the_same_figures_on_a_page(tdx: Tdx, tmp_path: Path) -> None:
    path = recorded_trace(tmp_path, "decode")
    page = tdx("profile", "--trace", path, "--html", "-").out
    assert page.startswith("<!doctype html>")
    for figure in ("decode", "1,234", "kernels"):
        assert figure in page


def test_recorded_trace_is_not_measured(tdx: Tdx, tmp_path: Path) -> None:
    outcome = tdx("profile", "--trace", recorded_trace(tmp_path, "decode"), "--mode", "eager")
    assert outcome.code == 2
    assert outcome.err == (
        "error: --trace without a pipeline and --mode cannot be combined\nhint: leave out --mode\n"
    )
