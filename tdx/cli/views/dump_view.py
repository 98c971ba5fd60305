"""The layout of dumps: what was written, what is in one, what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tdx.cli.output.terminal import UNLIMITED, table_width
from tdx.cli.output.view import Block, Cell, Column, Heading, Paragraph, Table, View
from tdx.inspection.spec_text import shape_text
from tdx.keys import format_key
from tdx.rollouts.dump.manifest import Manifest
from tdx.rollouts.dump.reading import EntryStatistics, Histogram, Listed, Overview, summarize
from tdx.rollouts.dump.verification import Verification
from tdx.rollouts.recording.request import Estimate

_BARS = "▁▂▃▄▅▆▇█"
_EPISODES = 20
"""Shown on a terminal; a pipe gets all of them."""


def summary_view(path: str, manifest: Manifest) -> View:
    """Lay out what was written.

    Args:
        path: where to.
        manifest: what is there now.
    """
    data = summarize(path, manifest)

    def blocks(width: int) -> list[Block]:
        return [dump_head(data), dump_facts(data)]

    return View("rollout", data, [flat_summary(data)], blocks)


def dump_head(data: dict[str, Any], name: str | None = None) -> Heading:
    """The line over a dump.

    Args:
        data: its summary.
        name: what it is called; its path by default.
    """
    state = "complete" if data["complete"] else f"unfinished: {_next_step(data['source'])}"
    return Heading(name or data["path"], f"{data['env']}  {state}", level=1)


def _next_step(source: str | None) -> str:
    """What to do about an unfinished dump: a replay cannot be resumed."""
    return "--resume continues it" if source is None else f"replay {source} again with --force"


def dump_facts(data: dict[str, Any]) -> Table:
    """What is known of a dump at a glance, from its summary."""
    goal, steps = data["goal"], f"{data['steps']:,}"
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
        "episodes": episodes,
        "seed": str(data["seed"]),
        "policy": data["policy"],
        "size": f"{size_text(data['bytes'])} in {count_text(data['chunks'], 'chunk')}",
    }
    if data["not_stored"]:
        rows["not stored"] = ", ".join(data["not_stored"])
    if data["source"]:
        rows["replay of"] = data["source"]
    return Table(
        [Column(fixed=True), Column()],
        [[Cell(name, "dim"), Cell(text)] for name, text in rows.items()],
    )


def flat_summary(data: dict[str, Any]) -> dict[str, Any]:
    """A dump's summary as one row."""
    goal = data["goal"]
    rest = {name: value for name, value in data.items() if name != "goal"}
    return {**rest, "goal_steps": goal["steps"], "goal_episodes": goal["episodes"]}


def estimate_view(found: Estimate) -> View:
    """Lay out how large a dump would be.

    Args:
        found: the estimate.
    """
    steps = found.goal.steps
    records: list[dict[str, Any]] = [
        {"file": file, "step_bytes": size, "bytes": None if steps is None else size * steps}
        for file, size in found.entries.items()
    ]

    def blocks(width: int) -> list[Block]:
        whole = "" if found.size is None else f", {size_text(found.size)} in all"
        told = f"{found.goal}  {found.step_bytes:,} bytes a step{whole}  nothing is written"
        rows = [
            [Cell(each["file"], "name"), Cell(f"{each['step_bytes']:,}"), Cell(_or_none(each))]
            for each in records
        ]
        columns = [Column("file", fixed=True), Column("bytes a step"), Column("in all")]
        return [Heading(found.path, told, level=1), Table(columns, rows)]

    return View("rollout_estimate", found.to_dict(), records, blocks)


def _or_none(record: dict[str, Any]) -> str:
    return "" if record["bytes"] is None else size_text(record["bytes"])


def dump_view(found: Overview, name: str | None = None) -> View:
    """Lay out what is in a dump.

    Args:
        found: what to show.
        name: what it is called; its path by default.
    """
    data = found.to_dict()
    if name is not None:
        data["path"] = name

    def blocks(width: int) -> list[Block]:
        chain = [
            Paragraph([Cell(f"{index} ", "dim"), Cell(call)], indent=2)
            for index, call in enumerate(found.calls)
        ]
        shown: list[Block] = [dump_head(data, name), *chain, dump_facts(data)]
        if found.returns is not None or found.lengths is not None:
            shown += [Heading("episodes"), _histograms(found)]
        shown += [Heading("entries"), *_entries(found.entries, width)]
        return [*shown, *_episodes(found, width)]

    return View("dump", data, [each.to_dict() for each in found.episodes], blocks)


def _histograms(found: Overview) -> Table:
    rows = []
    for name, histogram in (("return", found.returns), ("length", found.lengths)):
        if histogram is not None:
            ends = (_number(histogram.low), _number(histogram.high))
            rows.append([Cell(name, "name"), *map(Cell, ends), Cell(bars(histogram))])
    return Table([Column(), Column("min"), Column("max"), Column("histogram", fixed=True)], rows)


