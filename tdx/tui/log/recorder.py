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
    """Records each problem of the chain once, as long as it stays the same.

    Args:
        workspace: the state of the app.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._known: dict[int | None, Problem] = {}

    def look(self, seen: Seen) -> None:
        """Record what is wrong now and was not, and what no longer is."""
        if seen.status not in ("ready", "failed"):
            return
        journal, before = self._workspace.journal, self._known
        self._known = dict(seen.problems)
        for number, problem in self._known.items():
            if before.get(number) != problem:
                details = self._workspace.details if seen.status == "failed" else ""
                journal.record(
                    f"{self._name(number)}: {problem.message}",
                    source="chain",
                    severity="error",
                    details="\n".join(each for each in (problem.hint, details) if each),
                )
        for number in before.keys() - self._known.keys():
            if number is None or self._workspace.draft.place_of(number) is not None:
                journal.record(f"{self._name(number)} works again", source="chain")

    def _name(self, number: int | None) -> str:
        draft = self._workspace.draft
        place = None if number is None else draft.place_of(number)
        if place is None:
            return "env" if draft.env is None else f"env {draft.env.id}"
        return f"stage {place} {draft.stages[place].config.name}"
