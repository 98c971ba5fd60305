"""Profiles and sweeps as HTML pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import takewhile
from typing import Any

from tdx.cli.html import CHARACTER_WIDTH, label, render_page, svg_image, text_width
from tdx.cli.output import UNLIMITED
from tdx.cli.views import Block, Heading, Paragraph, Table
from tdx.cli.views.profile import (
    Extras,
    details,
    extra_blocks,
    machine_facts,
    mode_facts,
    mode_table,
    side_by_side,
    table_notes,
)
from tdx.cli.views.profile_sweep import (
    group_growths,
    growth_blocks,
    other_settings,
    part_name,
    sweep_blocks,
)
from tdx.cli.views.profile_table import histogram, micros, whole_number
from tdx.profiling.result import ModeProfile, Profile, Row
from tdx.profiling.sweep import CostGrowth, SweepResult, fit_growth
from tdx.profiling.sweep_axes import format_setting
from tdx.profiling.traces import CallNode, build_mean_step

_LINE_COLORS = 8
"""Number of line colors in the stylesheet; the most expensive parts are drawn."""
_STYLESHEETS = ("report.css", "profile.css")


def profile_page(profile: Profile, extras: Extras | None = None) -> str:
    """Return the HTML page of a profile.

    Args:
        profile: Profile to show.
        extras: Other measurements to show.
    """
    compared = list(side_by_side(profile, UNLIMITED)) if len(profile.modes) > 1 else []
    return render_page(
        "profile.html.j2",
        *_STYLESHEETS,
        profile=profile,
        machine=machine_facts(profile.machine),
        compared=_sections(compared),
        modes=[_mode(mode) for mode in profile.modes],
        extras=_sections(list(extra_blocks(extras or Extras(), UNLIMITED))),
    )


def sweep_page(subject: str, sweep: SweepResult) -> str:
    """Return the HTML page of a sweep.

    Args:
        subject: Pipeline.
        sweep: Sweep to show.
    """
    cells, *others = sweep_blocks(sweep, UNLIMITED)
    below = list(takewhile(lambda block: isinstance(block, Paragraph), others))
    profile = next((cell.profile for cell in sweep.cells if cell.profile is not None), None)
    return render_page(
        "sweep.html.j2",
        *_STYLESHEETS,
        subject=subject,
        axes=sweep.axes,
        format_setting=format_setting,
        below=below,
        cells=cells,
        growth=[_growth(group) for group in group_growths(fit_growth(sweep))],
        machine=[] if profile is None else machine_facts(profile.machine),
    )


def _growth(group: list[CostGrowth]) -> dict[str, Any]:
    first = group[0]
    values = sorted({value for each in group for value in each.values})
    costs = [dict(zip(each.values, each.step_us, strict=True)) for each in group]
    by_cost = sorted(zip(group, costs, strict=True), key=lambda pair: -max(pair[1].values()))
    lines = [
        (part_name(each), each.slope, [cost.get(value) for value in values])
        for each, cost in by_cost[:_LINE_COLORS]
    ]
    return {
        "axis": first.axis,
        "mode": first.mode,
        "others": other_settings(first),
        "plot": growth_plot(first.axis, values, [(name, line) for name, _, line in lines]),
        "lines": [(name, slope) for name, slope, _ in lines],
        "table": next(b for b in growth_blocks(group, UNLIMITED) if isinstance(b, Table)),
    }


def _mode(mode: ModeProfile) -> dict[str, Any]:
    plots = [(f"{row.part.label} {row.part.lane}", row, times_plot(row)) for row in mode.rows]
    frames = whole_number(mode.frames_per_second)
    return {
        "mode": mode.mode,
        "rate": f"{micros(mode.step_us)} µs per step, {frames} frames/s",
        "facts": list(mode_facts(mode)),
        "flames": flame_chart(build_mean_step(mode)),
        "table": mode_table(mode),
        "notes": list(table_notes(mode, mode.rows)),
        "plots": [(name, row, plot) for name, row, plot in plots if plot],
        "details": _sections(list(details(mode, UNLIMITED))),
    }


def _sections(blocks: list[Block]) -> list[dict[str, Any]]:
    """Group blocks by the heading above them."""
    sections: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Heading):
            sections.append({"title": block.text, "aside": block.aside, "tables": [], "texts": []})
        elif isinstance(block, Table):
            sections[-1]["tables"].append(block)
        elif isinstance(block, Paragraph):
            sections[-1]["texts"].append(block)
    return sections


_WIDTH, _LEVEL_HEIGHT = 1200.0, 24.0
_MIN_WIDTH = 0.4
"""Width below which a part is not drawn."""
_PLOT_WIDTH, _PLOT_HEIGHT, _BINS = 250.0, 84.0, 30


def flame_chart(root: CallNode) -> str:
    """Return the mean step as a flame chart, with callees below their callers.

    Args:
        root: The mean step.
    """
    if root.step_us <= 0:
        return ""
    parts = list(_flames(root, 0.0, 0, _WIDTH / root.step_us, root.step_us))
    return svg_image(_WIDTH, root.depth() * _LEVEL_HEIGHT, parts, "flame chart of the mean step")


def _flames(node: CallNode, left: float, level: int, scale: float, whole: float) -> Iterator[str]:
    width = node.step_us * scale
    if width < _MIN_WIDTH:
        return
    yield _flame(node, left, level * _LEVEL_HEIGHT, width, whole)
    for child in node.children.values():
        yield from _flames(child, left, level + 1, scale, whole)
        left += child.step_us * scale


def _flame(node: CallNode, x: float, y: float, width: float, whole: float) -> str:
    name = node.label if node.work == "engine" else f"{node.label} {node.lane}"
    tooltip = (
        f"{name}: {micros(node.step_us)} µs per step, {node.step_us / whole:.1%}; "
        f"{micros(node.own_us)} µs self time; {node.calls:.4g} calls per step"
    )
    columns = int((width - 8) / CHARACTER_WIDTH)
    short = name if len(name) <= columns else f"{name[: columns - 1]}…" if columns > 3 else ""
    text = label(x + 4, y + 16, short) if short else ""
    return (
        f'<g class="flame {node.work}"><title>{escape(tooltip)}</title>'
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{_LEVEL_HEIGHT - 1:.1f}"/>'
        f"{text}</g>"
    )


def times_plot(row: Row) -> str:
    """Return a histogram of the times of a row; the last bar includes all longer times.

    Args:
        row: Row of the profile.
    """
    if len(row.times_ns) < 2:
        return ""
    counts, edges = histogram(row.samples_us, _BINS)
    most, bottom = max(counts), _PLOT_HEIGHT - 18
    bar = _PLOT_WIDTH / len(counts)
    parts = [
        f'<rect x="{place * bar:.1f}" y="{bottom - height:.1f}" width="{bar - 1:.1f}" '
        f'height="{height:.1f}" class="bar"/>'
        for place, each in enumerate(counts)
        if (height := max(each / most * bottom, 1.0 if each else 0.0))
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

    Args:
        name: Name of the axis.
        values: Values on the axis, all above 0.
        lines: Name and µs per step at each value for each part; ``None`` where it is unknown.
    """
    import math

    costs = [cost for _, line in lines for cost in line if cost]
    if not costs or len(values) < 2:
        return ""
    left, height, width = 64.0, 300.0, 760.0
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
            f"{x(value):.1f},{y(each):.1f}"
            for value, each in zip(values, line, strict=True)
            if each
        )
        kind = f"line line{place % 8}"
        polyline = f'<polyline points="{points}" class="{kind}"/>'
        parts.append(f"<g><title>{escape(title)}</title>{polyline}</g>")
    return svg_image(width, height, parts, f"µs per step by {name}")
