"""The report on a pipeline, as an HTML page and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from statistics import fmean

from tdx.cli.charts import episode_plot, reward_plot
from tdx.cli.views import (
    NONE,
    SEVERITY_STYLES,
    UNLIMITED,
    Block,
    Cell,
    Code,
    Fold,
    Gallery,
    Heading,
    Paragraph,
    Picture,
    Table,
    View,
    dim,
    micros,
    resolve,
)
from tdx.cli.views.chain import chain_view, lineage_view
from tdx.cli.views.datasets import dataset_view
from tdx.cli.views.graph import chain_svg
from tdx.cli.views.plan import WHEN
from tdx.cli.views.profile_table import whole_number
from tdx.cli.views.specs import comparison_table, spec_table
from tdx.foundation.text import count_text
from tdx.inspection.check_report import CheckReport, Finding
from tdx.inspection.dataset_check import DatasetFacts
from tdx.inspection.pipeline_report import MAX_EXTRA_STEPS, EpisodeSummary, PipelineReport
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


def report_blocks(report: PipelineReport, profile: Profile, command: str) -> Iterator[Block]:
    """Yield the report: the chain, findings, plan and cost, specs, lineage and a rollout."""
    mode, batch = profile.modes[-1], report.chain.after.batch_size
    facts = [report.name] if report.name != report.env else []
    facts += [
        count_text(len(report.calls), "stage"),
        f"batch {shape_text(batch)}" if batch else "one env",
        report.chain.after.device,
        count_text(len(report.lints), "finding") if report.lints else "no findings",
        f"{micros(mode.step_us)} µs per step",
        f"{whole_number(mode.frames_per_second)} frames/s",
    ]
    yield Heading(report.title, level=1)
    yield dim(", ".join(facts))
    yield Code(command, "sh")
    chain = Picture(lambda: chain_svg(report.chain, report.calls, as_file=False))
    yield Gallery([chain], text="Outputs of the env flow down, actions flow up.")
    yield Heading("Findings")
    yield from _findings(report.lints)
    yield Heading("Plan and cost")
    yield dim(_how_it_runs(report))
    yield _cost_of_stages(report, mode)
    settings = profile.settings
    measured = (
        f"Mean of {settings.repeats} × {count_text(settings.steps, 'step')} with random actions "
        f"on {profile.machine.processor or profile.machine.system}"
    )
    yield dim(f"{measured}; {mode.noise.message}.")
    if mode.error is not None:
        yield Paragraph([Cell(f"The measurement ended early: {mode.error}", "bad")])
    yield Heading("Specs")
    yield from _specs(report)
    yield Heading("Stages")
    yield from _tables(chain_view(report.chain, report.calls)) or [dim("The chain has no stages.")]
    yield Heading("Lineage")
    yield dim("Each write of a key creates its next version; key@0 is the input of the chain.")
    versions = count_text(len(report.lineage.versions), "version")
    yield Fold(f"All {versions}", _tables(lineage_view(report.lineage, report.calls)))
    yield from _frames(report)
    if report.rollout.episodes:
        yield Heading("Rewards and episodes")
        yield from _episodes(report)
    yield Heading("Pipeline")
    yield Code(report.text.rstrip("\n"), "yaml")
    yield dim(", ".join(f"{name} {version}" for name, version in report.versions))


def _tables(view: View) -> list[Block]:
    """Return the tables of a view without its headings."""
    return [block for block in resolve(view.blocks(), UNLIMITED) if isinstance(block, Table)]


def dataset_report_blocks(facts: DatasetFacts, check: CheckReport, command: str) -> list[Block]:
    """Return the report on a dataset: findings, and the statistics of each feature."""
    title, *statistics = dataset_view(facts, whole=False).blocks()
    return [
        title,
        Code(command, "sh"),
        Heading("Findings"),
        *_findings(check.findings),
        dim(f"Checked: {check.parts}."),
        *(dim(f"Not checked: {reason}.") for reason in check.hidden),
        Heading("Statistics"),
        *statistics,
    ]


def _findings(findings: Sequence[Finding]) -> Iterator[Block]:
    for lint in findings:
        stage = lint.where.stage
        place = "" if stage is None else f"{stage} {lint.where.transform or ''}".strip() + ": "
        yield Paragraph(
            [
                Cell(f"{lint.code} {lint.severity}", SEVERITY_STYLES.get(lint.severity, "")),
                Cell(f"  {place}", "name"),
                Cell(lint.message),
                Cell(f"  ({lint.title or lint.message}; {lint.hint or ''})", "dim"),
            ]
        )
    if not findings:
        yield dim("No findings.")


def _specs(report: PipelineReport) -> Iterator[Block]:
    """Yield the specs that the chain changes, and the others folded."""
    changes = report.specs.changes
    kept = [change for change in changes if change.change == "same" and not change.stages]
    changed = [change for change in changes if change not in kept]
    same = [spec_table([change.after for change in kept if change.after])]
    if changed:
        yield comparison_table(changed, report.stages)
    elif report.calls:
        yield dim("The chain changes no key.")
    if kept and not report.calls:
        yield from same
    elif kept:
        yield Fold(count_text(len(kept), "unchanged key"), same)


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


def _cost_of_stages(report: PipelineReport, mode: ModeProfile) -> Table:
    """Return when each stage runs, its cost in the mean step, and why it runs then."""
    plans = {} if report.plan is None else {stage.index: stage for stage in report.plan.plan.stages}
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
    return Table.of(titles, filled)


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


def _frames(report: PipelineReport) -> Iterator[Gallery]:
    """Yield the frames before and after each stage that writes an image."""
    pictures = []
    for image in report.rollout.images:
        stage = f"stage {image.stage} {report.calls[image.stage]}"
        if image.before is not None:
            pictures.append(Picture(image.before, f"before {stage}: {image.before_text}"))
        pictures.append(Picture(image.after, f"after {stage}: {image.after_text}"))
    heading = Heading("Frames", f"step {report.rollout.image_step} of the rollout")
    yield Gallery(pictures, heading, "Frames stacked along the channels are shown side by side.")


def _episodes(report: PipelineReport) -> Iterator[Block]:
    rollout = report.rollout
    totals = [episode.total for episode in rollout.episodes if episode.total is not None]
    lengths = [float(episode.steps) for episode in rollout.episodes]
    parts = [count_text(len(lengths), "episode")]
    parts += [f"mean return {_spread(totals)}"] if totals else []
    parts.append(f"mean length {_spread(lengths)} steps")
    yield dim(
        f"At least {count_text(rollout.steps, 'step')} of each env with random actions, "
        f"seed {rollout.seed}; each env then finishes its episode."
    )
    yield Paragraph([Cell(", ".join(parts))])
    pictures = [
        Picture(partial(reward_plot, list(plots)), f"{key} at each step")
        for key, plots in groupby(rollout.plots, key=lambda plot: plot.key)
    ]
    if len(lengths) > 1:
        caption = "returns; blue: terminated, orange: truncated, gray: still running"
        pictures.append(Picture(partial(episode_plot, rollout.episodes), caption))
    yield Gallery(pictures)
    table = _episode_table(rollout.episodes)
    if len(lengths) <= _MAX_EPISODES:
        yield table
    else:
        yield Fold(f"All {len(lengths):,} episodes", [table])


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
            Cell(f"{episode.env}"),
            Cell(f"{episode.start:,}"),
            Cell(f"{episode.steps:,}"),
            Cell(NONE if episode.total is None else f"{episode.total:.6g}"),
            Cell(
                END_TEXTS.get(episode.ended, episode.ended),
                "changed" if episode.ended == "cut" else "",
            ),
        ]
        for place, episode in enumerate(episodes)
    ]
    return Table.of(titles, rows)
