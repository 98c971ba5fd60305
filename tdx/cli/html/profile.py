"""A profile as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import Any

from tdx.cli.html.svg import CHARACTER, label, picture, text_width
from tdx.cli.output.terminal import UNLIMITED
from tdx.cli.output.view import Block, Heading, Paragraph, Table
from tdx.cli.views.profile import (
    Extras,
    details,
    extra_blocks,
    machine_facts,
    mode_facts,
    mode_table,
    side_by_side,
)
from tdx.cli.views.profile_sweep import grouped, growth_blocks, name_of, named, sweep_blocks
from tdx.cli.views.profile_table import count, histogram, micros
from tdx.profiling.calls import Node, mean_step
from tdx.profiling.growth import Growth, growths
from tdx.profiling.result import ModeProfile, Profile, Row
from tdx.profiling.sweep import Sweep
from tdx.profiling.sweep_axes import shown
from tdx.text import escape_control_characters

_FOLDER = Path(__file__).parent
_LINES = 8
"""Colours of lines that the page has; the dearest parts are drawn."""


def profile_page(profile: Profile, extras: Extras | None = None) -> str:
    """The page, complete in itself: no script, and nothing that is loaded from elsewhere.

    Args:
        profile: what the page is about.
        extras: what else it shows.
    """
    compared = list(side_by_side(profile, UNLIMITED)) if len(profile.modes) > 1 else []
    return _rendered(
        "profile.html.j2",
        profile=profile,
        machine=machine_facts(profile.machine),
        compared=_sections(compared),
        modes=[_mode(mode) for mode in profile.modes],
        extras=_sections(list(extra_blocks(extras or Extras(), UNLIMITED))),
    )


def sweep_page(subject: str, found: Sweep) -> str:
    """The page of a sweep, complete in itself too.

    Args:
        subject: the pipeline.
        found: its cells.
    """
    cells, *others = sweep_blocks(found, UNLIMITED)
    below = list(takewhile(lambda block: isinstance(block, Paragraph), others))
    profile = next((cell.profile for cell in found.cells if cell.profile is not None), None)
    return _rendered(
        "sweep.html.j2",
        subject=subject,
        axes=found.axes,
        shown=shown,
        below=below,
        cells=cells,
        growth=[_growth(group) for group in grouped(growths(found))],
        machine=[] if profile is None else machine_facts(profile.machine),
    )


def _growth(group: list[Growth]) -> dict[str, Any]:
    first = group[0]
    values = sorted({value for each in group for value in each.values})
    known = [dict(zip(each.values, each.step_us, strict=True)) for each in group]
    dearest = sorted(zip(group, known, strict=True), key=lambda pair: -max(pair[1].values()))
    lines = [
        (name_of(each), each.slope, [costs.get(value) for value in values])
        for each, costs in dearest[:_LINES]
    ]
    return {
        "axis": first.axis,
        "mode": first.mode,
        "others": named(first),
        "plot": growth_plot(first.axis, values, [(name, line) for name, _, line in lines]),
        "lines": [(name, slope) for name, slope, _ in lines],
        "table": next(b for b in growth_blocks(group, UNLIMITED) if isinstance(b, Table)),
    }


def _rendered(template: str, **values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = _style("report.css") + _style("profile.css")
    text = environment.get_template(template).render(style=style, **values)
    return escape_control_characters(text, keep="\n\t")


def _style(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _mode(mode: ModeProfile) -> dict[str, Any]:
    plots = [(f"{row.part.label} {row.part.lane}", row, times_plot(row)) for row in mode.rows]
    return {
        "mode": mode.mode,
        "rate": f"{micros(mode.step_us)} µs a step, {count(mode.frames_per_second)} frames/s",
        "facts": list(mode_facts(mode)),
        "flames": flame_chart(mean_step(mode)),
        "table": mode_table(mode),
        "plots": [(name, row, plot) for name, row, plot in plots if plot],
        "details": _sections(list(details(mode, UNLIMITED))),
    }


def _sections(blocks: list[Block]) -> list[dict[str, Any]]:
    """Headings with what stands below each."""
    found: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Heading):
            found.append({"title": block.text, "aside": block.aside, "tables": [], "texts": []})
        elif isinstance(block, Table):
            found[-1]["tables"].append(block)
        elif isinstance(block, Paragraph):
            found[-1]["texts"].append(block)
    return found


_WIDTH, _LEVEL = 1200.0, 24.0
_LEAST = 0.4
"""Width below which a part is not drawn."""
_PLOT, _TALL, _BINS = 250.0, 84.0, 30


def flame_chart(root: Node) -> str:
    """Who takes how much of a step, what is inside a part drawn below it.

    Args:
        root: the mean step.
    """
    if root.step_us <= 0:
        return ""
    parts = list(_flames(root, 0.0, 0, _WIDTH / root.step_us, root.step_us))
    return picture(_WIDTH, root.depth() * _LEVEL, parts, "the mean step, part by part")


def _flames(node: Node, left: float, level: int, scale: float, whole: float) -> Iterator[str]:
    width = node.step_us * scale
    if width < _LEAST:
        return
    yield _flame(node, left, level * _LEVEL, width, whole)
    for child in node.children.values():
        yield from _flames(child, left, level + 1, scale, whole)
        left += child.step_us * scale


def _flame(node: Node, x: float, y: float, width: float, whole: float) -> str:
    name = node.label if node.work == "engine" else f"{node.label} {node.lane}"
    told = (
        f"{name}: {micros(node.step_us)} µs a step, {node.step_us / whole:.1%}; "
        f"{micros(node.own_us)} µs by itself; called {node.calls:.4g} times a step"
    )
    room = int((width - 8) / CHARACTER)
    shown = name if len(name) <= room else f"{name[: room - 1]}…" if room > 3 else ""
    text = label(x + 4, y + 16, shown) if shown else ""
    return (
        f'<g class="flame {node.work}"><title>{escape(told)}</title>'
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{_LEVEL - 1:.1f}"/>{text}</g>'
    )


def times_plot(row: Row) -> str:
    """How often which time was taken; the last bar has all that is above it too.

    Args:
        row: whose times.
    """
    if len(row.times_ns) < 2:
        return ""
    counts, edges = histogram(row.samples_us, _BINS)
    most, bottom = max(counts), _TALL - 18
    bar = _PLOT / len(counts)
    parts = [
        f'<rect x="{place * bar:.1f}" y="{bottom - height:.1f}" width="{bar - 1:.1f}" '
        f'height="{height:.1f}" class="bar"/>'
        for place, each in enumerate(counts)
        if (height := max(each / most * bottom, 1.0 if each else 0.0))
    ]
    parts.append(f'<line x1="0" y1="{bottom}" x2="{_PLOT}" y2="{bottom}" class="axis"/>')
    low, high = micros(edges[0]), f"{micros(edges[-1])} µs"
    parts.append(label(0, _TALL - 4, low, "dim"))
    parts.append(label(_PLOT - text_width(high), _TALL - 4, high, "dim"))
    name = f"{row.part.label} {row.part.lane}"
    return picture(_PLOT, _TALL, parts, f"the times of {name}")


def growth_plot(
    name: str, values: Sequence[float], lines: Sequence[tuple[str, Sequence[float | None]]]
) -> str:
    """How the cost of each part grows along one axis, both of them logarithmic.

    Args:
        name: of the axis.
        values: along it, all above 0.
        lines: what each part takes of a step at each value, in µs; none where that is not known.
    """
    import math

    known = [each for _, line in lines for each in line if each]
    if not known or len(values) < 2:
        return ""
    left, height, width = 64.0, 300.0, 760.0
    low, high = math.log10(min(known)), math.log10(max(known))
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
    for bound in {min(known), max(known)}:
        text = micros(bound)
        parts.append(label(left - text_width(text) - 6, y(bound) + 4, text, "dim"))
    for place, (title, line) in enumerate(lines):
        points = " ".join(
            f"{x(value):.1f},{y(each):.1f}"
            for value, each in zip(values, line, strict=True)
            if each
        )
        kind = f"line line{place % 8}"
        drawn = f'<polyline points="{points}" class="{kind}"/>'
        parts.append(f"<g><title>{escape(title)}</title>{drawn}</g>")
    return picture(width, height, parts, f"µs of a step by {name}")
