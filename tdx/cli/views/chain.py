"""The layout of a chain: what each stage reads, writes, drops and renames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tdx.cli.output.markdown import mermaid_label
from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Style, Table, View
from tdx.cli.views.specs import NOTHING, spec_columns
from tdx.inspection.chain_report import ChainReport
from tdx.inspection.leaf import LeafSpec
from tdx.inspection.lineage import KeyVersion, Lineage, Place
from tdx.inspection.spec_text import SpecText, shape_text
from tdx.inspection.stage_flow import KeyWrite, Lane, StageFlow
from tdx.keys import NestedKey, format_key

_LANES = ("forward", "inverse")
_STAGE_TITLES = ("stage", "lane", "reads", "", "writes", "before", "after")


def chain_view(report: ChainReport, calls: Sequence[str]) -> View:
    """Lay out what each stage of a chain does.

    Args:
        report: what to show.
        calls: each stage as the user would write it.
    """
    data = report.to_dict()
    for stage, call in zip(data["stages"], calls, strict=True):
        stage["call"] = call

    def blocks(width: int) -> list[Block]:
        if not report.stages:
            return [_head(report), Paragraph([Cell("The chain has no stages.", "dim")])]
        chain = [
            Paragraph([Cell(f"{index} ", "dim"), Cell(call)], indent=2)
            for index, call in enumerate(calls)
        ]
        for whole in (True, False):
            table = _stage_table(report, _texts(report, whole=whole))
            if table_width(table) <= width:
                return [_head(report), *chain, table]
        return [_head(report), *_narrow_stages(report, calls)]

    return View("chain", data, list(_stage_records(report, calls)), blocks)


def _head(report: ChainReport) -> Heading:
    before, after = report.before, report.after
    batch = _arrow(shape_text(before.batch_size), shape_text(after.batch_size))
    facts = f"batch {batch}  device {_arrow(before.device, after.device)}"
    return Heading(report.env, facts, level=1)


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _texts(report: ChainReport, *, whole: bool) -> tuple[SpecText, SpecText]:
    writes = [
        write
        for stage in report.stages
        for lane in (stage.forward, stage.inverse)
        for write in lane.writes
    ]
    before = [write.before for write in writes if write.before]
    after = [write.after for write in writes if write.after and _differs(write)]
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
    return Table([Column(title, fixed=True) for title in _STAGE_TITLES], rows)


def _lanes(stage: StageFlow) -> list[tuple[str, Lane]]:
    """The directions in which something happens; the way out where nothing does."""
    lanes = list(zip(_LANES, (stage.forward, stage.inverse), strict=True))
    busy = [(name, lane) for name, lane in lanes if not lane.idle]
    return busy or lanes[:1]


def _reads(stage: StageFlow, lane: Lane, lane_name: str) -> str:
    """The keys read; what a step takes from the step before it is marked."""
    carried = [key for key in stage.carried if lane_name == "forward"]
    keys = [key for key in lane.reads if key not in carried]
    return _listed(keys) + "".join(
        f"{', ' if keys or index else ''}{format_key(key)} (step before)"
        for index, key in enumerate(carried)
    )


def _listed(keys: Sequence[NestedKey]) -> str:
    return ", ".join(map(format_key, keys))


def _effects(lane: Lane, texts: tuple[SpecText, SpecText]) -> Iterator[list[Cell]]:
    """A row for each key that is written, renamed or dropped; one empty row where none is."""
    before, after = texts
    for write in lane.writes:
        style: Style = "added" if write.new else "changed" if _differs(write) else ""
        mark = "+" if write.new else "~" if _differs(write) else "="
        source = _side(write.before, before)
        if write.source is not None and write.source != write.key and write.before:
            source = Cell(f"{format_key(write.source)}  {source.text}")
        target = _side(write.after, after, style) if _differs(write) else Cell("=", "dim")
        yield [Cell(mark, style), Cell(format_key(write.key), style), source, target]
    for old, new in lane.renames:
        text = f"{format_key(old)} → {format_key(new)}"
        yield [Cell("→", "changed"), Cell(text, "changed"), Cell(""), Cell("")]
    for key in lane.drops:
        yield [Cell("-", "gone"), Cell(format_key(key), "gone"), Cell(""), Cell("")]
    if not (lane.writes or lane.renames or lane.drops):
        yield [Cell(""), Cell(NOTHING, "dim"), Cell(""), Cell("")]


def _side(leaf: LeafSpec | None, text: SpecText, style: Style = "") -> Cell:
    return Cell(NOTHING, "dim") if leaf is None else Cell(text(leaf), style)


def _differs(write: KeyWrite) -> bool:
    before, after = write.before, write.after
    if before is None or after is None:
        return True
    fields = ("kind", "shape", "dtype", "device", "domain")
    return any(getattr(before, name) != getattr(after, name) for name in fields)


def _narrow_stages(report: ChainReport, calls: Sequence[str]) -> Iterator[Block]:
    """Stage after stage, what each does under its name."""
    before, after = _texts(report, whole=False)
    for stage, call in zip(report.stages, calls, strict=True):
        yield Heading(f"{stage.index} {call}")
        for lane_name, lane in _lanes(stage):
            reads = _reads(stage, lane, lane_name)
            text = f"reads {reads}" if reads else "reads nothing"
            yield Paragraph([Cell(f"{lane_name}: ", "dim"), Cell(text)], indent=2)
            for mark, key, source, target in _effects(lane, (before, after)):
                if mark.text:
                    yield Paragraph([mark, Cell(" "), key], indent=4)
                    yield from _specs(source, target)


def _specs(source: Cell, target: Cell) -> Iterator[Paragraph]:
    if source.text not in ("", NOTHING):
        yield Paragraph([source], indent=8)
    if target.text not in ("", "="):
        yield Paragraph([Cell("→ ", target.style), target], indent=6)


def _stage_records(report: ChainReport, calls: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A row for each key that a stage reads, writes, renames or drops; one for an idle stage."""
    for stage, call in zip(report.stages, calls, strict=True):
        named = {"stage": stage.index, "transform": stage.name, "call": call}
        named["time_behaviour"] = stage.time_behaviour
        if stage.forward.idle and stage.inverse.idle and not stage.carried:
            yield _stage_record({**named, "lane": None}, None, None)
        for lane_name, lane in zip(_LANES, (stage.forward, stage.inverse), strict=True):
            place = {**named, "lane": lane_name}
            for key in lane.reads:
                yield _stage_record(place, "read", format_key(key))
            for key in stage.carried if lane_name == "forward" else ():
                yield _stage_record(place, "read_from_step_before", format_key(key))
            for write in lane.writes:
                known = write.to_dict()
                yield _stage_record(place, "write", known["key"], known["source"], known)
            for old, new in lane.renames:
                yield _stage_record(place, "rename", format_key(new), format_key(old))
            for key in lane.drops:
                yield _stage_record(place, "drop", format_key(key))


