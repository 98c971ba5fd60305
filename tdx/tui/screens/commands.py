"""The command palette: actions that apply, transforms, sample pipelines and envs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.dom import DOMNode

from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.editing.documents import list_presets
from tdx.pipeline.transform_info import strip_markup
from tdx.pipeline.values import StageConfig
from tdx.tui.screens.bars import is_listed
from tdx.tui.screens.main import MainScreen

Command = tuple[str, str, Callable[[], Any]]
"""Title, help and function of a command."""
TITLES = {
    "app.quit": "Quit",
    "app.help": "Show help",
    "file.save": "Save the pipeline",
    "file.save_as": "Save under another name",
    "file.open": "Open a pipeline file",
    "file.recent": "Open a recent file",
    "file.new": "Start a new pipeline",
    "file.reload": "Reload from disk",
    "file.restore": "Restore a session",
    "file.dump": "Dump a rollout",
    "screen.catalog": "Add transforms",
    "screen.env": "Choose an env",
    "screen.presets": "Start with a sample pipeline",
    "screen.undo": "Undo the last edit",
    "screen.redo": "Redo the last undone edit",
    "screen.search": "Search",
    "screen.jump": "Jump to a pane or field",
    "screen.expand": "Expand or restore the focused pane",
    "screen.narrower": "Make the pane narrower",
    "screen.wider": "Make the pane wider",
    "screen.theme": "Change the theme",
    "screen.copy": "Copy the pipeline",
    "screen.check": "Check with steps",
    "screen.compare": "Compare with a contract",
    "screen.freeze": "Freeze a contract",
    "screen.measure": "Measure the statistics of the normalizer",
    "screen.exclude": "Exclude what cannot be stored",
    "screen.source": "Open the source in an editor",
    "screen.hints": "Show or hide the first steps",
    "screen.cancel": "Cancel the inspection, or restart its worker",
    "screen.details": "Show all errors",
    "chain.edit": "Edit the stage",
    "chain.switch": "Enable or disable the stage",
    "chain.remove": "Remove the stage",
    "chain.duplicate": "Duplicate the stage",
    "chain.move_up": "Move the stage up",
    "chain.move_down": "Move the stage down",
    "chain.fix": "Fix the finding of the stage",
    "live.run": "Run or pause the rollout",
    "live.step": "Make a step",
    "live.steps": "Make a number of steps",
    "live.reset": "Reset the env",
    "live.until": "Run until a condition",
    "live.action": "Choose the action source",
    "live.slower": "Step slower",
    "live.faster": "Step faster",
    "live.back": "Show the previous step",
    "live.forward": "Show the next step",
    "live.first": "Show the oldest step",
    "live.follow": "Follow the latest step",
    "live.previous_episode": "Show the previous episode",
    "live.next_episode": "Show the next episode",
    "live.next_problem": "Show the next problem",
    "live.branch": "Branch at the shown step",
    "live.next_difference": "Show the next difference",
    "live.earlier": "Compare with the earlier rollout",
    "live.mark": "Mark the shown step to compare",
    "live.difference": "Show differences of values",
    "live.only_written": "Show all or only written keys",
    "live.plot": "Plot a key",
    "live.window": "Zoom the plots",
    "live.dump": "Dump the live steps",
    "live.view": "Show the next pane",
    "live.previous_env": "Show the previous env of the batch",
    "live.next_env": "Show the next env of the batch",
    "live.kill": "Kill the live worker",
    "profile.measure": "Measure the chain",
    "profile.cancel": "Cancel the measurement",
    "profile.sort": "Sort by the next column",
    "profile.invert": "Reverse the order",
    "profile.mode": "Change the execution mode",
    "profile.settings": "Set steps and repeats",
    "profile.operators": "Measure torch operators too",
    "profile.advice": "Try changes that save time",
    "profile.marginal": "Measure savings without each stage",
    "profile.memory": "Measure memory too",
    "profile.base": "Compare all runs with this one",
    "profile.earlier": "Show the earlier run",
    "profile.later": "Show the later run",
    "log.filter": "Filter the log",
    "log.search": "Search the log",
    "log.copy": "Copy the log",
    "log.clear": "Clear the log",
    "specs.previous": "Show the specs of the previous stage",
    "specs.next": "Show the specs of the next stage",
    "specs.only_changed": "Show only changed specs",
    "specs.whole": "Show the specs of the whole chain",
    "specs.fold_all": "Fold all specs",
    "specs.unfold_all": "Unfold all specs",
}
"""Title of each command by the id of its binding. Keys that only move a cursor have none."""
TARGETS = {
    "screen.undo": "undo",
    "screen.redo": "redo",
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


class CommandProvider(Provider):
    """Commands of the palette: every key binding, transform, sample pipeline and env."""

    async def startup(self) -> None:
        """Request the list of envs; they become commands when it arrives."""
        self._main.dialogs.load_envs()

    async def discover(self) -> Hits:
        for title, help_, run in self._actions():
            yield DiscoveryHit(title, run, help=help_)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for title, help_, run in (*self._actions(), *self._transforms(), *self._presets()):
            score = matcher.match(title)
            if score > 0:
                yield Hit(score, matcher.highlight(title), run, help=help_)

    @property
    def _main(self) -> MainScreen:
        """The main screen, even if a dialog is on top of it."""
        stack = self.screen.app.screen_stack
        return next(screen for screen in stack if isinstance(screen, MainScreen))

    def _actions(self) -> Iterator[Command]:
        """Yield each key binding that applies, whatever has the focus, and commands without key."""
        known: set[str] = set()
        screen = self.screen
        for node in (*screen.walk_children(), screen, screen.app):
            # A pane that another one covers is brought back by its commands.
            if not (node.display or node.has_class("pane")):
                continue
            for _, binding in node._bindings:
                name = binding.id or ""
                if name in TITLES and name not in known and self._applies(node, binding):
                    known.add(name)
                    key = screen.app.get_key_display(binding)
                    run = partial(self._run, binding.action, node)
                    yield (TITLES[name], f"key {key}", run)
        save = self._main.save_screenshot
        yield ("Save a screenshot", "an SVG image in the current folder", save)

    def _applies(self, node: DOMNode, binding: Binding) -> bool:
        """Return True if an action has something to act on."""
        workspace, name = self._main.workspace, binding.id or ""
        needs = {
            "undo": bool(workspace.editor.done),
            "redo": bool(workspace.editor.undone),
            "stage": workspace.stage is not None,
            "env": workspace.draft.env is not None,
        }
        target = "env" if name.startswith(("live.", "profile.", "specs.")) else TARGETS.get(name)
        action = binding.action.partition("(")[0]
        is_enabled = bool(node.check_action(action, ()))
        return is_enabled and is_listed(node, binding) and needs.get(target or "", True)

    async def _run(self, action: str, node: DOMNode) -> None:
        """Display a widget and run one of its actions."""
        self._main.panes.reveal_around(node)
        await node.app.run_action(action, node)

    def _transforms(self) -> Iterator[Command]:
        for info in load_catalog().transforms:
            run = partial(self._main.add_stage, StageConfig(info.name))
            yield (f"Add {info.name}", strip_markup(info.summary), run)

    def _presets(self) -> Iterator[Command]:
        dialogs = self._main.dialogs
        for preset in list_presets():
            run = partial(dialogs.load_preset, preset.name)
            yield (f"Start with {preset.name}", preset.title, run)
        for env in dialogs.envs:
            yield (f"Use env {env.id}", env.package, partial(dialogs.set_env, env.id))
