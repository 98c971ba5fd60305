"""Turn the recorded calls of a reset or step into a trace.

Forward values are those of the last call of each level, with the sub-envs stacked. Inverse values
are the actions of the last step of each level, outermost first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.tracing import DeferredTrace, StageTrace, StepTrace, ValueVersion
from tdx.core.tracing.passages import is_same
from tdx.core.tracing.traces import Direction, Hook, Kind
from tdx.foundation.errors import ChainError, EnvError, TdxError, Where, get_first_line
from tdx.foundation.keys import NestedKey, split_key
from tdx.foundation.tensordicts import new_tensordict
from tdx.stacks.observe.copies import LevelEntries
from tdx.stacks.observe.events import FLAGS, INFO, REWARD, Event
from tdx.stacks.observe.levels import NestedLevels
from tdx.stacks.observe.recorder import EventRecorder, LastResults, Log, read_events
from tdx.stacks.tracer import OnTrace


@dataclass(slots=True)
class Actor:
    """What chooses the actions of the steps that are recorded."""

    name: str = "given"  # "given": the caller.
    took_ns: int = 0  # For the current action.


@contextmanager
def traced(
    levels: NestedLevels, actor: Actor, last: LastResults, on_trace: OnTrace
) -> Iterator[None]:
    """Trace the resets and steps that the caller makes in a block."""
    sent: Log = []

    def on_root(log: Log) -> None:
        nonlocal sent
        # The outermost call ended last.
        assert log[-1] is not None
        slot, details = log[-1][0], log[-1][4]
        has_failed = details is not None and details.error is not None
        if slot.level != levels.top:
            return
        if slot.method == "step_async" and not has_failed:
            # The other half of the step is a `step_wait`.
            sent = log
            return
        halves, sent = sent, []
        phase: Hook = "reset" if slot.method == "reset" else "step"
        calls = log if phase == "reset" else [*halves, *log]
        name, took_ns = actor.name, actor.took_ns

        def build() -> StepTrace:
            return _Build(levels, _join_halves(read_events(calls))).trace(name, took_ns)

        known = {} if has_failed else {"error": None}
        on_trace(DeferredTrace.of(build, index=0, step=0, episode=0, phase=phase, **known))

    with EventRecorder(on_root, last).attached(levels):
        yield


def _join_halves(roots: Sequence[Event]) -> Event:
    """Return the event of a step with the actions and times of its calls of ``step_async``."""
    root = roots[-1]
    if len(roots) == 1 and all(event.method != "step_async" for event in root.walk()):
        return root
    halves = [event for event in root.walk() if _is_half(event) and event is not root]
    _drop_halves(root)
    if not _is_half(root):
        halves += [event for sent in roots[:-1] for event in sent.walk()]
    sent = {event.level: event for event in halves if _is_half(event)}
    for event in root.walk():
        half = sent.pop(event.level, None)
        if half is not None and half is not event:
            event.given = half.given if event.given is None else event.given
            event.own_ns += half.own_ns
    return root


def _is_half(event: Event) -> bool:
    return event.method == "step_async"


def _drop_halves(event: Event) -> None:
    """Remove the calls of ``step_async``, unless one of them failed."""
    event.children = [child for child in event.children if not _is_half(child) or child.error]
    for child in event.children:
        _drop_halves(child)


class _Lane:
    """Current versions in one direction."""

    def __init__(self, name: Direction) -> None:
        self.name = name
        self.current: dict[NestedKey, ValueVersion] = {}
        self._last: LevelEntries | None = None

    @property
    def values(self) -> LevelEntries:
        return {key: version.value for key, version in self.current.items()}

    def update(
        self, entries: LevelEntries, *, is_stage: bool
    ) -> tuple[dict[NestedKey, ValueVersion], tuple[NestedKey, ...]]:
        """Record new values; return what changed and what is missing."""
        if entries is self._last:
            return {}, ()
        self._last = entries
        written: dict[NestedKey, ValueVersion] = {}
        for key, value in entries.items():
            known = self.current.get(key)
            if known is None or not is_same(known.value, value):
                number = int(is_stage) if known is None else known.number + 1
                written[key] = self.current[key] = ValueVersion(key, number, self.name, value)
        dropped = tuple(key for key in self.current if key not in entries)
        for key in dropped:
            del self.current[key]
        return written, dropped


@dataclass(slots=True)
class _Values:
    """What an event received and returned, as tensors by key."""

    given: LevelEntries = field(default_factory=dict)
    returned: LevelEntries = field(default_factory=dict)
    overwritten: Sequence[NestedKey] = ()


class _Build:
    """One trace."""

    def __init__(self, levels: NestedLevels, root: Event) -> None:
        self._levels, self._root = levels, root
        self._num_envs, self._forms = levels.num_envs, levels.forms()
        self._phase: Hook = "reset" if root.method == "reset" else "step"
        self._values: dict[int, _Values] = {}
        self._read(root)
        self._autoresets = set() if self._phase == "reset" else levels.find_autoresets(root)
        self._events: dict[int, list[Event]] = {}
        for event in root.walk():
            self._events.setdefault(event.level, []).append(event)
        self._inverse, self._forward = _Lane("inverse"), _Lane("forward")
        self._stages: list[StageTrace] = []

    def trace(self, policy: str, policy_ns: int) -> StepTrace:
        """Return the trace.

        ``policy`` is the name of what chose the action, ``given`` for the caller.
        """
        times = {
            index: sum(event.own_ns for event in events) for index, events in self._events.items()
        }
        if self._phase == "step":
            kind: Kind = "given" if policy == "given" else "policy"
            action = self._actions(self._root.level, [self._root])
            written, _ = self._inverse.update(action, is_stage=False)
            given = StageTrace(kind, -1, policy, "inverse", "step", policy_ns, (), written)
            self._stages.append(given)
            self._add_actions()
        error = self._add_results(times)
        return StepTrace(
            index=0,
            step=0,
            episode=0,
            phase=self._phase,
            tensordict=self._tensordict(),
            stages=tuple(self._stages),
            given={},
            time_ns=sum(times.values()) + policy_ns,
            error=error,
        )

    def _read(self, event: Event, above: Event | None = None) -> None:
        """Turn the values of an event, and of those inside, into tensors.

        What the call ``above`` it passes on is converted once.
        """
        levels = self._levels
        values = self._values[id(event)] = _Values()

        def has_value_of(other: Event | None, name: Literal["given", "returned"]) -> bool:
            return (
                other is not None
                and other.method == event.method
                and levels.has_same_entries(event.level, other.level, of_actions=name == "given")
                and _is_identical(getattr(event, name), getattr(other, name))
            )

        # A value without the form of its space has no entries.
        if event.method != "reset" and event.given is not None:
            with suppress(Exception):
                values.given = (
                    self._values[id(above)].given
                    if has_value_of(above, "given")
                    else levels.given_entries(event.level, event.given)
                )
        below: Event | None = None
        for below in event.children:
            self._read(below, event)
        if event.returned:
            with suppress(Exception):
                values.returned = (
                    self._values[id(below)].returned
                    if has_value_of(below, "returned")
                    else levels.returned_entries(event.level, event.method, event.returned)
                )
        if event.shared and event.returned and not _is_identical(event.previous, event.returned[0]):
            with suppress(Exception):
                values.overwritten = levels.overwritten_keys(event, values.returned)

    def _add_actions(self) -> None:
        """Add the stages that change the action, outermost first."""
        above = self._root.level
        for index in sorted(self._events, reverse=True):
            steps = [event for event in self._events[index] if event.method != "reset"]
            if index == self._root.level or not steps:
                continue
            read = tuple(self._inverse.current.values())
            actions = self._actions(index, steps)
            written, dropped = self._inverse.update(actions, is_stage=True)
            if written or dropped:
                name = self._levels.name(above)
                self._stages.append(
                    StageTrace("stage", above, name, "inverse", "step", 0, read, written, dropped)
                )
            above = index

    def _actions(self, index: int, steps: Sequence[Event]) -> LevelEntries:
        """Return the last action of each sub-env, stacked."""
        kept = [event for event in steps if id(event) not in self._autoresets]
        if self._levels.count_rows(index) is None:
            kept = [event for event in kept if self._values[id(event)].given][-1:]
        return self._merged(index, kept, [self._values[id(event)].given for event in kept])

    def _add_results(self, times: Mapping[int, int]) -> TdxError | None:
        """Add what each level returned, innermost first; return the error of the call."""
        failed = self._root.failed_event()
        for index, events in sorted(self._events.items()):
            if failed is not None and index > failed.level:
                break
            rows = self._levels.count_rows(index)
            if self._phase == "reset" and len({event.row for event in events}) < (rows or 1):
                # A reset of some sub-envs: only the vector env returns a value for each of them.
                continue
            is_stage, before = index >= 0, dict(self._forward.current)
            written: dict[NestedKey, ValueVersion] = {}
            dropped: tuple[NestedKey, ...] = ()
            if failed is None or index != failed.level:
                written, dropped = self._forward.update(
                    self._results(index, events), is_stage=is_stage
                )
            read = tuple(before[key] for key in (*written, *dropped) if key in before)
            # A stage may step the env inside after a reset, like one that presses a button.
            is_reset = self._phase == "reset"
            steps = sum(is_reset or event.method != "reset" for event in events)
            overwritten = dict.fromkeys(
                key for event in events for key in self._values[id(event)].overwritten
            )
            self._stages.append(
                StageTrace(
                    "stage" if is_stage else "env",
                    index,
                    self._levels.name(index),
                    "forward",
                    self._phase,
                    times[index],
                    read,
                    written,
                    dropped,
                    overwritten=tuple(overwritten),
                    calls=max(steps // (rows or 1), 1),
                )
            )
        return None if failed is None else locate(self._levels, failed)

    def _results(self, index: int, events: Sequence[Event]) -> LevelEntries:
        """Return the last result of each sub-env at a level, stacked."""
        rows = self._levels.count_rows(index)
        kept = [event for event in events if id(event) not in self._autoresets] or events
        # A `step` of its own contains the `step_wait` of the same object.
        own = [event for event in kept if event.method == "step"] if rows is None else []
        results = [self._complete(event) for event in (own or kept)]
        entries = self._merged(index, own or kept, results)
        if rows is not None:
            last = {event.row: result for event, result in zip(kept, results, strict=True)}
            if len(last) == rows:
                infos = [
                    {key: value for key, value in last[row].items() if split_key(key)[0] == INFO}
                    for row in range(rows)
                ]
                entries |= self._levels.merge_infos(infos)
        if self._phase == "reset":
            entries = self._levels.complete_reset(index, dict(entries), self._forward.values)
        return entries

    def _complete(self, event: Event) -> LevelEntries:
        """Return a result; a reset during a step counts as a step with reward 0."""
        returned = self._values[id(event)].returned
        is_env = self._forms[event.level].protocol == "env"
        if self._phase == "reset" or event.method != "reset" or not is_env:
            return returned
        in_rows = self._levels.count_rows(event.level) is not None
        size = () if in_rows or self._num_envs is None else (self._num_envs,)
        flags: LevelEntries = {name: torch.zeros(size, dtype=torch.bool) for name in FLAGS}
        return {**returned, REWARD: torch.zeros(size, dtype=torch.float64), **flags}

    def _merged(
        self, index: int, events: Sequence[Event], values: Sequence[LevelEntries]
    ) -> LevelEntries:
        """Return the values of the last event; in sub-envs those of the last one of each row."""
        count = self._levels.count_rows(index)
        if count is None:
            return values[-1] if values else {}
        last = {event.row: value for event, value in zip(events, values, strict=True)}
        if len(last) < count:
            return {}
        rows = [last[row] for row in range(count)]
        # Each sub-env has an info of its own, which the vector env merges.
        shared = [
            key for key in rows[0] if all(key in row for row in rows) and split_key(key)[0] != INFO
        ]
        return {key: stack_rows([row[key] for row in rows]) for key in shared}

    def _tensordict(self) -> TensorDictBase:
        """Return the action and the results that have the batch size of the env."""
        size = torch.Size(() if self._num_envs is None else (self._num_envs,))
        result = _to_tensordict(self._forward.current, size)
        if self._phase == "reset":
            return result
        for key, value in self._levels.next_entries(self._forward.values).items():
            result.set(key, value)
        root = _to_tensordict(self._stages[0].written, size)
        root.set("next", result)
        return root


def locate(levels: NestedLevels, failed: Event) -> TdxError:
    """Return an error that names the level whose call raised."""
    error = failed.error
    assert error is not None
    what = f"raised {type(error).__name__} in a {_phase(failed)}: {get_first_line(error)}"
    in_rows = levels.count_rows(failed.level) is not None
    row = f" of sub-env {failed.row}" if in_rows else ""
    name = levels.name(failed.level)
    if failed.level < 0:
        return EnvError(
            f"the env{row} {what}",
            where=Where(env=name),
            hint="correct the env; --debug shows the traceback",
        )
    return ChainError(
        f"it{row} {what}",
        where=Where(stage=failed.level, transform=name),
        hint="correct the stage; --debug shows the traceback",
    )


def _phase(event: Event) -> Hook:
    return "reset" if event.method == "reset" else "step"


def stack_rows(rows: Sequence[Any]) -> Any:
    """Stack the values of sub-envs, ``[N, ...]``; a list if they do not fit together."""
    first = rows[0]
    if isinstance(first, Tensor) and all(
        isinstance(row, Tensor) and row.shape == first.shape and row.dtype == first.dtype
        for row in rows
    ):
        return torch.stack(list(rows))
    return list(rows)


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


def _to_tensordict(versions: Mapping[NestedKey, ValueVersion], size: torch.Size) -> TensorDictBase:
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
    tensordict = new_tensordict(entries, size, None)
    for path, value in nested.items():
        tensordict.set(path, value)
    return tensordict
