"""The layout of a plan: what runs when, and who writes and reads which version of a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tdx.cli.output.terminal import table_width
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Style, Table, View
from tdx.cli.views.comparison import NOTHING
from tdx.core.plan import PlanStage, Version
from tdx.inspection.plan_report import PlanReport

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
