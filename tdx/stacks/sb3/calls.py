"""Record the calls of ``step_async``, ``step_wait`` and ``reset`` of every VecEnv."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tdx.stacks.gymnasium.calls import (
    Call,
    CallRecorder,
    Events,
    LastResults,
    OnEvents,
    RemoteCalls,
    Site,
    outermost_site,
    read_calls,
)
from tdx.stacks.gymnasium.capture import Below, freeze, freeze_result
from tdx.stacks.gymnasium.hooks import Wrap, replaced_methods
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.sb3.levels import VecLevel, vec_methods
from tdx.stacks.sources import attributes_of

Part = Literal["reset", "step_async", "step_wait", "step"]


@dataclass(slots=True)
class VecCall(Call):
    """One call of a method of a VecEnv.

    Args:
        part: Name of the method; ``method`` is ``step`` if it belongs to a step.
    """

    part: Part = "step"


class VecCallRecorder(CallRecorder):
    """Records complete resets and steps of the outermost VecEnv, with the calls inside.

    A step consists of the calls of ``step_async`` and those of ``step_wait``.

    Args:
        on_events: Receives each complete call; called by one thread at a time.
        remote: Calls in worker processes. ``None``: there are none.
        last: See :class:`CallRecorder`.
    """

    def __init__(
        self,
        on_events: OnEvents,
        remote: RemoteCalls | None = None,
        last: LastResults | None = None,
    ) -> None:
        super().__init__(self._join, remote, last)
        self._on_step = on_events
        self._sent: Events = []

    @contextmanager
    def attached(self, levels: Sequence[Level]) -> Iterator[None]:
        """Record the calls of all levels in a block."""
        self._sent = []
        with ExitStack() as stack:
            for level in levels:
                if isinstance(level, VecLevel) and not level.in_rows:
                    owner = level.owner
                    wraps = [(owner, self._vec_wrap(level))]
                    stack.enter_context(replaced_methods(wraps, vec_methods(owner)))
            stack.enter_context(super().attached(tuple(each for each in levels if each.in_rows)))
            yield

    def _waits(self, site: Site) -> bool:
        # The workers answer to `step_async` in `step_wait`.
        return super()._waits(site) and site.freeze is not None

    def _vec_wrap(self, level: VecLevel) -> Wrap:
        def wrap(owner: Any, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            part: Any = name
            freeze_part: Any = freeze_result
            if part == "step_async":
                freeze_part = None
            elif part == "reset":
                freeze_part = partial(_freeze_reset, owner if level.is_core else None)
            site = Site(
                level.index,
                0,
                "reset" if part == "reset" else "step",
                partial(VecCall, part=part),
                takes_action=part in ("step_async", "step"),
                freeze=freeze_part,
            )
            return self._recorded(site, original)

        return wrap

    def _join(self, events: Events) -> None:
        """Combine the two halves of a step."""
        site = outermost_site(events)
        event = events[-1]
        has_failed = event is not None and event[4] is not None and event[4].error is not None
        if site.method == "step" and site.freeze is None and not has_failed:
            self._sent = events
            return
        sent, self._sent = self._sent, []
        if site.method == "step":
            events = [*sent, *events]
        self._on_step(events)


def read_step(events: Events) -> Call:
    """Return the outermost call of a step or reset, with the actions that were sent before it."""
    calls = read_calls(events)
    call = calls[-1]
    if call.method == "step":
        halves = [each for each in call.walk() if _is_sending(each) and each is not call]
        _drop_sending(call)
        if not _is_sending(call):
            halves += [each for sent in calls[:-1] for each in sent.walk()]
        _add_actions(call, halves)
    return call


def _is_sending(call: Call) -> bool:
    return isinstance(call, VecCall) and call.part == "step_async"


def _drop_sending(call: Call) -> None:
    """Remove the calls of ``step_async``, unless one of them failed."""
    call.children = [each for each in call.children if not _is_sending(each) or each.error]
    for each in call.children:
        _drop_sending(each)


def _add_actions(call: Call, halves: list[Call]) -> None:
    sent = {each.level: each for each in halves if _is_sending(each)}
    for each in call.walk():
        half = sent.pop(each.level, None) if isinstance(each, VecCall) else None
        if half is not None and half is not each:
            each.given = half.given if each.given is None else each.given
            each.own_ns += half.own_ns


def _freeze_reset(core: Any, result: Any, below: Below) -> tuple[Any, ...] | None:
    """Copy the first observations, and the infos, which the VecEnv of the sub-envs keeps."""
    try:
        infos = () if core is None else freeze(attributes_of(core).get("reset_infos", ()))
        return freeze(result), infos
    except Exception:
        return None
