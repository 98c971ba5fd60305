"""The layout of a plan: what runs when, and who writes and reads which version of a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tdx.cli.output.markdown import mermaid_label
from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Style, Table, View
from tdx.cli.views.specs import NOTHING
from tdx.core.plan import PlanStage, Version
from tdx.inspection.plan_report import PlanReport
from tdx.keys import format_key

_STAGE_TITLES = ("stage", "runs", "time", "reads", "writes", "drops", "inverse", "why")
_VERSION_TITLES = ("version", "written by", "read by")
_STEPPED = {"raw": "as raw rows, without TensorDicts", "tensordict": "with a TensorDict a step"}
_WHEN: dict[str, Style] = {"now": "changed", "later": "good", "fused": "added"}
_IN_VAIN = "nobody: written in vain"


def plan_view(report: PlanReport, calls: Sequence[str]) -> View:
    """Lay out how a rollout would run.

    Args:
        report: what to show.
        calls: each stage as the user would write it.
    """
    data = report.to_dict()
    for stage, call in zip(data["stages"], calls, strict=True):
        stage["call"] = call

    def blocks(width: int) -> list[Block]:
        stages = _stage_table(report)
        versions = _version_table(report)
        chain = [
            Paragraph([Cell(f"{index} ", "dim"), Cell(call)], indent=2)
            for index, call in enumerate(calls)
        ]
        wide = table_width(stages) <= width
        narrow = [*_narrow_stages(report.plan.stages, calls)]
        shown = [*chain, *([stages] if calls else [])] if wide else narrow
        fits = table_width(versions) <= width
        traced = [versions] if fits else [*_narrow_versions(report)]
        head = Heading(report.env, report.plan.executor, level=1)
        return [head, *_facts(report), *shown, Heading("versions"), *traced]

    return View("plan", data, list(_records(data)), blocks)


def _facts(report: PlanReport) -> Iterator[Paragraph]:
    plan = report.plan
    if plan.why_eager:
        yield _fact("eager because", plan.why_eager, "changed")
    if plan.policy_reads is None:
        yield _fact("the policy reads", "nothing (actions are random, or given)")
    else:
        yield _fact("the policy reads", ", ".join(plan.policy_reads) or "nothing")
    yield _fact("actions come", "a chunk at once" if report.acts_by_chunk else "step by step")
    yield _fact("the env is stepped", _STEPPED[plan.rows])


def _fact(title: str, text: str, style: Style = "") -> Paragraph:
    return Paragraph([Cell(f"{title}: ", "dim"), Cell(text, style)], indent=2)


def _stage_table(report: PlanReport) -> Table:
    rows = [
        [
            Cell(report.place(stage.index), "name"),
            _when(stage),
            Cell(stage.behaviour),
            _listed(stage.reads),
            _listed(stage.writes),
            _listed(stage.drops),
            _listed(stage.inverse),
            Cell(stage.why, "dim"),
        ]
        for stage in report.plan.stages
    ]
    return Table([Column(title, fixed=True) for title in _STAGE_TITLES], rows)


def _when(stage: PlanStage) -> Cell:
    return Cell(stage.when, _WHEN.get(stage.when, ""))


def _listed(names: Sequence[str]) -> Cell:
    return Cell(", ".join(names)) if names else Cell(NOTHING, "dim")


def _narrow_stages(stages: Sequence[PlanStage], calls: Sequence[str]) -> Iterator[Block]:
    """Stage after stage, its facts under its name."""
    for stage, call in zip(stages, calls, strict=True):
        yield Heading(f"{stage.index} {call}", stage.behaviour)
        yield Paragraph([_when(stage), Cell(f": {stage.why}")], indent=2)
        lists = {
            "reads": stage.reads,
            "writes": stage.writes,
            "drops": stage.drops,
            "inverse": stage.inverse,
        }
        for title, names in lists.items():
            if names:
                yield Paragraph([Cell(f"{title} ", "dim"), _listed(names)], indent=2)


def _version_table(report: PlanReport) -> Table:
    rows = [
        [
            Cell(version.name, "name"),
            Cell(report.place(version.writer)),
            _readers(report, version),
        ]
        for version in report.plan.versions
    ]
    return Table([Column(title, fixed=True) for title in _VERSION_TITLES], rows)


def _readers(report: PlanReport, version: Version) -> Cell:
    readers = ", ".join(report.readers(version))
    return Cell(readers) if readers else Cell(_IN_VAIN, "bad")


def _narrow_versions(report: PlanReport) -> Iterator[Block]:
    """Version after version, its facts under its name."""
    for version in report.plan.versions:
        yield Paragraph([Cell(version.name, "name")], indent=2)
        writer = Cell(report.place(version.writer))
        yield Paragraph([Cell("written by ", "dim"), writer], indent=4)
        yield Paragraph([Cell("read by ", "dim"), _readers(report, version)], indent=4)


def _records(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each stage, then one for each version."""
    for stage in data["stages"]:
        yield {"record": "stage", "executor": data["executor"], **stage}
    for version in data["versions"]:
        yield {"record": "version", "executor": data["executor"], **version}


