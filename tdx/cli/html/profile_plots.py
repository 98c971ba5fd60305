"""The mean step as a flame chart, and how times vary, in SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from tdx.cli.html.drawing import CHARACTER, label, picture, text_width
from tdx.cli.views.profile_columns import histogram, micros
from tdx.profiling.result import Row
from tdx.profiling.traces import CallNode

_WIDTH, _LEVEL = 1200.0, 24.0
_LEAST = 0.4
"""Width below which a part is not drawn."""
_PLOT, _TALL, _BINS = 250.0, 84.0, 30


def flame_chart(root: CallNode) -> str:
    """Who takes how much of a step, what is inside a part drawn below it.

    Args:
        root: the mean step.
    """
    if root.step_us <= 0:
        return ""
    parts = list(_flames(root, 0.0, 0, _WIDTH / root.step_us, root.step_us))
    return picture(_WIDTH, root.depth() * _LEVEL, parts, "the mean step, part by part")


def _flames(node: CallNode, left: float, level: int, scale: float, whole: float) -> Iterator[str]:
    width = node.step_us * scale
    if width < _LEAST:
        return
    yield _flame(node, left, level * _LEVEL, width, whole)
    for child in node.children.values():
        yield from _flames(child, left, level + 1, scale, whole)
        left += child.step_us * scale


def _flame(node: CallNode, x: float, y: float, width: float, whole: float) -> str:
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
