"""Sections of the report on a pipeline, which its HTML page and its Markdown show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tdx.cli.output import UNLIMITED
from tdx.cli.views import (
    NONE,
    SEVERITY_STYLES,
    Block,
    Cell,
    Code,
    Column,
    Heading,
    Paragraph,
    Table,
    View,
    count_text,
)
from tdx.cli.views.chain import chain_view, lineage_view
from tdx.cli.views.plan import WHEN
from tdx.cli.views.profile_table import micros, whole_number
from tdx.cli.views.specs import comparison_table, spec_table
from tdx.inspection.pipeline_report import PipelineReport
from tdx.inspection.rollout_summary import MAX_EXTRA_STEPS, EpisodeSummary
from tdx.profiling.result import ModeProfile, Profile
from tdx.specs.leaf import shape_text

END_TEXTS: Mapping[str, str] = {
    "terminated": "terminated",
    "truncated": "truncated",
    "done": "done",
    "cut": f"still running after {MAX_EXTRA_STEPS:,} further steps",
}
_MAX_EPISODES = 12
"""Number of episodes that the page shows without unfolding the table."""
_WORK_TEXTS = {
    "policy": "random actions",
    "engine": "rollout loop and output",
    "wrapper": "wrappers of the env",
}


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the report.

    Args:
        name: Anchor, unique in the report.
        title: Heading.
        blocks: Texts and tables.
        summary: Title of the folded part.
        folded: Texts and tables that the page shows on demand.
    """

    name: str
    title: str
    blocks: Sequence[Block]
    summary: str = ""
    folded: Sequence[Block] = ()


def report_sections(report: PipelineReport, profile: Profile) -> list[Section]:
    """Return the sections that consist of text and tables, in the order of the report.

    Args:
        report: Data of the report.
        profile: Measured cost of the pipeline.
    """
    stages = _tables(chain_view(report.chain, report.calls))
    versions = count_text(len(report.lineage.versions), "version")
    return [
        Section("findings", "Findings", list(_findings(report))),
        Section("cost", "Plan and cost", list(_plan_and_cost(report, profile))),
        _specs(report),
        Section("stages", "Stages", stages or [_text("The chain has no stages.")]),
        Section(
            "lineage",
            "Lineage",
            [
                _text(
                    "Each write of a key creates its next version; key@0 is the input of the chain."
                )
            ],
            f"All {versions}",
            _tables(lineage_view(report.lineage, report.calls)),
        ),
        _episodes(report),
    ]


def report_blocks(report: PipelineReport, profile: Profile, command: str) -> list[Block]:
    """Return the report as blocks, for Markdown.

    Args:
        report: Data of the report.
        profile: Measured cost of the pipeline.
        command: Command that creates the report.
    """
    blocks: list[Block] = [Heading(report.title, level=1), _text(_subtitle(report))]
    blocks += [Code(command, "sh")]
    for section in report_sections(report, profile):
        blocks += [Heading(section.title), *section.blocks]
        if section.folded:
            blocks += [_text(f"{section.summary}:"), *section.folded]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions)
    return [*blocks, Heading("Pipeline"), Code(report.text.rstrip("\n"), "yaml"), _text(versions)]


def report_facts(report: PipelineReport, profile: Profile) -> list[tuple[str, str]]:
    """Return the figures at the top of the report: name and value."""
    mode = profile.modes[-1]
    batch = report.chain.after.batch_size
    return [
        ("stages", f"{len(report.calls):,}"),
        ("batch", shape_text(batch) if batch else "one env"),
        ("device", report.chain.after.device),
        ("findings", f"{len(report.lints):,}" if report.lints else "none"),
        ("cost of a step", f"{micros(mode.step_us)} µs"),
        ("speed", f"{whole_number(mode.frames_per_second)} frames/s"),
        ("episodes", f"{len(report.rollout.episodes):,}"),
    ]


def _subtitle(report: PipelineReport) -> str:
    facts = [report.name] if report.name != report.env else []
    facts += [count_text(len(report.calls), "stage"), report.chain.after.device]
    return ", ".join(facts)


def _text(text: str) -> Paragraph:
    return Paragraph([Cell(text, "dim")])


def _tables(view: View) -> list[Block]:
    """Return the tables of a view without its headings."""
    return [block for block in view.blocks(UNLIMITED) if isinstance(block, Table)]


def _findings(report: PipelineReport) -> Iterator[Block]:
    for lint in report.lints:
        place = f"{lint.place}: " if lint.place else ""
        yield Paragraph(
            [
                Cell(f"{lint.code} {lint.severity}", SEVERITY_STYLES.get(lint.severity, "")),
                Cell(f"  {place}", "name"),
                Cell(lint.message),
                Cell(f"  ({lint.title}; {lint.hint})", "dim"),
            ]
        )
    if not report.lints:
        yield _text("No findings.")


def _specs(report: PipelineReport) -> Section:
    """Return the specs that the chain changes, and the others folded."""
    changes = report.specs.changes
    kept = [each for each in changes if each.change == "same" and not each.stages]
    changed = [each for each in changes if each not in kept]
    same = [] if not kept else [spec_table([each.after for each in kept if each.after], UNLIMITED)]
    if not report.calls:
        return Section("specs", "Specs", same)
    blocks: list[Block] = [_text("The chain changes no key.")]
    if changed:
        blocks = [comparison_table(changed, UNLIMITED, report.stages)]
    return Section("specs", "Specs", blocks, count_text(len(kept), "unchanged key"), same)


