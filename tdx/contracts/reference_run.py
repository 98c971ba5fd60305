"""Record recorded inputs, run a stack on them, and record what its stages write and keep."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tdx.compare.model import DONE_KEYS, Lane, Place, Segment, StateHistory, key_name
from tdx.compare.replay import MAX_ROWS, restored
from tdx.compare.statistics import is_changed
from tdx.compare.values import MAX_NUMBERS, Values, thumbnail
from tdx.foundation.errors import ArgumentError, EnvError, TdxError
from tdx.foundation.keys import NestedKey
from tdx.specs.leaf import LeafSpec, composite_leaves
from tdx.stacks.native_levels import to_rows
from tdx.stacks.observe import (
    Levels,
    NestedLevels,
    RowEntries,
    base_key,
    preserved_generators,
    replaced_env,
)
from tdx.stacks.stack import located_errors

if TYPE_CHECKING:
    from tdx.core import StepTrace
    from tdx.stacks import Stack, StackState

STEPS = 12
"""Reference steps by default."""
_MAX_CALLS = 64


def collect_inputs(
    stack: Stack, read_actions: Callable[[StepTrace], RowEntries], seed: int, steps: int = STEPS
) -> tuple[Segment, ...]:
    """Step a stack with random actions, and record what its env returns.

    The flags of the inputs are false: the episodes do not end by themselves. There are two, for the
    second one shows what a reset leaves behind.

    Raises:
        TdxError: The env or a stage raised.
    """
    recorder = _Recorder()
    actions: list[list[RowEntries]] = []
    with stack.seeded(seed), replaced_env(observed_levels(stack), recorder.answer):
        for length in (-(-steps * 2 // 3), steps // 3):
            if not length:
                continue
            traces: list[StepTrace] = []
            recorder.begin()
            driver = stack.driver()
            with located_errors(stack, traces), stack.attach(traces.append):
                driver.reset(None)
                for _ in range(length):
                    driver.step()
                    if driver.reset_due:
                        break
            actions.append([read_actions(trace) for trace in traces if trace.phase == "step"])
    return tuple(
        Segment(
            recorder.stacked(index),
            {
                key: torch.stack([step[key][:MAX_ROWS] for step in taken])
                for key in (taken[0] if taken else ())
            },
        )
        for index, taken in enumerate(actions)
    )


def observed_levels(stack: Stack) -> Levels:
    """Return the levels of a stack that can have a contract.

    Raises:
        ArgumentError: It cannot.
    """
    levels = stack.observed_levels() if hasattr(stack, "observed_levels") else None
    if levels is None:
        raise ArgumentError(
            f"the env inside a stack of the kind {stack.kind!r} cannot be replaced",
            hint="contracts need a stack of tdx, Gymnasium, Stable-Baselines3 or TorchRL",
        )
    return levels


class _Recorder:
    """Runs the env, and keeps what it returned for the first rows."""

    def __init__(self) -> None:
        self._segments: list[dict[int, list[RowEntries]]] = []

    def begin(self) -> None:
        """Start the next episode."""
        self._segments.append({})

    def answer(self, rows: Sequence[int], method: str, run: Callable[[], RowEntries]) -> RowEntries:
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
        count = min(map(len, rows))
        entries: dict[NestedKey, Tensor] = {}
        for key in dict.fromkeys(key for call in rows[0] for key in call):
            values: list[list[Tensor]] = []
            for calls in rows:
                # A reset has no reward and no flags.
                known = next((call[key] for call in calls if key in call), torch.zeros(()))
                empty = torch.zeros_like(known)
                is_flag = (key if isinstance(key, str) else key[-1]) in DONE_KEYS
                values.append([empty if is_flag else call.get(key, empty) for call in calls])
            if len({(value.shape, value.dtype) for part in values for value in part}) == 1:
                stacked = [torch.stack(part[:count]) for part in values]
                entries[key] = torch.stack(stacked, 1)
        return entries


class RecordedResults:
    """Answers the calls of an env with recorded inputs."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._current = segments[0]
        self._places: dict[int, int] = {}

    def begin(self, index: int) -> None:
        """Start an episode."""
        self._current = self._segments[index]
        self._places = {}

    def answer(self, rows: Sequence[int], method: str, run: Callable[[], RowEntries]) -> RowEntries:
        """Return the next recorded result; the steps repeat if there are too few.

        The env runs along, because stages may read it: a frame, or the number of lives. Its own
        results, and what it says of steps after the end of an episode, do not matter.
        """
        with preserved_generators(), suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run()
        count = min(map(len, self._current.calls.values()))
        for row in rows:
            place = self._places.get(row, 0) + 1
            self._places[row] = 0 if method == "reset" else place if place < count else 1 % count
        return {
            key: torch.stack(
                [value[self._places[row], row % value.shape[1]] for row in rows]
            ).clone()
            for key, value in self._current.calls.items()
        }


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """What the stages of a stack did with recorded inputs.

    Args:
        values: Values by direction, stage and key.
        before: State before the run.
        after: State after the run.
        error: What a stage raised.
        states: State after each reset and step, if the stages learned and none failed.
        repeating: Stages that stepped the level inside several times in one step.
    """

    values: Mapping[Place, Values] = field(default_factory=dict)
    before: StackState = field(default_factory=dict)
    after: StackState = field(default_factory=dict)
    error: TdxError | None = None
    states: StateHistory | None = None
    repeating: frozenset[int] = frozenset()

    def changed(self, index: int, name: str) -> bool:
        """Return True if the run changed a tensor of the state."""
        old, new = self.before.get(index, {}).get(name), self.after.get(index, {}).get(name)
        return is_changed(old, new)


