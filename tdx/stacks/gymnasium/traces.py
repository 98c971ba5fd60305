"""Turn the recorded calls of a reset or step into a trace."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.tracing import DeferredTrace, StageTrace, StepTrace, ValueVersion
from tdx.core.tracing.passages import is_same
from tdx.foundation.errors import ChainError, EnvError, TdxError, Where, get_first_line
from tdx.foundation.keys import NestedKey, split_key
from tdx.foundation.tensordicts import new_tensordict
from tdx.stacks.gymnasium.calls import Call, Events, read_calls
from tdx.stacks.gymnasium.capture import Entries
from tdx.stacks.gymnasium.levels import Level
from tdx.stacks.gymnasium.snapshots import (
    FLAGS,
    INFO,
    REWARD,
    action_entries,
    observation_entries,
    overwritten_keys,
    result_entries,
    stack_rows,
)


class _Lane:
    """Current versions in one direction."""

    def __init__(self, name: Any) -> None:
        self.name = name
        self.current: dict[NestedKey, ValueVersion] = {}
        self._last: Entries | None = None

    def write(self, key: NestedKey, value: Any, *, is_stage: bool) -> ValueVersion:
        known = self.current.get(key)
        number = int(is_stage) if known is None else known.number + 1
        version = ValueVersion(key, number, self.name, value)
        self.current[key] = version
        return version

    def update(
        self, entries: Entries, *, is_stage: bool
    ) -> tuple[dict[NestedKey, ValueVersion], tuple[NestedKey, ...]]:
        """Record new values; return what changed and what is missing."""
        if entries is self._last:
            return {}, ()
        self._last = entries
        written = {}
        for key, value in entries.items():
            known = self.current.get(key)
            if known is None or not is_same(known.value, value):
                written[key] = self.write(key, value, is_stage=is_stage)
        if len(entries) == len(self.current):
            return written, ()
        dropped = tuple(key for key in self.current if key not in entries)
        for key in dropped:
            del self.current[key]
        return written, dropped


class TraceBuilder:
    """Builds the trace of each outermost call.

    Args:
        levels: Levels of the stack.
        env_name: Name of the env inside.
    """

    def __init__(self, levels: Sequence[Level], env_name: str) -> None:
        self._levels = {level.index: level for level in levels}
        self._num_envs = levels[0].num_envs
        self._env_name = env_name
        self.policy = "given"
        self.policy_ns = 0
        self._spaces: dict[int, tuple[Any, Any]] = {}
        self._same_forms: dict[tuple[int, int, int], bool] = {}

    def forget_spaces(self) -> None:
        """Read the spaces again, which may differ between blocks."""
        self._spaces, self._same_forms = {}, {}

    def spaces(self, level: Level) -> tuple[Any, Any]:
        """Return the spaces of the observations and actions of a level."""
        found = self._spaces.get(level.index)
        if found is None:
            found = self._spaces[level.index] = level.observation_space, level.action_space
        return found

    def defer(self, events: Events) -> StepTrace:
        """Return the trace of an outermost call, which is built when it is read."""
        event = events[-1]
        assert event is not None
        site, details = event[0], event[4]
        build = partial(self.build, events, self.policy, self.policy_ns)
        known: dict[str, Any] = {"phase": site.method}
        if details is None or details.error is None:
            known["error"] = None
        return DeferredTrace.of(build, index=0, step=0, episode=0, **known)

    def build(self, events: Events, policy: str, policy_ns: int) -> StepTrace:
        """Return the trace of an outermost call.

        Args:
            events: The call.
            policy: Name of what chose the action; ``given``: the caller.
            policy_ns: Nanoseconds that it took.
        """
        root = self._read_calls(events)
        calls: dict[int, list[Call]] = {}
        for call in root.walk():
            calls.setdefault(call.level, []).append(call)
        times = {index: sum(each.own_ns for each in found) for index, found in calls.items()}
        stages: list[StageTrace] = []
        inverse, forward = _Lane("inverse"), _Lane("forward")
        phase = root.method
        if phase == "step":
            given: Any = "given" if policy == "given" else "policy"
            written, _ = inverse.update(self._actions(root.level, [root]), is_stage=False)
            stages.append(StageTrace(given, -1, policy, "inverse", "step", policy_ns, (), written))
            self._add_actions(root, calls, inverse, stages)
        error = self._add_results(root, calls, times, forward, stages)
        return StepTrace(
            index=0,
            step=0,
            episode=0,
            phase=phase,
            tensordict=self._tensordict(phase, inverse, forward, stages),
            stages=tuple(stages),
            given={},
            time_ns=sum(times.values()) + policy_ns,
            error=error,
        )

    def _read_calls(self, events: Events) -> Call:
        """Return the outermost call with its values as tensors."""
        root = read_calls(events)[-1]
        self._read(root)
        return root

    def _read(self, call: Call, above: Call | None = None) -> None:
        """Turn the values of a call, and of those inside, into tensors.

        Args:
            call: The call.
            above: The call that made it. What one passes on to the other is converted once.
        """
        level = self._levels[call.level]
        # A value without the form of its space has no entries.
        if call.method == "step":
            with suppress(Exception):
                call.action = (
                    above.action
                    if above is not None
                    and self._has_same_form(call, above, 1)
                    and _is_identical(call.given, above.given)
                    else self._read_action(level, call)
                )
        below: Call | None = None
        for below in call.children:
            self._read(below, call)
        with suppress(Exception):
            call.result = (
                below.result
                if below is not None
                and self._has_same_form(call, below, 0)
                and _is_identical(call.returned, below.returned)
                else self._read_result(level, call)
            )
        if call.shared and call.returned and not _is_identical(call.previous, call.returned[0]):
            with suppress(Exception):
                old = observation_entries(self.spaces(level)[0], call.previous)
                call.overwritten = overwritten_keys(call.shared, old, call.result)

    def _read_action(self, level: Level, call: Call) -> Entries:
        return action_entries(self.spaces(level)[1], call.given)

    def _read_result(self, level: Level, call: Call) -> Entries:
        returned = call.returned
        if not returned:
            return {}
        observation = observation_entries(self.spaces(level)[0], returned[0])
        return {**observation, **result_entries(returned)}

    def _has_same_form(self, one: Call, other: Call, space: int) -> bool:
        """Return True if equal values of two calls have equal entries."""
        if one.method != other.method or type(one) is not type(other):
            return False
        key = (one.level, other.level, space)
        known = self._same_forms.get(key)
        if known is None:
            levels = self._levels[one.level], self._levels[other.level]
            kinds = {type(self.spaces(level)[space]) for level in levels}
            known = kinds == {Box} and levels[0].in_rows == levels[1].in_rows
            self._same_forms[key] = known
        return known

    def _add_actions(
        self, root: Call, calls: dict[int, list[Call]], lane: _Lane, stages: list[StageTrace]
    ) -> None:
        """Add the stages that change the action, outermost first."""
        above = root.level
        for index in sorted(calls, reverse=True):
            steps = [call for call in calls[index] if call.method == "step"]
            if index == root.level or not steps:
                continue
            read = tuple(lane.current.values())
            written, dropped = lane.update(self._actions(index, steps), is_stage=True)
            if written or dropped:
                name = self._levels[above].name
                stages.append(
                    StageTrace("stage", above, name, "inverse", "step", 0, read, written, dropped)
                )
            above = index

    def _actions(self, index: int, steps: list[Call]) -> Entries:
        """Return the last action of each sub-env, stacked; absent ones take that of the vector."""
        return self._merged(index, steps, [call.action for call in steps])

    def _add_results(
        self,
        root: Call,
        calls: dict[int, list[Call]],
        times: dict[int, int],
        lane: _Lane,
        stages: list[StageTrace],
    ) -> TdxError | None:
        """Add what each level returned, innermost first; return the error of the call."""
        failed = root.failed_call()
        for index in sorted(calls):
            if failed is not None and index > failed.level:
                break
            level, is_stage = self._levels[index], index >= 0
            name = level.name if is_stage else self._env_name
            before = dict(lane.current)
            written: dict[NestedKey, ValueVersion] = {}
            dropped: tuple[NestedKey, ...] = ()
            if failed is None or index != failed.level:
                is_first = not lane.current
                entries = self._results(root.method, index, calls[index], lane, is_first)
                written, dropped = lane.update(entries, is_stage=is_stage)
            read = tuple(before[key] for key in (*written, *dropped) if key in before)
            kind: Any = "stage" if is_stage else "env"
            steps = sum(call.method == "step" for call in calls[index])
            rows = len(level.owners) if level.in_rows else 1
            stages.append(
                StageTrace(
                    kind,
                    index,
                    name,
                    "forward",
                    root.method,
                    times[index],
                    read,
                    written,
                    dropped,
                    overwritten=_overwritten(calls[index]),
                    calls=max(steps // rows, 1),
                )
            )
        return None if failed is None else self.located(failed)

    def _results(
        self, phase: str, index: int, calls: list[Call], lane: _Lane, is_first: bool
    ) -> Entries:
        """Return the last result of each sub-env at a level, stacked."""
        results = [self._complete(phase, call) for call in calls]
        entries = self._merged(index, calls, results)
        if phase == "reset":
            entries = dict(entries)
            # A reset returns no flags: they are those of the env inside.
            entries.pop(REWARD, None)
            for name in FLAGS:
                known = lane.current.get(name)
                entries[name] = known.value if known is not None else self._zeros(torch.bool)
        return entries

    def _complete(self, phase: str, call: Call) -> Entries:
        """Return a result; a reset during a step counts as a step with reward 0."""
        if phase == "reset" or call.method == "step":
            return call.result
        flags: Entries = {name: torch.tensor(False) for name in FLAGS}
        zero = torch.tensor(0.0, dtype=torch.float64)
        if self._num_envs is not None and not self._levels[call.level].in_rows:
            flags = {name: self._zeros(torch.bool) for name in FLAGS}
            zero = self._zeros(torch.float64)
        return {**call.result, REWARD: zero, **flags}

    def _zeros(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(() if self._num_envs is None else (self._num_envs,), dtype=dtype)

    def _merged(self, index: int, calls: list[Call], values: list[Entries]) -> Entries:
        """Return the values of the last call; in sub-envs those of the last call of each row."""
        level = self._levels[index]
        if not level.in_rows:
            return values[-1]
        last = {call.row: each for call, each in zip(calls, values, strict=True)}
        if len(last) < len(level.owners):
            return {}
        rows = [last[row] for row in range(len(level.owners))]
        # Each sub-env has an info of its own, which the vector env merges.
        shared = [
            key for key in rows[0] if all(key in row for row in rows) and split_key(key)[0] != INFO
        ]
        return {key: stack_rows([row[key] for row in rows]) for key in shared}

    def located(self, failed: Call) -> TdxError:
        """Return an error that names the level whose call raised."""
        error = failed.error
        assert error is not None
        name, message = type(error).__name__, get_first_line(error)
        what = f"raised {name} in a {failed.method}: {message}"
        row = f" of sub-env {failed.row}" if self._levels[failed.level].in_rows else ""
        if failed.level < 0:
            return EnvError(
                f"the env{row} {what}",
                where=Where(env=self._env_name),
                hint="correct the env; --debug shows the traceback",
            )
        name = self._levels[failed.level].name
        return ChainError(
            f"it{row} {what}",
            where=Where(stage=failed.level, transform=name),
            hint="correct the stage; --debug shows the traceback",
        )

    def _tensordict(
        self, phase: str, inverse: _Lane, forward: _Lane, stages: list[StageTrace]
    ) -> TensorDictBase:
        """Return the action and the results that have the batch size of the env."""
        size = torch.Size(() if self._num_envs is None else (self._num_envs,))
        result = _to_tensordict(forward.current, size)
        if phase == "reset":
            return result
        given = stages[0].written if stages else inverse.current
        root = _to_tensordict(given, size)
        root.set("next", result)
        return root


def _is_identical(one: Any, other: Any) -> bool:
    """Return True for copies with the same bits; cheaper than comparing tensors."""
    if one is other:
        return one is not None
    if type(one) is not type(other):
        return False
    if type(one) is np.ndarray:
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and not one.dtype.hasobject
            and one.tobytes() == other.tobytes()
        )
    if type(one) is tuple or type(one) is list:
        return len(one) == len(other) and all(map(_is_identical, one, other))
    if type(one) is dict:
        return list(one) == list(other) and all(map(_is_identical, one.values(), other.values()))
    return isinstance(one, bool | int | float | str | np.generic) and bool(one == other)


def _overwritten(calls: list[Call]) -> tuple[NestedKey, ...]:
    return tuple(dict.fromkeys(key for call in calls for key in call.overwritten))


def _to_tensordict(versions: Any, size: torch.Size) -> TensorDictBase:
    entries: dict[str, Any] = {}
    nested: dict[tuple[str, ...], Tensor] = {}
    for key, version in versions.items():
        value = version.value
        if isinstance(value, Tensor) and (not size or value.shape[: len(size)] == size):
            if isinstance(key, str):
                entries[key] = value
            else:
                nested[key] = value
    flags = [entries[name] for name in FLAGS if name in entries]
    if len(flags) == len(FLAGS) and all(flag.dtype == torch.bool for flag in flags):
        entries["done"] = flags[0] | flags[1]
    found = new_tensordict(entries, size, None)
    for path, value in nested.items():
        found.set(path, value)
    return found
