"""A chain as a diagram: in the terminal, as Mermaid, and as SVG.

Outputs of the env flow down on the left, actions flow up on the right. An edge lists what the stage
above it changes; the first one lists every output of the env.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tdx.cli.charts import arrow, box, label, svg_image, text_width
from tdx.cli.output import mermaid_label
from tdx.cli.views import (
    Block,
    Cell,
    Paragraph,
    Style,
)
from tdx.foundation.keys import NestedKey, format_key
from tdx.foundation.text import count_text, escape_control_characters
from tdx.inspection.chain import ChainReport, StageFlow
from tdx.specs.leaf import SpecText, shape_text

MAX_WIDTH = 100
"""Columns of a diagram in a wide terminal or a pipe."""
_MIN_WIDTH = 40
_MARKS: dict[str, tuple[str, Style]] = {
    "new": ("+", "added"),
    "changed": ("~", "changed"),
    "same": ("=", ""),
}


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A key on an edge.

    Args:
        mark: ``+``, ``~``, ``=``, ``→``, ``-``, or a space.
    """

    mark: str
    key: str
    spec: str = ""
    style: Style = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """Both directions between two nodes.

    Args:
        written: Outputs that the node above writes, renames or drops; for the env all of them.
        up: Actions below that node, if it changes them or is the env.
    """

    written: tuple[KeyLine, ...]
    kept: int
    up: tuple[KeyLine, ...]

    @property
    def down(self) -> tuple[KeyLine, ...]:
        """Outputs as a diagram lists them: unchanged ones are only counted."""
        if not self.kept:
            return self.written
        noun = "other key" if self.written else "key"
        text = f"{count_text(self.kept, noun)} unchanged"
        return (*self.written, KeyLine(" ", text, "", "dim"))


def _nodes(report: ChainReport, calls: Sequence[str]) -> list[str]:
    stages = [f"{index} {call}" for index, call in enumerate(calls)]
    return [escape_control_characters(text) for text in (report.env, *stages, "output")]


def _name(key: NestedKey) -> str:
    """Return a key as it is shown; escaped before the layout depends on its width."""
    return escape_control_characters(format_key(key))


def chain_edges(report: ChainReport) -> list[Edge]:
    """Return what flows below the env and below each stage."""
    outputs = list(report.outputs.values())
    text = SpecText(outputs, whole=False)
    lines = tuple(KeyLine(" ", _name(leaf.key), text(leaf)) for leaf in outputs)
    first = Edge(lines, 0, _actions(report, None))
    return [first, *(_edge_after(report, stage) for stage in report.stages)]


def _edge_after(report: ChainReport, stage: StageFlow) -> Edge:
    written = {write.key for write in stage.forward.writes}
    written |= {new for _, new in stage.forward.renames}
    text = SpecText([leaf for key, leaf in stage.outputs.items() if key in written], whole=False)
    lines = []
    for write in stage.forward.writes:
        leaf = stage.outputs.get(write.key, write.after)
        mark, style = _MARKS["new" if write.new else "changed" if write.differs else "same"]
        spec = "" if leaf is None else text(leaf)
        lines.append(KeyLine(mark, _name(write.key), spec, style))
    for old, new in stage.forward.renames:
        spec = text(stage.outputs[new]) if new in stage.outputs else ""
        lines.append(KeyLine("→", f"{_name(new)} (from {_name(old)})", spec, "changed"))
    lines += [KeyLine("-", _name(key), "", "gone") for key in stage.forward.drops]
    kept = sum(key not in written for key in stage.outputs)
    return Edge(tuple(lines), kept, _actions(report, stage))


def _actions(report: ChainReport, stage: StageFlow | None) -> tuple[KeyLine, ...]:
    """Return the actions below a node if the node changes them, or if it is the env."""
    inputs = report.inputs if stage is None else stage.inputs
    changes = stage is None or not stage.inverse.is_empty
    if not changes:
        return ()
    actions = [leaf for leaf in inputs.values() if leaf.part == "action"]
    text = SpecText(actions, whole=False)
    style: Style = "" if stage is None else "changed"
    mark = " " if stage is None else "~"
    return tuple(KeyLine(mark, _name(leaf.key), text(leaf), style) for leaf in actions)


def graph_blocks(report: ChainReport, calls: Sequence[str], width: int) -> list[Block]:
    """Return the diagram of a chain with box drawing characters."""
    nodes, edges = _nodes(report, calls), chain_edges(report)
    wanted = max(
        *(len(node) + 4 for node in nodes),
        *(_edge_width(edge) for edge in edges),
    )
    inner = max(_MIN_WIDTH, min(wanted, width, MAX_WIDTH)) - 2
    blocks: list[Block] = []
    for index, node in enumerate(nodes):
        top = "╭" + "─" * inner + "╮" if index == 0 else "╭─▼" + "─" * (inner - 4) + "┴─╮"
        bottom = "╰─┬" + "─" * (inner - 4) + "▲─╯"
        if index == len(nodes) - 1:
            bottom = "╰" + "─" * inner + "╯"
        blocks.append(Paragraph([Cell(top)]))
        blocks += [
            Paragraph([Cell("│ "), Cell(part.ljust(inner - 2), "name"), Cell(" │")])
            for part in _wrap(node, inner - 2)
        ]
        blocks.append(Paragraph([Cell(bottom)]))
        if index < len(edges):
            blocks += _edge_blocks(edges[index], inner)
    return blocks


def _edge_width(edge: Edge) -> int:
    key = max((len(line.key) for line in edge.down), default=0)
    down = [key + 2 + len(line.spec) if line.spec else len(line.key) for line in edge.down]
    up = [len(f"{line.key}  {line.spec}") for line in edge.up]
    return max([*down, *up], default=0) + 12


