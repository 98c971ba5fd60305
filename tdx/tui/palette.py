"""The command palette: every action, every transform, every env that is known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.command import DiscoveryHit, Hit, Hits, Provider

from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.docstrings import strip_markup
from tdx.pipeline.editing.documents import list_presets

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.dom import DOMNode

    from tdx.tui.screens.main import MainScreen

Command = tuple[str, str, "Callable[[], Any]"]


class TdxCommands(Provider):
    """Finds commands by what they are called."""

    async def startup(self) -> None:
        """Learn the envs; they are found as soon as they are known."""
        self._main.dialogs.learn_envs()

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
        """The screen with the chain, also where a dialog stands over it."""
        from tdx.tui.screens.main import MainScreen

        stack = self.screen.app.screen_stack
        return next(screen for screen in stack if isinstance(screen, MainScreen))

    def _actions(self) -> Iterator[Command]:
        """Everything that has a key, wherever the focus is."""
        seen: set[str] = set()
        screen = self.screen
        for node in (screen.app, screen, *screen.walk_children()):
            for _, binding in node._bindings:
                named = binding.id is not None and "." in binding.id
                if not named or binding.id in seen or not node.display:
                    continue
                seen.add(binding.id or "")
                area, _, _ = (binding.id or "").partition(".")
                key = screen.app.get_key_display(binding)
                run = partial(self._run, binding.action, node)
                yield (f"{area}: {binding.description}", f"key {key}", run)

    async def _run(self, action: str, node: DOMNode) -> None:
        """Run an action of a widget, which is displayed first, so that one sees what it does."""
        self._main.panes.reveal_around(node)
        await node.app.run_action(action, node)

    def _transforms(self) -> Iterator[Command]:
        for info in load_catalog().transforms:
            run = partial(self._main.add_transform, info)
            yield (f"Add {info.name}", strip_markup(info.summary), run)

    def _presets(self) -> Iterator[Command]:
        dialogs = self._main.dialogs
        for preset in list_presets():
            run = partial(dialogs._preset_chosen, preset.name)
            yield (f"Begin with {preset.name}", preset.title, run)
        for env in dialogs.envs:
            yield (f"Env {env.id}", env.package, partial(dialogs.set_env, env.id))
