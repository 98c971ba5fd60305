"""Plan of a rollout: when each stage runs, and the writers and readers of each version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tdx.cli.output import mermaid_label
from tdx.cli.views import (
    NONE,
    Block,
    Cell,
    Heading,
    Paragraph,
    Table,
    View,
    fact,
    first_that_fits,
    stage_list,
)
from tdx.core.plan import StagePlan, Version
from tdx.foundation.keys import format_key
from tdx.inspection.plan_report import PlanReport

_STAGE_TITLES = ("stage", "runs", "time", "reads", "writes", "drops", "inverse", "why")
_VERSION_TITLES = ("version", "written by", "read by")
_ROWS = {"raw": "raw rows, without TensorDicts", "tensordict": "one TensorDict per step"}
WHEN: dict[str, Cell] = {
    "immediate": Cell("in each step", "changed"),
    "deferred": Cell("deferred, per chunk", "good"),
    "fused": Cell("fused, per image", "added"),
}
_UNUSED = "none: unused"


def plan_view(report: PlanReport, calls: Sequence[str]) -> View:
    """Lay out how a rollout runs."""

    def blocks() -> list[Block]:
        head = Heading(report.env, report.plan.executor, level=1)
        table = [_stage_table(report)] if calls else []
        stages = first_that_fits(
            lambda: [*stage_list(calls), *table],
            lambda: _narrow_stages(report.plan.stages, calls),
        )
        versions = first_that_fits(
            lambda: [_version_table(report)], lambda: _narrow_versions(report)
        )
        return [head, *_facts(report), stages, Heading("versions"), versions]

    view = View("plan", report, blocks, lambda: _records(report, view.data()), calls)
    return view


def _facts(report: PlanReport) -> Iterator[Paragraph]:
    plan = report.plan
    if plan.why_eager:
        yield fact("eager because", plan.why_eager, "changed")
    if plan.policy_reads is None:
        yield fact("policy reads", "nothing (random or recorded actions)")
    else:
        yield fact("policy reads", ", ".join(plan.policy_reads) or "nothing")
    yield fact("actions", "one chunk at a time" if report.acts_by_chunk else "step by step")
    yield fact("env output", _ROWS[plan.rows])
    if plan.processes is not None:
        count = f"{plan.processes} process{'' if plan.processes == 1 else 'es'}"
        if plan.why_stepwise:
            yield fact("workers", f"{count}, step by step because {plan.why_stepwise}", "changed")
        else:
            yield fact("workers", f"{count}, one chunk at a time")


def _stage_table(report: PlanReport) -> Table:
    rows = [
        [
            Cell(report.place(stage.index), "name"),
            WHEN[stage.when],
            Cell(stage.behavior),
            _list_names(stage.reads),
            _list_names(stage.writes),
            _list_names(stage.drops),
            _list_names(stage.inverse),
            Cell(stage.why, "dim"),
        ]
        for stage in report.plan.stages
    ]
    return Table.of(_STAGE_TITLES, rows, fixed=True)


def _list_names(names: Sequence[str]) -> Cell:
    return Cell(", ".join(names)) if names else Cell(NONE, "dim")


def _narrow_stages(stages: Sequence[StagePlan], calls: Sequence[str]) -> Iterator[Block]:
    """Yield each stage with its facts below, for narrow terminals."""
    for stage, call in zip(stages, calls, strict=True):
        yield Heading(f"{stage.index} {call}", stage.behavior)
        yield Paragraph([WHEN[stage.when], Cell(f": {stage.why}")], indent=2)
        lists = {
            "reads": stage.reads,
            "writes": stage.writes,
            "drops": stage.drops,
            "inverse": stage.inverse,
        }
        for title, names in lists.items():
            if names:
                yield Paragraph([Cell(f"{title} ", "dim"), _list_names(names)], indent=2)


def _version_table(report: PlanReport) -> Table:
    rows = [
        [
            Cell(version.name, "name"),
            Cell(report.place(version.writer)),
            _readers(report, version),
        ]
        for version in report.plan.versions
    ]
    return Table.of(_VERSION_TITLES, rows, fixed=True)


def _readers(report: PlanReport, version: Version) -> Cell:
    readers = ", ".join(report.readers(version))
    return Cell(readers) if readers else Cell(_UNUSED, "bad")


def _narrow_versions(report: PlanReport) -> Iterator[Block]:
    """Yield each version with its facts below, for narrow terminals."""
    for version in report.plan.versions:
        yield Paragraph([Cell(version.name, "name")], indent=2)
        writer = Cell(report.place(version.writer))
        yield Paragraph([Cell("written by ", "dim"), writer], indent=4)
        yield Paragraph([Cell("read by ", "dim"), _readers(report, version)], indent=4)


def _records(report: PlanReport, data: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """Yield a record for each stage, then one for each version."""
    for stage in data["stages"]:
        yield {"record": "stage", "executor": data["executor"], **stage}
    for version, entries in zip(report.plan.versions, data["versions"], strict=True):
        places = {"writer": report.place(version.writer), "readers": report.readers(version)}
        yield {"record": "version", "executor": data["executor"], **entries, **places}


_NODE_STYLES = {
    "immediate": "fill:#fde68a,stroke:#b45309,color:#111827",
    "deferred": "fill:#dbeafe,stroke:#1d4ed8,color:#111827",
    "fused": "fill:#dcfce7,stroke:#15803d,color:#111827",
    "unused": "fill:#fee2e2,stroke:#b91c1c,color:#111827",
}


def plan_diagram(report: PlanReport, calls: Sequence[str]) -> str:
    """Return the plan as a Mermaid flow chart: solid arrows are versions, dotted ones actions."""
    is_random = report.plan.policy_reads is None
    source = "random or recorded actions" if is_random else "policy"
    # Arrows with the same ends are one.
    merged: dict[tuple[str, str], list[str]] = {}
    for start, end, label in _forward(report):
        merged.setdefault((start, end), []).append(label)
    members = {
        time: [_node(stage.index) for stage in stages] for time, stages in report.by_time.items()
    }
    if has_unused := any(end == "unused" for _, end in merged):
        members["unused"] = ["unused"]
    lines = ["flowchart TD", f'    env(["{mermaid_label(report.env)}"])']
    lines += [
        f'    stage{stage.index}["{stage.index} {mermaid_label(call)}<br>{WHEN[stage.when].text}"]'
        for stage, call in zip(report.plan.stages, calls, strict=True)
    ]
    lines += [f'    policy(["{source}"])', '    output(["output"])']
    if has_unused:
        lines.append('    unused(["unused"])')
    lines += [
        _arrow(start, end, ", ".join(labels), "-->") for (start, end), labels in merged.items()
    ]
    lines += [_arrow(start, end, label, "-.->") for start, end, label in _inverse(report)]
    for name, nodes in members.items():
        lines.append(f"    classDef {name} {_NODE_STYLES[name]}")
        lines.append(f"    class {','.join(nodes)} {name}")
    return "".join(f"{line}\n" for line in lines)


def _arrow(start: str, end: str, label: str, line: str) -> str:
    return f'    {start} {line}|"{mermaid_label(label)}"| {end}'


def _forward(report: PlanReport) -> Iterator[tuple[str, str, str]]:
    """Yield start, end and version of each forward arrow."""
    for version in report.plan.versions:
        start = _node(version.writer)
        for reader in version.readers:
            yield start, _node(reader), version.name
        if version.policy:
            yield start, "policy", version.name
        if version.final:
            yield start, "output", version.name
        if version.dead:
            yield start, "unused", version.name


def _inverse(report: PlanReport) -> Iterator[tuple[str, str, str]]:
    """Yield start, end and keys of each arrow from the actions to the env."""
    start, label = "policy", ", ".join(map(format_key, report.actions))
    for stage in reversed(report.plan.stages):
        if stage.inverse:
            yield start, _node(stage.index), label
            start, label = _node(stage.index), ", ".join(stage.inverse)
    yield start, "env", label


def _node(index: int) -> str:
    return "env" if index < 0 else f"stage{index}"
