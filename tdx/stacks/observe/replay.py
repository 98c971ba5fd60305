"""Record the calls of every level of a stack, and replay another stack on them.

A replay *forces* its levels: each level gets its recorded input, and its caller gets the recorded
output, whatever the level itself returned. So every stage is tested by itself: a fault shows at the
stage that has it, and nowhere else. The env inside runs live from its recorded calls, because
wrappers read its ``unwrapped`` state; its callers still get the recorded results.

All random generators that can be reached are seeded from the number of the event when a call
begins and when it ends. A stage that draws random numbers repeats itself, and its draws do not
change those of other stages.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tdx.foundation.errors import EnvError, summarize_error
from tdx.foundation.generators import preserved_generators
from tdx.foundation.keys import NestedKey, split_key
from tdx.stacks.observe.events import (
    INFO,
    REWARD,
    CallRecording,
    Event,
    LevelForm,
    Method,
    fill_opaque,
    map_arrays,
    plain_copy,
    take_rows,
)
from tdx.stacks.observe.levels import NestedLevels, Original, RowEntries, Slot
from tdx.stacks.observe.recorder import EventRecorder, Log, read_events

MAX_EVENTS = 50_000
"""Events of a recording; a stack that makes more calls in a few steps is refused."""


class Generators:
    """Seeds the global generators and those of a stack from the number of an event."""

    def __init__(self, seed: int, own: Sequence[Any]) -> None:
        self._seed, self._own = seed, list(own)

    def seed(self, number: int) -> None:
        value = (self._seed * 1_000_003 + number * 7_919 + 1) % 2**32
        random.seed(value)
        np.random.seed(value)
        # torch.manual_seed also formats a traceback for devices, which takes milliseconds.
        torch.default_generator.manual_seed(value)
        for generator in self._own:
            if isinstance(generator, np.random.Generator):
                bits = generator.bit_generator
                bits.state = _seeded_state(type(bits), value)
            elif isinstance(generator, torch.Generator):
                generator.manual_seed(value)
            else:
                generator.seed(value)


@lru_cache(maxsize=1024)
def _seeded_state(kind: type[np.random.BitGenerator], seed: int) -> Mapping[str, object]:
    """Return the state of a new generator.

    It is cached, because a recording and its replays seed with the same numbers.
    """
    return kind(seed).state


class CallRecorder:
    """Records the calls of a stack."""

    def __init__(self, levels: NestedLevels, seed: int, max_rows: int) -> None:
        self._levels, self._max_rows = levels, min(max_rows, levels.num_rows)
        self._seed = seed
        self._generators = Generators(seed, levels.generators())
        self._forms = levels.forms()
        self._roots: list[Event] = []
        self._count = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what the caller does with the stack in a block."""
        recorder = EventRecorder(self._add, on_number=self._seed_generators)
        with preserved_generators(), self._levels.silenced():
            self._levels.begin(self._seed)
            with recorder.attached(self._levels, self._max_rows):
                yield

    def result(self, *, learning: bool) -> CallRecording:
        if not self._roots:
            raise EnvError(
                "the steps did not reach the env inside the stack",
                hint="pass the outermost wrapper, whose step and reset are called",
            )
        roots = tuple(self._roots)
        return CallRecording(self._seed, self._max_rows, self._forms, roots, learning=learning)

    def _add(self, log: Log) -> None:
        roots = read_events(log, self._count)
        self._count += len(log)
        for event in (event for root in roots for event in root.walk()):
            form, returned = self._forms[event.level], event.returned
            event.given = plain_copy(event.given)
            if form.is_batch and event.takes_action:
                event.given = _first_rows(event.given, self._max_rows)
            if event.method == "reset" and form.protocol == "vec_env" and returned:
                # The infos are not returned.
                returned = returned[0]
            event.returned = returned_of(form, event.method, returned, self._max_rows)
            event.shared, event.previous = (), None
        self._roots += roots

    def _seed_generators(self, number: int) -> None:
        if self._count + number > 2 * MAX_EVENTS:
            raise EnvError(
                f"the stack made more than {MAX_EVENTS:,} calls in the recorded steps",
                hint="record fewer steps",
            )
        self._generators.seed(self._count + number)


