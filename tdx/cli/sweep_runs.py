"""Options of sweeps, and the runs of ``tdx profile --sweep`` that measure them."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.options import OutputOptions, choice_option
from tdx.cli.profile_runs import INTERRUPTED, ProfileFiles, ProfileRequest, raise_error
from tdx.foundation.errors import ExitCode

if TYPE_CHECKING:
    from tdx.profiling.sweep import SweepResult

Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="SETTINGS",
        help="Measure each combination: 'num_envs=1,8,64 device=cpu,cuda'; also dtype, batching, "
        "mode, steps, threads, and arguments of stages such as Resize.w.",
    ),
]


class SweepPlace(StrEnum):
    """Where the settings of a sweep are measured."""

    LOCAL = "local"


On = Annotated[
    SweepPlace | None,
    choice_option(
        *("--on", SweepPlace),
        "Measure each setting of --sweep in its own process, so that one that the system kills "
        "fails alone.",
    ),
]


def show_sweep(
    request: ProfileRequest,
    settings: list[str],
    on: SweepPlace | None,
    files: ProfileFiles,
    output: OutputOptions,
) -> int:
    """Measure the pipeline with each combination of some settings, and show the result."""
    from tdx.cli.html import html_page
    from tdx.cli.output import write_view
    from tdx.cli.views.profile_sweep import sweep_view

    result = _measure(request, settings, own_processes=on is not None)
    view = sweep_view(request.plan.subject, result)
    if "--html" in files.requested:
        files.write_text("--html", html_page(view.blocks()))
    if not files.use_stdout:
        write_view(view, output)
    problems = [cell.problem for cell in result.cells]
    raise_error(INTERRUPTED if result.interrupted else problems[0] if all(problems) else None)
    return ExitCode.OK


def _measure(request: ProfileRequest, settings: list[str], *, own_processes: bool) -> SweepResult:
    from tdx.cli.progress import activity_on
    from tdx.cli.runtime import third_party_code
    from tdx.profiling.sweep import parse_sweep, run_sweep

    axes = parse_sweep(settings, request.config)
    result: SweepResult | None = None
    try:
        with activity_on(sys.stderr) as on_progress, third_party_code():
            result = run_sweep(
                request.config,
                axes,
                request.modes,
                replace(request.plan, on_progress=on_progress),
                allow_code=request.options.allow_code,
                policy_of=request.load_policy,
                own_processes=own_processes,
            )
    except KeyboardInterrupt:
        if result is None:
            raise
    return result
