"""The line on top: which pipeline, whether it is saved, what the worker does."""

from __future__ import annotations

import time
from pathlib import Path

from textual.content import Content
from textual.widgets import Static

from tdx.tui.problems import ErrorStore
from tdx.tui.workspace import Seen, Workspace

PATIENCE = 5.0
"""Seconds after which it is said how long the worker has been at work."""
_BUSY = ("looking", "checking")


class StatusLine(Static):
    """One line that follows the workspace.

    Args:
        workspace: the state of the app.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(id="status")
        self.workspace = workspace
        self._since: float | None = None

    def on_mount(self) -> None:
        self.workspace.edited.subscribe(self, lambda _: self.refresh())
        self.workspace.looked.subscribe(self, self._looked)
        self.set_interval(1.0, lambda: self.refresh() if self._long() else None)

    def _looked(self, seen: Seen) -> None:
        if seen.status not in _BUSY:
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()
        self.refresh()

    def _long(self) -> str:
        """For how long the worker has been at it, where that is unusual, and what ends it."""
        seconds = 0.0 if self._since is None else time.monotonic() - self._since
        return f" for {seconds:.0f} s · Ctrl+K ends it" if seconds > PATIENCE else ""

    def render(self) -> Content:
        left, right = self._left(), self._right()
        gap = max(2, self.size.width - left.cell_length - right.cell_length)
        return Content.assemble(left, " " * gap, right)

    def _left(self) -> Content:
        draft = self.workspace.draft
        name = Path(draft.file).name if draft.file else "new pipeline"
        dot = " ●" if self.workspace.editor.is_modified else ""
        return Content.assemble((" tdx ", "bold $primary reverse"), f"  {name}", (dot, "$accent"))

    def _right(self) -> Content:
        seen = self.workspace.seen
        parts = [
            part for part in (_facts(seen), _trouble(seen, self.workspace.errors)) if part.plain
        ]
        state = {
            "looking": Content.styled(f"⟳ looking{self._long()}", "$accent"),
            "checking": Content.styled(f"⟳ checking{self._long()}", "$accent"),
            "failed": Content.styled("✕ worker", "$error"),
        }.get(seen.status)
        shown = [*parts, *([state] if state else [])]
        return Content.assemble(Content.styled(" · ", "dim").join(shown), " ")


def _facts(seen: Seen) -> Content:
    overview = seen.overview
    if overview is None or overview.after is None:
        return Content("")
    after = overview.after
    batch = f"batch {list(after.batch_size)} · " if after.batch_size else ""
    return Content.styled(f"{batch}{after.device}", "dim")


def _trouble(seen: Seen, errors: ErrorStore) -> Content:
    found = [(number, each.finding) for number, group in seen.lints.items() for each in group]
    broken = {each.number for each in errors.all()}
    failed = len(errors.all())
    failed += sum(each.severity == "error" and number not in broken for number, each in found)
    warned = sum(each.severity == "warning" for _, each in found)
    parts = []
    if failed:
        parts.append(Content.styled(f"✕ {failed}", "$error"))
    if warned:
        parts.append(Content.styled(f"▲ {warned}", "$warning"))
    return Content(" ").join(parts)
