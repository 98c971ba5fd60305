"""Advice: the tried changes below the costs, and applying one to the draft."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from textual import on
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tdx.foundation.text import count_text
from tdx.pipeline.draft import Draft, DraftStage
from tdx.pipeline.model import Pipeline
from tdx.tui.profile.messages import AdviceResult, MeasuredChange
from tdx.tui.profile.numbers import choose_unit, format_percent, format_time

if TYPE_CHECKING:
    from tdx.tui.profile.measurement import DraftAdvice


def replace_chain(draft: Draft, pipeline: Pipeline) -> Draft:
    """Replace the chain of a draft; unchanged stages keep their numbers.

    Disabled stages stay after the stage that precedes them.

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


_VALUE_TEXT = {"same": "same values", "close": "values within 1%", "other": "different values"}


class AdviceList(OptionList):
    """What would help: each change was measured next to the current chain."""

    HELP = """## What would help

Changes that may make the chain faster. After a measurement, each is tried in alternation with the
current chain, and the values are compared; `v` selects them, `Enter` applies one, `u` undoes it.
Nothing is suggested that was not tried."""

    @dataclass
    class Chosen(Message):
        """A change should be applied."""

        change: MeasuredChange

    def __init__(self) -> None:
        super().__init__(id="profile-advice-list", compact=True)
        self._shown: tuple[object, ...] = ()
        self._tried: tuple[MeasuredChange, ...] = ()

    def show(
        self, advised: DraftAdvice | None, draft: Draft, width: int, is_advising: bool
    ) -> None:
        """Show the changes that were tried."""
        is_current = advised is not None and advised.draft == draft
        shown = (advised, is_current, width, is_advising)
        if shown == self._shown:
            return
        self._shown = shown
        text = "v tries changes"
        result = AdviceResult() if advised is None else advised.found
        if is_advising:
            text = "changes are being tried …"
        elif advised is not None:
            text = advice_text(result)
            text += "" if is_current else ", in another chain; v tries again"
        title = f"what would help: {text}"
        self.border_title = Content(title if len(title) < width - 2 else text)
        self._tried = (*result.effective, *result.ineffective)
        self.clear_options()
        for at, tried in enumerate(self._tried):
            self.add_option(Option(_change_text(tried, at < len(result.effective))))
        for why in result.refused:
            self.add_option(Option(Content.styled(f"not tried: {why}", "dim"), disabled=True))

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen(self._tried[event.option_index]))


def advice_text(found: AdviceResult) -> str:
    """Return what was tried, and how much of it saved time."""
    tried = len(found.effective) + len(found.ineffective)
    if found.error is not None:
        return f"✕ {found.error}"
    if not tried and not found.refused:
        return "no changes to try"
    return f"{count_text(tried, 'change')} tried, {len(found.effective)} saved time"


def _change_text(tried: MeasuredChange, saved_time: bool) -> Content:
    share = -tried.saved_us / tried.before_us if tried.before_us else 0.0
    unit = choose_unit(tried.before_us)
    before, after, noise = (
        format_time(us, unit)
        for us in (tried.before_us, tried.before_us - tried.saved_us, tried.noise_us)
    )
    rest = [f"{before} → {after} ± {noise} {unit} per step", _VALUE_TEXT[tried.values]]
    if saved_time:
        rest.append(tried.found)
    if tried.pipeline is None:
        rest.append("not an edit of the chain; make it where the chain is run")
    return Content.assemble(
        (f"{format_percent(share)} ", "bold $text-success") if saved_time else ("no gain: ", "dim"),
        (tried.change, "bold" if saved_time else ""),
        (f"  {'; '.join(rest)}", "dim"),
    )
