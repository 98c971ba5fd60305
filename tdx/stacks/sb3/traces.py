"""Turn the recorded calls of a VecEnv into tensors by key, and these into a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.tracing import StageTrace
from tdx.keys import NestedKey, split_key
from tdx.stacks.gymnasium.calls import Call, Events
from tdx.stacks.gymnasium.capture import Entries
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
from tdx.stacks.sb3.calls import VecCall, read_step
from tdx.stacks.sb3.levels import VecLevel

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
