"""Views of an exported chain and of its verification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdx.cli.views import Block, Cell, Column, Heading, Paragraph, Table, View, dim, fact_table
from tdx.cli.views.dumps import size_text
from tdx.foundation.text import count_text

if TYPE_CHECKING:
    from tdx.artifacts.artifact import Artifact
    from tdx.artifacts.check import ArtifactCheck


def artifact_view(result: Artifact) -> View:
    """Lay out an exported chain."""

    def blocks() -> list[Block]:
        inexact = [item.operator for item in result.bounds if item.bound]
        facts = {
            "functions": ", ".join(result.functions),
            "state": ", ".join(result.state) or "none",
            "values": "the same bits as the chain on a CPU"
            if not inexact
            else f"within bounds: {', '.join(inexact)}",
            "chain": result.digest[:16],
        }
        if result.unchanged:
            facts["left out"] = f"{', '.join(result.unchanged)}: the chain does not change them"
        rows = [[Cell(file.name, "name"), Cell(size_text(file.size))] for file in result.files]
        calls = count_text(result.calls, "reference call")
        verdict = Paragraph([Cell("verified", "good"), Cell(f": {calls}")])
        if not result.verified:
            verdict = Paragraph([Cell("not verified", "bad"), Cell(f": {result.note}")])
        blocks: list[Block] = [
            Heading(result.path, f"{result.form} of {count_text(len(result.stages), 'stage')}"),
            fact_table(facts.items()),
            verdict,
        ]
        blocks += [dim(f"not exported: {line}") for line in result.left_out]
        table = Table([Column("file"), Column("size", is_number=True)], rows)
        return [*blocks, Heading("files"), table]

    return View("artifact", result, blocks, lambda: [result.to_dict()])


def artifact_check_view(result: ArtifactCheck) -> View:
    """Lay out the verification of an exported chain."""

    def blocks() -> list[Block]:
        heading = Heading(result.path, f"{result.form} of {count_text(result.stages, 'stage')}")
        if result.problems:
            rows = [[Cell("different", "bad"), Cell(problem)] for problem in result.problems]
            return [heading, Table([Column("result", fixed=True), Column("what")], rows)]
        calls = count_text(result.calls, "call")
        verdict = Paragraph([Cell("same", "good"), Cell(f": {calls} of {result.reference}")])
        return [heading, verdict, *map(dim, result.notes)]

    return View("artifact_check", result, blocks, lambda: [result.to_dict()])
