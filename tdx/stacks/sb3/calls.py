"""Record the calls of ``step_async``, ``step_wait`` and ``reset`` of every VecEnv."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from tdx.stacks.gymnasium.calls import Call, CallRecorder, LastResults, RemoteCalls
from tdx.stacks.gymnasium.hooks import Wrap, replaced_methods
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.snapshots import Entries, action_entries, observation_entries
from tdx.stacks.sb3.levels import VecLevel, vec_methods
from tdx.stacks.sb3.snapshots import info_entries, step_entries
from tdx.stacks.sources import attributes_of

Part = Literal["reset", "step_async", "step_wait", "step"]


@dataclass(slots=True)
class VecCall(Call):
    """One call of a method of a VecEnv.

    Args:
        part: Name of the method; ``method`` is ``step`` for those that belong to a step.
    """

    part: Part = "step"


class VecCallRecorder(CallRecorder):
    """Records complete resets and steps of the outermost VecEnv, with the calls inside.

    A step is one call with the actions of ``step_async`` and the results of ``step_wait``.

    Args:
        on_call: Receives each complete call; called by one thread at a time.
        remote: Calls in worker processes. ``None``: there are none.
        last: See :class:`CallRecorder`.
    """

    def __init__(
        self,
        on_call: Callable[[Call], None],
        remote: RemoteCalls | None = None,
        last: LastResults | None = None,
    ) -> None:
        super().__init__(self._join, remote, last)
        self._on_step = on_call
        self._sent: VecCall | None = None

    @contextmanager
    def attached(self, levels: Sequence[Level]) -> Iterator[None]:
        """Record the calls of all levels in a block."""
        self._sent = None
        with ExitStack() as stack:
            for level in levels:
                if isinstance(level, VecLevel) and not level.in_rows:
                    owner = level.owner
                    wraps = [(owner, self._vec_wrap(level))]
                    stack.enter_context(replaced_methods(wraps, vec_methods(owner)))
            stack.enter_context(super().attached(tuple(each for each in levels if each.in_rows)))
            yield

    def _add_remote_calls(self, call: Call) -> None:
        # The workers answer to `step_async` in `step_wait`.
        if not _is_sending(call):
            super()._add_remote_calls(call)

    def _vec_wrap(self, level: VecLevel) -> Wrap:
        def wrap(owner: Any, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            part: Any = name

            def recorded(*args: Any, **kwargs: Any) -> Any:
                method: Any = "reset" if part == "reset" else "step"
                call = VecCall(level.index, 0, method, part=part)
                return self._record(
                    call,
                    lambda: _actions(call, level, args, kwargs),
                    lambda: original(*args, **kwargs),
                    lambda result: _results(call, level, result),
                )

            return recorded

        return wrap

    def _join(self, call: Call) -> None:
        """Combine the two halves of a step."""
        if isinstance(call, VecCall) and call.part == "step_async" and call.error is None:
            self._sent = call
            return
        if call.method == "step":
            halves = [each for each in call.walk() if _is_sending(each) and each is not call]
            _drop_sending(call)
            if self._sent is not None and not _is_sending(call):
                halves += self._sent.walk()
            _add_actions(call, halves)
        self._sent = None
        self._on_step(call)


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
            each.action = each.action or half.action
            each.own_ns += half.own_ns


def _actions(
    call: VecCall, level: VecLevel, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Entries:
    if call.part not in ("step_async", "step"):
        return {}
    return action_entries(level.owner.action_space, args[0] if args else kwargs.get("actions"))


def _results(call: VecCall, level: VecLevel, result: Any) -> Entries:
    if call.part == "step_async":
        return {}
    if call.part != "reset":
        return step_entries(level.owner.observation_space, result)
    entries = observation_entries(level.owner.observation_space, result)
    if level.is_core:
        entries |= info_entries(attributes_of(level.owner).get("reset_infos", ()))
    return entries
