"""The reports of a pipeline and of a comparison with a contract as one HTML page each."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tdx.cli.html import label, render_page, svg_image, text_width
from tdx.cli.views.graph import chain_edges
from tdx.cli.views.report import cost_of_stages, report_facts, report_sections
from tdx.inspection.pipeline_report import PipelineReport
from tdx.inspection.rollout_summary import EpisodeSummary, ImagePair, RewardPlot
from tdx.profiling.result import Profile

if TYPE_CHECKING:
    from tdx.compare.model import StageRecord
    from tdx.compare.report import StageRow
    from tdx.contracts import ContractReport


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


_WIDTH, _HEIGHT = 720.0, 180.0
_LEFT, _BOTTOM, _TOP = 80.0, 24.0, 10.0
_MAX_BAR_WIDTH = 64.0
_LINE_COLORS = 8
"""Number of line colors in the stylesheet."""


def reward_plot(plots: Sequence[RewardPlot]) -> str:
    """Return a plot of the rewards at one key, with a line per env.

    Args:
        plots: Rewards of each env.
    """
    values = [value for plot in plots for value in plot.values if math.isfinite(value)]
    steps = max((len(plot.values) for plot in plots), default=0)
    if not values or steps == 0:
        return ""
    scale = _Scale(values, max(steps - 1, 1))
    parts = scale.axes(f"step {steps - 1}")
    for plot in plots:
        points = " ".join(
            f"{scale.x(step):.1f},{scale.y(value):.1f}"
            for step, value in enumerate(plot.values)
            if math.isfinite(value)
        )
        css_class = f"line line{plot.env % _LINE_COLORS}"
        if steps == 1:
            parts.append(_dot(scale.x(0), scale.y(values[0]), css_class.replace("line ", "bar ")))
        parts.append(f'<polyline points="{points}" class="{css_class}"/>')
    return svg_image(_WIDTH, _HEIGHT, parts, f"{plots[0].key} at each step")


def episode_plot(episodes: Sequence[EpisodeSummary]) -> str:
    """Return a bar plot of the return of each episode, in the order in which they ended."""
    totals = [each.total for each in episodes if each.total is not None]
    totals = [total for total in totals if math.isfinite(total)]
    if not totals:
        return ""
    scale = _Scale([*totals, 0.0], len(episodes))
    parts = scale.axes(f"{len(episodes)} episodes" if len(episodes) > 1 else "1 episode")
    bar_width = min((_WIDTH - _LEFT) / len(episodes), _MAX_BAR_WIDTH)
    for position, episode in enumerate(episodes):
        if episode.total is not None and math.isfinite(episode.total):
            ends = sorted((scale.y(0.0), scale.y(episode.total)))
            x, width = _LEFT + position * bar_width + bar_width * 0.1, bar_width * 0.8
            height = max(ends[1] - ends[0], 1.0)
            kind = f"bar {episode.ended}"
            parts.append(
                f'<rect x="{x:.1f}" y="{ends[0]:.1f}" width="{width:.1f}" height="{height:.1f}" '
                f'class="{kind}"/>'
            )
    return svg_image(_WIDTH, _HEIGHT, parts, "return of each episode")


class _Scale:
    """Maps steps and values to positions in a plot."""

    def __init__(self, values: Sequence[float], last: int) -> None:
        self._low, self._high = min(values), max(values)
        self._last = last

    def x(self, step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 8) * step / self._last

    def y(self, value: float) -> float:
        span = self._high - self._low
        share = 0.5 if span == 0 else (value - self._low) / span
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)

    def axes(self, end: str) -> list[str]:
        """Return both axes with labels at their ends."""
        bottom = _HEIGHT - _BOTTOM
        parts = [
            f'<line x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{bottom}" class="axis"/>',
            f'<line x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH}" y2="{bottom}" class="axis"/>',
            label(_LEFT, _HEIGHT - 6, "0", "dim"),
            label(_WIDTH - text_width(end) - 8, _HEIGHT - 6, end, "dim"),
        ]
        for value in dict.fromkeys((self._low, self._high)):
            text = f"{value:.4g}"
            parts.append(label(_LEFT - text_width(text) - 6, self.y(value) + 4, text, "dim"))
        return parts


def _dot(x: float, y: float, kind: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="{kind}"/>'


def contract_page(report: ContractReport) -> str:
    """Return the HTML report of a comparison.

    Args:
        report: What differs.
    """
    rows = [_describe_row(row) for row in report.rows]
    return render_page("contract.html.j2", "report.css", report=report, rows=rows)


def _describe_row(row: StageRow) -> dict[str, Any]:
    return {
        "a": _describe(row.a),
        "b": _describe(row.b),
        "status": row.status,
        "differences": row.differences,
    }


def _describe(stage: StageRecord | None) -> dict[str, Any] | None:
    if stage is None:
        return None
    arguments = ", ".join(f"{name}={value!r:.40}" for name, value in stage.arguments.items())
    specs = [
        f"{each.key} {list(each.shape)} {each.dtype} {each.domain}"
        for each in stage.specs
        if each.part in ("observation", "action")
    ]
    title = f"{stage.index} {stage.name}" if stage.index >= 0 else stage.name
    return {"title": title, "arguments": arguments, "specs": specs}
