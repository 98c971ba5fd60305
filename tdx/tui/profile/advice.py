"""Advice: the tried changes in a dialog, and applying one to the draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from tdx.pipeline.draft import Draft, DraftStage
from tdx.pipeline.model import Pipeline
from tdx.tui.profile.measurement import MeasurementController
from tdx.tui.profile.messages import AdviceResult, MeasuredChange
from tdx.tui.profile.numbers import format_micros, format_percent

if TYPE_CHECKING:
    from textual.widget import Widget

    from tdx.tui.workspace import Workspace


def replace_chain(draft: Draft, pipeline: Pipeline) -> Draft:
    """Replace the chain of a draft; unchanged stages keep their numbers.

    Disabled stages stay after the stage that precedes them.

    Args:
        draft: The draft.
        pipeline: Pipeline with the new chain.

    Example:
        >>> draft = Draft.of(Pipeline.of("A-v0", "B", "C", "D"))
        >>> [each.number for each in replace_chain(draft, Pipeline.of("A-v0", "D", "B")).stages]
        [2, 0]
    """
    left: list[DraftStage] = []
    disabled: dict[int | None, list[DraftStage]] = {}  # by the number of the stage before them
    for stage in draft.stages:
        if stage.enabled:
            left.append(stage)
        else:
            disabled.setdefault(left[-1].number if left else None, []).append(stage)
    number = max((stage.number for stage in draft.stages), default=-1)
    stages = disabled.pop(None, [])
    for config in pipeline.transforms:
        # The stage that was this one before has the same arguments, or else the same name.
        equal = (stage for stage in left if stage.config == config)
        named = (stage for stage in left if stage.config.name == config.name)
        before = next(equal, None) or next(named, None)
        if before is None:
            number += 1
            before = DraftStage(number, config)
        else:
            left.remove(before)
        stages += [replace(before, config=config), *disabled.pop(before.number, [])]
    stages += [stage for rest in disabled.values() for stage in rest]
    return replace(draft, env=pipeline.env, stages=tuple(stages))


_WIDTH = 66
"""Available columns on the smallest terminal."""
_VALUE_TEXT = {
    "same": "the same values",
    "close": "values within 1 %",
    "other": "different values",
}


class AdviceScreen(ModalScreen[MeasuredChange | Literal["again"] | None]):
    """Shows the changes; returns one to apply, ``again`` to repeat, or ``None``.

    Args:
        found: Changes that were tried.
        is_current: True if the chain has not changed since.
    """

    BINDINGS = [
        Binding("escape,q", "dismiss(None)", "back", id="advice.back", key_display="esc"),
        Binding("r", "again", "repeat", id="advice.again"),
    ]

    def __init__(self, found: AdviceResult, is_current: bool) -> None:
        super().__init__()
        self._found, self._is_current = found, is_current

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="advice") as dialog:
            dialog.border_title = f"advice, {self._found.mode}" if self._found.mode else "advice"
            dialog.border_subtitle = "Enter applies the change · r repeats · Esc closes"
            yield Static(_advice_heading(self._found, self._is_current), id="advice-head")
            yield OptionList(*self._options(), id="advice-list")
            with Horizontal(id="advice-buttons"):
                yield Button("Apply", "primary", id="advice-apply", compact=True)
                yield Button("Repeat", id="advice-again", compact=True)
                yield Button("Close", id="advice-close", compact=True)

    def on_mount(self) -> None:
        listed = self.query_one(OptionList)
        listed.display = bool(listed.option_count)
        can_apply = self._is_current and any(tried.pipeline for tried in self._tried)
        self.query_one("#advice-apply").display = can_apply
        if listed.display:
            listed.highlighted = 0
            listed.focus()
        else:
            self.query_one("#advice-close").focus()

    def action_again(self) -> None:
        self.dismiss("again")

    @property
    def _tried(self) -> tuple[MeasuredChange, ...]:
        return (*self._found.effective, *self._found.ineffective)

    def _options(self) -> list[Option]:
        options = [
            Option(_change_text(tried, at < len(self._found.effective)), id=f"tried-{at}")
            for at, tried in enumerate(self._tried)
        ]
        refused = [
            Option(Content(_indent(f"not tried: {why}")), disabled=True)
            for why in self._found.refused
        ]
        return [*options, *refused]

    @on(OptionList.OptionSelected)
    def _choose_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take(event.option_id)

    @on(Button.Pressed)
    def _run_button_command(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "advice-again":
            self.action_again()
        elif event.button.id == "advice-close":
            self.dismiss(None)
        else:
            option = self.query_one(OptionList).highlighted_option
            self._take(None if option is None else option.id)

    def _take(self, name: str | None) -> None:
        tried = self._tried
        at = int((name or "tried--1").removeprefix("tried-"))
        if not 0 <= at < len(tried):
            return
        if not self._is_current:
            self.notify("the chain has changed; press r to repeat", timeout=4)
        elif tried[at].pipeline is None:
            self.notify(
                "this is not an edit of the chain; make it where the chain is run", timeout=4
            )
        else:
            self.dismiss(tried[at])


def _advice_heading(found: AdviceResult, is_current: bool) -> Content:
    tried = len(found.effective) + len(found.ineffective)
    lines = []
    if found.error is not None:
        lines.append(Content.styled(f"✕ {found.error}", "$text-error"))
    elif not tried and not found.refused:
        lines.append(Content("No changes to try."))
    else:
        word = "change" if tried == 1 else "changes"
        lines.append(
            Content(f"{tried} {word} tried, {len(found.effective)} faster than the current chain.")
        )
    if not is_current:
        lines.append(Content.styled("The chain has changed since.", "$text-warning"))
    return Content("\n").join(lines)


def _change_text(tried: MeasuredChange, is_worth: bool) -> Content:
    share = -tried.saved_us / tried.before_us if tried.before_us else 0.0
    head = Content.assemble(
        (
            f"{format_percent(share) if is_worth else '≈':>6}  ",
            "bold $text-success" if is_worth else "",
        ),
        (tried.change, "bold" if is_worth else ""),
    )
    after = tried.before_us - tried.saved_us
    times = f"{format_micros(tried.before_us)} → {format_micros(after)} µs per step"
    rest = [f"{times} ± {format_micros(tried.noise_us)}, {_VALUE_TEXT[tried.values]}"]
    if is_worth:
        rest.insert(0, f"because {tried.found}")
    if tried.pipeline is None:
        rest.append("not an edit of the chain; make it where the chain is run")
    notes = (Content.styled(_indent(note), "dim") for note in rest)
    return Content("\n").join([head, *notes])


def _indent(text: str) -> str:
    margin = " " * 8
    return fill(text, _WIDTH, initial_indent=margin, subsequent_indent=margin)


class AdviceController:
    """Shows the latest advice and applies changes.

    Args:
        owner: Shows screens and notices.
        workspace: State of the app.
        measuring: Provides the advice.
        search: Searches for advice again.
    """

    def __init__(
        self,
        owner: Widget,
        workspace: Workspace,
        measuring: MeasurementController,
        search: Callable[[], None],
    ) -> None:
        self._owner, self._workspace = owner, workspace
        self._measurement, self._search = measuring, search

    @property
    def is_current(self) -> bool:
        """True if there is advice for the current chain."""
        advised = self._measurement.advised
        return advised is not None and advised.draft == self._workspace.draft

    @property
    def summary(self) -> str:
        """Summary of the advice."""
        advised = self._measurement.advised
        if advised is None:
            return ""
        found = advised.found
        if found.error is not None:
            return f"advice: {found.error}"
        if not found.effective:
            return f"advice: none of {len(found.ineffective)} changes saves time"
        return f"advice: {found.effective[0].change}; press v for details"

    def show(self) -> None:
        """Show the changes that were tried."""
        advised = self._measurement.advised
        if advised is not None:
            screen = AdviceScreen(advised.found, self.is_current)
            self._owner.app.push_screen(screen, self._apply_choice)

    def _apply_choice(self, chosen: MeasuredChange | Literal["again"] | None) -> None:
        if chosen == "again":
            self._search()
        elif chosen is not None and chosen.pipeline is not None:
            draft = replace_chain(self._workspace.draft, chosen.pipeline)
            self._workspace.edit(f"advice: {chosen.change}", draft)
            text = f"{chosen.change}; u undoes this, r measures"
            self._owner.notify(text, title="Advice", timeout=5, markup=False)