def given_of(
    slot: Slot, method: Method, args: tuple[object, ...], kwargs: Mapping[str, object], rows: int
) -> object:
    """Return what a call received: the action, or the arguments of a reset by name."""
    if method == "step_wait":
        return None
    if method == "reset":
        return {name: plain_copy(value) for name, value in kwargs.items()}
    action = args[0] if args else next(iter(kwargs.values()), None)
    copied = plain_copy(action)
    if slot.form.is_batch:
        copied = _first_rows(copied, rows)
    return copied


def returned_of(form: LevelForm, method: Method, result: object, rows: int) -> object:
    """Return what a call returned, of the first rows."""
    if method == "step_async":
        return None
    if not form.is_batch:
        return plain_copy(result)
    if form.protocol == "vec_env":
        if method == "reset" or not isinstance(result, tuple):
            return _first_rows(plain_copy(result), rows)
        *parts, infos = result
        return (*(_first_rows(plain_copy(part), rows) for part in parts), plain_copy(infos[:rows]))
    # The infos of a vector env are those of its sub-envs, which merge them again.
    values = result[:-1] if isinstance(result, tuple) else (result,)
    return (*(_first_rows(plain_copy(value), rows) for value in values), {})


def _first_rows(value: object, rows: int) -> object:
    return map_arrays(value, lambda array: array[:rows] if array.ndim else array)


@dataclass(slots=True)
class _Item:
    """A recorded call that a call of the target may stand for."""

    event: Event
    # The call of the recorded caller that contains it; another one if the target lacks the levels
    # between.
    top: Event


@dataclass(slots=True)
class _Frame:
    """An open call of the target."""

    slot: Slot | None  # None: the caller is outside of the stack.
    event: Event | None  # The recorded call that it stands for, if there is one.
    # Recorded calls inside, by level and row.
    queues: dict[tuple[int, int], list[_Item]] = field(default_factory=dict)
    places: Counter[tuple[int, int]] = field(default_factory=Counter)
    last: _Item | None = None  # Recorded call that was answered last.
    given: object = None  # What a level that only the target has received.
    answer: object = None  # What the call inside returned to it last.
    answer_form: LevelForm | None = None  # Of the level of that call.
    extra_calls: int = 0
    calls: int = 0


