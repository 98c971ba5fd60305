"""The report of a pipeline as one HTML page."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from tdx.cli.html import arrow, box, label, render_page, svg_image, text_width
from tdx.cli.output import UNLIMITED
from tdx.cli.views import Table, View
from tdx.cli.views.chain import chain_view, lineage_view
from tdx.cli.views.specs import spec_view
from tdx.inspection.chain import StageFlow
from tdx.inspection.leaf import LeafSpec, SpecText
from tdx.inspection.pipeline_report import PipelineReport
from tdx.inspection.rollout_summary import EpisodeSummary, ImagePair, RewardPlot
from tdx.keys import NestedKey, format_key

_END_TEXTS = {
    "terminated": "terminated",
    "truncated": "truncated",
    "done": "done",
    "cut": "cut off by the end of the rollout",
}


def report_page(report: PipelineReport) -> str:
    """Return the HTML report of a pipeline.

    Args:
        report: Report to show.
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
        diagram=chain_diagram(report),
        chain=_table(chain_view(report.chain, report.calls)),
        lineage=_table(lineage_view(report.lineage, report.calls)),
        specs=_table(spec_view(report.specs, report.calls)),
        rewards=rewards,
        returns=episode_plot(rollout.episodes),
        images=[_image(each, report) for each in rollout.images],
        ended=_END_TEXTS,
    )


def _table(view: View) -> Table | None:
    """Return the table of a view without its heading."""
    blocks = view.blocks(UNLIMITED)
    return next((block for block in blocks if isinstance(block, Table)), None)


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


_LINE_HEIGHT = 17
_BOX_HEIGHT = 30
_MARGIN = 12
_EDGE_PADDING = 24
Line = tuple[str, str]
"""Text on an edge and its CSS class."""


def chain_diagram(report: PipelineReport) -> str:
    """Return the data flow of a chain as SVG.

    Outputs of the env flow down on the left, its inputs flow up on the right.

    Args:
        report: Report of the pipeline.
    """
    flow = report.flow
    boxes = [report.chain.env, *(f"{i} {call}" for i, call in enumerate(report.calls)), "output"]
    outputs = [flow.outputs, *(stage.outputs for stage in flow.stages)]
    inputs = [flow.inputs, *(stage.inputs for stage in flow.stages)]
    down = [
        _lines(leaves, flow.stages[index - 1] if index else None)
        for index, leaves in enumerate(outputs)
    ]
    up = [_action_lines(leaves) for leaves in inputs]
    left = max((text_width(text) for lines in down for text, _ in lines), default=0.0)
    right = max((text_width(text) for lines in up for text, _ in lines), default=0.0)
    width = max(*(text_width(text) + 2 * _MARGIN for text in boxes), left + right + 110)
    parts: list[str] = []
    top = float(_MARGIN)
    for index, text in enumerate(boxes):
        kind = "box" if 0 < index < len(boxes) - 1 else "box end"
        parts += [
            box(_MARGIN, top, width, _BOX_HEIGHT, kind),
            label(2 * _MARGIN, top + 20, text, "name"),
        ]
        top += _BOX_HEIGHT
        if index < len(down):
            height = max(len(down[index]), len(up[index]), 1) * _LINE_HEIGHT + _EDGE_PADDING
            parts += _edge(top, height, down[index], up[index], _MARGIN + width - right - 40)
            top += height
    return svg_image(width + 2 * _MARGIN, top + _MARGIN, parts, f"chain of {report.name}")


def _edge(
    top: float, height: float, down: Sequence[Line], up: Sequence[Line], right: float
) -> list[str]:
    """Draw both directions between two boxes."""
    parts = [arrow(_MARGIN + 16, top, top + height)]
    parts += _labels(_MARGIN + 30, top, down)
    if up:
        parts.append(arrow(right, top + height, top))
        parts += _labels(right + 14, top, up)
    return parts


def _labels(x: float, top: float, lines: Sequence[Line]) -> list[str]:
    first = top + _EDGE_PADDING / 2 + 12
    return [label(x, first + i * _LINE_HEIGHT, text, kind) for i, (text, kind) in enumerate(lines)]


def _lines(leaves: Mapping[NestedKey, LeafSpec], stage: StageFlow | None) -> list[Line]:
    """Return the outputs after a stage, with changes marked and the rest dimmed."""
    classes = {}
    if stage is not None:
        classes = {write.key: "added" if write.new else "changed" for write in stage.forward.writes}
        classes |= {new: "changed" for _, new in stage.forward.renames}
    text = SpecText(leaves.values(), whole=False)
    width = max((len(format_key(key)) for key in leaves), default=0)
    lines = [
        (
            f"{format_key(key).ljust(width)}  {text(leaf)}",
            classes.get(key, "" if stage is None else "dim"),
        )
        for key, leaf in leaves.items()
    ]
    dropped = (
        []
        if stage is None
        else [(f"{format_key(key)} is dropped here", "gone") for key in stage.forward.drops]
    )
    return [*lines, *dropped]


def _action_lines(leaves: Mapping[NestedKey, LeafSpec]) -> list[Line]:
    actions = [leaf for leaf in leaves.values() if leaf.part == "action"]
    text = SpecText(actions, whole=False)
    return [(f"{format_key(leaf.key)}  {text(leaf)}", "action") for leaf in actions]


_WIDTH, _HEIGHT = 720.0, 180.0
_LEFT, _BOTTOM, _TOP = 80.0, 24.0, 10.0
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
    bar_width = (_WIDTH - _LEFT) / len(episodes)
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
