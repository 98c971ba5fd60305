"""Record the calls of each level of a stack, and replay them on another stack of its kind."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tdx.compare.examples import example_rows
from tdx.compare.explanations import Sides
from tdx.compare.model import OPAQUE, Contract, Lane, Place, RowPlace, display_key, key_name
from tdx.compare.report import Coverage, ExampleRow
from tdx.compare.roles import PASSIVE, Tags, align_all, relevant_stages, role_of
from tdx.compare.statistics import is_changed, is_statistic
from tdx.compare.values import (
    Change,
    Tolerance,
    Values,
    compare_entries,
    compare_values,
    differing_elements,
    shape_change,
)
from tdx.foundation.errors import TdxError
from tdx.foundation.keys import NestedKey
from tdx.foundation.text import dtype_name
from tdx.stacks.observe import (
    CallRecorder,
    CallRecording,
    CallReplay,
    Event,
    NestedLevels,
    base_key,
    preserved_generators,
)
from tdx.stacks.stack import located_errors
from tdx.stacks.states import StateKeeper

if TYPE_CHECKING:
    from tdx.stacks import Stack, StackState

MAX_ROWS = 2
"""Sub-envs of a vector env whose values are recorded."""
_MAX_EXACT_INT = 2**53
_EXACT = Tolerance(1e-6, 1e-9)
"""What a level that repeats itself may differ by, from one run to the next."""


@contextmanager
def restored(stack: Stack, *, generators: bool = True) -> Iterator[None]:
    """Restore the state of the stages of a stack after a block."""
    keeper = StateKeeper(stack.state_owners(), generators=generators)
    try:
        yield
    finally:
        keeper.restore()


def record(stack: Stack, seed: int, steps: int) -> tuple[CallRecording, Replayed] | None:
    """Record a few random steps of a stack, and replay them on itself.

    The env is reset and stepped. The state of the stages is restored, that of the env is not.
    ``None``: the levels of the stack cannot be observed.
    """
    levels = stack.observed_levels()
    if not isinstance(levels, NestedLevels):
        return None
    try:
        recording = _record(stack, levels, seed, steps, learning=False)
    except TdxError:
        # Statistics that do not exist yet cannot be frozen.
        recording = _record(stack, levels, seed, steps, learning=True)
    same = {index: index for index in recording.forms}
    again = replay(stack, recording, same)
    recording = replace(
        recording,
        unrepeatable=frozenset(again.changed_levels()),
        env_repeats=again.env_difference() is None,
    )
    return recording, again


def _record(
    stack: Stack, levels: NestedLevels, seed: int, steps: int, *, learning: bool
) -> CallRecording:
    recorder = CallRecorder(levels, seed, MAX_ROWS)
    with restored(stack), _learning(stack, learning), stack.seeded(seed):
        before = stack.state()
        with located_errors(stack), recorder.recording():
            driver = stack.driver()
            driver.reset(seed)
            for step in range(steps):
                # A second episode shows what a reset leaves behind.
                if driver.reset_due or step == -(-steps * 2 // 3):
                    driver.reset(None)
                driver.step()
        after = stack.state()
    recording = recorder.result(learning=learning)
    return replace(recording, start=_episode_state(stack, levels, before, after))


def _learning(stack: Stack, learning: bool) -> AbstractContextManager[object]:
    return nullcontext() if learning else stack.paused_learning()


def _episode_state(
    stack: Stack,
    levels: NestedLevels,
    before: StackState,
    after: StackState,
) -> dict[int, dict[str, Tensor]]:
    """Return the counters, flags and queues that belong to an episode.

    They may differ between an env in use and a new one, and are not compared. Statistics, and
    numbers that only a constructor sets, are compared.
    """
    kept: dict[int, dict[str, Tensor]] = {}
    for index, values in before.items():
        if role_of(stack.stages[index].name) in PASSIVE:
            continue
        assigned = levels.assigned_names(index)
        for name, value in values.items():
            if is_statistic(name, values):
                continue
            is_flag = not value.is_floating_point() and name in assigned
            if is_flag or is_changed(value, after.get(index, {}).get(name)):
                kept.setdefault(index, {})[name] = value
    return kept


@dataclass
class Replayed:
    """What the stages of a stack did with the recorded calls of another one.

    Args:
        run: The replay.
        values: By lane, level and name of the key: recorded and own values, ``[R, ...]`` each, with
            the number of the event.
        extra: The same for levels that only the target has: what they received and made.
    """

    run: CallReplay
    values: Mapping[Place, list[tuple[int, Tensor, Tensor]]]
    extra: Mapping[Place, list[tuple[int, Tensor, Tensor]]]

    def keys(self, lane: Lane, index: int) -> list[str]:
        """Return the keys with values at a level."""
        return [key for at, level, key in self.values if at == lane and level == index]

    def change(self, place: Place, tolerance: Tolerance) -> Change | None:
        """Return how the own values of a level differ from the recorded ones.

        All numbers are compared, not only thumbnails.
        """
        records = self.values.get(place, ())
        shapes = dict.fromkeys((one.shape, other.shape) for _, one, other in records)
        for one, other in shapes:
            if one != other and 0 in (one[0], other[0]):
                is_lost = not other[0]
                text = "the target does not return it" if is_lost else "only the target returns it"
                return Change("spec", text)
            if one != other:
                return shape_change(one[1:], other[1:])
        change: Change | None = None
        for shape, _ in shapes:
            sides = [sides for _, *sides in records if sides[0].shape == shape]
            if all(one.dtype == other.dtype and torch.equal(one, other) for one, other in sides):
                continue
            recorded, own = map(torch.stack, zip(*sides, strict=True))
            ours, theirs = (
                Values(side, tuple(shape[1:]), dtype_name(side.dtype)) for side in (recorded, own)
            )
            found = compare_values(ours, theirs, tolerance)
            # The share of the rows says the same.
            if found is not None and found.step is not None and tolerance.rows is None:
                differing = differing_elements(recorded, own, tolerance)
                count = int(differing.flatten(1).any(1).sum())
                calls = f"{count} of {len(sides)}"
                found = replace(found, text=f"{found.text}, in {calls} calls", calls=calls)
            if found is not None and not found.is_allowed:
                return found
            change = change or found
        return change

    def example_rows(self, place: Place, tolerance: Tolerance) -> tuple[ExampleRow, ...]:
        """Return the rows of a level that differ most from the recorded ones."""
        records = self.values.get(place, ())
        equal = [record for record in records if record[1].shape == record[2].shape]
        equal = [record for record in equal if record[1].shape == equal[0][1].shape]
        if not equal:
            return ()
        steps: dict[int, RowPlace] = {}
        episode, made = -1, 0
        for root in self.run.recording.roots:
            is_reset = root.method == "reset"
            episode += is_reset
            made = 0 if is_reset else made + root.takes_action
            step = made - 1 if made else None
            steps |= {event.start: RowPlace(episode, step, event.row) for event in root.walk()}
        places = [
            [steps[number]._replace(env=steps[number].env + row) for row in range(len(recorded))]
            for number, recorded, _ in equal
        ]
        stacked = (
            torch.stack(list(side)) for side in zip(*(sides for _, *sides in equal), strict=True)
        )
        recorded, own = (
            Values(side, tuple(side.shape[2:]), dtype_name(side.dtype), whole=side)
            for side in stacked
        )
        return example_rows(recorded, own, tolerance, places)

    def explanation_sides(self, place: Place, tolerance: Tolerance) -> Sides | None:
        """Return the values of a level in consecutive calls, with what it received.

        ``None``: their shapes change. Of the sub-envs that have the level each, one is used.
        """
        lane, index, _ = place
        events = {event.start: event for event in self.run.recording.walk() if event.row == 0}
        records = [record for record in self.values.get(place, ()) if record[0] in events]
        recorded = _stack_equal([one for _, one, _ in records])
        own = _stack_equal([other for _, _, other in records])
        if recorded is None or own is None:
            return None
        numbers = [number for number, *_ in records]
        starts = tuple(
            record for record, number in enumerate(numbers) if events[number].method == "reset"
        )
        inputs: dict[str, list[Tensor]] = {}
        received = self.run.received(lane, index)
        for number in numbers:
            for key, value in received.get(number, {}).items():
                inputs.setdefault(key_name(base_key(key)), []).append(value)
        stacked: dict[str, Tensor] = {}
        for key, values in inputs.items():
            whole = _stack_equal(values)
            if whole is not None and len(values) == len(numbers):
                stacked[key] = whole
        others: dict[str, tuple[Tensor, Tensor]] = {}
        for key, value in stacked.items():
            rest = self.values.get((lane, index, key), ())
            made = _stack_equal([one for number, one, _ in rest if number in events])
            is_complete = made is not None and len(made) == len(numbers)
            if made is not None and is_complete and key != place[2] and value.is_floating_point():
                others[display_key(key)] = value, made
        return Sides(recorded, own, stacked.get(place[2]), starts, tolerance, others)

    def extra_sides(self, place: Place) -> Sides | None:
        """Return what a level that only the target has received, and what it made of it."""
        records = self.extra.get(place, ())
        received = _stack_equal([one for _, one, _ in records])
        made = _stack_equal([other for _, _, other in records])
        if received is None or made is None:
            return None
        methods = {event.start: event.method for event in self.run.recording.walk()}
        starts = tuple(
            record for record, (number, *_) in enumerate(records) if methods.get(number) == "reset"
        )
        return Sides(received, made, received, starts, _EXACT)

    def equal_levels(self, contract: Contract) -> set[tuple[int, int]]:
        """Return the recorded stages and those of the target that do the same."""
        differing = set(self.run.call_counts) | set(self.run.failures)
        for place in self.values:
            recorded = self.run.pairs.get(place[1], -1)
            if recorded >= 0 and place[1] not in differing:
                change = self.change(place, contract.stage(recorded).tolerance)
                if change is not None and not change.is_allowed:
                    differing.add(place[1])
        known = {index for _, index, _ in self.values}
        return {
            (recorded, index)
            for index, recorded in self.run.pairs.items()
            if index >= 0 and index in known and index not in differing
        }

    def changed_levels(self) -> set[int]:
        """Return the stages that differ in any part, in another number of calls, or failed."""
        changed = {
            place[1]
            for place in self.values
            if place[1] >= 0 and self.change(place, _EXACT) is not None
        }
        return changed | set(self.run.call_counts) | set(self.run.failures)

    def env_difference(self) -> str | None:
        """Return how the env inside differs for the recorded calls; ``None`` if it repeats them."""
        if self.run.env_raised is not None:
            return self.run.env_raised
        for lane, index, key in self.values:
            if index < 0 and lane == "forward":
                change = self.change((lane, index, key), _EXACT)
                if change is not None:
                    return f"{display_key(key)}: {change.text}"
        return None

    def sides(self, place: Place) -> tuple[Values | None, Values | None]:
        """Return the recorded and the own values of a level."""
        records = self.values.get(place, ())
        recorded, own = (
            Values.of(side) if len({(value.shape, value.dtype) for value in side}) == 1 else None
            for side in ([one for _, one, _ in records], [other for _, _, other in records])
        )
        return recorded, own


def _stack_equal(values: Sequence[Tensor]) -> Tensor | None:
    """Return tensors of equal shapes as one; ``None`` if there are none."""
    shapes = {value.shape for value in values}
    return torch.stack(list(values)) if len(shapes) == 1 and 0 not in next(iter(shapes)) else None


def replay(stack: Stack, recording: CallRecording, pairs: Mapping[int, int]) -> Replayed:
    """Replay recorded calls on a stack, whose env runs live; the state of its stages is restored.

    ``pairs`` is the index of the recorded level by that of the stack.
    """
    levels = stack.observed_levels()
    assert isinstance(levels, NestedLevels)
    run = CallReplay(levels, recording, pairs)
    with restored(stack), _learning(stack, recording.learning), located_errors(stack):
        # The counters and queues of the stages are those of the recorded episode.
        current = stack.state()
        start: dict[int, dict[str, Tensor]] = {}
        for index, recorded in pairs.items():
            known = current.get(index, {})
            in_rows = index >= 0 and stack.stages[index].rows is not None
            for name, value in recording.start.get(recorded, {}).items():
                old = known.get(name)
                # The number of sub-envs may differ, and what the stage keeps for each of them.
                if old is not None and old.shape[in_rows:] == value.shape[in_rows:]:
                    start.setdefault(index, {})[name] = value
        stack.load_state(start)
        run.run()
    return Replayed(run, _by_place(run.values), _by_place(run.extra_values))


Records = list[tuple[int, Tensor, Tensor]]
"""Two values of a level in each call, with the number of the event."""


def _by_place(noted: Mapping[tuple[str, int, NestedKey], Records]) -> dict[Place, Records]:
    values: dict[Place, Records] = {}
    for (name, index, key), records in noted.items():
        lane: Lane = "forward" if name == "forward" else "inverse"
        values[lane, index, key_name(base_key(key))] = records
    return values


def prepare(stack: Stack, recording: CallRecording) -> None:
    """Seed and reset the env inside a stack, whose state wrappers may read."""
    levels = stack.observed_levels()
    assert isinstance(levels, NestedLevels)
    with restored(stack), preserved_generators(), located_errors(stack):
        levels.begin(recording.seed)


def pair_levels(
    contract: Contract,
    target: Contract,
    recording: CallRecording,
    stack: Stack,
    tags: Tags = frozenset(),
) -> dict[int, int] | None:
    """Return the index of the recorded level for each level of a target that has a counterpart.

    Stages of other roles, and stages in another order, have none; they pass values on, and are
    reported as such. ``None``: stages that belong together are called in other ways, so that the
    env inside has to be replaced.
    """
    levels = stack.observed_levels()
    if not isinstance(levels, NestedLevels):
        return None
    forms = levels.forms()
    pairs: dict[int, int] = {}
    for pair in align_all(contract, target, tags):
        if pair.status == "paired" and pair.a is not None and pair.b is not None:
            own, recorded = forms.get(pair.b.index), recording.forms.get(pair.a.index)
            if own is not None and recorded is not None and own.protocol == recorded.protocol:
                pairs[pair.b.index] = pair.a.index
            elif pair.b.index >= 0 and not pair.is_passive:
                return None
    return pairs


@dataclass
class Effect:
    """What a recorded level did to the calls that passed it.

    Args:
        calls: Number of calls that it received.
        changed: Number of those in which it returned or passed on something else, or made other
            calls.
        key: Part that it changed: ``observation``, ``action``, ``reward`` or ``done``. ``None``: it
            changed none.
        size: Largest difference of the key; ``None`` if it is not known.
        shapes: Shapes of the key that it received and passed on, as text, if they differ.
    """

    calls: int = 0
    changed: int = 0
    key: str | None = None
    size: float | None = None
    shapes: tuple[str, str] | None = None


def effect_of(recording: CallRecording, level: int) -> Effect:
    """Return what a level changed in a recording."""
    effect = Effect()
    changes: dict[str, list[dict[str, Change]]] = {}
    is_changed = False
    for event in recording.walk():
        if event.level != level or not event.children:
            continue
        inner = event.children[-1]
        received, returned = _result_parts(inner), _result_parts(event)
        sides = {key: (received.get(key), value) for key, value in returned.items()}
        if event.takes_action and inner.takes_action:
            sides["action"] = event.given, inner.given
        is_forwarded = len(event.children) == 1 and inner.method == event.method
        is_changed |= not is_forwarded
        for key, (one, other) in sides.items():
            compared = compare_entries(dict(_plain_leaves(one)), dict(_plain_leaves(other)))
            differing = {path: change for path, change in compared.items() if change is not None}
            if differing or isinstance(one, Tensor) != isinstance(other, Tensor):
                changes.setdefault(key, []).append(differing)
                is_changed = True
        # A step of a VecEnv is two calls, which count as one.
        if event.method != "step_async":
            effect.calls += 1
            effect.changed += is_changed
            is_changed = False
    order = ("observation", "action", "reward", "done")
    effect.key = next((key for key in order if key in changes), None)
    for differing in changes.get(effect.key or "", ()):
        for path, change in differing.items():
            if change.size is not None:
                effect.size = max(effect.size or 0.0, change.size)
            if change.kind == "spec" and not path:
                effect.shapes = change.sides
    return effect


def _plain_leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the numbers in plain data as tensors, and the other parts, by their path."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from _plain_leaves(item, f"{path}/{name}")
    elif isinstance(value, float | np.bool_ | np.floating) or (
        isinstance(value, int | np.integer) and abs(int(value)) <= _MAX_EXACT_INT
    ):
        # A wrapper that turns a number of NumPy into one of Python, or an int into a float, does
        # not change it.
        yield path, torch.tensor(float(value), dtype=torch.float64)
    elif isinstance(value, np.ndarray) and value.dtype.isnative and value.itemsize <= 8:
        yield path, torch.as_tensor(value)
    elif value is not None:
        yield path, value


def _result_parts(event: Event) -> dict[str, object]:
    """Return the parts of a result of Gymnasium or Stable-Baselines3 without the infos."""
    if not isinstance(event.returned, tuple):
        return {"observation": event.returned}
    observation, *rest = event.returned[:-1]
    parts = {"observation": observation}
    if rest:
        parts |= {"reward": rest[0], "done": rest[1:]}
    return parts


def coverage_of(
    contract: Contract, recording: CallRecording, replayed: Replayed, lacking: Collection[int] = ()
) -> Coverage:
    """Count the recorded values, and those that a replay compared.

    A value is one entry of the result of a call, or the action that a stage passed on. The target
    does well without the stages in ``lacking``: their values do not count, and neither do those of
    calls that only they make.
    """
    parts = contract.compare
    values = compared = 0
    stages: set[int] = set()
    excluded = set(recording.unrepeatable)
    # A stage that is passed over does nothing on both sides, which proves nothing.
    excluded |= {stage.index for stage in contract.stages if stage.random == OPAQUE}
    # An env without stages is compared itself.
    first = 0 if len(recording.forms) > 1 else -1
    if first < 0 and replayed.env_difference() is not None:
        excluded.add(-1)

    def count(event: Event, caller: Event | None, *, is_lacking: bool) -> None:
        nonlocal values, compared
        is_lacking |= event.level in lacking
        is_compared = event.start in replayed.run.compared and event.level not in excluded
        if (
            event.row < replayed.run.shared_rows
            and event.level >= first
            and event.level not in lacking
        ):
            results = sum(_result_counts(event.method, event.returned, parts))
            values += results if is_compared or not is_lacking else 0
            if is_compared:
                compared += results
                stages.add(event.level)
        if event.row < replayed.run.shared_rows and caller is not None and event.takes_action:
            passed_on = (
                event.start in replayed.run.compared_actions and caller.level not in excluded
            )
            if "action" in parts and (passed_on or not is_lacking):
                values += 1
                compared += passed_on
        for child in event.children:
            count(child, event, is_lacking=is_lacking)

    for root in recording.roots:
        count(root, None, is_lacking=False)
    relevant = {stage.index for stage in relevant_stages(contract)} - set(lacking)
    trained = sum(stage.index in lacking for stage in relevant_stages(contract))
    others = len(contract.stages) - 1 - len(relevant) - trained
    return Coverage(
        *(len(relevant & stages), len(relevant), compared, values, others, trained),
        noun=contract.noun,
    )


def _result_counts(method: str, returned: object, parts: Sequence[str]) -> Iterator[int]:
    if method == "step_async":
        return
    result = returned if isinstance(returned, tuple) else (returned,)
    if "observation" in parts:
        yield _leaves(result[0])
    if method != "reset" and len(result) > 3:
        yield "reward" in parts
        yield ("done" in parts) * (len(result) - 3)


def _leaves(value: object) -> int:
    if isinstance(value, dict):
        return sum(map(_leaves, value.values()))
    return 1
