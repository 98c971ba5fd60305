"""The tabs on the right: add a tab by adding a line.

A tab is a widget made by ``factory`` ("module:class", imported when the app starts, so it must not
load torch) that is given the workspace. It subscribes to the workspace's signals when it is
mounted and asks its worker through ``workspace.backend``.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.widget import Widget

    from tdx.tui.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab.

    Args:
        id: its id in the app.
        title: what stands on it.
        factory: ``"module:class"`` of the widget in it.
    """

    id: str
    title: str
    factory: str

    def load(self) -> Callable[[Workspace], Widget]:
        """The class of the widget, imported now; with it its keys are known."""
        module, _, name = self.factory.partition(":")
        found: Callable[[Workspace], Widget] = getattr(import_module(module), name)
        return found

    def make(self, workspace: Workspace) -> Widget:
        """The widget."""
        return self.load()(workspace)


TABS = (
    Tab("stage", "Stage", "tdx.tui.compose.stage_tab:StageTab"),
    Tab("specs", "Specs", "tdx.tui.specs.specs_tab:SpecsTab"),
    Tab("live", "Live", "tdx.tui.live.live_tab:LiveTab"),
    Tab("profile", "Profile", "tdx.tui.profile.profile_tab:ProfileTab"),
    Tab("log", "Log", "tdx.tui.log.log_tab:LogTab"),
)
