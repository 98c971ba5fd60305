"""Record the calls of a VecEnv, and turn them into tensors by key and a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.tracing import StageTrace
from tdx.foundation.keys import NestedKey, split_key
from tdx.stacks.gymnasium.calls import (
    Call,
    CallRecorder,
    Events,
    LastResults,
    OnEvents,
    Site,
    outermost_site,
    read_calls,
)
from tdx.stacks.gymnasium.capture import Below, Entries, freeze, freeze_result
from tdx.stacks.gymnasium.hooks import Wrap, replaced_methods
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.snapshots import (
    FLAGS,
    INFO,
    OBSERVATION,
    REWARD,
    action_entries,
    observation_entries,
    result_entries,
    stack_rows,
)
from tdx.stacks.gymnasium.traces import TraceBuilder, _Lane
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
        last: See :class:`CallRecorder`.
    """

    def __init__(
        self,
        on_events: OnEvents,
        last: LastResults | None = None,
    ) -> None:
        super().__init__(self._join, last)
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


DONE = "done"
TERMINAL = "terminal_observation"
LIMITED: NestedKey = (INFO, "TimeLimit.truncated")
"""Key of the infos that tells a truncation from a termination."""


def step_entries(space: Any, result: Any) -> Entries:
    """Return the entries of a result of ``step_wait``: observation, reward, done and infos.

    Args:
        space: Space of the observations of one env.
        result: Copy of the result.
    """
    if not isinstance(result, tuple) or len(result) != 4:
        return {}
    observation, reward, done, infos = result
    entries = observation_entries(space, observation)
    entries[REWARD] = torch.as_tensor(reward).to(torch.float64)
    entries[DONE] = torch.as_tensor(done)
    return entries | info_entries(infos) | terminal_entries(space, infos)


def info_entries(infos: Sequence[Mapping[str, Any]]) -> Entries:
    """Return the entries of the infos of all sub-envs, lists with ``None`` for missing values.

    Args:
        infos: Info of each sub-env.

    Example:
        >>> info_entries([{"x": 1.0, "lives": 3}, {"x": 2.0}])[("info", "lives")]
        [tensor(3), None]
    """
    rows = [
        result_entries((None, {name: value for name, value in info.items() if name != TERMINAL}))
        for info in infos
    ]
    return merge_rows(rows)


