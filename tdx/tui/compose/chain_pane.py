"""The chain pane: the chain with the keys that edit its stages."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from tdx.tui import bindings
from tdx.tui.compose.chain_list import ChainList
from tdx.tui.compose.problem_panel import find_fixable
from tdx.tui.workspace import ENV, Workspace


class ChainPane(Vertical):
    """The middle pane.

    Args:
        workspace: State of the app.
    """

    BINDINGS = [*bindings.CHAIN]

    class Edit(Message):
        """The form of the selected stage should open."""

    class Fix(Message):
        """The fix for the selected stage should be applied."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(id="chain-pane", classes="pane")
        self.workspace = workspace
        self._has_fix = False
        self.border_title = "Chain"

    def compose(self) -> ComposeResult:
        yield ChainList(self.workspace)

    def on_mount(self) -> None:
        self.workspace.edited.subscribe(self, lambda _: self._count())
        self.workspace.inspected.subscribe(self, lambda _: self._offer_fix())
        self.workspace.selected.subscribe(self, lambda _: self._offer_fix())
        self._count()

    def _count(self) -> None:
        draft = self.workspace.draft
        total, on_ = len(draft.stages), len(draft.positions)
        word = "stage" if total == 1 else "stages"
        self.border_subtitle = f"{on_} of {total} on" if on_ < total else f"{total} {word}"

    def action_step(self, by: int) -> None:
        self.workspace.select(self.workspace.place + by)

    def action_first(self) -> None:
        self.workspace.select(ENV)

    def action_last(self) -> None:
        self.workspace.select(len(self.workspace.draft.stages))

    def action_edit(self) -> None:
        self.post_message(self.Edit())

    def action_fix(self) -> None:
        self.post_message(self.Fix())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show the key for a fix only if there is one."""
        return action != "fix" or self._has_fix

    def _offer_fix(self) -> None:
        """Update the key bar if the availability of a fix has changed."""
        has_fix = find_fixable(self.workspace) is not None
        if has_fix != self._has_fix:
            self._has_fix = has_fix
            self.refresh_bindings()

    def action_switch(self, place: int | None = None) -> None:
        place = self.workspace.place if place is None else place
        stages = self.workspace.draft.stages
        if 0 <= place < len(stages):
            verb = "disable" if stages[place].enabled else "enable"
            label = f"{verb} {stages[place].config.name}"
            self.workspace.edit(label, self.workspace.draft.toggle(place))

    def action_remove(self) -> None:
        stage, place = self.workspace.stage, self.workspace.place
        if stage is not None:
            draft = self.workspace.draft.remove(place)
            self.workspace.edit(f"remove {stage.config.name}", draft, place=place)

    def action_duplicate(self) -> None:
        stage, place = self.workspace.stage, self.workspace.place
        if stage is not None:
            draft = self.workspace.draft.duplicate(place)
            self.workspace.edit(f"duplicate {stage.config.name}", draft, place=place + 1)

    def action_move(self, by: int) -> None:
        self._move(self.workspace.place, self.workspace.place + by)

    @on(ChainList.Dropped)
    def _dropped(self, event: ChainList.Dropped) -> None:
        event.stop()
        self._move(event.place, event.to)

    @on(ChainList.Marked)
    def _marked(self, event: ChainList.Marked) -> None:
        event.stop()
        self.action_switch(event.place)

    @on(ChainList.Opened)
    def _opened(self, event: ChainList.Opened) -> None:
        event.stop()
        self.action_edit()

    def _move(self, place: int, to: int) -> None:
        stages = self.workspace.draft.stages
        if 0 <= place < len(stages) and 0 <= to < len(stages):
            label = f"move {stages[place].config.name}"
            self.workspace.edit(label, self.workspace.draft.move(place, to), place=to)
