"""The report of a pipeline as one HTML page."""

from __future__ import annotations

import base64
from itertools import groupby
from typing import Any

from tdx.cli.html import render_page
from tdx.cli.html.plots import episode_plot, reward_plot
from tdx.cli.views.graph import chain_edges
from tdx.cli.views.report import cost_of_stages, report_facts, report_sections
from tdx.inspection.pipeline_report import PipelineReport
from tdx.inspection.rollout_summary import ImagePair
from tdx.profiling.result import Profile


def report_page(report: PipelineReport, profile: Profile, command: str) -> str:
    """Return the HTML report of a pipeline.

    Args:
        report: Report to show.
        profile: Measured cost of the pipeline.
        command: Command that creates the report.
    """
    rollout = report.rollout
    rewards = [
        (key, reward_plot(list(plots)))
        for key, plots in groupby(rollout.plots, key=lambda plot: plot.key)
    ]
    return render_page(
        "report.html.j2",
        "report.css",
        report=report,
        command=command,
        facts=report_facts(report, profile),
        nodes=list(
            zip(
                [report.env, *report.calls],
                chain_edges(report.chain),
                _stage_costs(report, profile),
                strict=True,
            )
        ),
        sections={section.name: section for section in report_sections(report, profile)},
        rewards=rewards,
        returns=episode_plot(rollout.episodes) if len(rollout.episodes) > 1 else "",
        images=[_image(each, report) for each in rollout.images],
    )


def _stage_costs(report: PipelineReport, profile: Profile) -> list[str]:
    """Return when the env and each stage run, and their cost, as one text each."""
    rows = cost_of_stages(report, profile.modes[-1]).rows[: len(report.calls) + 1]
    return [
        f"{when.text} · {cost.text} µs" if cost.style != "dim" else when.text
        for _, when, cost, *_ in rows
    ]


def _image(image: ImagePair, report: PipelineReport) -> dict[str, Any]:
    return {
        "call": f"{image.stage} {report.calls[image.stage]}",
        "key": image.key,
        "before": None if image.before is None else _data_uri(image.before),
        "after": _data_uri(image.after),
        "before_text": image.before_text,
        "after_text": image.after_text,
    }


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
