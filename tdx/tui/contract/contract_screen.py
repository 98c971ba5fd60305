"""The Contract view: stages side by side, and the values of both sides at the cursor."""

from __future__ import annotations

import time

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from tdx.tui.backend.client import RequestError
from tdx.tui.chain_status import truncate_middle
from tdx.tui.contract.lines import LEGEND, Line, details, heading, list_lines, start_line
from tdx.tui.contract.messages import Comparison
from tdx.tui.contract.requests import WORKER, CompareContract
from tdx.tui.line_widgets import ElidedStatic
from tdx.tui.workspace import Workspace

_JOINED, _MIN_SIDE = " compared with ", 12


class ContractScreen(ModalScreen[None]):
    """Compares the chain with a contract or another target, in a worker."""

    HELP = """## Contract

The stages of both sides are paired by what they do, each with the keys that are compared after it;
`←` marks an action on its way to the env. `▶` marks the first difference, `≠` a difference, `↳`
what follows from an earlier one, `-` and `+` stages and keys of one side, `?` what is random, and
`·` what does not change what a policy reads or does. The details show the values of both sides in
one reference step."""
    BINDINGS = [
        Binding("escape,q", "back", "back", id="comparison.back", key_display="esc"),
        Binding("n", "next(1)", "go to the next difference", id="comparison.next"),
        Binding("N", "next(-1)", "go to the previous difference", id="comparison.previous"),
        Binding("left", "step(-1)", "show the previous step", id="comparison.step_back"),
        Binding("right", "step(1)", "show the next step", id="comparison.step"),
        Binding("e", "evaluation", "compare as an evaluation", id="comparison.evaluation"),
        Binding("r", "compare", "compare again", id="comparison.again"),
        # The bindings of the app do not reach through a modal screen.
        Binding("question_mark,f1", "app.help", "help", id="comparison.help", show=False),
        Binding("ctrl+k", "cancel", "cancel", id="comparison.cancel", priority=True),
    ]

    AUTO_FOCUS = ""  # the list is not displayed before there is a comparison

    def __init__(self, workspace: Workspace, reference: str) -> None:
        super().__init__()
        self.workspace = workspace
        self.comparison: Comparison | None = None
        self._reference = reference
        self._is_evaluation = False
        self._lines: list[Line] = []
        self._step = 0
        self._started = 0.0
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog", id="contract") as dialog:
            env = self.workspace.draft.env
            sides = ("" if env is None else env.id, self._reference)
            # The end of a path or a function tells more than its folder.
            room = max(_MIN_SIDE, (self.app.size.width - len(_JOINED) - 8) // 2)
            dialog.border_title = Content(
                _JOINED.join(truncate_middle(side, room) for side in sides)
            )
            dialog.border_subtitle = "n next · ←→ step · e evaluation · r again · Esc closes"
            yield ElidedStatic("", id="contract-head", markup=False)
            with Container(id="contract-body"):
                listed = OptionList(id="contract-list", compact=True)
                listed.border_subtitle = LEGEND
                yield listed
                with VerticalScroll(id="contract-details"):
                    yield Static("", markup=False)

    def on_mount(self) -> None:
        self.action_compare()

    @property
    def is_comparing(self) -> bool:
        """True while the worker compares."""
        return self._timer is not None

    def action_compare(self) -> None:
        """Compare the chain as it is now."""
        if self._timer is None:
            self._started = time.monotonic()
            self._timer = self.set_interval(1.0, self._show_progress)
        self._show_progress()
        self.run_worker(self._compare(), exclusive=True)

    def action_evaluation(self) -> None:
        """Compare as ``tdx check --eval``: statistics must not change; or not."""
        self._is_evaluation = not self._is_evaluation
        self.action_compare()

    def action_cancel(self) -> None:
        if self.is_comparing:
            self.workspace.backend.restart(WORKER)

    def action_back(self) -> None:
        """Leave the details, then the view."""
        if self.query_one("#contract-details").has_focus:
            self.query_one("#contract-list").focus()
            return
        self.action_cancel()
        self.dismiss(None)

    async def _compare(self) -> None:
        request = CompareContract(
            self.workspace.draft.pipeline(),
            self._reference,
            self._is_evaluation,
            self.workspace.allow_code,
            self.workspace.samples,
        )
        try:
            comparison = await self.workspace.backend.ask(request, worker=WORKER, slot=WORKER)
        except RequestError as error:
            problem = error.problem
            hint = f"\n→ {problem.hint}" if problem.hint else ""
            self._finish(None, Content.styled(f"✕ {problem.message}{hint}", "$text-error"))
            return
        mode = " · as an evaluation" if self._is_evaluation else ""
        style = "bold $success" if comparison.report.same else "bold $error"
        aside = (f"  {comparison.report.steps} reference steps{mode}", "dim")
        self._finish(comparison, Content.assemble((heading(comparison.report), style), aside))

    def _show_progress(self) -> None:
        seconds = time.monotonic() - self._started
        waited = f" ({seconds:.0f} s, Ctrl+K cancels)" if seconds >= 1 else ""
        self.query_one("#contract-head", Static).update(Content(f"comparing …{waited}"))

    def _finish(self, comparison: Comparison | None, head: Content) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self.comparison = comparison
        self.query_one("#contract-head", Static).update(head)
        self.query_one("#contract-body").display = comparison is not None
        if comparison is None:
            self.set_focus(None)
        elif self.focused is None:
            self.set_focus(self.query_one("#contract-list"))
        self._lines = [] if comparison is None else list_lines(comparison)
        # The list has no size before it is displayed.
        self.call_after_refresh(self._fill, start_line(self._lines))

    def _fill(self, at: int | None) -> None:
        listed = self.query_one("#contract-list", OptionList)
        width = listed.scrollable_content_region.width or self.size.width - 6
        listed.clear_options()
        listed.add_options(Option(line.render(width)) for line in self._lines)
        listed.highlighted = at if self._lines else None
        if self._lines and at is not None:
            key = self._lines[at].key
            self._step = 0 if key is None else key.first_step
            self._show_details()

    def on_resize(self, event: events.Resize) -> None:
        # The list gets its size after this event.
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        step = self._step
        self._fill(self.query_one("#contract-list", OptionList).highlighted)
        self._step = step
        self._show_details()

    @property
    def _line(self) -> Line | None:
        at = self.query_one("#contract-list", OptionList).highlighted
        return None if at is None or at >= len(self._lines) else self._lines[at]

    @on(OptionList.OptionHighlighted, "#contract-list")
    def _show_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        key = None if self._line is None else self._line.key
        self._step = 0 if key is None else key.first_step
        self._show_details()

    @on(OptionList.OptionSelected, "#contract-list")
    def _enter_details(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.query_one("#contract-details").focus()

    def _show_details(self) -> None:
        pane = self.query_one("#contract-details")
        line, comparison = self._line, self.comparison
        text = Content("")
        if line is not None and comparison is not None:
            width = pane.scrollable_content_region.width or self.size.width - 6
            text = details(comparison, line, self._step, width)
        pane.query_one(Static).update(text)

    def action_step(self, by: int) -> None:
        """Show the values of another reference step."""
        key = None if self._line is None else self._line.key
        if key is not None and key.steps:
            self._step = max(0, min(self._step + by, len(key.steps) - 1))
            self._show_details()

    def action_next(self, by: int) -> None:
        """Move to the next or previous stage or key that differs."""
        listed = self.query_one("#contract-list", OptionList)
        marked = [at for at, line in enumerate(self._lines) if line.mark in "≠-+↳"]
        at = listed.highlighted or 0
        after = [place for place in marked if (place - at) * by > 0]
        if marked:
            order = after or marked
            listed.highlighted = order[0] if by > 0 else order[-1]
