"""Effects of each stage on keys, and the lineage of keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tdx.cli.output import mermaid_label
from tdx.cli.views import (
    NONE,
    Block,
    Cell,
    Fluid,
    Heading,
    Paragraph,
    Style,
    Table,
    View,
    dim,
    first_that_fits,
    stage_list,
    without_repeats,
)
from tdx.cli.views.graph import graph_blocks
from tdx.cli.views.specs import sides_heading, spec_columns
from tdx.foundation.keys import format_key
from tdx.foundation.text import count_text
from tdx.inspection.chain import ChainReport, KeyFlow, StageFlow
from tdx.inspection.lineage import FlowNode, KeyVersion, Lineage
from tdx.specs.leaf import LeafSpec, SpecText, shape_text

_LANES = ("forward", "inverse")
_STAGE_TITLES = ("stage", "lane", "reads", "", "writes", "before", "after")


def chain_view(report: ChainReport, calls: Sequence[str], *, graph: bool = False) -> View:
    """Lay out the effects of each stage of a chain."""

    def blocks() -> list[Block]:
        head = sides_heading(report.env, report.before, report.after)
        if not report.stages:
            return [head, dim("The chain has no stages.")]
        if graph:
            return [head, Fluid(lambda width: graph_blocks(report, calls, width))]

        def wide(*, whole: bool) -> list[Block]:
            return [*stage_list(calls), _stage_table(report, _texts(report, whole=whole))]

        return [
            head,
            first_that_fits(
                lambda: wide(whole=True),
                lambda: wide(whole=False),
                lambda: _narrow_stages(report, calls),
            ),
        ]

    return View("chain", report, blocks, lambda: _stage_records(report, calls), calls)


def _texts(report: ChainReport, *, whole: bool) -> tuple[SpecText, SpecText]:
    writes = [
        write
        for stage in report.stages
        for lane in (stage.forward, stage.inverse)
        for write in lane.writes
    ]
    before = [write.before for write in writes if write.before]
    after = [write.after for write in writes if write.after and write.differs]
    return SpecText(before, whole=whole), SpecText(after, whole=whole)


def _stage_table(report: ChainReport, texts: tuple[SpecText, SpecText]) -> Table:
    rows: list[list[Cell]] = []
    for stage in report.stages:
        name = f"{stage.index} {stage.name}"
        for lane_name, lane in _lanes(stage):
            for position, effect in enumerate(_effects(lane, texts)):
                first = position == 0
                reads = _reads(stage, lane, lane_name) if first else ""
                lane_cell = Cell(lane_name if first else "", "dim")
                rows.append([Cell(name, "name"), lane_cell, Cell(reads), *effect])
                name = ""
    return Table.of(_STAGE_TITLES, rows, fixed=True)


def _lanes(stage: StageFlow) -> list[tuple[str, KeyFlow]]:
    """Return the lanes in which a stage has an effect; forward if it has none."""
    lanes = list(zip(_LANES, (stage.forward, stage.inverse), strict=True))
    active = [(name, lane) for name, lane in lanes if not lane.is_empty]
    return active or lanes[:1]


def _reads(stage: StageFlow, lane: KeyFlow, lane_name: str) -> str:
    """Return the keys that a stage reads; marks those of the previous step."""
    carried = [key for key in stage.carried if lane_name == "forward"]
    keys = [key for key in lane.reads if key not in carried]
    return ", ".join(map(format_key, keys)) + "".join(
        f"{', ' if keys or index else ''}{format_key(key)} (previous step)"
        for index, key in enumerate(carried)
    )


def _effects(lane: KeyFlow, texts: tuple[SpecText, SpecText]) -> Iterator[list[Cell]]:
    """Yield a row for each key that is written, renamed or dropped, or one empty row."""
    before, after = texts
    for write in lane.writes:
        style: Style = "added" if write.new else "changed" if write.differs else ""
        mark = "+" if write.new else "~" if write.differs else "="
        source = _side(write.before, before)
        if write.source is not None and write.source != write.key and write.before:
            source = Cell(f"{format_key(write.source)}  {source.text}")
        target = _side(write.after, after, style) if write.differs else Cell("=", "dim")
        yield [Cell(mark, style), Cell(format_key(write.key), style), source, target]
    for old, new in lane.renames:
        text = f"{format_key(old)} → {format_key(new)}"
        yield [Cell("→", "changed"), Cell(text, "changed"), Cell(""), Cell("")]
    for key in lane.drops:
        yield [Cell("-", "gone"), Cell(format_key(key), "gone"), Cell(""), Cell("")]
    if not (lane.writes or lane.renames or lane.drops):
        yield [Cell(""), Cell(NONE, "dim"), Cell(""), Cell("")]


def _side(leaf: LeafSpec | None, text: SpecText, style: Style = "") -> Cell:
    return Cell(NONE, "dim") if leaf is None else Cell(text(leaf), style)


def _narrow_stages(report: ChainReport, calls: Sequence[str]) -> Iterator[Block]:
    """Yield the effects of each stage below its name, for narrow terminals."""
    before, after = _texts(report, whole=False)
    for stage, call in zip(report.stages, calls, strict=True):
        yield Heading(f"{stage.index} {call}")
        for lane_name, lane in _lanes(stage):
            reads = _reads(stage, lane, lane_name)
            text = f"reads {reads}" if reads else "reads nothing"
            yield Paragraph([Cell(f"{lane_name}: ", "dim"), Cell(text)], indent=2)
            for mark, key, source, target in _effects(lane, (before, after)):
                if not mark.text:
                    continue
                yield Paragraph([mark, Cell(" "), key], indent=4)
                if source.text not in ("", NONE):
                    yield Paragraph([source], indent=8)
                if target.text not in ("", "="):
                    yield Paragraph([Cell("→ ", target.style), target], indent=6)


def _stage_records(report: ChainReport, calls: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield a record for each effect of a stage on a key, or one for a stage without effects."""
    for stage, call in zip(report.stages, calls, strict=True):
        identity = {"stage": stage.index, "transform": stage.name, "call": call}
        identity["time_behavior"] = stage.time_behavior
        if stage.forward.is_empty and stage.inverse.is_empty and not stage.carried:
            yield _stage_record({**identity, "lane": None}, None, None)
        for lane_name, lane in zip(_LANES, (stage.forward, stage.inverse), strict=True):
            place = {**identity, "lane": lane_name}
            for key in lane.reads:
                yield _stage_record(place, "read", format_key(key))
            for key in stage.carried if lane_name == "forward" else ():
                yield _stage_record(place, "read_from_step_before", format_key(key))
            for write in lane.writes:
                data = write.to_dict()
                yield _stage_record(place, "write", data["key"], data["source"], data)
            for old, new in lane.renames:
                yield _stage_record(place, "rename", format_key(new), format_key(old))
            for key in lane.drops:
                yield _stage_record(place, "drop", format_key(key))


