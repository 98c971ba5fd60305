"""Views of a verified and of a repaired dump."""

from __future__ import annotations

from tdx.cli.views import (
    Block,
    Cell,
    Column,
    Heading,
    Paragraph,
    Table,
    View,
    dim,
    fact_table,
)
from tdx.cli.views.dumps import next_step, size_text
from tdx.foundation.text import count_text
from tdx.rollouts.dump.verification import Repair, Verification

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
