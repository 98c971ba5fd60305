"""A plan as a Mermaid diagram."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tdx.cli.output.mermaid import mermaid_label
from tdx.inspection.plan_report import PlanReport
from tdx.keys import format_key

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
