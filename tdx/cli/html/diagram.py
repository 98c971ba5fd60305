"""The data flow of a chain: as data for the page, and as an SVG image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tdx.cli.html import arrow, box, label, svg_image, text_width
from tdx.cli.views import Style, count_text
from tdx.inspection.chain import StageFlow
from tdx.inspection.leaf import LeafSpec, SpecText
from tdx.inspection.pipeline_report import PipelineReport
from tdx.keys import NestedKey, format_key

_MARKS: Mapping[Style, str] = {"added": "+", "changed": "~", "gone": "-"}


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One key between two stages.

    Args:
        key: Name of the key.
        spec: Its spec as text.
        style: ``added``, ``changed`` or ``gone`` by the stage; empty if it is unchanged.
    """

    key: str
    spec: str
    style: Style = ""

    @property
    def mark(self) -> str:
        """Mark of the change."""
        return _MARKS.get(self.style, "")


@dataclass(frozen=True, slots=True)
class FlowNode:
    """An env or a stage, with the keys after it.

    Args:
        name: The env, or the stage as the text of ``--t``.
        index: Index of the stage. ``None``: the env.
        written: Keys that it writes or drops; for the env all of its outputs.
        kept: Keys that pass through it unchanged.
        actions: Actions that it takes; for a stage only those that it maps.
    """

    name: str
    index: int | None
    written: tuple[KeyLine, ...]
    kept: tuple[KeyLine, ...]
    actions: tuple[KeyLine, ...]


def chain_nodes(report: PipelineReport) -> list[FlowNode]:
    """Return the env and the stages in order, each with what it does to the keys.

    Args:
        report: Report of the pipeline.
    """
    flow = report.flow
    outputs, actions = _lines(flow.outputs), _actions(flow.inputs)
    nodes = [FlowNode(report.env, None, tuple(outputs), (), tuple(actions))]
    for stage, call in zip(flow.stages, report.calls, strict=True):
        lines = _lines(stage.outputs, stage)
        nodes.append(
            FlowNode(
                call,
                stage.index,
                tuple(line for line in lines if line.style),
                tuple(line for line in lines if not line.style),
                () if stage.inverse.is_empty else tuple(_actions(stage.inputs)),
            )
        )
    return nodes


def _lines(leaves: Mapping[NestedKey, LeafSpec], stage: StageFlow | None = None) -> list[KeyLine]:
    """Return the outputs of the env or after a stage, then the keys that it drops."""
    styles: dict[NestedKey, Style] = {}
    dropped: Sequence[NestedKey] = ()
    if stage is not None:
        writes = stage.forward.writes
        styles = {write.key: "added" if write.new else "changed" for write in writes}
        styles |= dict.fromkeys((new for _, new in stage.forward.renames), "changed")
        dropped = stage.forward.drops
    text = SpecText(leaves.values(), whole=False)
    lines = [
        KeyLine(format_key(key), text(leaf), styles.get(key, "")) for key, leaf in leaves.items()
    ]
    return [*lines, *(KeyLine(format_key(key), "dropped", "gone") for key in dropped)]


def _actions(leaves: Mapping[NestedKey, LeafSpec]) -> list[KeyLine]:
    actions = [leaf for leaf in leaves.values() if leaf.part == "action"]
    text = SpecText(actions, whole=False)
    return [KeyLine(format_key(leaf.key), text(leaf)) for leaf in actions]


_LINE_HEIGHT = 17
_BOX_HEIGHT = 30
_MARGIN = 12
_EDGE_PADDING = 24
_STYLE = """<style>
svg { font: 12px ui-monospace, Menlo, Consolas, monospace; background: #ffffff; }
text { fill: #1c2024; white-space: pre; }
.box { fill: #f4f6f8; stroke: #d6dade; } .end, .edge { stroke: #6b7178; } .head { fill: #6b7178; }
.name { font-weight: bold; } .dim { fill: #6b7178; } .added { fill: #18794e; }
.changed { fill: #ad5700; } .gone { fill: #c62a2f; } .action { fill: #0b68cb; }
@media (prefers-color-scheme: dark) {
  svg { background: #15181b; } text { fill: #e6e8eb; }
  .box { fill: #1e2226; stroke: #363c42; } .end, .edge { stroke: #8d949c; } .head { fill: #8d949c; }
  .dim { fill: #8d949c; } .added { fill: #4cc38a; }
  .changed { fill: #ffb224; } .gone { fill: #ff6369; } .action { fill: #70b8ff; }
}
</style>"""


def chain_diagram(report: PipelineReport) -> str:
    """Return the data flow of a chain as an SVG file.

    Outputs of the env flow down on the left, its inputs flow up on the right. Unchanged keys are
    only counted.

    Args:
        report: Report of the pipeline.
    """
    nodes = chain_nodes(report)
    down = [_down(node) for node in nodes]
    up = [[f"{line.key}  {line.spec}" for line in node.actions] for node in nodes]
    boxes = [node.name if node.index is None else f"{node.index} {node.name}" for node in nodes]
    boxes.append("output")
    left = max(text_width(text) for lines in down for text, _ in [*lines, ("", "")])
    right = max(text_width(text) for lines in up for text in [*lines, ""])
    width = max(*(text_width(text) + 2 * _MARGIN for text in boxes), left + right + 110)
    parts: list[str] = [_STYLE]
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
    return svg_image(width + 2 * _MARGIN, top + _MARGIN, parts, f"chain of {report.title}") + "\n"


def _down(node: FlowNode) -> list[tuple[str, str]]:
    """Return text and CSS class of each line below a box."""
    width = max((len(line.key) for line in node.written), default=0)
    lines = [
        (f"{line.mark:1} {line.key.ljust(width)}  {line.spec}", str(line.style))
        for line in node.written
    ]
    if node.kept:
        lines.append((f"  {count_text(len(node.kept), 'unchanged key')}", "dim"))
    return lines


def _edge(
    top: float,
    height: float,
    down: Sequence[tuple[str, str]],
    up: Sequence[str],
    right: float,
) -> list[str]:
    """Draw both directions between two boxes."""
    first = top + _EDGE_PADDING / 2 + 12
    parts = [arrow(_MARGIN + 16, top, top + height), arrow(right, top + height, top)]
    for place, (text, kind) in enumerate(down):
        parts.append(label(_MARGIN + 30, first + place * _LINE_HEIGHT, text, kind))
    for place, text in enumerate(up):
        parts.append(label(right + 14, first + place * _LINE_HEIGHT, text, "action"))
    return parts
