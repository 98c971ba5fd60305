"""App without panes, for tests of its files; its state is in a folder of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePath
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.pilot import Pilot
from textual.widgets import Static

from tdx.pipeline import format_stage
from tdx.pipeline.editing import Draft, Editor
from tdx.pipeline.editing.documents import RecentFiles
from tdx.pipeline.editing.sessions import SessionStore
from tdx.pipeline.file.pipeline_file import PipelineFile
from tdx.tui.files.files import FILE_BINDINGS, Files, Storage
from tdx.tui.screens.bars import StatusBar
from tdx.tui.workspace import Workspace
from tests.tui.driving import screen_text
from tests.tui.inline_backend import InlineBackend

TEXT = "# mine\nversion: 1\nenv: Pendulum-v1  # swing up\ntransforms:\n  - RewardSum\n"
TUI = Path(__file__).parents[3] / "tdx" / "tui"


class FilesApp(App[None]):
    """Screen with a status line and the keys for files."""

    CSS_PATH: ClassVar[list[str | PurePath]] = [TUI / "app.tcss", TUI / "files" / "files.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [*FILE_BINDINGS, ("ctrl+q", "quit", "quit")]

    def __init__(self, draft: Draft | None, storage: Storage | None) -> None:
        super().__init__()
        self.workspace = Workspace(self, Editor(draft), InlineBackend(looks=False))
        self.files = Files(self, self.workspace, storage)

    def compose(self) -> ComposeResult:
        yield StatusBar(self.workspace)
        yield Static("nothing", id="body")

    def on_mount(self) -> None:
        self.files.start()

    async def action_quit(self) -> None:
        self.files.quit()

    def action_file(self, command: str) -> None:
        getattr(self.files, command)()


class Filer:
    """Driver that presses keys, edits and reads the screen."""

    def __init__(self, app: FilesApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot
        self.workspace = app.workspace

    async def press(self, *keys: str) -> None:
        """Press keys; ``"text:abc"`` types."""
        for key in keys:
            if key.startswith("text:"):
                signs = {".": "full_stop", "/": "slash", "-": "minus"}
                await self.pilot.press(*(signs.get(sign, sign) for sign in key[5:]))
            else:
                await self.pilot.press(key)
        await self.settle()

    async def settle(self) -> None:
        """Wait until all messages are handled."""
        await self.pilot.pause()
        await self.pilot.pause()

    async def edit(self, *stages: str) -> None:
        """Replace the stages with one edit."""
        from tdx.pipeline import parse_stage

        draft = self.workspace.draft
        while draft.stages:
            draft = draft.remove(0)
        draft = draft.insert(0, [parse_stage(stage) for stage in stages])
        self.workspace.edit(f"edit to {len(stages)}", draft)
        await self.settle()

    @property
    def stages(self) -> list[str]:
        """Stages as text."""
        return [format_stage(stage.config) for stage in self.workspace.draft.stages]

    @property
    def notices(self) -> str:
        """Return the text of all notices."""
        return "\n".join(f"{each.title}: {each.message}" for each in self.app._notifications)

    def text(self, selector: str = "") -> str:
        """Return the text of the screen or of a widget, with single spaces."""
        return " ".join(screen_text(self.app, selector).split())


def storage_in(folder: Path) -> Storage:
    """Return storage in a folder."""
    return Storage(SessionStore(folder / "sessions"), RecentFiles(folder / "recent.json"))


@asynccontextmanager
async def filing(state: Path, file: Path | None = None) -> AsyncIterator[Filer]:
    """Run the app with a file or an empty pipeline."""
    draft = None if file is None else Draft.of(PipelineFile.load(file).pipeline)
    app = FilesApp(draft, storage_in(state))
    async with app.run_test(size=(90, 26), notifications=True) as pilot:
        filer = Filer(app, pilot)
        await filer.settle()
        yield filer