class ContractLayout:
    """Keys, specs and batch dims of a stack."""

    def __init__(self, stack: Stack) -> None:
        specs = stack.specs()
        self.leaves: list[dict[str, LeafSpec]] = [
            {
                key_name(base_key(leaf.key)): leaf
                for leaf in composite_leaves(level.input_spec, level.output_spec)
            }
            for level in specs
        ]
        self.batch_dims = len(specs[0].output_spec.batch_size)
        self.rows = specs[0].output_spec.batch_size.numel()
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

    def actions_of(self, trace: StepTrace) -> RowEntries:
        """Return the actions of the policy in a trace, ``[R, ...]`` by key."""
        return {
            key: self.row(self.last, key, version.value)
            for key, version in trace.after(self.last + 1, "inverse").items()
            if key_name(base_key(key)) in self.actions and isinstance(version.value, Tensor)
        }


def run_inputs(
    stack: Stack, layout: ContractLayout, inputs: Sequence[Segment], seed: int, *, learning: bool
) -> ReferenceRun:
    """Run a stack on recorded inputs; the results of its env are replaced.

    The state of its stages is restored, except their generators. Without ``learning``, running
    statistics are not updated.
    """
    before = stack.state()
    source = RecordedResults(inputs)
    traces: list[StepTrace] = []
    states: list[StackState] = []
    streams: list[dict[str, int]] = []
    error: TdxError | None = None

    def observe_state() -> None:
        if learning:
            states.append(stack.state())
            streams.append(_stream_states(own_generators))

    with ExitStack() as opened:
        opened.enter_context(restored(stack, generators=False))
        opened.enter_context(preserved_generators())
        opened.enter_context(torch.no_grad())
        try:
            with located_errors(stack, traces):
                random.seed(seed)
                np.random.seed(seed % 2**32)
                torch.manual_seed(seed)
                opened.enter_context(stack.seeded(seed))
                if not learning:
                    opened.enter_context(stack.paused_learning())
                levels = observed_levels(stack)
                own_generators = levels.generators() if isinstance(levels, NestedLevels) else []
                with replaced_env(levels, source.answer):
                    for index, segment in enumerate(inputs):
                        source.begin(index)
                        driver = stack.driver()
                        with stack.attach(traces.append):
                            driver.reset(None)
                            observe_state()
                            for step in range(segment.steps):
                                actions = {
                                    key: taken[step] for key, taken in segment.actions.items()
                                }
                                driver.step(stack.encode_action(actions))
                                observe_state()
        except TdxError as raised:
            error = raised
        after = stack.state()
    complete = [trace for trace in traces if trace.error is None]
    history = None
    if states and error is None:
        history = StateHistory(
            layout.rows,
            dict(_state_values(states)),
            {name: torch.tensor([at[name] for at in streams]) for name in streams[0]},
        )
    values, repeating = _read_values(layout, complete), frozenset(_find_repeating(complete))
    return ReferenceRun(values, before, after, error, history, repeating)


