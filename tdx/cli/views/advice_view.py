"""The layout of advice: what was tried, and what it saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tdx.cli.output.view import Block, Cell, Heading, Paragraph
from tdx.cli.views.marginal_view import finite
from tdx.cli.views.profile_columns import micros
from tdx.pipeline import format_stage
from tdx.profiling.result import Mode
from tdx.profiling.suggestions import Suggestions, TriedChange

_VALUES = {"same": "the same values", "close": "values within 1 %", "other": "other values"}


def advice_blocks(mode: Mode, found: Suggestions) -> Iterator[Block]:
    """What saved time first, then what was tried in vain.

    Args:
        mode: how the pipeline ran.
        found: what was tried.
    """
    tried = len(found.advice) + len(found.without_gain)
    told = f"{tried} change{'' if tried == 1 else 's'} tried, {len(found.advice)} worth it"
    yield Heading(f"advice, {mode}", told)
    if found.interrupted:
        yield Paragraph([Cell("incomplete: ", "bad"), Cell("interrupted")], indent=2)
    for advice in found.advice:
        yield from _advice(advice)
    for advice in found.without_gain:
        cells = [Cell("no gain: ", "dim"), Cell(advice.candidate.change)]
        yield Paragraph([*cells, Cell(f" ({_saving(advice)})", "dim")], indent=2)
    for why in found.refused:
        yield Paragraph([Cell("not tried: ", "dim"), Cell(why)], indent=2)
    if not tried and not found.refused:
        yield Paragraph([Cell("Nothing was found that would be worth a try.")], indent=2)


def _advice(advice: TriedChange) -> Iterator[Block]:
    saving, candidate = advice.saving, advice.candidate
    share = Cell(f"-{saving.saved_share:.0%} ", "good")
    yield Paragraph([share, Cell(candidate.change, "name")], indent=2)
    yield Paragraph([Cell("because: ", "dim"), Cell(candidate.found)], indent=4)
    yield Paragraph([Cell("measured: ", "dim"), Cell(_saving(advice))], indent=4)
    chain = " → ".join(format_stage(stage) for stage in candidate.pipeline.transforms)
    yield Paragraph([Cell("chain: ", "dim"), Cell(chain)], indent=4)


def _saving(advice: TriedChange) -> str:
    saving = advice.saving
    noise = finite(saving.noise_us)
    room = "" if noise is None else f" ± {micros(noise)}"
    before, after = micros(saving.before_us), micros(saving.after_us)
    saved = f"{'-' if saving.saved_us < 0 else ''}{micros(abs(saving.saved_us))}"
    return f"{before} → {after} µs a step, saved {saved}{room}; {_VALUES[advice.values]}"


def advice_data(mode: Mode, found: Suggestions) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "mode": mode,
        "advice": [_data(each) for each in found.advice],
        "in_vain": [_data(each) for each in found.without_gain],
        "refused": list(found.refused),
        "interrupted": found.interrupted,
    }


def _data(advice: TriedChange) -> dict[str, Any]:
    candidate, saving = advice.candidate, advice.saving
    return {
        "kind": candidate.kind,
        "stages": list(candidate.stages),
        "found": candidate.found,
        "change": candidate.change,
        "chain": [format_stage(stage) for stage in candidate.pipeline.transforms],
        "mode": candidate.mode,
        "before_us": finite(saving.before_us),
        "after_us": finite(saving.after_us),
        "saved_us": finite(saving.saved_us),
        "saved_share": finite(saving.saved_share),
        "noise_us": finite(saving.noise_us),
        "values": advice.values,
    }
