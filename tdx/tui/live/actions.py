"""What the keys of the live tab do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tdx.tui.live.arrangement import PANES, Pane
from tdx.tui.live.asking import ask_chart, ask_folder, ask_source, ask_steps, ask_until
from tdx.tui.live.requests import (
    RATES,
    Act,
    Command,
    Compare,
    Facts,
    Focus,
    Keep,
    LiveState,
    Pause,
    Rate,
    Reset,
    Run,
    Show,
)
from tdx.tui.searching import SearchedTab

if TYPE_CHECKING:
    from tdx.tui.live.episode_list import EpisodeList
    from tdx.tui.live.hand_pane import HandPane
    from tdx.tui.live.link import Link
    from tdx.tui.live.value_table import ValueTable

MOST_CURVES = 4
WINDOWS: tuple[int | None, ...] = (None, 1000, 200, 50)


class LiveActions(SearchedTab):
    """The actions; the tab itself shows what comes of them."""

    link: Link
    state: LiveState | None
    rate: float | None
    source: str
    until: str | None
    front: Pane
    curves: tuple[str, ...]
    window: int | None
    facts: Facts | None
    rows: int
    values: ValueTable
    episodes: EpisodeList
    hand: HandPane
    _wanted: int | None

    def begin(self, *, runs: bool = False) -> None:
        """Begin a session with the chain as it is."""
        raise NotImplementedError

    def lay_out(self) -> None:
        """Show what there is room for."""
        raise NotImplementedError

    def look_back(self, index: int) -> None:
        """Show a trace that was seen, without the worker."""
        raise NotImplementedError

    def went_away(self, what: str) -> None:
        """Say that the worker is gone; what was seen stays."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Say something on the line below the head."""
        raise NotImplementedError

    # Stepping

    def _tell(self, command: Command) -> None:
        """Tell the session; where there is none it is begun first."""
        if not self.link.is_open:
            self.begin()
        self.link.tell(command)

    def action_run(self) -> None:
        running = self.state is not None and self.state.doing == "running"
        if running and self.link.is_open:
            self.link.tell(Pause())
        else:
            self._wanted = None
            self._tell(Run(until=self.until))

    def action_step(self) -> None:
        self._wanted = None
        self._tell(Run(steps=1))

    def action_steps(self) -> None:
        ask_steps(self.app, self._steps)

    def _steps(self, count: int) -> None:
        self._wanted = None
        self._tell(Run(steps=count, until=self.until))

    def action_reset(self) -> None:
        self._wanted = None
        if self.link.is_open:
            self.link.tell(Reset())
        else:
            self.begin()

    def action_until(self) -> None:
        ask_until(self.app, self.until, self._until)

    def _until(self, text: str | None) -> None:
        self.until = text
        self.lay_out()
        if text is not None:
            self._tell(Run(until=text))

    def action_keep(self) -> None:
        if not self.link.is_open or self.state is None or not self.state.steps:
            self.say("step first")
            return
        assert self.facts is not None
        ask_folder(self.app, self.facts.env, lambda path: self._tell(Keep(path)))

    def action_rate(self, by: int) -> None:
        at = RATES.index(self.rate) if self.rate in RATES else RATES.index(20)
        self.rate = RATES[max(0, min(at + by, len(RATES) - 1))]
        self.link.tell(Rate(self.rate))
        self.lay_out()

    # Where actions come from

    def action_source(self) -> None:
        ask_source(self.app, self.source, self.set_source)

    def set_source(self, source: str) -> None:
        """Take the actions from there from now on."""
        self.source = source
        if source == "hand":
            self.show_pane("hand")
        self.tell_action()
        self.lay_out()

    def tell_action(self) -> None:
        """Tell the session where actions come from."""
        numbers = self.hand.chosen if self.source == "hand" else ()
        self.link.tell(Act(self.source, numbers))

    # The time line

    def action_scrub(self, by: int) -> None:
        if self.state is not None:
            now = self.state.shown if self._wanted is None else self._wanted
            self.scrub_to(now + by)

    def scrub_to(self, index: int | None) -> None:
        """Show a trace; the latest where it is none."""
        state = self.state
        if state is None:
            return
        if index is not None:
            index = max(state.first, min(index, state.last))
        if not self.link.answers:
            self.look_back(state.last if index is None else index)
            return
        latest = index is None or (index >= state.last and state.doing == "paused")
        self._wanted = index
        self.link.tell(Show(None if latest else index))

    def action_first(self) -> None:
        if self.state is not None:
            self.scrub_to(self.state.first)

    def action_follow(self) -> None:
        self.scrub_to(None)

    def action_episode(self, by: int) -> None:
        self._jump(() if self.state is None else self.state.starts, by)

    def action_trouble(self) -> None:
        state = self.state
        if state is not None and not state.troubled:
            self.notify("nothing is wrong in what is held", timeout=2)
        elif state is not None:
            after = [each for each in state.troubled if each > state.shown]
            self.scrub_to(after[0] if after else state.troubled[0])

    def _jump(self, places: tuple[int, ...], by: int) -> None:
        if self.state is None:
            return
        now = self.state.shown if self._wanted is None else self._wanted
        if by < 0:
            self.scrub_to(max((each for each in places if each < now), default=self.state.first))
        else:
            self.scrub_to(min((each for each in places if each > now), default=None))

    def action_mark(self) -> None:
        state = self.state
        if state is not None and self.link.is_open:
            mark = None if state.against == state.shown else state.shown
            self.link.tell(Compare(mark))
            self.say("compared with the step before" if mark is None else f"trace {mark} is marked")

    def action_difference(self) -> None:
        self.values.set_difference(not self.values.difference)

    # What is shown

    def action_only_written(self) -> None:
        self.values.set_only_written(not self.values.only_written)

    def action_view(self) -> None:
        self.show_pane(PANES[(PANES.index(self.front) + 1) % len(PANES)])

    def show_pane(self, pane: Pane) -> None:
        """Bring a pane to the front."""
        self.front = pane
        self.lay_out()
        self.call_after_refresh(self.focus_home)

    def action_pane(self, pane: Pane) -> None:
        self.show_pane(pane)

    def action_chart(self) -> None:
        names = () if self.state is None else self.state.curve_names
        ask_chart(self.app, names, self.curves, self.toggle_curve)

    def toggle_curve(self, name: str) -> None:
        """Draw a curve, or draw it no longer."""
        if name in self.curves:
            self.curves = tuple(each for each in self.curves if each != name)
        else:
            self.curves = (*self.curves, name)[-MOST_CURVES:]
        if self.front != "values":
            self.front = "curves"
        self.lay_out()

    def action_window(self) -> None:
        self.window = WINDOWS[(WINDOWS.index(self.window) + 1) % len(WINDOWS)]
        self.lay_out()

    def action_env(self, by: int) -> None:
        if self.state is None or self.rows == 1:
            return
        row = -1 if self.state.row is None else self.state.row
        # Before the first env there are all of them together.
        to = (row + 1 + by) % (self.rows + 1) - 1
        self.link.tell(Focus(None if to < 0 else to))

    # Search, among the values

    def begin_search(self) -> bool:
        self.front = "values"
        self.lay_out()
        return super().begin_search()

    def searched(self) -> Sequence[str]:
        return self.values.labels

    @property
    def line_at(self) -> int:
        return self.values.cursor

    def go_to_line(self, line: int) -> None:
        self.values.move_to(line)

    # The worker

    def action_end(self) -> None:
        self.link.kill()
        self.went_away("the worker was ended")