def _stage_record(
    place: dict[str, Any],
    effect: str | None,
    key: str | None,
    source: str | None = None,
    written: dict[str, Any] | None = None,
) -> dict[str, Any]:
    known = written or {}
    return {
        **place,
        "effect": effect,
        "key": key,
        "source": source,
        "new": known.get("new"),
        **spec_columns("before", known.get("before"), with_part=True),
        **spec_columns("after", known.get("after"), with_part=True),
    }


_VERSION_TITLES = ("lane", "version", "written by", "from", "read by", "spec")


def lineage_view(lineage: Lineage, calls: Sequence[str]) -> View:
    """Lay out who writes and who reads each version of each key.

    Args:
        lineage: what to show.
        calls: each stage as the user would write it.
    """
    data = lineage.to_dict()
    data["calls"] = list(calls)

    def blocks(width: int) -> list[Block]:
        head = Heading(lineage.env, _version_count(lineage), level=1)
        chain = [
            Paragraph([Cell(f"{index} ", "dim"), Cell(call)], indent=2)
            for index, call in enumerate(calls)
        ]
        for whole in (True, False):
            table = _version_table(lineage.versions, whole=whole)
            if table_width(table) <= width:
                return [head, *chain, table]
        return [head, *chain, *_narrow_versions(lineage.versions)]

    return View("lineage", data, list(_version_records(lineage.versions)), blocks)


def _version_count(lineage: Lineage) -> str:
    keys, versions = len(lineage.keys()), len(lineage.versions)
    plural = "" if versions == 1 else "s"
    return f"{keys} key{'' if keys == 1 else 's'}  {versions} version{plural}"


def _version_table(versions: Sequence[KeyVersion], *, whole: bool) -> Table:
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
    return Table([Column(title, fixed=True) for title in _VERSION_TITLES], rows)


def _narrow_versions(versions: Sequence[KeyVersion]) -> Iterator[Block]:
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


def _reader(place: Place) -> str:
    return f"{place} (next step)" if place.next_step else str(place)


def _version_records(versions: Sequence[KeyVersion]) -> Iterator[dict[str, Any]]:
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


def _node(place: Place) -> str:
    return f"stage{place.stage}" if place.kind == "stage" else place.kind
