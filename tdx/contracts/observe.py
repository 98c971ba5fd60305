"""Record recorded inputs, run a stack on them, and record what its stages write and keep."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdx.compare.model import DONE_KEYS, Lane, Place, Segment, key_name
from tdx.compare.replay import MAX_ROWS
from tdx.compare.values import Values
from tdx.foundation.errors import EnvError, TdxError, summarize_error
from tdx.foundation.keys import NestedKey
from tdx.specs.leaf import LeafSpec, composite_leaves
from tdx.stacks.observe import preserved_generators
from tdx.stacks.replay import Entries, base_key, to_rows

if TYPE_CHECKING:
    from tdx.core import StepTrace
    from tdx.stacks import Stack

STEPS = 12
"""Golden steps by default."""
_MAX_CALLS = 64


def collect_inputs(
    stack: Stack, read_actions: Callable[[StepTrace], Entries], seed: int, steps: int = STEPS
) -> tuple[Segment, ...]:
    """Step a stack with random actions, and record what its env returns.

    The flags of the inputs are false: the golden episodes do not end by themselves. There are two,
    for the second one shows what a reset leaves behind.

    Args:
        stack: The stack; its env is reset and stepped.
        read_actions: Returns the actions of the policy in a trace.
        seed: Seed of the env and of the actions.
        steps: Number of steps.

    Raises:
        TdxError: The env or a stage raised.
    """
    recorder = _Recorder()
    actions: list[list[Entries]] = []
    with stack.seeded(seed), stack.replaced_env(recorder):
        for length in (-(-steps * 2 // 3), steps // 3):
            if not length:
                continue
            traces: list[StepTrace] = []
            recorder.begin()
            driver = stack.driver()
            with located_errors(traces), stack.attach(traces.append):
                driver.reset(None)
                for _ in range(length):
                    driver.step()
                    if driver.reset_due:
                        break
            found = [read_actions(each) for each in traces if each.phase == "step"]
            actions.append([_first_rows(each) for each in found])
    return tuple(
        Segment(recorder.stacked(index), _stack(taken)) for index, taken in enumerate(actions)
    )


class located_errors:  # noqa: N801 - a context manager that is used like a function
    """Replace an error in a block by the error of the last trace, which names the stage."""

    def __init__(self, traces: Sequence[StepTrace]) -> None:
        self._traces = traces

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception):
            found = self._traces[-1].error if self._traces else None
            if found is not None:
                raise found from error


class _Recorder:
    """Runs the env, and keeps what it returned for the first rows."""

    def __init__(self) -> None:
        self._segments: list[dict[int, list[Entries]]] = []

    def begin(self) -> None:
        """Start the next episode."""
        self._segments.append({})

    def answer(self, rows: Sequence[int], method: str, run: Callable[[], Entries]) -> Entries:
        """Return the result of the env."""
        entries = run()
        for place, row in enumerate(rows):
            calls = self._segments[-1].setdefault(row, [])
            is_first = method == "reset" and not calls
            if row < MAX_ROWS and len(calls) < _MAX_CALLS and (is_first or method == "step"):
                calls.append({key: value[place].clone() for key, value in entries.items()})
        return entries

    def stacked(self, index: int) -> Mapping[NestedKey, Tensor]:
        """Return the calls of an episode by key, ``[C, R, ...]``."""
        rows = [calls for row, calls in sorted(self._segments[index].items()) if row < MAX_ROWS]
        if not rows or not rows[0]:
            raise EnvError(
                "the steps did not reach the env inside the stack",
                hint="pass the outermost wrapper, whose step and reset are called",
            )
        count = min(len(calls) for calls in rows)
        found: dict[NestedKey, Tensor] = {}
        for key in dict.fromkeys(key for call in rows[0] for key in call):
            parts = [[_found(key, call, calls) for call in calls[:count]] for calls in rows]
            values = [[_zero_flag(key, each) for each in part] for part in parts]
            if len({(each.shape, each.dtype) for part in values for each in part}) == 1:
                found[key] = torch.stack([torch.stack(part) for part in values], 1)
        return found


def _found(key: NestedKey, call: Entries, calls: Sequence[Entries]) -> Tensor:
    """Return an entry of a call; a reset has no reward, and no flags."""
    known = (
        next(each[key] for each in calls if key in each)
        if any(key in each for each in calls)
        else torch.zeros(())
    )
    return call[key] if key in call else torch.zeros_like(known)


def _zero_flag(key: NestedKey, value: Tensor) -> Tensor:
    is_flag = (key if isinstance(key, str) else key[-1]) in DONE_KEYS
    return torch.zeros_like(value) if is_flag else value


def _first_rows(entries: Entries) -> Entries:
    return {key: value[:MAX_ROWS] for key, value in entries.items()}


def _stack(records: Sequence[Entries]) -> Mapping[NestedKey, Tensor]:
    keys = records[0] if records else {}
    return {key: torch.stack([each[key] for each in records]) for key in keys}


class Replay:
    """Answers the calls of an env with recorded inputs.

    Args:
        segments: The inputs.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._current = segments[0]
        self._places: dict[int, int] = {}

    def begin(self, index: int) -> None:
        """Start an episode."""
        self._current = self._segments[index]
        self._places = {}

    def answer(self, rows: Sequence[int], method: str, run: Callable[[], Entries]) -> Entries:
        """Return the next recorded result; the steps repeat if there are too few.

        The env runs along, because stages may read it: a frame, or the number of lives. Its own
        results, and what it says of steps after the end of an episode, do not matter.
        """
        with preserved_generators(), suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run()
        count = min(len(each) for each in self._current.calls.values())
        for row in rows:
            place = self._places.get(row, 0) + 1
            self._places[row] = 0 if method == "reset" else place if place < count else 1 % count
        return {
            key: torch.stack(
                [value[self._places[row], row % value.shape[1]] for row in rows]
            ).clone()
            for key, value in self._current.calls.items()
        }


