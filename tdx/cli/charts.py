"""Charts as SVG images: flame charts, histograms, plots of costs, rewards and returns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tdx.cli.views import micros
from tdx.foundation.text import escape_html
from tdx.profiling.result import histogram

if TYPE_CHECKING:
    from tdx.inspection.pipeline_report import EpisodeSummary, RewardPlot
    from tdx.profiling.result import Row
    from tdx.profiling.traces import CallNode

_LINE_COLORS = 8
"""Number of line colors in the stylesheet of the page."""
CHARACTER_WIDTH = 7.3
"""Width of a character in the monospaced font of the page, in user units."""


def text_width(text: str) -> float:
    """Return the width of a text."""
    return len(text) * CHARACTER_WIDTH


def label(x: float, y: float, text: str, kind: str = "") -> str:
    """Return a text."""
    css_class = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{css_class}>{escape_html(text)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """Return a box with round corners."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" '
        f'class="{kind}"/>'
    )


def arrow(x: float, start: float, end: float) -> str:
    """Return a vertical arrow from ``start`` to ``end``."""
    tip = 6 if end > start else -6
    head = f"{x - 4:.1f},{end - tip:.1f} {x + 4:.1f},{end - tip:.1f} {x:.1f},{end:.1f}"
    line = f'<line x1="{x:.1f}" y1="{start:.1f}" x2="{x:.1f}" y2="{end - tip:.1f}" class="edge"/>'
    return f'{line}<polygon points="{head}" class="head"/>'


def svg_image(
    width: float, height: float, parts: list[str], title: str, *, as_file: bool = False
) -> str:
    """Return a complete SVG image.

    ``title`` describes it for screen readers; ``as_file``: it is not a part of a page.
    """
    namespace = 'xmlns="http://www.w3.org/2000/svg" ' if as_file else ""
    return (
        f'<svg {namespace}viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" '
        f'xml:space="preserve" role="img" aria-label="{escape_html(title)}">{"".join(parts)}</svg>'
    )


_FLAME_WIDTH, _LEVEL_HEIGHT = 1200.0, 24.0
_MIN_WIDTH = 0.4
"""Width below which a part is not drawn."""
_PLOT_WIDTH, _PLOT_HEIGHT, _BINS = 250.0, 84.0, 30


def flame_chart(root: CallNode) -> str:
    """Return the mean step as a flame chart, with callees below their callers."""
    if root.step_us <= 0:
        return ""
    parts = list(_flames(root, 0.0, 0, _FLAME_WIDTH / root.step_us, root.step_us))
    return svg_image(
        _FLAME_WIDTH, root.depth() * _LEVEL_HEIGHT, parts, "flame chart of the mean step"
    )


def _flames(node: CallNode, left: float, level: int, scale: float, whole: float) -> Iterator[str]:
    width = node.step_us * scale
    if width < _MIN_WIDTH:
        return
    name = node.label if node.work == "engine" else f"{node.label} {node.lane}"
    tooltip = (
        f"{name}: {micros(node.step_us)} µs per step, {node.step_us / whole:.1%}; "
        f"{micros(node.own_us)} µs self time; {node.calls:.4g} calls per step"
    )
    columns = int((width - 8) / CHARACTER_WIDTH)
    short = name if len(name) <= columns else f"{name[: columns - 1]}…" if columns > 3 else ""
    top = level * _LEVEL_HEIGHT
    text = label(left + 4, top + 16, short) if short else ""
    yield (
        f'<g class="flame {node.work}"><title>{escape_html(tooltip)}</title>'
        f'<rect x="{left:.2f}" y="{top:.1f}" width="{width:.2f}" height="{_LEVEL_HEIGHT - 1:.1f}"/>'
        f"{text}</g>"
    )
    for child in node.children.values():
        yield from _flames(child, left, level + 1, scale, whole)
        left += child.step_us * scale


