"""The command palette: actions that apply, transforms, sample pipelines and envs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen

from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.editing.documents import list_presets
from tdx.pipeline.transform_info import strip_markup
from tdx.pipeline.values import StageConfig
from tdx.tui.screens.bars import is_listed
from tdx.tui.screens.dialogs import Choice, ChoiceScreen
from tdx.tui.screens.main import TABS, MainScreen
from tdx.tui.textual_internals import bindings_of

Command = tuple[str, str, Callable[[], object]]
"""Title, help and function of a command."""
TARGETS = {
    "screen.check": "env",
    "screen.copy": "env",
    **dict.fromkeys(("screen.compare", "screen.freeze", "screen.exclude"), "env"),
    "screen.measure": "stage",
    **dict.fromkeys(
        ("chain.switch", "chain.remove", "chain.duplicate", "chain.move_up", "chain.move_down"),
        "stage",
    ),
}
"""What a command acts on, by the id of its binding."""
_AREAS = ("app", "screen", "file")
"""Areas of commands that work everywhere; the id of a binding starts with its area."""


class CommandPalette(ChoiceScreen):
    """Searches the commands of a screen; returns the title of one."""

    def __init__(self, main: MainScreen, screen: Screen[object]) -> None:
        super().__init__("Commands", ())
        self._main, self._screen = main, screen
        self.actions = tuple(self._list_actions())
        self._update_commands()
        # The envs become commands as soon as they are known.
        main.dialogs.load_envs(self._update_commands)

    def run_command(self, title: str) -> None:
        """Run the command with a title."""
        function = self._functions[title]
        self._main.app.call_later(function)

    def _update_commands(self) -> None:
        dialogs = self._main.dialogs
        commands: list[Command] = [*self.actions]
        for info in load_catalog().transforms:
            add = partial(self._main.add_stage, StageConfig(info.name))
            commands.append((f"Add {info.name}", strip_markup(info.summary), add))
        for preset in list_presets():
            load = partial(dialogs.load_preset, preset.name)
            commands.append((f"Start with {preset.name}", preset.title, load))
        for env in dialogs.envs:
            use = partial(dialogs.set_env, env.id)
            commands.append((f"Use env {env.id}", env.package, use))
        self._functions = {title: function for title, _, function in commands}
        self.set_choices([Choice(title, title, note) for title, note, _ in commands])

    def _list_actions(self) -> Iterator[Command]:
        """Yield each key binding that applies, and commands without a key.

        Keys that only move a cursor have no description of their own.
        """
        known = {"app.palette"}
        screen = self._screen
        tabs = map(self._main.get_tab, TABS) if screen is self._main else ()
        for node in dict.fromkeys((*screen.walk_children(), *tabs, screen, self._main.app)):
            # A pane that another one covers is brought back by its commands.
            if not (node.display or node.has_class("pane")):
                continue
            for binding in bindings_of(node):
                name = binding.id or ""
                area = name.partition(".")[0]
                is_command = area in (*_AREAS, *TABS, "chain") and binding.description
                if is_command and name not in known and self._applies(node, binding):
                    known.add(name)
                    text = binding.description
                    title = f"{text[:1].upper()}{text[1:]}"
                    if area not in _AREAS:
                        title = f"{area.title()}: {text}"
                    key = self._main.app.get_key_display(binding)
                    run = partial(self._run, binding.action, node)
                    yield (title, f"key {key}", run)
        if self._main.workspace.takes_samples:
            choose = self._main.dialogs.choose_samples
            yield ("Choose samples", "recorded inputs instead of drawn ones", choose)
        if self._main.workspace.draft.positions:
            export = self._main.exports.export
            yield ("Export the chain", "code that runs without tdx", export)
        save = self._main.save_screenshot
        yield ("Save a screenshot", "an SVG image in the current folder", save)

    def _applies(self, node: DOMNode, binding: Binding) -> bool:
        """Return True if an action has something to act on."""
        workspace, name = self._main.workspace, binding.id or ""
        needs = {"stage": workspace.stage is not None, "env": workspace.draft.env is not None}
        target = "env" if name.startswith(("live.", "profile.", "specs.")) else TARGETS.get(name)
        action = binding.action.partition("(")[0]
        is_enabled = bool(node.check_action(action, ()))
        return is_enabled and is_listed(node, binding) and needs.get(target or "", True)

    async def _run(self, action: str, node: DOMNode) -> None:
        """Display a widget and run one of its actions."""
        for name in TABS:
            if node is self._main.get_tab(name):
                await self._main.mount_tab(name)
        self._main.panes.reveal_around(node)
        await node.app.run_action(action, node)
