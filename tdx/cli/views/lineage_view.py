"""The layout of the lineage of keys, as rows and as a Mermaid diagram."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tdx.cli.output.mermaid import mermaid_label
from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Table, View
from tdx.inspection.leaf import SpecText, shape_text
from tdx.inspection.lineage import FlowNode, KeyVersion, Lineage

_TITLES = ("lane", "version", "written by", "from", "read by", "spec")


def lineage_view(lineage: Lineage, calls: Sequence[str]) -> View:
    """Lay out who writes and who reads each version of each key.

    Args:
        lineage: what to show.
        calls: each stage as the user would write it.
    """
    data = lineage.to_dict()
    data["calls"] = list(calls)

    def blocks(width: int) -> list[Block]:
        head = Heading(lineage.env, _count(lineage), level=1)
        chain = [
            Paragraph([Cell(f"{index} ", "dim"), Cell(call)], indent=2)
            for index, call in enumerate(calls)
        ]
        for whole in (True, False):
            table = _table(lineage.versions, whole=whole)
            if table_width(table) <= width:
                return [head, *chain, table]
        return [head, *chain, *_narrow(lineage.versions)]

    return View("lineage", data, list(_records(lineage.versions)), blocks)


def _count(lineage: Lineage) -> str:
    keys, versions = len(lineage.keys()), len(lineage.versions)
    plural = "" if versions == 1 else "s"
    return f"{keys} key{'' if keys == 1 else 's'}  {versions} version{plural}"


def _table(versions: Sequence[KeyVersion], *, whole: bool) -> Table:
    text = SpecText([version.spec for version in versions if version.spec], whole=whole)
    rows, previous = [], ""
    for version in versions:
        lane = "" if version.lane == previous else version.lane
        previous = version.lane
        rows.append(
            [
                Cell(lane, "dim"),
                Cell(version.name, "name"),
                Cell(_writer(version)),
                Cell(version.source or "", "dim"),
                Cell(_readers(version), "" if version.readers else "dim"),
                Cell(text(version.spec) if version.spec else ""),
            ]
        )
    return Table([Column(title, fixed=True) for title in _TITLES], rows)


def _narrow(versions: Sequence[KeyVersion]) -> Iterator[Block]:
    """Version after version, its facts under its name."""
    text = SpecText([], whole=False)
    for version in versions:
        spec = f"  {text(version.spec)}" if version.spec else ""
        yield Paragraph([Cell(version.name, "name"), Cell(spec)])
        source = f", from {version.source}" if version.source else ""
        yield Paragraph([Cell("written by ", "dim"), Cell(_writer(version) + source)], indent=2)
        yield Paragraph([Cell("read by ", "dim"), Cell(_readers(version))], indent=2)


def _writer(version: KeyVersion) -> str:
    return str(version.writer)


def _readers(version: KeyVersion) -> str:
    read = [_reader(place) for place in version.readers]
    if version.ended is not None and version.ended not in version.readers:
        read.append(f"dropped by {version.ended}")
    return ", ".join(read) or "nobody"


def _reader(place: FlowNode) -> str:
    return f"{place} (next step)" if place.next_step else str(place)


def _records(versions: Sequence[KeyVersion]) -> Iterator[dict[str, Any]]:
    names = ("shape", "dtype", "device", "low", "high", "choices", "digest")
    for version in versions:
        spec = version.to_dict()["spec"] or {}
        yield {
            "version": version.name,
            "key": version.to_dict()["key"],
            "number": version.number,
            "lane": version.lane,
            "part": version.part,
            "writer": str(version.writer),
            "source": version.source,
            "readers": [_reader(place) for place in version.readers],
            "ended": None if version.ended is None else str(version.ended),
            "spec": spec.get("kind"),
            **{name: spec.get(name) for name in names},
        }


def mermaid(lineage: Lineage, calls: Sequence[str]) -> str:
    """The lineage as a Mermaid flow chart: an arrow from who writes a version to who reads it.

    Args:
        lineage: what to show.
        calls: each stage as the user would write it.
    """
    arrows = list(dict.fromkeys(_arrows(lineage.versions)))
    used = {name for start, _, end in arrows for name in (start, end.removeprefix("-."))}
    lines = ["flowchart TD"]
    if "env" in used:
        lines.append(f'    env(["{mermaid_label(lineage.env)}"])')
    lines += [
        f'    stage{index}["{index} {mermaid_label(call)}"]'
        for index, call in enumerate(calls)
        if f"stage{index}" in used
    ]
    lines += [f'    {kind}(["{kind}"])' for kind in ("policy", "output") if kind in used]
    for start, label, end in arrows:
        line = "-.->" if end.startswith("-.") else "-->"
        lines.append(f'    {start} {line}|"{mermaid_label(label)}"| {end.removeprefix("-.")}')
    return "".join(f"{line}\n" for line in lines)


def _arrows(versions: Sequence[KeyVersion]) -> Iterator[tuple[str, str, str]]:
    for version in versions:
        spec = version.spec
        label = f"{version.name} {shape_text(spec.shape)} {spec.dtype}" if spec else version.name
        for place in version.readers:
            yield _node(version.writer), label, f"{'-.' if place.next_step else ''}{_node(place)}"


def _node(place: FlowNode) -> str:
    return f"stage{place.stage}" if place.kind == "stage" else place.kind