def _find_repeating(traces: Sequence[StepTrace]) -> Iterator[int]:
    for trace in traces:
        if trace.phase == "step":
            levels = [stage for stage in trace.stages if stage.direction == "forward"]
            for inside, stage in pairwise(levels):
                if stage.kind == "stage" and inside.calls > stage.calls:
                    yield stage.index


def _state_values(states: Sequence[StackState]) -> Iterator[tuple[tuple[int, str], Tensor]]:
    """Yield the numbers of each tensor of a state, ``[T, ...]``, by stage and name."""
    places = {(index, name): None for state in states for index in state for name in state[index]}
    for index, name in places:
        values = [state.get(index, {}).get(name) for state in states]
        known = [value for value in values if value is not None]
        if len({value.shape for value in known}) != 1 or known[0].is_complex():
            continue
        if len(known) < len(values):
            missing = torch.full(known[0].shape, torch.nan, dtype=torch.float64)
            values = [missing if value is None else value.double() for value in values]
        kept = torch.stack([value.detach().cpu() for value in values if value is not None])
        yield (index, name), thumbnail(kept, 1) if kept[0].numel() > MAX_NUMBERS else kept


def _stream_states(own: Sequence[object]) -> dict[str, int]:
    """Return a number for the state of each global generator, and one for the stack's own."""
    _, key, position, *_ = np.random.get_state()
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "NumPy": np.asarray(key).tobytes() + str(position).encode(),
        "Python": repr(random.getstate()).encode(),
    }
    numpy_own = [one.bit_generator.state for one in own if isinstance(one, np.random.Generator)]
    if numpy_own:
        states["the env and its stages"] = repr(numpy_own).encode()
    return {name: int(hashlib.sha256(state).hexdigest()[:12], 16) for name, state in states.items()}


def _read_values(layout: ContractLayout, traces: Sequence[StepTrace]) -> dict[Place, Values]:
    """Return the value of each key after each stage that writes it."""
    writes: dict[tuple[Lane, int], dict[NestedKey, None]] = {}
    for trace in traces:
        for stage in trace.stages:
            if stage.kind in ("stage", "env"):
                place = stage.direction, stage.index if stage.kind == "stage" else -1
                for key in stage.written:
                    name = key_name(base_key(key))
                    is_action = name in layout.actions
                    is_info = name.partition(".")[0] == "info"
                    if is_action if stage.direction == "inverse" else not (is_action or is_info):
                        writes.setdefault(place, {})[key] = None
    steps = [trace for trace in traces if trace.phase == "step"]
    for trace in steps[:1]:
        writes["inverse", layout.last + 1] = dict.fromkeys(layout.actions_of(trace))
    values: dict[Place, Values] = {}
    for (lane, index), keys in sorted(writes.items()):
        records: dict[NestedKey, list[Tensor]] = {}
        # A reset does not read the input of a policy.
        for trace in traces if lane == "forward" else steps:
            versions = trace.after(index, lane)
            for key in keys:
                version = versions.get(key)
                if version is not None and isinstance(version.value, Tensor):
                    seen = index if lane == "forward" else index - 1
                    records.setdefault(key, []).append(layout.row(seen, key, version.value))
        for key, rows in records.items():
            if len({(row.shape, row.dtype) for row in rows}) == 1:
                values[lane, index, key_name(base_key(key))] = Values.of(rows)
    return values
