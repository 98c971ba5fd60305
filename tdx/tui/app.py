"""The Textual app: it owns the workspace and the backend, and shows the main screen."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from textual import events
from textual.binding import Binding
from textual.dom import DOMNode
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import TabPane

from tdx.foundation.processes import ExitReason
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.editing import Draft, Editor
from tdx.pipeline.transform_info import markdown
from tdx.tui.backend.client import Backend
from tdx.tui.backend.messages import worker_title
from tdx.tui.compose.catalog_pane import CatalogPane
from tdx.tui.compose.chain_pane import ChainList, ChainPane
from tdx.tui.files.document import report_crash, watch_signals
from tdx.tui.files.files import FILE_BINDINGS, Files, Storage
from tdx.tui.input_queue import InputQueue, QueuedEvent
from tdx.tui.log.journal import Journal
from tdx.tui.preferences import (
    DEFAULT_THEME,
    THEMES,
    VIM_KEYMAP,
    VIM_MOVES,
    Preferences,
    check_keymap,
)
from tdx.tui.screens.bars import HintState
from tdx.tui.screens.commands import CommandPalette
from tdx.tui.screens.dialogs import JumpScreen, QuestionScreen, ask
from tdx.tui.screens.help import HelpScreen
from tdx.tui.screens.main import TABS, MainScreen, load_tab
from tdx.tui.screens.pane_layout import THREE_PANES, FocusGuard
from tdx.tui.textual_internals import CrashReportingApp
from tdx.tui.workspace import Workspace

_FOLDER = Path(__file__).parent
_SEVERITY_SIGNS = {"information": "", "warning": "▲ ", "error": "✕ "}


class TdxApp(CrashReportingApp):
    """The terminal app; by default workers answer, and nothing is stored."""

    TITLE = "tdx"
    CSS_PATH = [_FOLDER / "app.tcss", *sorted(_FOLDER.glob("*/*.tcss"))]
    BINDINGS = [
        Binding("ctrl+q", "quit", "quit", id="app.quit", show=False, priority=True),
        Binding(
            "ctrl+p", "command_palette", "commands", id="app.palette", priority=True, system=True
        ),
        Binding("question_mark,f1", "help", "help", id="app.help"),
        *FILE_BINDINGS,
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (THREE_PANES, "-normal"), (150, "-wide")]

    def __init__(
        self,
        draft: Draft | None = None,
        *,
        backend: Backend | None = None,
        preferences: Preferences | None = None,
        allow_code: bool = False,
        storage: Storage | None = None,
        hints: HintState | None = None,
        samples: str | None = None,
    ) -> None:
        super().__init__()
        self.preferences = preferences or Preferences()
        journal = Journal()
        self.backend: Backend = backend or Backend(
            self._report_worker_exit, journal.record_worker_event
        )
        self.workspace = Workspace(self, Editor(draft), self.backend, allow_code, journal, samples)
        self.files = Files(self, self.workspace, storage)
        self.hints = hints or HintState()
        self.crash_report = ""
        self._has_pressed_d = False
        self.input_queue = InputQueue(self, self._deliver)
        for theme in (*THEMES, *self.preferences.themes):
            self.register_theme(theme)
        is_known = self.preferences.theme in self.available_themes
        self.theme = self.preferences.theme if is_known else DEFAULT_THEME

    def get_default_screen(self) -> Screen[None]:
        return MainScreen(self.workspace, self.hints, self.input_queue)

    def on_mount(self) -> None:
        preferred = self.preferences.keymap
        # Without a keymap, the first screen does not wait for the bindings of the other tabs.
        keymap, error = check_keymap(preferred, self.binding_groups() if preferred else ())
        notices = [*self.preferences.notices, *([error] if error else [])]
        if self.theme != self.preferences.theme:
            notices.append(f"unknown theme {self.preferences.theme!r}; using {self.theme}")
        self.set_keymap({**(VIM_KEYMAP if self.preferences.has_vim_keys else {}), **keymap})
        if notices:
            text = "\n".join(notices)
            self.notify(text, title="Settings", severity="warning", timeout=10)
        # The worker's imports keep a core busy: draw the first screen before it starts.
        self.call_after_refresh(self.workspace.refresh)
        self.call_after_refresh(self.files.start)
        if not self.is_headless:
            watch_signals(self, self.files.autosave, self.backend.close)

    async def action_quit(self) -> None:
        """Quit, after asking about unsaved edits."""
        self.files.quit()

    def action_file(self, command: str) -> None:
        """Run a command for pipeline files."""
        getattr(self.files, command)()

    def on_ready(self) -> None:
        """Begin with garbage collection, which ``open_app`` disables until the first screen."""
        if not gc.isenabled():
            # What exists now stays: without it, a full collection, for which a key has to wait,
            # takes a third of the time.
            gc.freeze()
            gc.enable()

    def binding_groups(self) -> list[list[Binding]]:
        """Return the bindings that a keymap can name, grouped by widget class."""
        from tdx.tui.contract.contract_screen import ContractScreen
        from tdx.tui.files.dumps import DumpScreen, WatchScreen

        loaded: list[type] = [ContractScreen, DumpScreen, WatchScreen, *map(load_tab, TABS)]
        kinds: tuple[type, ...] = (
            *type(self).__mro__,
            *_all_subclasses(Screen),
            *_all_subclasses(Widget),
            *loaded,
        )
        declared: list[Sequence[object]] = [
            vars(kind).get("BINDINGS", ()) for kind in dict.fromkeys(kinds)
        ]
        return [[each for each in group if isinstance(each, Binding)] for group in declared]

    def handle_bindings_clash(self, clashed_bindings: set[Binding], node: DOMNode) -> None:
        """Ignore the clash: :func:`check_keymap` has checked the keymap.

        Textual calls this on each key press, even for a command that has two default keys and is
        mapped to one key: it takes them for two commands.
        """

    async def on_event(self, event: events.Event) -> None:
        """Queue keys, clicks and scrolling; handle keys and clicks before worker updates."""
        if isinstance(event, events.Key | events.MouseDown):
            self.backend.hold()
        if isinstance(event, QueuedEvent) and not event.is_forwarded:
            await self.input_queue.put(event)
        else:
            await super().on_event(event)

    async def _deliver(self, event: QueuedEvent) -> None:
        """Pass an event on; the focused widget must be displayed."""
        if isinstance(self.screen, FocusGuard):
            self.screen.move_hidden_focus()
        if self.preferences.has_vim_keys and isinstance(event, events.Key):
            translated = self._translate_vim_key(event)
            if translated is None:
                return
            event = translated
        await super().on_event(event)

    def _translate_vim_key(self, event: events.Key) -> events.Key | None:
        """Return the key that a vim key stands for. ``None``: a second ``d`` has to follow."""
        focused, key = self.focused, event.key
        is_first, self._has_pressed_d = not self._has_pressed_d, False
        is_typed = focused is not None and focused.check_consume_key(key, event.character)
        # Letters choose a reply or a target there.
        if is_typed or isinstance(self.screen, QuestionScreen | JumpScreen):
            return event
        # A click on the key bar presses it without a character.
        if event.character == "d" and isinstance(focused, ChainList) and is_first:
            self._has_pressed_d = True
            return None
        if key in VIM_MOVES and key not in ",".join(self.preferences.keymap.values()).split(","):
            return events.Key(VIM_MOVES[key], None)
        return event

    def get_key_display(self, binding: Binding) -> str:
        """Return a key as it is shown, with vim keys instead of what they stand for."""
        if self.preferences.has_vim_keys and not binding.key_display:
            if binding.id == "chain.remove" and binding.key == "d":
                return "dd"
            letters = {name: key for key, name in VIM_MOVES.items()}
            binding = replace(binding, key=letters.get(binding.key, binding.key))
        return super().get_key_display(binding)

    def on_unmount(self) -> None:
        self.backend.close()

    def action_command_palette(self) -> None:
        """Show the commands that apply.

        Textual's own palette runs the first result of the previous search if Enter follows a
        letter quickly.
        """
        main, screen = self.screen_stack[0], self.screen
        if isinstance(main, MainScreen) and not isinstance(screen, CommandPalette):
            palette = CommandPalette(main, screen)
            ask(self, palette, palette.run_command)

    def action_help(self) -> None:
        """Show the keys of the focused widget, what it shows, and the selected transform."""
        nodes = self.focused.ancestors_with_self if self.focused else [self.screen]
        is_catalog = any(isinstance(node, CatalogPane) for node in nodes)
        has_stage = any(
            isinstance(node, ChainPane) or (isinstance(node, TabPane) and node.id == "stage")
            for node in nodes
        )
        info = self.query_one(CatalogPane).current_transform if is_catalog else None
        if has_stage and self.workspace.stage is not None:
            info = load_catalog().find(self.workspace.stage.config.name)
        self.push_screen(HelpScreen(self, nodes, None if info is None else markdown(info.doc)))

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a notice instead of earlier ones, and record it in the log.

        Names of files, keys and envs are never markup.
        """
        text = f"{title}: {message}" if title else message
        self.workspace.journal.record(text, severity=severity)
        sign = _SEVERITY_SIGNS[severity]
        title, message = (f"{sign}{title}", message) if title else (title, f"{sign}{message}")
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=False)

    def on_notify(self) -> None:
        """Remove the earlier notices before Textual adds the new one."""
        self.clear_notifications()

    def action_help_quit(self) -> None:
        """Show the key that quits, because Ctrl+C does not."""
        for active in self.active_bindings.values():
            if active.binding.id == "app.quit":
                self.notify(f"press {self.get_key_display(active.binding)} to quit")
                return

    def end_without_terminal(self) -> None:
        self.files.autosave.keep_for_next_start()
        self.exit(return_code=1)

    def report_crash(self) -> None:
        """Keep the edits; :attr:`crash_report` is what the user reads after the app has closed."""
        self.crash_report = report_crash(self.files.autosave)

    def _report_worker_exit(self, name: str, reason: ExitReason, output: str) -> None:
        # After a crash or a kill, the last line of the output is not the cause.
        text = str(reason)
        if output and not reason.is_signal:
            text += f": {output.splitlines()[-1]}"
        self.notify(text, title=f"Worker for {worker_title(name)} ended", severity="error")
        if name == "look":
            self.workspace.retry()


def _all_subclasses(kind: type) -> Iterator[type]:
    subclasses: list[type] = kind.__subclasses__()
    for subclass in subclasses:
        yield subclass
        yield from _all_subclasses(subclass)
