"""Problems of the selected stage, with hints and the key for a fix."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from tdx.inspection.check_report import Finding
from tdx.inspection.overview import Problem
from tdx.tui.tab_body import TabBody
from tdx.tui.workspace import ENV, LintFinding, Workspace

_SIGNS = {
    "error": ("✕", "bold $error"),
    "warning": ("▲", "bold $warning"),
    "suggestion": ("●", "$secondary"),
}


class ProblemPanel(Static):
    """Problems of the selected stage; hidden if there are none.

    Args:
        workspace: State of the app.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(classes="problems")
        self.workspace = workspace
        self._shown: object = None

    def on_mount(self) -> None:
        self.workspace.inspected.subscribe(self, lambda _: self.update_problems())
        self.workspace.selected.subscribe(self, lambda _: self.update_problems())
        self.update_problems()

    def update_problems(self) -> None:
        """Show the current problems if the tab is in front; a change lays out the whole screen."""
        problems, lints = problems_at(self.workspace)
        if (problems, lints) == self._shown or not self.query_ancestor(TabBody).is_in_front:
            return
        self._shown = (problems, lints)
        self.display = bool(problems or lints)
        lines = [*map(_problem_text, problems), *(_finding_text(lint.finding) for lint in lints)]
        self.update(Content("\n").join(lines))


def problems_at(workspace: Workspace) -> tuple[tuple[Problem, ...], tuple[LintFinding, ...]]:
    """Return the errors and the findings of rules for the selected stage."""
    stage, status = workspace.stage, workspace.status
    if (stage is None and workspace.place != ENV) or (stage is not None and not stage.enabled):
        return (), ()
    number = None if stage is None else stage.number
    errors = workspace.errors.at(number)
    fresh = status.checked == workspace.editor.revision
    lints = status.lints.get(number, ()) if fresh else ()
    shown = tuple(lint for lint in lints if lint.finding.title is not None or _is_from_steps(lint))
    if shown and len(shown) == len(lints):
        # The finding of a rule explains the error better.
        errors = tuple(each for each in errors if each.source != "look")
    return tuple(each.problem for each in errors), shown


def _is_from_steps(lint: LintFinding) -> bool:
    """Return True if only steps can reveal the finding."""
    return lint.finding.check == "steps"


def find_fixable(workspace: Workspace) -> LintFinding | None:
    """Return the first finding with a fix."""
    _, lints = problems_at(workspace)
    return next((lint for lint in lints if lint.finding.fix is not None), None)


def _problem_text(problem: Problem) -> Content:
    hint = f"\n  → {problem.hint}" if problem.hint else ""
    origin = f"\n  {problem.origin} · F12 shows the traceback" if problem.origin else ""
    return Content.assemble(("✕ ", "bold $error"), problem.message, (origin, ""), (hint, "dim"))


def _finding_text(finding: Finding) -> Content:
    sign, style = _SIGNS[finding.severity]
    parts: list[str | tuple[str, str]] = [
        *((f"{sign} ", style), (f"{finding.code} ", "dim"), finding.message)
    ]
    if finding.hint:
        parts.append((f"\n  → {finding.hint}", "dim"))
    if finding.fix is not None:
        parts += ["\n  ", (" x ", "bold $accent reverse"), f" {finding.fix.title}"]
    return Content.assemble(*parts)
