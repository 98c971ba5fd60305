"""Plots of rewards and returns as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tdx.cli.html import label, svg_image, text_width
from tdx.inspection.rollout_summary import EpisodeSummary, RewardPlot

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