State = Mapping[int, Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Run:
    """What the stages of a stack did with recorded inputs.

    Args:
        values: Values by direction, stage and key.
        before: State before the run.
        after: State after the run.
        error: What a stage raised.
    """

    values: Mapping[Place, Values] = field(default_factory=dict)
    before: State = field(default_factory=dict)
    after: State = field(default_factory=dict)
    error: TdxError | None = None

    def changed(self, index: int, name: str) -> bool:
        """Return True if the run changed a tensor of the state."""
        old, new = self.before.get(index, {}).get(name), self.after.get(index, {}).get(name)
        if old is None or new is None:
            return old is not new
        return old.shape != new.shape or not old.equal(new)


class Layout:
    """Keys, specs and batch dims of a stack.

    Args:
        stack: The stack.
    """

    def __init__(self, stack: Stack) -> None:
        specs = stack.specs()
        self.leaves: list[dict[str, LeafSpec]] = [
            {
                key_name(base_key(leaf.key)): leaf
                for leaf in composite_leaves(each.input_spec, each.output_spec)
            }
            for each in specs
        ]
        self.batch_dims = len(specs[0].output_spec.batch_size)
        self.last = len(specs) - 2
        self.actions = {
            name for level in self.leaves for name, leaf in level.items() if leaf.part == "action"
        }

    def row(self, index: int, key: NestedKey, value: Tensor) -> Tensor:
        """Return a value after a stage as ``[R, ...]``; a one-hot action as its index."""
        rows = to_rows(key, value.detach().cpu(), self.batch_dims)
        leaf = self.leaves[min(index, self.last) + 1].get(key_name(base_key(key)))
        if leaf is not None and leaf.part == "action" and leaf.kind == "OneHot":
            return rows.long().argmax(-1)
        return rows

    def actions_of(self, trace: StepTrace) -> Entries:
        """Return the actions of the policy in a trace, ``[R, ...]`` by key."""
        found = trace.after(self.last + 1, "inverse")
        return {
            key: self.row(self.last, key, version.value)
            for key, version in found.items()
            if key_name(base_key(key)) in self.actions and isinstance(version.value, Tensor)
        }


def run_inputs(
    stack: Stack, layout: Layout, inputs: Sequence[Segment], seed: int, *, learning: bool
) -> Run:
    """Run a stack on recorded inputs; the results of its env are replaced.

    Args:
        stack: The stack.
        layout: Its keys.
        inputs: The inputs.
        seed: Seed of its stages.
        learning: False to stop the updates of running statistics.
    """
    before = stack.state()
    source = Replay(inputs)
    traces: list[StepTrace] = []
    error: TdxError | None = None
    switch = nullcontext() if learning else stack.paused_learning()
    try:
        with _seeded(stack, seed), switch, stack.replaced_env(source), located_errors(traces):
            for index, segment in enumerate(inputs):
                source.begin(index)
                driver = stack.driver()
                with stack.attach(traces.append):
                    driver.reset(None)
                    for step in range(segment.steps):
                        actions = {key: each[step] for key, each in segment.actions.items()}
                        driver.step(stack.encode_action(actions))
    except TdxError as raised:
        error = raised
    except Exception as raised:
        error = EnvError(f"the stack raised {summarize_error(raised)}", hint="correct the stage")
    complete = [each for each in traces if each.error is None]
    return Run(_read_values(layout, complete), before, stack.state(), error)


@contextmanager
def _seeded(stack: Stack, seed: int) -> Iterator[None]:
    state = random.getstate()
    random.seed(seed)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), stack.seeded(seed):
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(state)


def _read_values(layout: Layout, traces: Sequence[StepTrace]) -> dict[Place, Values]:
    """Return the value of each key after each stage that writes it."""
    writes: dict[tuple[Lane, int], dict[NestedKey, None]] = {}
    for trace in traces:
        for stage in trace.stages:
            if stage.kind in ("stage", "env"):
                index = stage.index if stage.kind == "stage" else -1
                keys = writes.setdefault((stage.direction, index), {})
                keys.update(dict.fromkeys(_wanted(layout, stage.direction, stage.written)))
    if traces:
        keys = writes.setdefault(("inverse", layout.last + 1), {})
        steps = [each for each in traces if each.phase == "step"]
        for trace in steps[:1]:
            keys.update(dict.fromkeys(layout.actions_of(trace)))
    found: dict[Place, Values] = {}
    for (lane, index), names in sorted(writes.items()):
        records: dict[NestedKey, list[Tensor]] = {}
        for trace in traces:
            # A reset does not read the input of a policy.
            if lane == "inverse" and trace.phase == "reset":
                continue
            versions = trace.after(index, lane)
            for key in names:
                version = versions.get(key)
                if version is not None and isinstance(version.value, Tensor):
                    seen = index if lane == "forward" else index - 1
                    records.setdefault(key, []).append(layout.row(seen, key, version.value))
        for key, rows in records.items():
            if len({(each.shape, each.dtype) for each in rows}) == 1:
                found[lane, index, key_name(base_key(key))] = Values.of(rows)
    return found


def _wanted(layout: Layout, lane: str, written: Mapping[NestedKey, Any]) -> list[NestedKey]:
    names = {key: key_name(base_key(key)) for key in written}
    if lane == "inverse":
        return [key for key, name in names.items() if name in layout.actions]
    return [
        key
        for key, name in names.items()
        if name not in layout.actions and name.partition(".")[0] != "info"
    ]
