"""The chain as a diagram: stages as boxes, and on the edges between them what flows there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tdx.cli.html.drawing import arrow, box, label, picture, text_width
from tdx.inspection.chain import StageFlow
from tdx.inspection.leaf import LeafSpec, SpecText
from tdx.inspection.report import PipelineReport
from tdx.keys import NestedKey, format_key

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
