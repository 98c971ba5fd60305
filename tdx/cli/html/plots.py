"""Rewards and episodes as small plots in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tdx.cli.html.drawing import label, picture, text_width
from tdx.inspection.report import EpisodeSummary, RewardPlot

_WIDTH, _HEIGHT = 720.0, 180.0
_LEFT, _BOTTOM, _TOP = 80.0, 24.0, 10.0
_LINES = 8
"""Colours of lines that the page has."""


def reward_plot(curves: Sequence[RewardPlot]) -> str:
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


def episode_plot(episodes: Sequence[EpisodeSummary]) -> str:
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
