"""Actions that repair a chain: measure a normalizer, exclude entries, open the source."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tdx.keys import format_key
from tdx.pipeline.editing.draft import DraftStage
from tdx.pipeline.editing.stack_draft import WrapperStage
from tdx.pipeline.values import StageConfig
from tdx.tui.backend.client import RequestError
from tdx.tui.backend.requests import FindUnstorable, MeasureNorm
from tdx.tui.chain_status import NO_PIPELINE
from tdx.tui.compose.source import SourceLine, edit_source, find_source
from tdx.tui.screens.dialogs import Choice, ChoiceScreen

if TYPE_CHECKING:
    from textual.screen import Screen

    from tdx.tui.workspace import Workspace

NORMS = ("ObservationNorm", "VecNorm", "VecNormV2")
WORKER = "repair"
"""Worker of the measurement; the one for specs answers each key press."""
_STEPS = (100, 1_000, 10_000)
_MAX_STEPS = 1_000_000


class Repairs:
    """Asks for what a repair needs, and applies it as one edit.

    Args:
        screen: Screen below the dialogs.
        workspace: State of the app.
    """

    def __init__(self, screen: Screen[None], workspace: Workspace) -> None:
        self._screen, self._workspace = screen, workspace
        self._task: asyncio.Task[None] | None = None

    # Measuring

    @property
    def can_measure(self) -> bool:
        """True if a normalizer is selected whose statistics can be measured."""
        stage = self._workspace.stage
        if stage is None or isinstance(stage, WrapperStage):
            return False
        return stage.config.name in NORMS and stage.enabled

    def measure(self) -> None:
        """Ask for a number of steps, and measure the selected normalizer."""
        stage = self._workspace.stage
        if stage is None or not self.can_measure:
            self._screen.notify("select an enabled ObservationNorm or VecNorm", timeout=3)
            return
        title = "Measure loc and scale over"
        if stage.config.name != "ObservationNorm":
            title = f"Replace {stage.config.name} by its statistics after"
        choices = [Choice(str(each), f"{each:,} random steps") for each in _STEPS]
        dialog = ChoiceScreen(title, choices, allow_custom=True, is_verbatim=str.isdecimal)
        self._screen.app.push_screen(dialog, lambda text: self._start_measuring(stage, text))

    def _start_measuring(self, stage: DraftStage, text: str | None) -> None:
        if text is None:
            return
        if not text.isdecimal() or not 2 <= int(text[:9]) <= _MAX_STEPS:
            self._screen.notify(f"enter 2 to {_MAX_STEPS:,} steps", severity="warning", timeout=4)
            return
        self._run(self._measure(stage, int(text)))

    async def _measure(self, stage: DraftStage, steps: int) -> None:
        workspace = self._workspace
        place = workspace.draft.find_place(stage.number)
        if place is None:
            return
        before = tuple(each.config for each in workspace.draft.stages[:place] if each.enabled)
        chain = replace(workspace.draft.pipeline(), transforms=(*before, stage.config), off=())
        what = f"measuring {stage.config.name} over {steps:,} steps"
        self._screen.notify(f"{what} … (Ctrl+K cancels)", timeout=30)
        asked = MeasureNorm(chain, steps, workspace.allow_code)
        try:
            found = await workspace.backend.ask(asked, worker=WORKER, slot="repair")
        except RequestError as error:
            self._show_error("Not measured", error)
            return
        place = workspace.draft.find_place(stage.number)
        if place is None or workspace.draft.stages[place].config != stage.config:
            self._screen.notify("the stage has changed: measure it again", severity="warning")
            return
        draft = workspace.draft.replace(place, found[0])
        if found[1:]:
            draft = draft.insert(place + 1, found[1:])
        workspace.edit(f"measure {stage.config.name}", draft, place=place)
        self._screen.notify(f"measured over {steps:,} steps; u undoes it", timeout=5)

    # Entries that cannot be stored

    def exclude(self) -> None:
        """Add an ``ExcludeTransform`` for the entries that a dump cannot store."""
        if self._workspace.draft.env is None:
            self._screen.notify(NO_PIPELINE, timeout=3)
        else:
            self._run(self._exclude())

    async def _exclude(self) -> None:
        workspace = self._workspace
        revision = workspace.editor.revision
        asked = FindUnstorable(workspace.draft.pipeline(), workspace.allow_code)
        try:
            keys = await workspace.backend.ask(asked, worker=WORKER, slot="repair")
        except RequestError as error:
            self._show_error("Not excluded", error)
            return
        if not keys:
            self._screen.notify("all entries can be stored", timeout=4)
        elif revision != workspace.editor.revision:
            self._screen.notify("the chain has changed: try again", severity="warning")
        else:
            count = len(workspace.draft.stages)
            stage = StageConfig("ExcludeTransform", tuple(keys))
            draft = workspace.draft.insert(count, [stage])
            if workspace.edit("exclude what cannot be stored", draft, place=count):
                listed = ", ".join(map(format_key, keys))
                self._screen.notify(f"excluded {listed}; u undoes it", timeout=5)

    # Source

    def open_source(self) -> None:
        """Open the line of the selected stage, or of its error, in the editor of the user."""
        found = find_source(self._workspace)
        if isinstance(found, SourceLine):
            problem = edit_source(self._screen.app, found)
            if problem is None and found.has_changed:
                self._workspace.reload_code()
        else:
            problem = found
        if problem is not None:
            self._screen.notify(problem, timeout=6)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    @property
    def is_running(self) -> bool:
        """True while a worker measures or looks for entries."""
        return self._task is not None and not self._task.done()

    def cancel(self) -> None:
        """Kill the worker of the running repair."""
        if self.is_running:
            self._workspace.backend.restart(WORKER)

    def _show_error(self, title: str, error: RequestError) -> None:
        if error.is_cancelled:
            self._screen.app.notify("cancelled", title=title, timeout=4)
        else:
            self._screen.app.notify(error.sentence, title=title, severity="error", timeout=10)