def times_plot(row: Row) -> str:
    """Return a histogram of the times of a row; the last bar includes all longer times."""
    if len(row.times_ns) < 2:
        return ""
    counts, edges = histogram(row.samples_us, _BINS)
    most, bottom = max(counts), _PLOT_HEIGHT - 18
    bar = _PLOT_WIDTH / len(counts)
    parts = [
        f'<rect x="{place * bar:.1f}" y="{bottom - height:.1f}" width="{bar - 1:.1f}" '
        f'height="{height:.1f}" class="bar"/>'
        for place, count in enumerate(counts)
        if (height := max(count / most * bottom, 1.0 if count else 0.0))
    ]
    parts.append(f'<line x1="0" y1="{bottom}" x2="{_PLOT_WIDTH}" y2="{bottom}" class="axis"/>')
    low, high = micros(edges[0]), f"{micros(edges[-1])} µs"
    parts.append(label(0, _PLOT_HEIGHT - 4, low, "dim"))
    parts.append(label(_PLOT_WIDTH - text_width(high), _PLOT_HEIGHT - 4, high, "dim"))
    name = f"{row.part.label} {row.part.lane}"
    return svg_image(_PLOT_WIDTH, _PLOT_HEIGHT, parts, f"times of {name}")


def growth_plot(
    name: str, values: Sequence[float], lines: Sequence[tuple[str, Sequence[float | None]]]
) -> str:
    """Return a log-log plot of the cost of each part along one axis.

    The most expensive parts come first; ``None`` stands for an unknown time.
    """
    costs = [cost for _, line in lines for cost in line if cost]
    if not costs or len(values) < 2:
        return ""
    lines = lines[:_LINE_COLORS]
    left, height, width = 64.0, 300.0, 760.0
    legend = max(text_width(title) for title, _ in lines) + 40
    low, high = math.log10(min(costs)), math.log10(max(costs))
    first, last = math.log10(min(values)), math.log10(max(values))

    def x(value: float) -> float:
        return left + (width - left - 8) * (math.log10(value) - first) / ((last - first) or 1.0)

    def y(value: float) -> float:
        return 8 + (height - 40) * (high - math.log10(value)) / ((high - low) or 1.0)

    parts = [
        f'<line x1="{left}" y1="8" x2="{left}" y2="{height - 28}" class="axis"/>',
        f'<line x1="{left}" y1="{height - 28}" x2="{width}" y2="{height - 28}" class="axis"/>',
    ]
    for value in values:
        text = f"{value:g}"
        parts.append(label(min(x(value), width - text_width(text)), height - 12, text, "dim"))
    for bound in {min(costs), max(costs)}:
        text = micros(bound)
        parts.append(label(left - text_width(text) - 6, y(bound) + 4, text, "dim"))
    for place, (title, line) in enumerate(lines):
        points = " ".join(
            f"{x(value):.1f},{y(cost):.1f}"
            for value, cost in zip(values, line, strict=True)
            if cost
        )
        row, kind = 16 + place * 18, f"line line{place}"
        parts += [
            f'<polyline points="{points}" class="{kind}"/>',
            f'<line x1="{width + 12}" y1="{row}" x2="{width + 30}" y2="{row}" class="{kind}"/>',
            label(width + 36, row + 4, title),
        ]
    return svg_image(width + legend, height, parts, f"µs per step by {name}")


_WIDTH, _HEIGHT = 720.0, 180.0
_LEFT, _BOTTOM, _TOP = 80.0, 24.0, 10.0
_MAX_BAR_WIDTH = 64.0


def reward_plot(plots: Sequence[RewardPlot]) -> str:
    """Return a plot of the rewards at one key, with a line per env."""
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
            x, y = scale.x(0), scale.y(values[0])
            kind = css_class.replace("line ", "bar ")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="{kind}"/>')
        parts.append(f'<polyline points="{points}" class="{css_class}"/>')
    return svg_image(_WIDTH, _HEIGHT, parts, f"{plots[0].key} at each step")


def episode_plot(episodes: Sequence[EpisodeSummary]) -> str:
    """Return a bar plot of the return of each episode, in the order in which they ended."""
    totals = [episode.total for episode in episodes if episode.total is not None]
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