def _plan_and_cost(report: PipelineReport, profile: Profile) -> Iterator[Block]:
    yield _text(_how_it_runs(report))
    mode = profile.modes[-1]
    yield cost_of_stages(report, mode)
    settings = profile.settings
    measured = (
        f"Mean of {settings.repeats} × {count_text(settings.steps, 'step')} with random actions "
        f"on {profile.machine.processor or profile.machine.system}"
    )
    yield _text(f"{measured}; {mode.noise.message}.")
    if mode.error is not None:
        yield Paragraph([Cell(f"The measurement ended early: {mode.error}", "bad")])


def _how_it_runs(report: PipelineReport) -> str:
    if report.plan is None:
        return "The library of the env makes the steps; every stage runs in each of them."
    if report.plan.plan.why_eager:
        return f"A rollout runs eagerly, stage by stage: {report.plan.plan.why_eager}."
    later = len(report.plan.deferred)
    total = len(report.plan.plan.stages)
    return (
        "A rollout is planned. Deferred stages, which run once per chunk instead of in each step: "
        f"{later} of {total}."
    )


def cost_of_stages(report: PipelineReport, mode: ModeProfile) -> Table:
    """Return when each stage runs, its cost in the mean step, and why it runs then.

    Args:
        report: Data of the report.
        mode: Measured cost.
    """
    plans = {} if report.plan is None else {each.index: each for each in report.plan.plan.stages}
    is_eager = report.plan is not None and report.plan.plan.executor == "eager"
    stages, others, merged = _group_costs(mode, "stage" if plans else "wrapper")
    rows = [[Cell(report.env, "name"), Cell("in each step"), *_cost(others.pop("env", None), mode)]]
    for index, name in enumerate(report.stages):
        plan = plans.get(index)
        when = Cell("in each step") if plan is None or is_eager else WHEN[plan.when]
        cost = _cost(stages.get(index), mode)
        if index in merged:
            cost = [Cell(f"in stage {merged[index]}", "dim"), Cell("")]
        why = Cell("" if plan is None else plan.why, "dim")
        rows.append([Cell(f"{index} {name}", "name"), when, *cost, why])
    for work, cost_us in others.items():
        rows.append([Cell(_WORK_TEXTS.get(work, work), "dim"), Cell(""), *_cost(cost_us, mode)])
    rows.append([Cell("whole step", "name"), Cell(""), *_cost(mode.step_us, mode)])
    titles = ("part", "runs", "µs/step", "share", *(["why"] if plans else []))
    filled = [[*row, Cell("")][: len(titles)] for row in rows]
    return Table([Column(title) for title in titles], filled)


def _group_costs(
    mode: ModeProfile, stage_work: str
) -> tuple[dict[int, float], dict[str, float], dict[int, int]]:
    """Return the cost by stage and by other work, and the stages that are measured in another."""
    stages: dict[int, float] = {}
    others: dict[str, float] = {}
    merged: dict[int, int] = {}
    for row in mode.rows:
        part, cost = row.part, mode.step_share_us(row)
        if part.work == stage_work:
            stages[part.index] = stages.get(part.index, 0.0) + cost
            merged |= dict.fromkeys(range(part.index + 1, part.upto + 1), part.index)
        else:
            others[part.work] = others.get(part.work, 0.0) + cost
    return stages, others, merged


def _cost(cost_us: float | None, mode: ModeProfile) -> list[Cell]:
    if cost_us is None:
        return [Cell(NONE, "dim"), Cell("")]
    share = cost_us / mode.step_us if mode.step_us else 0.0
    return [Cell(micros(cost_us)), Cell(f"{share:.1%}")]


def _episodes(report: PipelineReport) -> Section:
    rollout = report.rollout
    totals = [each.total for each in rollout.episodes if each.total is not None]
    lengths = [float(each.steps) for each in rollout.episodes]
    parts = [count_text(len(lengths), "episode")]
    parts += [f"mean return {_spread(totals)}"] if totals else []
    parts.append(f"mean length {_spread(lengths)} steps")
    blocks: list[Block] = [
        _text(
            f"At least {count_text(rollout.steps, 'step')} of each env with random actions, "
            f"seed {rollout.seed}; each env then finishes its episode."
        ),
        Paragraph([Cell(", ".join(parts))]),
    ]
    table = _episode_table(rollout.episodes)
    if len(lengths) <= _MAX_EPISODES:
        return Section("episodes", "Rewards and episodes", [*blocks, table])
    summary = f"All {len(lengths):,} episodes"
    return Section("episodes", "Rewards and episodes", blocks, summary, [table])


def _spread(values: Sequence[float]) -> str:
    mean = f"{fmean(values):,.5g}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):,.5g} … {max(values):,.5g})"


def _episode_table(episodes: Sequence[EpisodeSummary]) -> Table:
    titles = ("episode", "env", "first step", "steps", "return", "end")
    rows = [
        [
            Cell(f"{place}"),
            Cell(f"{each.env}"),
            Cell(f"{each.start:,}"),
            Cell(f"{each.steps:,}"),
            Cell(NONE if each.total is None else f"{each.total:.6g}"),
            Cell(END_TEXTS.get(each.ended, each.ended), "changed" if each.ended == "cut" else ""),
        ]
        for place, each in enumerate(episodes)
    ]
    return Table([Column(title) for title in titles], rows)
