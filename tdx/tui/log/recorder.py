"""Records what no part of the app says: problems of the chain, news of the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdx.inspection.overview import Problem

if TYPE_CHECKING:
    from tdx.tui.backend.news import News
    from tdx.tui.log.journal import Journal, Severity
    from tdx.tui.workspace import Seen, Workspace


def hear(journal: Journal, news: News) -> None:
    """Record what a worker does."""
    if news.kind == "printed":
        journal.printed(news.worker, news.text, news.left_out)
    else:
        severity: Severity = "error" if news.kind == "failed" else "information"
        journal.record(news.text, source=news.worker, severity=severity, details=news.details)


class Recorder:
    """Records each error of the chain once, as long as it stays the same.

    Args:
        workspace: the state of the app.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._known: dict[tuple[str, int | None], Problem] = {}

    def look(self, seen: Seen) -> None:
        """Record what is wrong now and was not, and what no longer is."""
        if seen.status == "empty":
            self._known = {}
            return
        workspace, before = self._workspace, self._known
        errors = workspace.errors.all()
        self._known = {(each.source, each.number): each.problem for each in errors}
        for (source, number), problem in self._known.items():
            if before.get((source, number)) != problem:
                details = (problem.origin, problem.hint, problem.details)
                workspace.journal.record(
                    f"{workspace.name_of(number)}: {problem.message}",
                    source="chain" if source == "look" else source,
                    severity="error",
                    details="\n".join(each for each in details if each),
                )
        broken = {number for _, number in self._known}
        for number in {number for _, number in before} - broken:
            if number is None or workspace.draft.place_of(number) is not None:
                workspace.journal.record(f"{workspace.name_of(number)} works again", source="chain")
