"""Turn the recorded calls of a VecEnv into a trace."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from tdx.core.tracing import StageTrace
from tdx.keys import split_key
from tdx.stacks.gymnasium.calls import Call, Events
from tdx.stacks.gymnasium.capture import Entries
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.snapshots import (
    FLAGS,
    INFO,
    REWARD,
    action_entries,
    observation_entries,
)
from tdx.stacks.gymnasium.traces import TraceBuilder, _Lane
from tdx.stacks.sb3.calls import VecCall, read_step
from tdx.stacks.sb3.levels import VecLevel
from tdx.stacks.sb3.snapshots import (
    DONE,
    end_flags,
    info_entries,
    merge_rows,
    next_observations,
    step_entries,
)


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