def merge_rows(rows: Sequence[Entries]) -> Entries:
    """Merge entries of sub-envs, ``[N, ...]`` each; ``None`` in a list stands for a missing one."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: stack_rows([row.get(key) for row in rows]) for key in keys}


def terminal_entries(space: Any, infos: Sequence[Mapping[str, Any]]) -> Entries:
    """Return the last observations of the episodes that ended, ``[D, ...]`` for D sub-envs.

    Args:
        space: Space of the observations of one env.
        infos: Info of each sub-env.
    """
    rows = [_terminal_row(space, info[TERMINAL]) for info in infos if TERMINAL in info]
    return {terminal_key(key): value for key, value in merge_rows(rows).items()}


def _terminal_row(space: Any, value: Any) -> Entries:
    """Return the entries of an observation that need not have the structure of the space."""
    if not isinstance(value, Mapping) or isinstance(space, spaces.Dict):
        return observation_entries(space, value)
    parts = {str(name): part for name, part in value.items()}
    return observation_entries(spaces.Dict({}), parts)


def terminal_key(key: NestedKey) -> NestedKey:
    """Return the key in ``info`` of the last observation, for a key of the observation.

    Example:
        >>> terminal_key(("observation", "image"))
        ('info', 'terminal_observation', 'image')
    """
    parts = (key,) if isinstance(key, str) else key
    return (INFO, TERMINAL, *parts[1:])


def next_observations(entries: Mapping[NestedKey, Any]) -> Entries:
    """Return the observations with the last one of each episode that ended, by key.

    A VecEnv returns the first observation of the next episode instead.

    Args:
        entries: Values of a step after its outermost stage.
    """
    done = entries.get(DONE)
    found: Entries = {}
    for key, value in entries.items():
        if key != OBSERVATION and not (isinstance(key, tuple) and key[0] == OBSERVATION):
            continue
        last = entries.get(terminal_key(key))
        if not (isinstance(last, Tensor) and isinstance(done, Tensor) and done.ndim == 1):
            continue
        if last.shape[1:] == value.shape[1:] and len(last) == int(done.sum()):
            replaced = value.clone()
            replaced[done] = last.to(value.dtype)
            found[key] = replaced
    return found


def end_flags(entries: Mapping[NestedKey, Any]) -> Entries:
    """Return why the episodes of a step ended, which a VecEnv only tells in the infos.

    Args:
        entries: Values of a step after its outermost stage.

    Example:
        >>> done = torch.tensor([True, True])
        >>> flags = end_flags({"done": done, LIMITED: [torch.tensor(True), None]})
        >>> flags["terminated"], flags["truncated"]
        (tensor([False,  True]), tensor([ True, False]))
    """
    done = entries.get(DONE)
    if not (isinstance(done, Tensor) and done.ndim == 1):
        return {}
    infos = entries.get(LIMITED)
    rows = (
        [False] * len(done)
        if infos is None
        else [each is not None and bool(each) for each in infos]
    )
    truncated = done & torch.tensor(rows)
    return {"terminated": done & ~truncated, "truncated": truncated}


class VecTraceBuilder(TraceBuilder):
    """Builds the trace of each reset and step of a VecEnv.

    A VecEnv resets the sub-envs whose episode ended within a step. The time of these resets counts;
    the values of a sub-env are those of its step, and the VecEnv writes those of the reset.

    Args:
        levels: Levels of the stack.
        env_name: Name of the env inside.
    """

    _resets: frozenset[int] = frozenset()

    def _read_calls(self, events: Events) -> Call:
        root = read_step(events)
        self._read(root)
        resets: set[int] = set()
        if root.method == "step":
            for call in root.walk():
                if isinstance(call, VecCall):
                    own = [each for each in call.children if each.method == "reset"]
                    resets.update(id(inner) for each in own for inner in each.walk())
        self._resets = frozenset(resets)
        return root

    def _read_action(self, level: Level, call: Call) -> Entries:
        if not isinstance(call, VecCall):
            return super()._read_action(level, call)
        return {} if call.given is None else action_entries(self.spaces(level)[1], call.given)

    def _read_result(self, level: Level, call: Call) -> Entries:
        if not isinstance(call, VecCall):
            return super()._read_result(level, call)
        space, returned = self.spaces(level)[0], call.returned
        if call.part != "reset":
            return step_entries(space, returned)
        if not returned:
            return {}
        entries = observation_entries(space, returned[0])
        if isinstance(level, VecLevel) and level.is_core:
            entries |= info_entries(returned[1])
        return entries

    def _actions(self, index: int, steps: list[Call]) -> Entries:
        kept = [call for call in steps if id(call) not in self._resets]
        level = self._levels[index]
        if not level.in_rows:
            kept = [call for call in kept if call.action][-1:]
        return self._merged(index, kept, [call.action for call in kept]) if kept else {}

    def _results(
        self, phase: str, index: int, calls: list[Call], lane: _Lane, is_first: bool
    ) -> Entries:
        """Return the results at a level, stacked."""
        level = self._levels[index]
        kept = [call for call in calls if id(call) not in self._resets] or calls
        if not level.in_rows:
            return self._vec_results(phase, level, kept, lane)
        results = [self._complete(phase, call) for call in kept]
        entries = self._merged(index, kept, results)
        last = {call.row: each for call, each in zip(kept, results, strict=True)}
        infos = [
            {key: value for key, value in last[row].items() if split_key(key)[0] == INFO}
            for row in sorted(last)
        ]
        if len(infos) == len(level.owners):
            entries |= merge_rows(infos)
        if phase == "reset":
            entries.pop(REWARD, None)
            entries |= {name: self._zeros(torch.bool) for name in FLAGS}
        return entries

    def _vec_results(self, phase: str, level: Any, calls: list[Call], lane: _Lane) -> Entries:
        # A `step` of its own contains `step_wait` of the same object.
        outermost = [call for call in calls if isinstance(call, VecCall) and call.part == "step"]
        entries = dict((outermost or calls)[-1].result)
        if phase == "reset":
            entries[DONE] = self._zeros(torch.bool)
            if isinstance(level, VecLevel) and not level.is_core:
                entries |= {
                    key: version.value
                    for key, version in lane.current.items()
                    if split_key(key)[0] == INFO
                }
        return entries

    def _tensordict(
        self, phase: str, inverse: _Lane, forward: _Lane, stages: list[StageTrace]
    ) -> TensorDictBase:
        """Return the action and the results.

        ``next`` has the last observation of each episode, and why it ended.
        """
        found = super()._tensordict(phase, inverse, forward, stages)
        if phase == "step":
            values = {key: version.value for key, version in forward.current.items()}
            for key, value in (next_observations(values) | end_flags(values)).items():
                found.get("next").set(key, value)
        return found
