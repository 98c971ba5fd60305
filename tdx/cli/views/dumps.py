"""Dumps: summary, contents, verification, export and import."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from tdx.cli.views import (
    UNLIMITED,
    Block,
    Cell,
    Column,
    Fluid,
    Heading,
    Paragraph,
    Table,
    View,
    dim,
    duration_text,
    fact_table,
    sparkline,
    stage_list,
)
from tdx.foundation.keys import format_key
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.foundation.text import count_text
from tdx.rollouts.dump.manifest import Manifest
from tdx.rollouts.dump.reading import DumpSummary, EntryStatistics, Listed, Overview, summarize
from tdx.rollouts.dump.verification import Repair, Verification
from tdx.rollouts.formats.interface import Exported
from tdx.rollouts.recording.request import Estimate
from tdx.rollouts.recording.sharded_rollout import ShardedRollout
from tdx.specs.leaf import shape_text

if TYPE_CHECKING:
    from tdx.rollouts.formats.conversion import Imported

_MAX_EPISODES = 20
"""Episodes to show on a terminal; a pipe gets all of them."""


def summary_view(path: str, manifest: Manifest) -> View:
    """Lay out the summary of a new dump."""
    data = summarize(path, manifest)

    def blocks() -> list[Block]:
        return [dump_head(data), dump_facts(data)]

    return View("rollout", lambda: data, blocks, lambda: [flat_summary(data)])


@dataclass(frozen=True, slots=True)
class ShardedSummary(Result):
    """Summary of a dump of shards.

    Args:
        result: Result of recording them.
    """

    json_entries: ClassVar[Entries] = (
        Entry("summary", inline=True),
        *(Entry(name, f"result.{name}") for name in ("committed", "recorded", "failures")),
    )

    summary: DumpSummary
    result: ShardedRollout


def sharded_view(result: ShardedRollout, manifest: Manifest) -> View:
    """Lay out the result of recording shards."""
    data = summarize(result.path, manifest)

    def blocks() -> list[Block]:
        shown: list[Block] = [dump_head(data), dump_facts(data)]
        if result.failures:
            rows = [
                [Cell(f"{failure.shard}"), Cell(failure.message, "bad")]
                for failure in result.failures
            ]
            count = count_text(len(rows), "shard")
            shown += [
                Heading("failures", f"{count}; the same command records them again"),
                Table([Column("shard", fixed=True), Column("error")], rows),
            ]
        return shown

    names = ("shard", "attempts", "message")
    whole = ShardedSummary(data, result)
    return View("sharded_rollout", whole, blocks, lambda: result.failures, names=names)


def dump_head(data: DumpSummary, name: str | None = None) -> Heading:
    """Return the heading of a dump."""
    state = "complete" if data["complete"] else f"unfinished: {next_step(data['source'])}"
    return Heading(name or data["path"], f"{data['env']}  {state}", level=1)


def next_step(source: str | None) -> str:
    """Return how to complete an unfinished dump; a replay cannot be resumed."""
    return "--resume continues it" if source is None else f"replay {source} again with --force"


def dump_facts(data: DumpSummary) -> Table:
    """Return the summary of a dump as a table."""
    goal, steps = _goal(data), f"{data['steps']:,}"
    if goal["steps"] is not None and goal["steps"] != data["steps"]:
        steps += f" of {goal['steps']:,}"
    episodes = f"{data['episodes_ended']:,} ended"
    if goal["episodes"] is not None and goal["episodes"] > data["episodes_ended"]:
        episodes += f" of {goal['episodes']:,}"
    if data["mean_return"] is not None:
        episodes += f", mean return {_number(data['mean_return'])}"
    if data["mean_length"] is not None:
        episodes += f", mean length {_number(data['mean_length'])}"
    batch = f" of each of {shape_text(data['batch_size'])} envs" if data["batch_size"] else ""
    rows = {
        "steps": f"{steps}{batch}",
        "shards": "",
        "episodes": episodes,
        "seed": str(data["seed"]),
        "policy": data["policy"],
        "size": f"{size_text(data['bytes'])} in {count_text(data['chunks'], 'chunk')}",
    }
    if data["shards"] is None:
        del rows["shards"]
    else:
        committed, count = data["shards"]["committed"], data["shards"]["count"]
        rows["shards"] = f"{count:,}" if committed == count else f"{committed:,} of {count:,}"
    if data["not_stored"]:
        rows["not stored"] = ", ".join(data["not_stored"])
    if data["source"]:
        rows["replay of"] = data["source"]
    return fact_table(rows.items())


def _goal(data: DumpSummary) -> Mapping[str, int | None]:
    """Return the goal of a dump, which is plain data in its summary."""
    return cast("Mapping[str, int | None]", data["goal"])


def flat_summary(data: DumpSummary) -> dict[str, object]:
    """Return the summary of a dump as a flat record."""
    goal, shards = _goal(data), data["shards"]
    rest = {name: value for name, value in data.items() if name not in ("goal", "shards")}
    counts = {
        "shards": None if shards is None else shards["count"],
        "shards_committed": None if shards is None else shards["committed"],
    }
    return {**rest, **counts, "goal_steps": goal["steps"], "goal_episodes": goal["episodes"]}


def estimate_view(estimate: Estimate) -> View:
    """Lay out the estimated size of a dump and the time that it takes."""
    steps = estimate.goal.steps
    records: list[dict[str, Any]] = [
        {"file": file, "step_bytes": size, "bytes": None if steps is None else size * steps}
        for file, size in estimate.entries.items()
    ]

    def blocks() -> list[Block]:
        total = "" if estimate.size is None else f", {size_text(estimate.size)} in total"
        facts = [str(estimate.goal), f"{estimate.step_bytes:,} bytes per step{total}"]
        speed, seconds = estimate.steps_per_second, estimate.seconds
        if speed is not None:
            rate = f"{speed:,.0f} steps/s" if speed >= 10 else f"{speed:.1f} steps/s"
            facts.append(rate if seconds is None else f"about {duration_text(seconds)} at {rate}")
        aside = "  ".join([*facts, "nothing is written"])
        rows = [
            [
                Cell(record["file"], "name"),
                Cell(f"{record['step_bytes']:,}"),
                Cell("" if record["bytes"] is None else size_text(record["bytes"])),
            ]
            for record in records
        ]
        columns = [Column("file", fixed=True), Column("bytes per step"), Column("total")]
        return [Heading(estimate.path, aside, level=1), Table(columns, rows)]

    return View("rollout_estimate", estimate, blocks, lambda: records)


def dump_view(overview: Overview, name: str | None = None, *, with_episodes: bool = True) -> View:
    """Lay out the contents of a dump."""
    data = overview.to_dict() | ({} if name is None else {"path": name})

    def blocks() -> list[Block]:
        result: list[Block] = [
            dump_head(overview.summary, name),
            *stage_list(overview.calls),
            dump_facts(overview.summary),
        ]
        if overview.returns is not None or overview.lengths is not None:
            rows = [
                [
                    Cell(name, "name"),
                    *(Cell(_number(end)) for end in (histogram.low, histogram.high)),
                    Cell(sparkline(histogram.counts)),
                ]
                for name, histogram in (("return", overview.returns), ("length", overview.lengths))
                if histogram is not None
            ]
            columns = [Column(), Column("min"), Column("max"), Column("histogram", fixed=True)]
            result += [Heading("episodes"), Table(columns, rows)]
        result += [Heading("entries"), _entries(overview.entries)]
        if with_episodes:
            return [*result, Fluid(partial(_episodes, overview))]
        path = shlex.quote(name or overview.path)
        notes = (
            f"{count_text(overview.episodes_total, 'episode')}: tdx show {path} --episodes lists "
            f"{'it' if overview.episodes_total == 1 else 'them'}",
            f"checksums were not compared: tdx verify {path} does that",
        )
        return [*result, *map(dim, notes)]

    return View("dump", lambda: data, blocks, lambda: overview.episodes, calls=overview.calls)


def _entries(entries: Sequence[EntryStatistics]) -> Table:
    titles = ["key", "shape", "dtype", "min", "mean", "max", "nan", "histogram"]
    if not any(entry.nans for entry in entries):
        titles.remove("nan")
    rows = [[_entry(entry)[title] for title in titles] for entry in entries]
    return Table.of(titles, rows, fixed=True, optional=("dtype", "shape", "histogram"))


def _entry(entry: EntryStatistics) -> dict[str, Cell]:
    histogram = entry.histogram
    return {
        "key": Cell(format_key(entry.key), "name"),
        "shape": Cell(shape_text(entry.shape)),
        "dtype": Cell(entry.dtype),
        "min": Cell("" if histogram is None else _number(histogram.low)),
        "mean": Cell("" if entry.mean is None else _number(entry.mean)),
        "max": Cell("" if histogram is None else _number(histogram.high)),
        "nan": Cell(str(entry.nans) if entry.nans else "", "bad"),
        "histogram": Cell("" if histogram is None else sparkline(histogram.counts)),
    }


def _episodes(overview: Overview, width: int) -> Iterator[Block]:
    episodes = overview.episodes
    shown = episodes if width >= UNLIMITED else episodes[:_MAX_EPISODES]
    batched = bool(overview.manifest.batch_size)
    titles = [*(["env"] if batched else []), "first step", "length", "return", "end"]
    rows = []
    for episode in shown:
        end = (
            "terminated"
            if episode.terminated
            else "truncated"
            if episode.finished
            else "still running"
        )
        cells = [f"{episode.start:,}", f"{episode.length:,}", _number(episode.total_reward), end]
        rows.append([Cell(text) for text in ([str(episode.row)] if batched else []) + cells])
    yield Heading("each episode")
    yield Table.of(titles, rows)
    if len(shown) < len(episodes):
        more = f"{len(episodes) - len(shown):,} more: a pipe shows all, for example | less"
        yield dim(more)


@dataclass(frozen=True, slots=True)
class DumpList(Result):
    """The dumps in a folder and below it."""

    folder: str
    dumps: tuple[Listed, ...]


def list_view(dumps: Sequence[Listed], root: str) -> View:
    """Lay out a list of dumps."""

    def records() -> Iterator[dict[str, object]]:
        for dump in dumps:
            summary = dump.summary
            flat = {} if summary is None else flat_summary(summary)
            yield {**flat, "problem": dump.problem} if flat else dump.to_dict()

    def blocks() -> list[Block]:
        if not dumps:
            return [dim(f"no dumps in {root}")]
        problems = [dump.problem for dump in dumps if dump.problem]
        lines = [Paragraph([Cell(problem, "bad")]) for problem in problems]
        titles = ("dump", "env", "steps", "episodes", "return", "size", "")
        rows = []
        for dump in dumps:
            name, summary = Cell(dump.path, "name"), dump.summary
            if summary is None:
                rows.append([name, *[Cell("")] * 5, Cell("unreadable", "bad")])
                continue
            mean = summary["mean_return"]
            rows.append(
                [
                    name,
                    Cell(summary["env"]),
                    Cell(f"{summary['steps']:,}"),
                    Cell(f"{summary['episodes_ended']:,}"),
                    Cell("" if mean is None else _number(mean)),
                    Cell(size_text(summary["bytes"])),
                    Cell("" if summary["complete"] else "unfinished", "changed"),
                ]
            )
        table = Table.of(titles, rows, fixed=True, optional=("size", "return", "episodes"))
        return [table, *lines]

    return View("dumps", DumpList(root, tuple(dumps)), blocks, records)


def size_text(size: int) -> str:
    """Return a size in MiB, or in bytes if it is small."""
    return f"{size / 2**20:,.2f} MiB" if size >= 2**20 / 100 else f"{size:,} bytes"


def _number(number: float) -> str:
    return f"{number:.4g}"


REPAIRED = ("missing", "short", "checksum")
"""Problems that a repair removes."""

_PROBLEM = ("problem", "file", "chunk", "message", "where")


def verify_view(result: Verification) -> View:
    """Lay out the problems of a dump."""

    def blocks() -> list[Block]:
        read = f"{count_text(result.chunks, 'chunk')}, {size_text(result.size)}"
        rest = "" if result.complete else "; the dump is unfinished"
        if result.is_fine:
            more = "" if result.complete else f": {next_step(result.source)}"
            verdict = Paragraph([Cell("valid", "good"), Cell(f": {read}{rest}{more}")])
            return [Heading(result.path, level=1), verdict]
        rows = [
            [Cell(problem.kind, "bad"), Cell(problem.message), Cell(problem.where, "dim")]
            for problem in result.problems
        ]
        count = count_text(len(rows), "problem")
        table = Table([Column("problem", fixed=True), Column("what"), Column("recorded in")], rows)
        blocks: list[Block] = [Heading(result.path, f"{count}  {read}{rest}", level=1), table]
        if any(problem.kind in REPAIRED for problem in result.problems):
            repair = f"`tdx verify {result.path} --repair` keeps the intact chunks"
            blocks.append(dim(repair))
        return blocks

    return View("verification", result, blocks, lambda: result.problems, names=_PROBLEM)


def repair_view(result: Repair) -> View:
    """Lay out what a repair kept and lost."""

    def blocks() -> list[Block]:
        verdict = verify_view(result.verification).blocks()
        if result.is_unchanged:
            return [*verdict, dim("nothing to repair")]
        kept = _amounts(result.chunks, result.steps, result.episodes)
        lost = _amounts(result.lost_chunks, result.lost_steps, result.lost_episodes)
        if result.lost_shards:
            shards = ", ".join(map(str, result.lost_shards))
            lost = f"{count_text(len(result.lost_shards), 'shard')} ({shards}): {lost}"
        lost = lost if result.is_exact or not result.lost_chunks else f"at least {lost}"
        lines = [("kept", kept), ("lost", lost or "nothing")]
        lines += [("set aside", name) for name in result.set_aside]
        lines += [("written again", name) for name in result.rewritten]
        return [*verdict, fact_table(lines)]

    return View("repair", result, blocks)


def _amounts(chunks: int, steps: int, episodes: int) -> str:
    counts = {"chunk": chunks, "step": steps, "ended episode": episodes}
    return ", ".join(count_text(number, noun) for noun, number in counts.items() if number)


def export_view(result: Exported) -> View:
    """Lay out an export, or what ``--dry-run`` would write."""

    def blocks() -> list[Block]:
        facts = f"{result.format} of {result.source}"
        aside = facts if result.written else f"{facts}  nothing is written"
        batch = f" of each of {shape_text(result.batch_size)} envs" if result.batch_size else ""
        totals = {"steps": f"{result.steps:,}{batch}", "episodes": f"{result.episodes:,}"}
        if result.size is not None:
            before = "" if result.written else " before compression"
            totals["size"] = f"{size_text(result.size)}{before}"
        rows = [
            [
                Cell(entry.key, "name"),
                Cell(entry.place),
                Cell(shape_text(entry.shape)),
                Cell(entry.dtype),
            ]
            for entry in result.entries
        ]
        titles = ("key", "exported as", "shape", "dtype")
        return [
            Heading(result.path, aside, level=1),
            fact_table(totals.items()),
            *map(dim, result.notes),
            Heading("entries"),
            Table.of(titles, rows, fixed=True, optional=("dtype", "shape")),
        ]

    def records() -> Iterator[dict[str, object]]:
        return ({"path": result.path, **entry.to_dict()} for entry in result.entries)

    return View("export", result, blocks, records)


def import_view(result: Imported) -> View:
    """Lay out an imported dump."""
    data = result.summary

    def blocks() -> list[Block]:
        return [dump_head(data), dump_facts(data), *map(dim, result.notes)]

    def records() -> list[dict[str, object]]:
        return [{**flat_summary(data), "imported": result.source, "format": result.format}]

    return View("import", result, blocks, records)