def _stage_record(
    place: dict[str, object],
    effect: str | None,
    key: str | None,
    source: str | None = None,
    write: dict[str, Any] | None = None,
) -> dict[str, object]:
    data = write or {}
    return {
        **place,
        "effect": effect,
        "key": key,
        "source": source,
        "new": data.get("new"),
        **spec_columns("before", data.get("before"), with_part=True),
        **spec_columns("after", data.get("after"), with_part=True),
    }


_VERSION_TITLES = ("lane", "version", "written by", "from", "read by", "spec")


def lineage_view(lineage: Lineage, calls: Sequence[str]) -> View:
    """Lay out the writer and the readers of each version of each key."""

    def blocks() -> list[Block]:
        keys, count = count_text(len(lineage.keys()), "key"), len(lineage.versions)
        head = Heading(lineage.env, f"{keys}  {count_text(count, 'version')}", level=1)
        versions = first_that_fits(
            lambda: [_version_table(lineage.versions, whole=True)],
            lambda: [_version_table(lineage.versions, whole=False)],
            lambda: _narrow_versions(lineage.versions),
        )
        return [head, *stage_list(calls), versions]

    return View("keys", lineage, blocks, lambda: _version_records(lineage.versions), calls)


def _version_table(versions: Sequence[KeyVersion], *, whole: bool) -> Table:
    text = SpecText([version.spec for version in versions if version.spec], whole=whole)
    lanes = without_repeats(version.lane for version in versions)
    rows = [
        [
            Cell(lane, "dim"),
            Cell(version.name, "name"),
            Cell(str(version.writer)),
            Cell(version.source or "", "dim"),
            Cell(_readers(version), "" if version.readers else "dim"),
            Cell(text(version.spec) if version.spec else ""),
        ]
        for lane, version in zip(lanes, versions, strict=True)
    ]
    return Table.of(_VERSION_TITLES, rows, fixed=True)


def _narrow_versions(versions: Sequence[KeyVersion]) -> Iterator[Block]:
    """Yield each version with its facts below, for narrow terminals."""
    text = SpecText([], whole=False)
    for version in versions:
        spec = f"  {text(version.spec)}" if version.spec else ""
        yield Paragraph([Cell(version.name, "name"), Cell(spec)])
        source = f", from {version.source}" if version.source else ""
        yield Paragraph([Cell("written by ", "dim"), Cell(f"{version.writer}{source}")], indent=2)
        yield Paragraph([Cell("read by ", "dim"), Cell(_readers(version))], indent=2)


def _readers(version: KeyVersion) -> str:
    readers = [_reader(place) for place in version.readers]
    if version.ended is not None and version.ended not in version.readers:
        readers.append(f"dropped by {version.ended}")
    return ", ".join(readers) or "none"


def _reader(place: FlowNode) -> str:
    return f"{place} (next step)" if place.next_step else str(place)


def _version_records(versions: Sequence[KeyVersion]) -> Iterator[dict[str, object]]:
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


def lineage_diagram(lineage: Lineage, calls: Sequence[str]) -> str:
    """Return the lineage as a Mermaid flow chart with an arrow from each writer to its readers."""
    # Start, label, end and the kind of line.
    arrows: dict[tuple[str, str, str, str], None] = {}
    for version in lineage.versions:
        spec = version.spec
        label = f"{version.name} {shape_text(spec.shape)} {spec.dtype}" if spec else version.name
        for place in version.readers:
            line = "-.->" if place.next_step else "-->"
            arrows[_node(version.writer), label, _node(place), line] = None
    nodes = {name for start, _, end, _ in arrows for name in (start, end)}
    lines = ["flowchart TD"]
    if "env" in nodes:
        lines.append(f'    env(["{mermaid_label(lineage.env)}"])')
    lines += [
        f'    stage{index}["{index} {mermaid_label(call)}"]'
        for index, call in enumerate(calls)
        if f"stage{index}" in nodes
    ]
    lines += [f'    {kind}(["{kind}"])' for kind in ("policy", "output") if kind in nodes]
    lines += [
        f'    {start} {line}|"{mermaid_label(label)}"| {end}' for start, label, end, line in arrows
    ]
    return "".join(f"{line}\n" for line in lines)


def _node(place: FlowNode) -> str:
    return f"stage{place.stage}" if place.kind == "stage" else place.kind
