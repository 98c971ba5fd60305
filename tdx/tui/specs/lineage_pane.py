"""The lineage of a key: each version, the stage that writes it, and its readers.

Transforms declare their keys. The wrappers of other libraries do not, so a worker makes a few
random steps with a second env, as soon as a lineage is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from textual.content import Content
from textual.widgets import Static

from tdx.inspection.chain import Direction
from tdx.inspection.lineage import FlowNode, Lineage
from tdx.inspection.overview import Problem
from tdx.tui.backend.client import RequestError, SupersededError, Ticket
from tdx.tui.backend.requests import ObserveKeys
from tdx.tui.specs.tree import SpecLine
from tdx.tui.workspace import Workspace

SLOW_SECONDS = 3.0
"""Seconds after which the pane names the key that stops the steps."""
_OBSERVING = "observing a few random steps …"
_SLOW = "observing a few random steps … (Ctrl+K stops them)"
_AGAIN = "Ctrl+L observes it again"


class LineagePane(Static):
    """Shows the lineage of a key; hidden while no key is selected."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__("", id="lineage")
        self.workspace = workspace
        self._line: SpecLine | None = None
        self._room = 0
        self._observed: Lineage | None = None
        self._problem: Problem | None = None
        self._revision: int | None = None
        self._ticket: Ticket[Lineage | None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._is_slow = False
        self._is_subscribed = False

    def on_unmount(self) -> None:
        self._forget()

    def show_line(self, line: SpecLine | None, room: int = 0) -> None:
        """Show the lineage of the key of a line; those of other keys follow if there is room."""
        self._line, self._room = line, room
        key = None if line is None else line.key
        self.border_title = Content(f"lineage of {key}" if key else "lineage")
        text = Content("") if line is None else self._text(line, key)
        self.display = bool(text)
        self.update(text)

    def _text(self, line: SpecLine, key: str | None) -> Content:
        overview = self.workspace.status.overview
        if overview is None:
            return Content("")
        lineage = overview.lineage or (self._observed if key is None else self._observe())
        if lineage is not None:
            positions = self.workspace.draft.positions
            shown = [positions[n] if n < len(positions) else n for n in overview.working]
            places = [*[None] * len(overview.env_stages), *shown]
            own = None if key is None else lineage_text(lineage, key, line.lane, places)
            others = other_keys_text(lineage, key, line.lane, places)
            texts = [text for text in (own, others) if text]
            used = sum(text.plain.count("\n") + 2 for text in texts)
            return Content("\n\n").join(texts if used <= self._room else texts[: key is not None])
        if key is None:
            return Content("")
        if self._problem is not None:
            text = f"unknown: {self._stage_name(self._problem)}{self._problem.message}"
            return Content.styled(f"{text} · {_AGAIN}", "$error")
        return Content.styled(_SLOW if self._is_slow else _OBSERVING, "dim")

    def _stage_name(self, problem: Problem) -> str:
        place, stages = problem.where.stage, self.workspace.draft.stages
        if place is None or not 0 <= place < len(stages):
            return ""
        return f"stage {place} {stages[place].config.name}: "

    def _observe(self) -> Lineage | None:
        """Return what was observed of the stack; ask the worker once for each revision."""
        workspace, status = self.workspace, self.workspace.status
        overview = status.overview
        is_current = overview is not None and status.revision == workspace.editor.revision
        if overview is None or overview.stack is None or overview.after is None or not is_current:
            return self._observed
        if not self._is_subscribed:
            self._is_subscribed = True
            workspace.edited.subscribe(self, lambda _: self._forget())
            workspace.code_reloaded.subscribe(self, lambda _: self._forget())
        if self._revision != status.revision:
            self._forget()
            self._revision = status.revision
            pipeline = workspace.editor.draft.pipeline()
            request = ObserveKeys(pipeline, workspace.allow_code, workspace.samples)
            self._ticket = workspace.backend.ask(request, slot="keys")
            self._waiting = asyncio.get_running_loop().create_task(self._wait(self._ticket))
            ticket = self._ticket

            def show_slow() -> None:
                if self._ticket is ticket:
                    self._is_slow = True
                    self._redraw()

            self.set_timer(SLOW_SECONDS, show_slow)
        return self._observed

    async def _wait(self, ticket: Ticket[Lineage | None]) -> None:
        try:
            self._observed = await ticket
        except SupersededError:
            return
        except RequestError as error:
            if ticket is self._ticket:
                self._problem = replace(error.problem, details=error.details)
        if ticket is self._ticket:
            self._ticket = None
            self._redraw()

    def _redraw(self) -> None:
        if self.is_mounted:
            self.show_line(self._line, self._room)

    def _forget(self) -> None:
        """Forget what was observed, and cancel steps that are being made."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None and self._waiting is not None:
            self.workspace.backend.cancel(ticket)
            self._waiting.cancel()
        self._observed = self._problem = self._revision = None
        self._is_slow = False


def lineage_text(
    lineage: Lineage, key: str, lane: Direction, places: Sequence[int | None]
) -> Content:
    """Return the versions of a key, one per line, in data-flow order.

    ``places`` has the place in the chain for each stage of the lineage; ``None`` for stages of the
    env.
    """
    known = lineage.only([key]).versions if key in lineage.keys() else ()
    versions = [version for version in known if version.lane == lane]
    if not versions:
        return Content.assemble((f"{key} ", "bold"), ("comes from the previous step", "dim"))
    lines = []
    for version in versions:
        parts = [
            (version.name, "bold $accent"),
            ("  by ", "dim"),
            (_place_name(version.writer, places), ""),
        ]
        if version.source is not None:
            parts += [(" from ", "dim"), (version.source, "")]
        if version.readers:
            readers = ", ".join(_place_name(reader, places) for reader in version.readers)
            parts += [("  → ", "dim"), (readers, "")]
        if version.ended is not None:
            parts += [("  removed by ", "dim"), (_place_name(version.ended, places), "")]
        lines.append(Content.assemble(*parts))
    return Content("\n").join(lines)


def other_keys_text(
    lineage: Lineage, key: str | None, lane: Direction, places: Sequence[int | None]
) -> Content:
    """Return the writers of all other keys, one key per line. ``None``: of all keys."""
    names = [name for name in lineage.keys() if name != key]
    width = max(map(len, names), default=0)
    lines = []
    for name in names:
        known = lineage.only([name]).versions
        versions = [version for version in known if version.lane == lane]
        if versions:
            writers = " → ".join(_place_name(version.writer, places) for version in versions)
            lines.append(Content.assemble((f"{name:<{width}}  ", "dim $accent"), (writers, "dim")))
    return Content("\n").join(lines)


def _place_name(place: FlowNode, places: Sequence[int | None]) -> str:
    if place.kind != "stage" or place.stage is None:
        return place.kind
    at = places[place.stage] if place.stage < len(places) else place.stage
    name = f"env's {place.name}" if at is None else f"{at} {place.name}"
    return name + (" (next step)" if place.next_step else "")