class CallReplay:
    """Runs a stack on the recorded calls of another one, and notes what each level did.

    Attributes:
        recording: The recorded calls.
        pairs: Index of the recorded level by that of the target.
        values: For each lane, level and key of the target, pairs of the recorded and of its own
            value, ``[R, ...]``, with the number of the event.
        extra_values: The same for levels that only the target has: what they received and made.
        failures: What a level raised first.
        call_counts: Levels that made another number of inner calls: recorded and own number of the
            first such call, and how often.
        compared: Numbers of the events whose results were compared.
        compared_actions: Numbers of the events whose actions were compared.
        env_raised: What the env inside raised first, in words.
        shared_rows: Number of recorded sub-envs that the target has too.
    """

    def __init__(
        self, levels: NestedLevels, recording: CallRecording, pairs: Mapping[int, int]
    ) -> None:
        self._levels, self.recording = levels, recording
        self.pairs = dict(pairs)
        self._known = set(pairs.values())
        self._generators = Generators(recording.seed, levels.generators())
        self._rows = levels.num_rows
        self.shared_rows = min(self._rows, recording.rows)
        self._frames: list[_Frame] = []
        self._originals: dict[tuple[int, int, Method], Original] = {}
        self.values: dict[tuple[str, int, NestedKey], list[tuple[int, Tensor, Tensor]]] = {}
        self.extra_values: dict[tuple[str, int, NestedKey], list[tuple[int, Tensor, Tensor]]] = {}
        self.failures: dict[int, Exception] = {}
        self.call_counts: dict[int, tuple[int, int, int]] = {}
        self.compared: set[int] = set()
        self.compared_actions: set[int] = set()
        self.env_raised: str | None = None

    def run(self) -> None:
        """Replay all recorded calls.

        What a level raises is noted in ``failures``.
        """
        forms, top = self.recording.forms, self._levels.forms()[self._levels.top]
        with preserved_generators(), self._levels.silenced():
            self._levels.begin(self.recording.seed)
            with self._levels.attached(self._forced):
                for event in self.recording.roots:
                    # A call outside of the recorded one must not take what belongs to the next.
                    root = _Frame(None, None, self._queues([event]))
                    self._frames = [root]
                    self._generators.seed(event.start)
                    if event.method == "reset":
                        argument: object = dict(event.given or {})
                    else:
                        argument = convert_batch(
                            event.given, forms[event.level], top, self._rows, self.recording.rows
                        )
                    try:
                        self._levels.call(event.method, argument)
                    except Exception as error:
                        if not self._is_known(error):
                            raise
                    self._catch_up(root)

    def received(self, lane: str, level: int) -> dict[int, RowEntries]:
        """Return what a level of the target was forced to read, by the number of the event.

        In the lane ``forward`` that is what the level inside returned, in ``inverse`` the action.
        """
        own = self._levels.forms()[level]
        found: dict[int, RowEntries] = {}
        for event in self.recording.walk():
            if event.level != self.pairs[level] or not event.children:
                continue
            inner = event.children[-1]
            source = inner if lane == "forward" else event
            form = self.recording.forms[source.level]
            if form.is_batch != own.is_batch or event.row >= self.shared_rows:
                continue
            number = event.start if lane == "forward" else inner.start
            if lane == "inverse":
                slot, value = Slot(level, 0, own, event.method), source.given
            else:
                slot = Slot(max(level - 1, -1), 0, own, event.method)
                value = source.returned
            compared = self._comparable(value, form, own)
            found[number] = self._entries(slot, event.method, compared, is_given=lane == "inverse")
        return found

    def _forced(self, slot: Slot, original: Original) -> Original:
        self._originals[slot.level, slot.row, slot.method] = original

        def call(*args: object, **kwargs: object) -> object:
            return self._on_call(slot, original, args, kwargs)

        return call

    def _queues(self, events: Iterable[Event]) -> dict[tuple[int, int], list[_Item]]:
        queues: dict[tuple[int, int], list[_Item]] = {}
        for item in self._items(events):
            queues.setdefault((item.event.level, item.event.row), []).append(item)
        return queues

    def _items(self, events: Iterable[Event]) -> Iterator[_Item]:
        """Yield the calls of paired levels; those inside of levels that the target lacks, too."""
        for event in events:
            if event.level in self._known:
                yield _Item(event, event)
            else:
                yield from (_Item(item.event, event) for item in self._items(event.children))

    def _on_call(
        self,
        slot: Slot,
        original: Original,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        method = slot.method
        caller = self._frames[-1]
        context = next(
            frame for frame in reversed(self._frames) if frame.event or frame.slot is None
        )
        level = self.pairs.get(slot.level)
        item = None if level is None else self._take(context, level, slot, method)
        if item is None:
            return self._call_unpaired(slot, original, args, kwargs, caller, context)
        if caller is context:
            caller.calls += 1
            if item.event.takes_action and caller.slot is not None:
                self._compare_given(caller.slot, slot, item, args, kwargs)
        elif caller.slot is not None and caller.slot.form == slot.form and item.event.takes_action:
            passed = given_of(slot, method, args, kwargs, self.recording.rows)
            sides = (caller.given, caller.slot), (passed, slot)
            self._note_extra("inverse", caller.slot, item.event, *sides)
        frame = _Frame(slot, item.event, self._queues(item.event.children))
        self._frames.append(frame)
        self._generators.seed(item.event.start)
        args, kwargs = self._forced_arguments(slot, item.event, args, kwargs)
        result: object = None
        try:
            result = original(*args, **kwargs)
            self._compare_returned(slot, item.event, result)
        except Exception as error:
            if slot.level < 0:
                self.env_raised = self.env_raised or f"it raised {summarize_error(error)}"
            elif not self._is_known(error):
                self.failures.setdefault(slot.level, error)
        finally:
            self._frames.pop()
        self._catch_up(frame)
        for outer in reversed(self._frames):
            outer.last = item
            if outer is context:
                break
        # A caller that is paired gets what its counterpart got, also from a level that the target
        # lacks; a level that only the target has gets what this one returned.
        answer = item.top if caller is context and item.top.method == method else item.event
        self._generators.seed(answer.end)
        caller.answer, caller.answer_form = self._answer(slot, answer, result), slot.form
        return caller.answer

    def _call_unpaired(
        self,
        slot: Slot,
        original: Original,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        caller: _Frame,
        context: _Frame,
    ) -> object:
        """Run a call that stands for no recorded one."""
        method = slot.method
        known = self.pairs.get(slot.level)
        queue = None if known is None else context.queues.get((known, self._row(known, slot)))
        if known is not None and caller is context and queue:
            lacking = self._take_lacking(context, known, slot, method, queue)
            if lacking is not None:
                return self._answer(slot, lacking, None)
        repeated = next(
            (item for item in reversed(queue or ()) if item.event.method == method), None
        )
        if known is not None and caller is context:
            caller.calls += 1
            caller.extra_calls += 1
        if repeated is not None:
            # The recorded caller made fewer calls: the env does not step further than it did.
            return self._answer(slot, repeated.event, None)
        frame = _Frame(slot, None)
        frame.given = given_of(slot, method, args, kwargs, self.recording.rows)
        self._frames.append(frame)
        try:
            result = original(*args, **kwargs)
        except Exception as error:
            self.failures.setdefault(slot.level, error)
            raise
        finally:
            self._frames.pop()
        is_seen = frame.last is not None and frame.answer_form == slot.form
        if frame.last is not None and is_seen and known is None and method != "step_async":
            returned, inner = (
                returned_of(slot.form, method, value, self.recording.rows)
                for value in (result, frame.answer)
            )
            sides = (inner, slot), (returned, slot)
            self._note_extra("forward", slot, frame.last.event, *sides)
        if frame.last is None or caller is not context or frame.last.top.method != method:
            caller.answer, caller.answer_form = result, slot.form
            return result
        self._generators.seed(frame.last.top.end)
        caller.answer = self._answer(slot, frame.last.top, result)
        caller.answer_form = slot.form
        return caller.answer

    def _note_extra(
        self,
        lane: str,
        slot: Slot,
        event: Event,
        received: tuple[object, Slot],
        made: tuple[object, Slot],
    ) -> None:
        """Note what a level that only the target has received and made."""
        if slot.row >= self.shared_rows or event.row:
            return
        is_given = lane == "inverse"
        one, other = (
            self._entries(
                slot,
                slot.method,
                self._comparable(value, own.form, slot.form),
                is_given=is_given,
            )
            for value, own in (received, made)
        )
        self._note(lane, slot.level, event.start, one, other, extra=True)

    def _take_lacking(
        self, context: _Frame, level: int, slot: Slot, method: Method, queue: list[_Item]
    ) -> Event | None:
        """Take the next call of a recorded level that the target lacks.

        It may have made other calls than it received, such as a step for a reset.
        """
        place = (level, slot.row)
        rest = queue[context.places[place] :]
        if not rest or rest[0].top is rest[0].event or rest[0].top.method != method:
            return None
        top = rest[0].top
        for item in rest:
            if item.top is not top:
                break
            self._run_live(item.event, slot.row)
            context.places[place] += 1
        self._generators.seed(top.end)
        return top

    def _row(self, level: int, slot: Slot) -> int:
        """Return the recorded row that a row of the target stands for."""
        form = self.recording.forms.get(level)
        is_in_rows = form is not None and not form.is_batch
        return slot.row % self.recording.rows if is_in_rows else 0

    def _take(self, context: _Frame, level: int, slot: Slot, method: Method) -> _Item | None:
        """Take the next recorded call of a level; those before it that do not fit are skipped."""
        form = self.recording.forms.get(level)
        if form is None or form.protocol != slot.form.protocol:
            return None
        row = self._row(level, slot)
        queue = context.queues.get((level, row), [])
        place = (level, slot.row)
        for index in range(context.places[place], len(queue)):
            if queue[index].event.method == method:
                for skipped in queue[context.places[place] : index]:
                    self._run_live(skipped.event, slot.row)
                context.places[place] = index + 1
                return queue[index]
        return None

    def _is_known(self, error: Exception) -> bool:
        """Return True if an error was noted at the level inside that raised it."""
        return any(error is known for known in self.failures.values())

    def _catch_up(self, frame: _Frame) -> None:
        """Run the env through the calls that the recorded level made and this one did not."""
        slot, unused, is_direct = frame.slot, 0, True
        for (level, row), queue in frame.queues.items():
            if self.recording.forms[level].is_batch or (slot and not slot.form.is_batch):
                targets = [0 if slot is None else slot.row]
            else:
                targets = list(range(row, self._rows, self.recording.rows))
            is_direct &= all(item.top is item.event for item in queue)
            for target in targets:
                rest = queue[frame.places[level, target] :]
                unused += len(rest)
                for item in rest:
                    self._run_live(item.event, target)
        if slot is None or frame.event is None or not is_direct:
            return
        if unused or frame.extra_calls:
            recorded, made, count = self.call_counts.get(
                slot.level, (len(frame.event.children), frame.calls, 0)
            )
            self.call_counts[slot.level] = (recorded, made, count + 1)

    def _run_live(self, event: Event, row: int) -> None:
        for inner in event.walk():
            live = self._originals.get((-1, row, inner.method)) if inner.level < 0 else None
            if live is None:
                continue
            self._generators.seed(inner.start)
            try:
                if inner.takes_action:
                    live(plain_copy(inner.given))
                elif inner.method == "reset":
                    live(**plain_copy(inner.given or {}))
            except Exception as error:
                self.env_raised = self.env_raised or f"it raised {summarize_error(error)}"

    def _forced_arguments(
        self, slot: Slot, event: Event, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        form = self.recording.forms[event.level]
        if event.takes_action:
            action = convert_batch(event.given, form, slot.form, self._rows, self.recording.rows)
            return (action, *args[1:]), ({} if not args else kwargs)
        if slot.level < 0 and event.method == "reset" and form == slot.form == LevelForm():
            return args, plain_copy(event.given or {})
        return args, kwargs

    def _answer(self, slot: Slot, event: Event, live: object) -> object:
        """Return the recorded result of a call in the form of the target's level."""
        if event.method == "step_async":
            return None
        form = self.recording.forms[event.level]
        returned = event.returned
        if slot.form.protocol == "vec_env":
            if event.method == "reset" or not isinstance(returned, tuple):
                return fill_opaque(self._rows_of(returned, form, slot.form), live)
            *parts, infos = returned
            known = list(live[-1]) if isinstance(live, tuple) else [{}] * self._rows
            merged = [
                _merged_info(known[row], infos[row % len(infos)]) for row in range(self._rows)
            ]
            answer = (*(self._rows_of(part, form, slot.form) for part in parts), merged)
            return fill_opaque(answer, live)
        *parts, info = returned if isinstance(returned, tuple) else (returned, {})
        known_info = live[-1] if isinstance(live, tuple) and live else {}
        if slot.form.is_batch or form.is_batch:
            merged_info = dict(known_info) if isinstance(known_info, Mapping) else {}
        else:
            merged_info = _merged_info(known_info, info)
        answer = (*(self._rows_of(part, form, slot.form) for part in parts), merged_info)
        return fill_opaque(answer, live)

    def _rows_of(self, value: object, form: LevelForm, target: LevelForm) -> object:
        return convert_batch(value, form, target, self._rows, self.recording.rows)

    def _compare_given(
        self,
        caller: Slot,
        slot: Slot,
        item: _Item,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        """Note the action that a paired level passed on, beside the one that was recorded."""
        if slot.row >= self.recording.rows:
            return
        self.compared_actions.add(item.event.start)
        given = given_of(slot, item.event.method, args, kwargs, self.recording.rows)
        form = self.recording.forms[item.top.level]
        recorded = self._comparable(item.top.given, form, slot.form)
        self._note(
            *("inverse", caller.level, item.event.start),
            self._entries(slot, "step", recorded, is_given=True),
            self._entries(
                slot, "step", self._comparable(given, slot.form, slot.form), is_given=True
            ),
        )

    def _compare_returned(self, slot: Slot, event: Event, result: object) -> None:
        """Note what a level returned, beside what was recorded."""
        if slot.row >= self.recording.rows or event.method == "step_async":
            return
        self.compared.add(event.start)
        returned = returned_of(slot.form, event.method, result, self.recording.rows)
        form = self.recording.forms[event.level]
        recorded = self._comparable(event.returned, form, slot.form)
        self._note(
            *("forward", slot.level, event.start),
            self._entries(slot, event.method, recorded),
            self._entries(slot, event.method, self._comparable(returned, slot.form, slot.form)),
        )

    def _entries(
        self, slot: Slot, method: Method, value: object, *, is_given: bool = False
    ) -> RowEntries:
        """Return the numbers in a value by key, ``[R, ...]`` for R rows, without infos."""
        if is_given:
            return _rowed(slot.form, self._levels.given_entries(slot.level, value))
        if slot.form.protocol == "vec_env" and method == "reset":
            value = (value,)
        if not isinstance(value, tuple) or not value:
            return {}
        if len(value) > 1 and isinstance(value[-1], dict):
            # Most of the entries of an env of ALE are infos, which are not compared.
            value = (*value[:-1], {})
        return _rowed(slot.form, self._levels.returned_entries(slot.level, method, value))

    def _comparable(self, value: object, form: LevelForm, target: LevelForm) -> object:
        """Return a value of the rows that both sides have, in the form of the target's level."""
        rows = self.shared_rows
        if not isinstance(value, tuple):
            return convert_batch(value, form, target, rows, rows)
        return tuple(
            part
            if isinstance(part, dict) and index == len(value) - 1 and index
            else convert_batch(part, form, target, rows, rows)
            for index, part in enumerate(value)
        )

    def _note(
        self,
        lane: str,
        level: int,
        number: int,
        one: RowEntries,
        other: RowEntries,
        *,
        extra: bool = False,
    ) -> None:
        empty = torch.empty(0)
        noted = self.extra_values if extra else self.values
        for key in dict.fromkeys((*one, *other)):
            values = one.get(key, empty), other.get(key, empty)
            noted.setdefault((lane, level, key), []).append((number, *values))


def _rowed(form: LevelForm, entries: Mapping[NestedKey, object]) -> RowEntries:
    """Return the numbers among some entries with a dim for the sub-envs."""
    rowed: dict[NestedKey, Tensor] = {}
    for key, value in entries.items():
        if split_key(key)[0] == INFO:
            continue
        if isinstance(value, str):
            # A text is compared by its characters.
            value = torch.tensor(list(value.encode("utf-8")), dtype=torch.uint8)
        if not isinstance(value, Tensor):
            try:
                value = torch.as_tensor(np.asarray(value))
            except (TypeError, ValueError):
                continue
        if key == REWARD:
            value = value.to(torch.float64)
        rowed[key] = value if form.is_batch and value.ndim else value.unsqueeze(0)
    return rowed


def convert_batch(
    value: object, form: LevelForm, target: LevelForm, rows: int, recorded_rows: int
) -> object:
    """Return a copy of a recorded value with the batch dim that the target's level has."""
    if form.is_batch == target.is_batch:
        if not form.is_batch:
            return plain_copy(value)
        return take_rows(value, [row % recorded_rows for row in range(rows)])
    if form.is_batch:
        return _single(take_rows(value, [0]))
    return _batched(value, rows)


def _single(value: object) -> object:
    def first(array: Any) -> Any:
        item = array[0] if array.ndim else array
        return item.copy() if isinstance(item, np.ndarray) else item

    return map_arrays(value, first)


def _batched(value: object, rows: int) -> object:
    if isinstance(value, dict):
        return {name: _batched(item, rows) for name, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_batched(item, rows) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Tensor):
        return torch.stack([value] * rows)
    if isinstance(value, bool | int | float | np.generic | np.ndarray):
        return np.stack([np.asarray(value)] * rows)
    return value


def _merged_info(live: object, recorded: object) -> dict[Any, Any]:
    """Return an info of the live call with the recorded numbers and texts."""
    merged = dict(live) if isinstance(live, Mapping) else {}
    if isinstance(recorded, Mapping):
        merged |= {name: plain_copy(item) for name, item in recorded.items()}
        merged = fill_opaque(merged, live)
    return merged
