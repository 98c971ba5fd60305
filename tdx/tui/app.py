"""The Textual app: it holds the state and the backend, and shows the main screen."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from importlib import import_module

from textual import events
from textual.app import App, ScreenStackError, SystemCommand
from textual.binding import Binding
from textual.css.query import QueryError
from textual.dom import DOMNode, NoScreen
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import TabPane

from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.docstrings import markdown
from tdx.pipeline.editing import Draft, Editor
from tdx.tui import bindings
from tdx.tui.backend.client import Backend, ProcessBackend
from tdx.tui.backend.news import News, name_of
from tdx.tui.compose.catalogue_pane import CataloguePane
from tdx.tui.files.crash import told_of_crash
from tdx.tui.files.ending import watch_signals
from tdx.tui.files.files import Files, Kept
from tdx.tui.files.keys import FILES
from tdx.tui.key_queue import KeyQueue
from tdx.tui.log.recorder import hear
from tdx.tui.palette import TdxCommands
from tdx.tui.preferences import Preferences, checked_keymap
from tdx.tui.screens.focus import FocusGuard
from tdx.tui.screens.hints import HintBook
from tdx.tui.screens.main import MainScreen
from tdx.tui.screens.panes import THREE_PANES
from tdx.tui.tabs import TABS
from tdx.tui.themes import DEFAULT, THEMES
from tdx.tui.workspace import Workspace

LOOK = "look"

_LATER = ("tdx.tui.files.dump_screen", "tdx.tui.screens.reading")
"""Screens that are loaded when they are first shown; the first one does not wait for them."""

_MISSING = (QueryError, NoScreen, ScreenStackError)


class TdxApp(App[None]):
    """The terminal app.

    Args:
        draft: the chain to begin with.
        backend: whoever answers what needs torch; processes by default.
        preferences: how the app shall be.
        allow_code: whether Python objects that the pipeline names may be imported.
        kept: what outlives the app; none for an app that keeps nothing.
        hints: what to do first; none for no hints.
    """

    TITLE = "tdx"
    CSS_PATH = ["app.tcss", "files/files.tcss", "profile/profile.tcss", "log/log.tcss"]
    BINDINGS = [*bindings.APP, *FILES]
    COMMANDS = {TdxCommands}
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (THREE_PANES, "-normal"), (150, "-wide")]
    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        draft: Draft | None = None,
        *,
        backend: Backend | None = None,
        preferences: Preferences | None = None,
        allow_code: bool = False,
        kept: Kept | None = None,
        hints: HintBook | None = None,
    ) -> None:
        super().__init__()
        self.preferences = preferences or Preferences()
        self.backend: Backend = backend or ProcessBackend(self._worker_ended, self._news)
        self.workspace = Workspace(self, Editor(draft), self.backend, allow_code)
        self.files = Files(self, self.workspace, kept)
        self.hints = hints or HintBook()
        self.keys = KeyQueue(self, self._deliver)
        for theme in (*THEMES, *self.preferences.themes):
            self.register_theme(theme)
        known = self.preferences.theme in self.available_themes
        self.theme = self.preferences.theme if known else DEFAULT

    def get_default_screen(self) -> Screen[None]:
        return MainScreen(self.workspace, self.hints)

    def on_mount(self) -> None:
        wanted = self.preferences.keymap
        # Without a keymap the first screen does not wait for the keys of tabs behind it.
        keymap, wrong = checked_keymap(wanted, self.binding_groups() if wanted else ())
        notices = [*self.preferences.notices, *([wrong] if wrong else [])]
        if self.theme != self.preferences.theme:
            notices.append(f"unknown theme {self.preferences.theme!r}; {self.theme} is used")
        self.set_keymap(keymap)
        for notice in notices:
            self.notify(notice, title="Settings", severity="warning", timeout=10)
        # The worker needs a processor for its imports: let the first screen have it before.
        self.call_after_refresh(self.workspace.refresh)
        self.call_after_refresh(self.files.start)
        if not self.is_headless:
            watch_signals(self, self.files, self.backend.close)

    async def action_quit(self) -> None:
        """Leave, once what is not saved is taken care of."""
        self.files.quit()

    def action_file(self, command: str) -> None:
        """Do something with pipeline files."""
        self.files.run(command)

    def on_ready(self) -> None:
        """Look for garbage again, where ``open_app`` has put that off until the first screen."""
        if not gc.isenabled():
            gc.freeze()
            gc.enable()

    def binding_groups(self) -> list[list[Binding]]:
        """The keys that a keymap can name, those of one widget together; those of all tabs too."""
        for tab in TABS:
            tab.load()
        for module in _LATER:
            import_module(module)
        kinds = (*self.__class__.__mro__, *_subclasses(Screen), *_subclasses(Widget))
        return [list(_bindings(kind)) for kind in dict.fromkeys(kinds)]

    def binding_ids(self) -> list[str]:
        """The ids of all keys, as a keymap names them."""
        ids = (binding.id for group in self.binding_groups() for binding in group)
        return list(dict.fromkeys(name for name in ids if name))

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        """Say nothing: the keymap was checked when it was read.

        Textual calls this each time it looks up a key, also for a command with two keys by default
        that is given one, which it takes for two commands.
        """

    async def on_event(self, event: events.Event) -> None:
        """Let keys and clicks go before what workers push, and keys one after the other."""
        if isinstance(event, events.Key | events.MouseDown):
            self.backend.hold()
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            await self.keys.put(event)
        else:
            await super().on_event(event)

    async def _deliver(self, event: events.Key | events.Paste) -> None:
        """Hand a key to what has the focus, once that is something that is displayed."""
        if isinstance(self.screen, FocusGuard):
            self.screen.move_hidden_focus()
        await super().on_event(event)

    def on_unmount(self) -> None:
        self.backend.close()

    def action_help(self) -> None:
        """Help for what has the focus: a transform's own page, or the widget's."""
        from tdx.tui.screens.reading import ReadScreen

        info = None
        stage = self.workspace.stage
        nodes = self.focused.ancestors_with_self if self.focused else []
        elsewhere = any(isinstance(node, TabPane) and node.id != "stage" for node in nodes)
        if self.focused is not None and self.focused.id in ("catalogue", "catalogue-search"):
            info = self.query_one(CataloguePane).highlighted
        elif stage is not None and not elsewhere:
            info = load_catalog().find(stage.config.name)
        if info is not None:
            self.push_screen(ReadScreen(info.name, markdown(info.doc), markdown=True))
            return
        text = next((node.HELP for node in nodes if getattr(node, "HELP", None)), None)
        self.push_screen(ReadScreen("Help", f"{text or ''}\n\n{self._keys_help()}", markdown=True))

    def get_system_commands(self, screen: Screen[object]) -> Iterator[SystemCommand]:
        yield from super().get_system_commands(screen)

    def _keys_help(self) -> str:
        rows = [
            f"| `{self.get_key_display(active.binding)}` | {active.binding.description} |"
            for active in self.screen.active_bindings.values()
            if active.binding.description
        ]
        return "\n".join(["### Keys here", "", "| key | what it does |", "| --- | --- |", *rows])

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a notice as it stands: what files, keys and envs are called is no markup."""
        told = f"{title}: {message}" if title else message
        self.workspace.journal.record(told, severity=severity)
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=False)

    def _handle_exception(self, error: Exception) -> None:
        """Leave quietly where an error only shows that the app is ending, or its page is gone."""
        if isinstance(error, BrokenPipeError):
            self.files.keeper.leave_for_later()
            self.exit(return_code=1)
        elif not (self._exit and isinstance(error, _MISSING)):
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """Say a fault of the app itself on a few lines, once the edits are safe."""
        if self.is_headless:
            super()._fatal_error()
        else:
            self.panic(told_of_crash(self.files))

    def _news(self, news: News) -> None:
        hear(self.workspace.journal, news)

    def _worker_ended(self, name: str, how: str, said: str) -> None:
        is_told = how.startswith(("killed", "crashed"))  # what was said before is about the call
        last = said.splitlines()[-1] if said and not is_told else ""
        text = ": ".join(each for each in (how, last) if each) or "it said nothing"
        title = f"The process of {name_of(name)} ended"
        self.notify(text, title=title, severity="error")
        if name == LOOK:
            self.workspace.retry()


def _bindings(kind: type) -> Iterator[Binding]:
    declared: Sequence[object] = vars(kind).get("BINDINGS", ())
    for each in declared:
        if isinstance(each, Binding):
            yield each


def _subclasses(kind: type) -> Iterator[type]:
    """Every class of tdx that extends one."""
    subclasses: list[type] = kind.__subclasses__()
    for each in subclasses:
        if each.__module__.startswith("tdx."):
            yield each
        yield from _subclasses(each)