def _edge_blocks(edge: Edge, inner: int) -> Iterator[Paragraph]:
    """Yield the lines of an edge: first what flows up, on the right, then what flows down."""
    space = inner - 4  # Between the two arrows.
    for line in edge.up:
        text = _cut(f"{line.mark} {line.key}  {line.spec}", space - 2)
        yield _between(Cell(" " * (space - 1 - len(text))), Cell(text, line.style), Cell(" "))
    key = max((len(line.key) for line in edge.down if line.spec), default=0)
    for line in edge.down:
        name = line.key.ljust(key) if line.spec else line.key
        head = _cut(f"{line.mark} {name}", space - 2)
        rest = _cut(f"  {line.spec}", space - 2 - len(head)) if line.spec else ""
        fill = Cell(" " * (space - 1 - len(head) - len(rest)))
        yield _between(Cell(" "), Cell(head, line.style), Cell(rest), fill)


def _between(*cells: Cell) -> Paragraph:
    return Paragraph([Cell("  │"), *cells, Cell("│")])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def _wrap(text: str, width: int) -> list[str]:
    """Split a call that is wider than its box."""
    return [text[start : start + width] for start in range(0, max(len(text), 1), width)]


def chain_diagram(report: ChainReport, calls: Sequence[str]) -> str:
    """Return a chain as a Mermaid flow chart."""
    nodes, edges = _nodes(report, calls), chain_edges(report)
    lines = ["flowchart TD"]
    last = len(nodes) - 1
    for index, node in enumerate(nodes):
        text = f'["{mermaid_label(node)}"]'
        lines.append(f"    n{index}({text})" if index in (0, last) else f"    n{index}{text}")
    for index, edge in enumerate(edges):
        lines.append(f"    n{index} -->{_mermaid_text(edge.down)} n{index + 1}")
        lines.append(f"    n{index + 1} -.->{_mermaid_text(edge.up)} n{index}")
    return "".join(f"{line}\n" for line in lines)


def _mermaid_text(lines: Sequence[KeyLine]) -> str:
    texts = []
    for line in lines:
        spec = f"  {' '.join(line.spec.split())}" if line.spec else ""
        texts.append(mermaid_label(f"{line.mark} {line.key}{spec}".strip()))
    return f'|"{"<br>".join(texts)}"|' if texts else ""


_LINE_HEIGHT, _BOX_HEIGHT, _MARGIN, _PADDING = 17.0, 30.0, 12.0, 24.0
_STYLE = """
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#24292f;white-space:pre}
.ground{fill:#fff}.box{fill:#f6f8fa;stroke:#8c959f}.end{fill:#ddf4ff;stroke:#54aeff}
.name{font-weight:600}.edge{stroke:#8c959f;stroke-width:1.5}.head{fill:#8c959f}
.dim{fill:#656d76}.added{fill:#116329}.changed{fill:#7d4e00}.gone{fill:#a40e26}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.ground{fill:#0d1117}
.box{fill:#161b22;stroke:#6e7681}.end{fill:#0c2d6b;stroke:#388bfd}
.edge{stroke:#6e7681}.head{fill:#6e7681}
.dim{fill:#8d96a0}.added{fill:#56d364}.changed{fill:#e3b341}.gone{fill:#ff7b72}}
"""


def chain_svg(report: ChainReport, calls: Sequence[str], *, as_file: bool = True) -> str:
    """Return a chain as an SVG image.

    A file gets a background and the colors of both themes, which a page has itself.
    """
    nodes, edges = _nodes(report, calls), chain_edges(report)
    left = max((text_width(_aligned(line, e.down)) for e in edges for line in e.down), default=0.0)
    right = max((text_width(_aligned(line, e.up)) for e in edges for line in e.up), default=0.0)
    width = max(*(text_width(node) + 2 * _MARGIN for node in nodes), left + right + 110)
    x_up = _MARGIN + width - right - 40
    parts: list[str] = []
    top = _MARGIN
    for index, node in enumerate(nodes):
        kind = "box end" if index in (0, len(nodes) - 1) else "box"
        parts += [
            box(_MARGIN, top, width, _BOX_HEIGHT, kind),
            label(2 * _MARGIN, top + 20, node, "name"),
        ]
        top += _BOX_HEIGHT
        if index < len(edges):
            edge = edges[index]
            height = max(len(edge.down), len(edge.up), 1) * _LINE_HEIGHT + _PADDING
            parts += [arrow(_MARGIN + 16, top, top + height), arrow(x_up, top + height, top)]
            parts += _labels(_MARGIN + 30, top, edge.down)
            parts += _labels(x_up + 14, top, edge.up)
            top += height
    full, height = width + 2 * _MARGIN, top + _MARGIN
    title = f"chain of {report.env}, batch {shape_text(report.after.batch_size)}"
    if not as_file:
        return svg_image(full, height, parts, title)
    ground = f'<rect class="ground" width="{full:.0f}" height="{height:.0f}"/>'
    parts = [f"<style>{_STYLE}</style>", ground, *parts]
    return f"{svg_image(full, height, parts, title, as_file=True)}\n"


def _aligned(line: KeyLine, lines: Sequence[KeyLine]) -> str:
    key = max((len(other.key) for other in lines if other.spec), default=0)
    spec = f"  {line.spec}" if line.spec else ""
    text = f"{line.mark} {line.key.ljust(key) if spec else line.key}{spec}"
    return text.strip() if all(other.mark == " " for other in lines) else text


def _labels(x: float, top: float, lines: Sequence[KeyLine]) -> list[str]:
    first = top + _PADDING / 2 + 12
    return [
        label(x, first + index * _LINE_HEIGHT, _aligned(line, lines), line.style)
        for index, line in enumerate(lines)
    ]