def bars(histogram: Histogram | None) -> str:
    """A histogram as a row of bars; an empty bin is a space."""
    if histogram is None:
        return ""
    most, heights = max(histogram.counts), len(_BARS)
    return "".join(
        _BARS[-(-count * heights // most) - 1] if count else " " for count in histogram.counts
    )


def _entries(entries: Sequence[EntryStatistics], width: int) -> Iterator[Block]:
    titles = ("key", "shape", "dtype", "min", "mean", "max", "nan", "histogram")
    nans = any(each.nans for each in entries)
    for dropped in ((), ("dtype",), ("dtype", "shape"), ("dtype", "shape", "histogram")):
        kept = [t for t in titles if t not in dropped and (nans or t != "nan")]
        rows = [[_entry(each)[title] for title in kept] for each in entries]
        table = Table([Column(title, fixed=True) for title in kept], rows)
        if table_width(table) <= width:
            break
    yield table


def _entry(each: EntryStatistics) -> dict[str, Cell]:
    histogram = each.histogram
    return {
        "key": Cell(format_key(each.key), "name"),
        "shape": Cell(shape_text(each.shape)),
        "dtype": Cell(each.dtype),
        "min": Cell("" if histogram is None else _number(histogram.low)),
        "mean": Cell("" if each.mean is None else _number(each.mean)),
        "max": Cell("" if histogram is None else _number(histogram.high)),
        "nan": Cell(str(each.nans) if each.nans else "", "bad"),
        "histogram": Cell(bars(histogram)),
    }


def _episodes(found: Overview, width: int) -> Iterator[Block]:
    episodes = found.episodes
    shown = episodes if width >= UNLIMITED else episodes[:_EPISODES]
    batched = bool(found.manifest.batch_size)
    titles = [*(["env"] if batched else []), "first step", "length", "return", "end"]
    rows = []
    for each in shown:
        end = "terminated" if each.terminated else "truncated" if each.finished else "still running"
        cells = [f"{each.start:,}", f"{each.length:,}", _number(each.total_reward), end]
        rows.append([Cell(text) for text in ([str(each.row)] if batched else []) + cells])
    yield Heading("each episode")
    yield Table([Column(title) for title in titles], rows)
    if len(shown) < len(episodes):
        more = f"{len(episodes) - len(shown):,} more: --format json has them all"
        yield Paragraph([Cell(more, "dim")])


_PROBLEM = ("problem", "file", "chunk", "message")


def verify_view(found: Verification) -> View:
    """Lay out what is wrong with a dump.

    Args:
        found: what to show.
    """

    def blocks(width: int) -> list[Block]:
        read = f"{count_text(found.chunks, 'chunk')}, {size_text(found.size)}"
        rest = "" if found.complete else f"; the dump is unfinished: {_next_step(found.source)}"
        if found.is_fine:
            told = Paragraph([Cell("all is well", "good"), Cell(f": {read}{rest}")])
            return [Heading(found.path, level=1), told]
        rows = [[Cell(each.kind, "bad"), Cell(each.message)] for each in found.problems]
        count = count_text(len(rows), "problem")
        table = Table([Column(fixed=True), Column()], rows)
        return [Heading(found.path, f"{count}  {read}{rest}", level=1), table]

    records = [each.to_dict() for each in found.problems]
    return View("verification", found.to_dict(), records, blocks, _PROBLEM)


def list_view(found: Sequence[Listed], root: str) -> View:
    """Lay out which dumps there are.

    Args:
        found: the dumps.
        root: where they were looked for.
    """
    records = [each.to_dict() for each in found]

    def blocks(width: int) -> list[Block]:
        if not found:
            return [Paragraph([Cell(f"no dump in {root}", "dim")])]
        unread = [each for each in found if each.problem]
        told = [Paragraph([Cell(each.problem or "", "bad")]) for each in unread]
        return [_dumps(found, width), *told]

    rows = [{**flat_summary(each), "problem": each["problem"]} if "goal" in each else each
            for each in records]  # fmt: skip
    return View("dumps", {"folder": root, "dumps": records}, rows, blocks)


def _dumps(found: Sequence[Listed], width: int) -> Table:
    titles = ("dump", "env", "steps", "episodes", "return", "size", "")
    rows = [_listed(each) for each in found]
    for dropped in ((), ("size",), ("size", "return", "episodes")):
        kept = [index for index, title in enumerate(titles) if title not in dropped]
        columns = [Column(titles[index], fixed=True) for index in kept]
        table = Table(columns, [[row[index] for index in kept] for row in rows])
        if table_width(table) <= width:
            break
    return table


def _listed(each: Listed) -> list[Cell]:
    if each.summary is None:
        return [Cell(each.path, "name"), *[Cell("")] * 5, Cell("unreadable", "bad")]
    data = each.summary
    mean = data["mean_return"]
    return [
        Cell(each.path, "name"),
        Cell(data["env"]),
        Cell(f"{data['steps']:,}"),
        Cell(f"{data['episodes_ended']:,}"),
        Cell("" if mean is None else _number(mean)),
        Cell(size_text(data["bytes"])),
        Cell("" if data["complete"] else "unfinished", "changed"),
    ]


def size_text(size: int) -> str:
    """A number of bytes in MiB."""
    return f"{size / 2**20:,.2f} MiB" if size >= 2**20 / 100 else f"{size:,} bytes"


def count_text(number: int, noun: str) -> str:
    """How many there are of something."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _number(number: float) -> str:
    return f"{number:.4g}"
