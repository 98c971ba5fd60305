"""``tdx report``: a page about a pipeline."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.options import (
    DebugOptions,
    Functions,
    choice_option,
    integer_option,
)
from tdx.cli.pipelines import Samples, TargetOptions
from tdx.foundation.errors import ArgumentError

if TYPE_CHECKING:
    from tdx.inspection.pipeline_report import PipelineReport
    from tdx.profiling.run import OnProgress
    from tdx.stacks import Stack

Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
_REPORT_STEPS = 200
_COST_REPEATS = 3


class ReportFormat(StrEnum):
    """Formats of the report."""

    HTML = "html"
    MD = "md"
    SVG = "svg"


Out = Annotated[
    str | None,
    typer.Option(
        "-o", "--out", metavar="FILE", help="Target; report.html by default. - writes to stdout."
    ),
]
ReportKind = Annotated[
    ReportFormat | None,
    choice_option(
        *("--format", ReportFormat),
        "html, md, or svg for the diagram alone; by default the extension of --out.",
    ),
]
ReportSteps = Annotated[
    int,
    integer_option(
        "--steps", 1, "Minimum steps of the rollout, whose last episodes run to their end."
    ),
]


def report(
    pipeline: TargetOptions,
    debug: DebugOptions,
    out: Out = None,
    kind: ReportKind = None,
    steps: ReportSteps = _REPORT_STEPS,
    force: Force = False,
    samples: Samples = None,
) -> None:
    """Write a report of a pipeline: HTML, Markdown or SVG.

    It shows the chain, lint findings, which stages are deferred and what each one costs, specs,
    lineage, frames before and after each image stage, and the rewards and episodes of a rollout
    with random actions. Of a LeRobot or Minari dataset, it shows the findings of tdx check and the
    statistics of its data.

    tdx report pendulum.yaml -o pendulum.html

    tdx report Pendulum-v1 -t StepCounter -o chain.svg
    """
    from tdx.cli.output import STDOUT, check_target, write_file
    from tdx.cli.pipelines import command_words, open_pipeline, read_pipeline, with_target
    from tdx.cli.progress import activity_on
    from tdx.cli.views.graph import chain_svg
    from tdx.inspection.chain import inspect_chain
    from tdx.inspection.pipeline_report import build_report
    from tdx.stacks.checkpoints import is_dataset

    kind = kind or _report_format(out)
    out = out or f"report.{kind}"
    check_target(out, force=force)
    target = with_target(pipeline).env
    if target is not None and is_dataset(target):
        write_file(out, _dataset_text(kind, target, pipeline, steps, out, samples), force=force)
        if out != STDOUT:
            print(f"wrote {out}", file=sys.stderr)
        return
    config = read_pipeline(pipeline)
    seed = config.env.seed or 0
    config = replace(config, env=replace(config.env, seed=seed))
    words = [*command_words("tdx report", pipeline, config), "--steps", str(steps), "-o", out]
    words += ["--format", kind] if kind is not _report_format(out) else []
    words += ["--samples", samples] if samples is not None else []
    name = config.file or config.env.id
    with (
        activity_on(sys.stderr) as on_progress,
        open_pipeline(config, pipeline, samples=samples) as stack,
    ):
        if kind is ReportFormat.SVG:
            chain = inspect_chain(stack, config.env.id)
            text = chain_svg(chain, stack.calls)
        else:
            result = build_report(stack, config, name, steps=steps, seed=seed, on_steps=on_progress)
            text = _report_text(kind, result, stack, shlex.join(words), on_progress)
    write_file(out, text, force=force)
    if out != STDOUT:
        print(f"wrote {out}", file=sys.stderr)


def _report_format(out: str | None) -> ReportFormat:
    """Return the format that the extension of a file names; HTML for others."""
    extension = Path(out or "").suffix.removeprefix(".").lower()
    return ReportFormat(extension) if extension in list(ReportFormat) else ReportFormat.HTML


def _dataset_text(
    kind: ReportFormat,
    path: str,
    pipeline: TargetOptions,
    steps: int,
    out: str,
    samples: str | None,
) -> str:
    """Return the report on a dataset."""
    from tdx.cli.html import html_page
    from tdx.cli.output import markdown
    from tdx.cli.pipelines import compute_facts, given_options, with_target
    from tdx.cli.views.report import dataset_report_blocks
    from tdx.inspection.dataset_check import check_dataset

    given = [name for name, _ in given_options(replace(with_target(pipeline), env=None))]
    given += ["--samples"] if samples is not None else []
    given += ["--steps"] if steps != _REPORT_STEPS else []
    given += ["--format svg"] if kind is ReportFormat.SVG else []
    if given:
        raise ArgumentError(
            f"{given[0]} does not apply to {path}, a dataset",
            hint="leave it out: a dataset has no stages, and all its steps are read",
        )
    facts = compute_facts(path)
    words = ["tdx", "report", path, "-o", out]
    words += ["--format", kind] if kind is not _report_format(out) else []
    blocks = dataset_report_blocks(facts, check_dataset(facts), shlex.join(words))
    return markdown(blocks) if kind is ReportFormat.MD else html_page(blocks)


def _report_text(
    kind: ReportFormat,
    report: PipelineReport,
    stack: Stack,
    command: str,
    on_progress: OnProgress | None,
) -> str:
    """Measure the cost, and return the report as HTML or Markdown."""
    from tdx.cli.html import html_page
    from tdx.cli.output import markdown
    from tdx.cli.views.report import report_blocks
    from tdx.profiling.context import profile_stack
    from tdx.profiling.run import ProfilePlan, profile_env

    steps = min(report.rollout.steps, _REPORT_STEPS)
    plan = ProfilePlan(steps, min(steps, 20), _COST_REPEATS, seed=report.rollout.seed, passes=())
    plan = replace(plan, on_progress=on_progress)
    env = stack.chain_env
    profile = profile_stack(stack, plan) if env is None else profile_env(env, plan=plan)
    if profile.modes[-1].error == "interrupted":
        raise KeyboardInterrupt
    blocks = list(report_blocks(report, profile, command))
    return markdown(blocks) if kind is ReportFormat.MD else html_page(blocks)


COMMANDS: Functions = {
    "report": report,
}
