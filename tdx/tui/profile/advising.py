"""Advice for the chain: have it tried, show it, make the edit that is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from tdx.tui.profile.advice_screen import AdviceScreen
from tdx.tui.profile.measuring import Measuring
from tdx.tui.profile.mending import mended
from tdx.tui.profile.requests import Tried

if TYPE_CHECKING:
    from textual.widget import Widget

    from tdx.tui.workspace import Workspace


class Advising:
    """Keeps the last advice until the chain is another one.

    Args:
        owner: shows screens and notices.
        workspace: the state of the app.
        measuring: whoever has the advice tried.
        ask: has it tried anew.
    """

    def __init__(
        self,
        owner: Widget,
        workspace: Workspace,
        measuring: Measuring,
        ask: Callable[[], None],
    ) -> None:
        self._owner, self._workspace = owner, workspace
        self._measuring, self._ask = measuring, ask

    @property
    def is_current(self) -> bool:
        """Whether there is advice for the chain as it is."""
        advised = self._measuring.advised
        return advised is not None and advised.draft == self._workspace.draft

    @property
    def told(self) -> str:
        """The advice in a few words."""
        advised = self._measuring.advised
        if advised is None:
            return ""
        found = advised.found
        if found.error is not None:
            return f"advice: {found.error}"
        if not found.worth:
            return f"advice: nothing saves time; tried {len(found.vain)}"
        return f"advice: {found.worth[0].change}; v shows what that saves"

    def show(self) -> None:
        """Show what was tried."""
        advised = self._measuring.advised
        if advised is not None:
            screen = AdviceScreen(advised.found, self.is_current)
            self._owner.app.push_screen(screen, self._chosen)

    def _chosen(self, chosen: Tried | Literal["again"] | None) -> None:
        if chosen == "again":
            self._ask()
        elif chosen is not None and chosen.pipeline is not None:
            draft = mended(self._workspace.draft, chosen.pipeline)
            self._workspace.edit(f"advice: {chosen.change}", draft)
            text = f"{chosen.change}; u takes it back, r measures"
            self._owner.notify(text, title="Advice", timeout=5, markup=False)