_CLASSES = {
    "now": "fill:#fde68a,stroke:#b45309,color:#111827",
    "later": "fill:#dbeafe,stroke:#1d4ed8,color:#111827",
    "fused": "fill:#dcfce7,stroke:#15803d,color:#111827",
    "vain": "fill:#fee2e2,stroke:#b91c1c,color:#111827",
}


def plan_diagram(report: PlanReport, calls: Sequence[str]) -> str:
    """The plan as a Mermaid flow chart: arrows are versions, dotted ones the way in.

    Args:
        report: what to show.
        calls: each stage as the user would write it.
    """
    reads_nothing = report.plan.policy_reads is None
    given = "random or given actions" if reads_nothing else "policy"
    flows = _joined(_forward(report))
    lines = ["flowchart TD", f'    env(["{mermaid_label(report.env)}"])']
    lines += [
        f'    stage{stage.index}["{stage.index} {mermaid_label(call)}<br>{stage.when}"]'
        for stage, call in zip(report.plan.stages, calls, strict=True)
    ]
    lines += [f'    policy(["{given}"])', '    output(["output"])']
    if any(end == "vain" for _, end, _ in flows):
        lines.append('    vain(["nobody"])')
    lines += [_arrow(start, end, label, "-->") for start, end, label in flows]
    lines += [_arrow(start, end, label, "-.->") for start, end, label in _inverse(report)]
    lines += _coloured(report, vain=any(end == "vain" for _, end, _ in flows))
    return "".join(f"{line}\n" for line in lines)


def _arrow(start: str, end: str, label: str, line: str) -> str:
    return f'    {start} {line}|"{mermaid_label(label)}"| {end}'


def _forward(report: PlanReport) -> Iterator[tuple[str, str, str]]:
    """From, to and version of every arrow on the way out."""
    for version in report.plan.versions:
        start = _node(version.writer)
        for reader in version.readers:
            yield start, _node(reader), version.name
        if version.policy:
            yield start, "policy", version.name
        if version.final:
            yield start, "output", version.name
        if version.dead:
            yield start, "vain", version.name


def _joined(arrows: Iterator[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """One arrow in the place of several with the same ends."""
    found: dict[tuple[str, str], list[str]] = {}
    for start, end, label in arrows:
        found.setdefault((start, end), []).append(label)
    return [(start, end, ", ".join(labels)) for (start, end), labels in found.items()]


def _inverse(report: PlanReport) -> Iterator[tuple[str, str, str]]:
    """From, to and keys of every arrow from the actions into the env."""
    start, label = "policy", ", ".join(map(format_key, report.actions))
    for stage in reversed(report.plan.stages):
        if stage.inverse:
            yield start, _node(stage.index), label
            start, label = _node(stage.index), ", ".join(stage.inverse)
    yield start, "env", label


def _node(index: int) -> str:
    return "env" if index < 0 else f"stage{index}"


def _coloured(report: PlanReport, *, vain: bool) -> Iterator[str]:
    members = {
        time: [_node(stage.index) for stage in stages] for time, stages in report.by_time.items()
    }
    if vain:
        members["vain"] = ["vain"]
    for name, nodes in members.items():
        yield f"    classDef {name} {_CLASSES[name]}"
        yield f"    class {','.join(nodes)} {name}"
