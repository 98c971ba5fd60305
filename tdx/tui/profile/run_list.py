"""The runs of this session, the last one on top."""

from __future__ import annotations

from textual import on
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tdx.tui.profile.lines import Shown, mode_of
from tdx.tui.profile.runs import History, Run
from tdx.tui.profile.texts import history_line


class RunList(OptionList):
    """One line for each run; the one under the cursor is shown."""

    class Chosen(Message):
        """A run is to be shown."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    def __init__(self) -> None:
        super().__init__(id="profile-runs", compact=True)

    def show_runs(
        self, history: History, wanted: Shown, shown: Run | None, base: Run | None
    ) -> None:
        """List the runs.

        Args:
            history: all of them.
            wanted: the modes that are looked at.
            shown: the run that is shown.
            base: the run that others are compared with, where it is always the same.
        """
        runs = list(reversed(history.runs))
        self.set_class(len(runs) < 2, "-few")
        with self.prevent(OptionList.OptionHighlighted):
            self.clear_options()
            for run in runs:
                mode = mode_of(run, wanted)
                before = None if mode is None else history.before(run, mode.mode)
                line = history_line(run, before, wanted, "◆" if run is base else " ")
                self.add_option(Option(line, id=f"run-{run.number}"))
            if shown in runs:
                self.highlighted = runs.index(shown)

    @on(OptionList.OptionSelected)
    @on(OptionList.OptionHighlighted)
    def _run_chosen(self, event: OptionList.OptionMessage) -> None:
        event.stop()
        self.post_message(self.Chosen(int((event.option.id or "run-0").removeprefix("run-"))))
