"""What there is to say of the part under the cursor: its times, its waits, its operators."""

from __future__ import annotations

from collections.abc import Iterator

from textual.content import Content

from tdx.tui.profile.columns import Line
from tdx.tui.profile.numbers import bar, columns, few, micros
from tdx.tui.profile.requests import CostRow, OperatorCost

_BAR = 8
_FEW = 12
"""Calls below which bars say nothing that the figures do not."""


def histogram(line: Line, width: int, height: int) -> Content:
    """The times of a line's calls as bars, with their ends and percentiles, and what comes of them.

    Args:
        line: whose; of modes side by side the last one.
        width: cells that there are.
        height: lines for the bars.
    """
    row = line.looked_at
    head, facts = _head(line, row), _facts(row)
    wide = max(1, min(6, (width - 1) // len(row.counts)))
    low, high = micros(row.low_us), f"{micros(row.high_us)}+"
    if row.n < _FEW:
        return Content("\n").join([head, Content(facts), *_more(row)])
    if height == 1:
        half = columns(row.counts, max(1, wide // 2), 1)[0]
        bars = Content.assemble((f"{low} ", "dim"), (half, "$primary"), (f" {high}", "dim"))
        return Content("\n").join([head, bars, *_more(row)])
    drawn = columns(row.counts, wide, height)
    bars = Content("\n").join(Content.styled(text, "$primary") for text in drawn)
    gap = " " * max(1, wide * len(row.counts) - len(low) - len(high))
    under = Content.styled(f"{low}{gap}{high}", "dim")
    if width - head.cell_length > len(facts) + 2:
        return Content("\n").join([Content.assemble(head, "  ", facts), bars, under, *_more(row)])
    return Content("\n").join([head, bars, under, Content(facts), *_more(row)])


def _head(line: Line, row: CostRow) -> Content:
    per = "step" if row.per_step else "call"
    mode = f" {line.mode}" if line.mode else ""
    return Content.assemble(
        (row.label, "bold"), f" {row.lane}{mode}", (f"  µs a {per}, n {row.n:,}", "dim")
    )


def _facts(row: CostRow) -> str:
    names = ("p50", "p95", "p99", "max")
    facts = "  ".join(f"{name} {micros(row.figures[name])}" for name in names)
    if row.device_us is not None:
        waits = ", waits for the host" if row.launch_bound else ""
        facts += f"  GPU {micros(row.device_us)} in {row.kernels or 0:.1f} kernels{waits}"
    return facts


def _more(row: CostRow) -> Iterator[Content]:
    """Where the host waits, and what the chain saves without the stages in it."""
    for sync in row.syncs:
        text = f"waits for the GPU {few(sync.calls)} × a step at {sync.where}"
        yield Content.styled(text, "$text-warning")
    for index, each in sorted(row.marginals.items()):
        name = f"without {row.number(index)} {each.name}"
        if each.saved_us is not None:
            clear = abs(each.saved_us) > each.noise_us
            verb = "saves" if each.saved_us >= 0 else "costs"
            told = f"{micros(abs(each.saved_us))} µs a step, ± {micros(each.noise_us)}"
            within = "" if clear else ", within the noise"
            yield Content.assemble((f"{name} the chain {verb} ", "dim"), told, (within, "dim"))
        elif each.needed is not None:
            yield Content.styled(f"{name} nothing works: {each.needed}", "dim")


def operators_text(row: CostRow, width: int, height: int) -> Content:
    """The operators of a part, the dearest first; nothing where they were not looked at.

    Args:
        row: the part.
        width: cells that there are.
        height: lines that there are; on one line there are no bars.
    """
    found = row.operators
    if found is None:
        return Content("")
    if not found:
        return Content.styled("no operator of torch", "dim")
    if height == 1:
        return _on_a_line(found, width)
    shown = found if len(found) < height else found[: height - 2]
    lines = [_operators_head(found, width)]
    lines += [_operator(each, found[0].time_us) for each in shown]
    rest = found[len(shown) :]
    if rest:
        text = f"{len(rest)} more, {micros(sum(each.time_us for each in rest))} µs"
        lines.append(Content.styled(text.rjust(len(text) + 8), "dim"))
    return Content("\n").join(lines)


def _operators_head(found: tuple[OperatorCost, ...], width: int) -> Content:
    calls = sum(each.calls for each in found)
    note = f"  µs and calls of a step, {few(calls)} in all; that pass is slower than the table"
    note = note if len(note) + 9 <= width else "  µs × calls, in a slower pass"
    return Content.assemble(("operators", "bold"), (note, "dim"))


def _operator(each: OperatorCost, most: float) -> Content:
    name = each.name.removeprefix("aten::")
    return Content.assemble(
        f"{micros(each.time_us):>7} ",
        (bar(each.time_us / most if most else 0.0, _BAR), "$primary"),
        (f" {few(each.calls):>5} × ", "dim"),
        name,
    )


def _on_a_line(found: tuple[OperatorCost, ...], width: int) -> Content:
    parts: list[Content] = []
    for each in found:
        name, calls = each.name.removeprefix("aten::"), few(each.calls)
        part = Content.assemble(name, (f" {micros(each.time_us)} × {calls}", "dim"))
        if sum(part.cell_length + 3 for part in [*parts, part]) > width and parts:
            break
        parts.append(part)
    return Content.styled(" · ", "dim").join(parts)
