"""The report of a pipeline as one HTML page."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tdx.cli.html.svg import arrow, box, label, picture, text_width
from tdx.cli.output.terminal import UNLIMITED
from tdx.cli.output.view import Table, View
from tdx.cli.views.chain import chain_view, lineage_view
from tdx.cli.views.specs import spec_view
from tdx.inspection.leaf import LeafSpec
from tdx.inspection.report import Episode, Picture, PipelineReport, RewardCurve
from tdx.inspection.spec_text import SpecText
from tdx.inspection.stage_flow import StageFlow
from tdx.keys import NestedKey, format_key
from tdx.text import escape_control_characters

_FOLDER = Path(__file__).parent
_ENDED = {
    "terminated": "terminated",
    "truncated": "truncated",
    "done": "done",
    "cut": "cut off by the end of the rollout",
}


def report_page(report: PipelineReport) -> str:
    """The page, complete in itself: no script, and nothing that is loaded from elsewhere.

    Args:
        report: what the page is about.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2")
    rollout = report.rollout
    rewards = [
        (key, reward_plot(list(curves)))
        for key, curves in groupby(rollout.curves, key=lambda curve: curve.key)
    ]
    text = page.render(
        report=report,
        style=(_FOLDER / "report.css").read_text(encoding="utf-8"),
        diagram=chain_diagram(report),
        chain=_table(chain_view(report.chain, report.calls)),
        lineage=_table(lineage_view(report.lineage, report.calls)),
        specs=_table(spec_view(report.specs, report.calls)),
        rewards=rewards,
        returns=episode_plot(rollout.episodes),
        pictures=[_picture(each, report) for each in rollout.pictures],
        ended=_ENDED,
    )
    return escape_control_characters(text, keep="\n\t")


def _table(view: View) -> Table | None:
    """The table of a view, without what stands above it."""
    blocks = view.blocks(UNLIMITED)
    return next((block for block in blocks if isinstance(block, Table)), None)


def _picture(picture: Picture, report: PipelineReport) -> dict[str, Any]:
    return {
        "call": f"{picture.stage} {report.calls[picture.stage]}",
        "key": picture.key,
        "before": None if picture.before is None else _data_uri(picture.before),
        "after": _data_uri(picture.after),
        "before_text": picture.before_text,
        "after_text": picture.after_text,
    }


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


_LINE = 17
_BOX = 30
_MARGIN = 12
_EDGE = 24
Line = tuple[str, str]
"""A text on an edge, and the class it is coloured by."""


def chain_diagram(report: PipelineReport) -> str:
    """The chain from the env down to the outside, as SVG.

    What comes out flows down at the left; what the env is given flows up at the right.

    Args:
        report: the pipeline.
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
        parts += [box(_MARGIN, top, width, _BOX, kind), label(2 * _MARGIN, top + 20, text, "name")]
        top += _BOX
        if index < len(down):
            height = max(len(down[index]), len(up[index]), 1) * _LINE + _EDGE
            parts += _edge(top, height, down[index], up[index], _MARGIN + width - right - 40)
            top += height
    return picture(width + 2 * _MARGIN, top + _MARGIN, parts, f"the chain of {report.name}")


def _edge(
    top: float, height: float, down: Sequence[Line], up: Sequence[Line], right: float
) -> list[str]:
    """Both directions between two boxes."""
    parts = [arrow(_MARGIN + 16, top, top + height)]
    parts += _labels(_MARGIN + 30, top, down)
    if up:
        parts.append(arrow(right, top + height, top))
        parts += _labels(right + 14, top, up)
    return parts


def _labels(x: float, top: float, lines: Sequence[Line]) -> list[str]:
    first = top + _EDGE / 2 + 12
    return [label(x, first + i * _LINE, text, kind) for i, (text, kind) in enumerate(lines)]


def _lines(leaves: Mapping[NestedKey, LeafSpec], stage: StageFlow | None) -> list[Line]:
    """What flows on after a stage; what it changed is marked, the rest is dimmed."""
    touched = {}
    if stage is not None:
        touched = {write.key: "added" if write.new else "changed" for write in stage.forward.writes}
        touched |= {new: "changed" for _, new in stage.forward.renames}
    text = SpecText(leaves.values(), whole=False)
    width = max((len(format_key(key)) for key in leaves), default=0)
    lines = [
        (
            f"{format_key(key).ljust(width)}  {text(leaf)}",
            touched.get(key, "" if stage is None else "dim"),
        )
        for key, leaf in leaves.items()
    ]
    gone = (
        []
        if stage is None
        else [(f"{format_key(key)} ends here", "gone") for key in stage.forward.drops]
    )
    return [*lines, *gone]


def _action_lines(leaves: Mapping[NestedKey, LeafSpec]) -> list[Line]:
    given = [leaf for leaf in leaves.values() if leaf.part == "action"]
    text = SpecText(given, whole=False)
    return [(f"{format_key(leaf.key)}  {text(leaf)}", "action") for leaf in given]


_WIDTH, _HEIGHT = 720.0, 180.0
_LEFT, _BOTTOM, _TOP = 80.0, 24.0, 10.0
_LINES = 8
"""Colours of lines that the page has."""


def reward_plot(curves: Sequence[RewardCurve]) -> str:
    """The rewards of one key over the steps, a line for each env.

    Args:
        curves: the lines; those of one key.
    """
    values = [value for curve in curves for value in curve.values if math.isfinite(value)]
    steps = max((len(curve.values) for curve in curves), default=0)
    if not values or steps == 0:
        return ""
    scale = _Scale(values, max(steps - 1, 1))
    parts = scale.axes(f"step {steps - 1}")
    for curve in curves:
        points = " ".join(
            f"{scale.x(step):.1f},{scale.y(value):.1f}"
            for step, value in enumerate(curve.values)
            if math.isfinite(value)
        )
        colour = f"line line{curve.env % _LINES}"
        if steps == 1:
            parts.append(_dot(scale.x(0), scale.y(values[0]), colour.replace("line ", "bar ")))
        parts.append(f'<polyline points="{points}" class="{colour}"/>')
    return picture(_WIDTH, _HEIGHT, parts, f"{curves[0].key} at each step")


def episode_plot(episodes: Sequence[Episode]) -> str:
    """The return of each episode as a bar, in the order in which they ended."""
    totals = [each.total for each in episodes if each.total is not None]
    totals = [total for total in totals if math.isfinite(total)]
    if not totals:
        return ""
    scale = _Scale([*totals, 0.0], len(episodes))
    parts = scale.axes(f"{len(episodes)} episodes" if len(episodes) > 1 else "1 episode")
    room = (_WIDTH - _LEFT) / len(episodes)
    for position, episode in enumerate(episodes):
        if episode.total is not None and math.isfinite(episode.total):
            ends = sorted((scale.y(0.0), scale.y(episode.total)))
            x, width = _LEFT + position * room + room * 0.1, room * 0.8
            height = max(ends[1] - ends[0], 1.0)
            kind = f"bar {episode.ended}"
            parts.append(
                f'<rect x="{x:.1f}" y="{ends[0]:.1f}" width="{width:.1f}" height="{height:.1f}" '
                f'class="{kind}"/>'
            )
    return picture(_WIDTH, _HEIGHT, parts, "the return of each episode")


class _Scale:
    """From values to places in the plot."""

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
        """The frame with both ends of each axis written to it."""
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
