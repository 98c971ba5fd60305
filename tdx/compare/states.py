"""How the state that stages keep across episodes differs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from tdx.compare.codes import DifferenceKind
from tdx.compare.edits import STOP_UPDATES, Edit, Explanation
from tdx.compare.model import Contract, StageRecord, StateRecord, display_key
from tdx.compare.orders import find_order
from tdx.compare.report import Difference, StateChange
from tdx.compare.statistics import FRESH_COUNT, is_of_reward, read_counts
from tdx.compare.values import (
    Change,
    Tolerance,
    compare_tensors,
    digest,
    format_number,
    largest_gap,
)

if TYPE_CHECKING:
    from torch import Tensor

STATE_TOLERANCE = Tolerance(1e-6, 1e-12)


def compare_states(
    a: StageRecord,
    b: StageRecord,
    *,
    evaluation: bool,
    in_rows: tuple[bool, bool] = (False, False),
    noun: str = "contract",
) -> Iterator[Difference]:
    """Yield how the state of a target's stage differs from that of the contract.

    Statistics of rewards are left out: a policy does not read them. Those of a target for
    evaluation must not change. ``in_rows`` is whether each sub-env has the stage, so that the first
    dim of its state is that of the sub-envs; those that both have are compared.
    """
    ours, theirs = (
        {record.name: record for record in stage.state if not is_of_reward(record.name)}
        for stage in (a, b)
    )
    if any(in_rows):
        ours, theirs = _common_rows(ours, theirs, in_rows)
    key = next((key for _, key in (*a.written, *b.written)), None)
    # A contract is what is left of a training.
    origin = "training" if noun == "contract" else noun

    def difference(
        kind: DifferenceKind, text: str, hint: str, edit: Edit | None = None
    ) -> Difference:
        explanation = None if edit is None else Explanation((edit,))
        return Difference(
            *(kind, b.index, a.index, b.name, key, text, None, hint), explanation=explanation
        )

    values = [
        {name: record.value for name, record in side.items() if record.value is not None}
        for side in (ours, theirs)
    ]
    counts, own_counts = map(read_counts, values)
    trained = max(counts.values(), default=None)
    present = max(own_counts.values(), default=None)
    # The statistics exist only after the first step.
    is_missing = not values[1] and bool(not theirs or values[0])
    if ours and (trained is None or trained > FRESH_COUNT) and is_missing:
        text = f"it has no statistics, the {noun} has {', '.join(list(ours)[:3])}"
        if trained is not None:
            text += f" of {format_number(trained)} values"
        yield difference("state missing", text, f"load the state of the {origin} into {b.name}")
    elif trained is not None and present is not None and present <= FRESH_COUNT < trained:
        name = max(own_counts, key=own_counts.__getitem__)
        text = (
            f"its statistics are fresh: its count ({name}) is {format_number(present)}, in the "
            f"{noun} {format_number(trained)}"
        )
        hint = f"load the statistics of the {origin} into {b.name}"
        numbers = {"count": present, "reference": {"count": trained}}
        yield difference("state fresh", text, hint, Edit("fresh statistics", text, numbers, hint))
    elif a.name == b.name:
        yield from islice(_other_values(a, b, ours, theirs, key, origin), 1)
    learning = [record.name for record in theirs.values() if record.changes]
    is_frozen = ours and not any(record.changes for record in ours.values())
    if learning and (evaluation or is_frozen):
        text = f"its statistics change with every step ({', '.join(learning[:3])})"
        if not evaluation:
            text += f", those of the {noun} do not"
        parameters: dict[str, object] = {"tensors": learning}
        if present is not None:
            parameters["count"] = present
        edit = Edit("moving statistics", text, parameters, STOP_UPDATES)
        yield difference("state still learning", text, STOP_UPDATES, edit)


def _is_rounding(name: str, gap: Tensor, ours: Mapping[str, StateRecord]) -> bool:
    """Return True if a mean differs by the rounding of the deviation that it belongs to.

    A mean near zero has a rounding that is large relative to itself.
    """
    stem, mean, rest = name.rpartition("mean")
    for other, power in (("std", 1.0), ("var", 0.5)):
        record = ours.get(stem + other) if mean and not rest else None
        if record is not None and record.value is not None and record.shape == tuple(gap.shape):
            deviation = record.value.double().abs() ** power
            return bool((gap.abs() <= STATE_TOLERANCE.rtol * deviation).all())
    return False


def _other_values(
    a: StageRecord,
    b: StageRecord,
    ours: Mapping[str, StateRecord],
    theirs: Mapping[str, StateRecord],
    key: str | None,
    origin: str,
) -> Iterator[Difference]:
    for name, one in ours.items():
        other = theirs.get(name)
        if other is None:
            if one.changes:
                text = f"it has no state {name}"
                yield Difference("state missing", b.index, a.index, b.name, key, text)
            continue
        shape_text = f"{name} has the shape {list(other.shape)} instead of {list(one.shape)}"
        change: Change | None = None
        # Other shapes may follow from what the stage receives, a single number does not.
        is_comparable = one.shape == other.shape or math.prod(other.shape) == 1
        if (
            is_comparable
            and one.digest != other.digest
            and one.value is not None
            and other.value is not None
        ):
            own = other.value.double().reshape(other.shape if other.shape == one.shape else ())
            change = compare_tensors(one.value.double(), own.expand(one.shape), STATE_TOLERANCE)
            if _is_rounding(name, one.value.double() - own, ours):
                change = None
        if change is not None and change.size is not None:
            text = f"{name} differs by up to {format_number(change.size)}"
            if math.prod(one.shape) > math.prod(other.shape):
                text = shape_text
            elif other.value is not None and one.value is not None:
                order = order_of(one.value, other.value)
                if one.value.numel() == 1:
                    numbers = (format_number(float(side)) for side in (other.value, one.value))
                    text = f"{name} is {' instead of '.join(numbers)}"
                elif order is not None:
                    text = f"{name} is in another order: {', '.join(map(str, order))}"
            named = _fresh_statistics(a, b, theirs, name, origin) or _swapped_statistics(
                a, b, (ours, theirs), name
            )
            if named is not None:
                yield named
                continue
            hint = f"load the state of the {origin} into {b.name}"
            if not one.changes:
                hint = f"give {b.name} the {name} of the {origin}, or load its state"
            yield Difference("value", b.index, a.index, b.name, name, text, change.size, hint)
        elif one.shape != other.shape:
            yield Difference("spec", b.index, a.index, b.name, key, shape_text)


def _fresh_statistics(
    a: StageRecord, b: StageRecord, theirs: Mapping[str, StateRecord], name: str, origin: str
) -> Difference | None:
    """Return that statistics without a count are those before a training: 0 and 1."""
    prefix = name.rpartition(".")[0]
    members = {
        last: record
        for other, record in theirs.items()
        if (last := other.rpartition(".")[2]) and other.rpartition(".")[0] == prefix
    }
    center, width = (
        next((members[last] for last in names if last in members), None)
        for names in (("mean",), ("std", "var"))
    )
    if center is None or width is None or center.value is None or width.value is None:
        return None
    if bool(center.value.any()) or bool((width.value != 1).any()):
        return None
    keys = [key for _, key in (*a.written, *b.written)]
    key = next((key for key in keys if display_key(key) == prefix), next(iter(keys), None))
    text = f"its statistics are fresh: {center.name} is 0, and {width.name} is 1"
    hint = f"load the statistics of the {origin} into {b.name}"
    edit = Edit("fresh statistics", text, {"mean": 0.0, "std": 1.0}, hint)
    return Difference(
        *("state fresh", b.index, a.index, b.name, key, text, None, hint),
        explanation=Explanation((edit,)),
    )


def _swapped_statistics(
    a: StageRecord,
    b: StageRecord,
    sides: tuple[Mapping[str, StateRecord], Mapping[str, StateRecord]],
    name: str,
) -> Difference | None:
    """Return that a statistic of the target is that of another key of the contract."""
    ours, theirs = sides
    value, last = theirs[name].value, name.rpartition(".")[2]
    # Equal numbers may be equal by chance.
    if value is None or bool((value == value.flatten()[:1]).all()):
        return None

    def is_same(one: StateRecord | None, other: StateRecord | None) -> bool:
        values = [None if record is None else record.value for record in (one, other)]
        return (
            values[0] is not None
            and values[1] is not None
            and compare_tensors(values[0], values[1], STATE_TOLERANCE) is None
        )

    for source, record in ours.items():
        key = source.rpartition(".")[0]
        if source == name or source.rpartition(".")[2] != last or not key:
            continue
        if not is_same(record, theirs[name]):
            continue
        text = f"{name} has the values of {source}"
        if is_same(ours[name], theirs.get(source)):
            text = f"{name} and {source} are swapped"
        hint = f"give each key its own statistics, not those of {key}"
        edit = Edit("swapped statistics", text, {"key": key}, hint)
        replaced = ours[name].value
        size = None if replaced is None else largest_gap(replaced, value)
        return Difference(
            *("value", b.index, a.index, b.name, name, text, size, hint),
            explanation=Explanation((edit,), values=value.numel()),
        )
    return None


_MAX_ORDERED = 256


def order_of(one: Tensor, other: Tensor) -> list[int] | None:
    """Return which number of a vector each number of another one is, if that explains them."""
    if one.ndim != 1 or one.shape != other.shape or not 1 < one.numel() <= _MAX_ORDERED:
        return None
    limits = STATE_TOLERANCE.atol + STATE_TOLERANCE.rtol * one.double().abs()
    gaps = (one.double()[:, None] - other.double()[None]).abs() / limits[:, None]
    return find_order(one.numel(), lambda i, j: float(gaps[i, j]))


def state_change(
    a: Contract, b: Contract, stages: tuple[StageRecord, StageRecord]
) -> StateChange | None:
    """Return the first reset or step after which the state of a stage differs.

    Both sides have the state at the beginning. Statistics that one side does not update are left
    out, as in an evaluation, and those of rewards.
    """
    if a.states is None or b.states is None or a.states.rows != b.states.rows:
        return None
    ours, theirs = stages
    initial = {record.name: record.digest for record in theirs.state}
    if any(initial.get(record.name, record.digest) != record.digest for record in ours.state):
        return None
    tolerance = STATE_TOLERANCE.widened(ours.tolerance)
    changes: list[tuple[int, bool, str, Tensor, Tensor]] = []
    for (index, name), one in a.states.values.items():
        other = b.states.values.get((theirs.index, name))
        if index != ours.index or other is None or is_of_reward(name):
            continue
        sides = one.double(), other.double()
        if any(bool((side == side[:1]).all()) for side in sides):
            continue
        change = compare_tensors(*sides, tolerance)
        if change is not None and change.step is not None:
            changes.append((change.step, one[0].numel() != 1, name, *sides))
    if not changes:
        return None
    # Of several that differ from the same step on, a number such as the count is shown; the order
    # of a contract on disk is not that of the stage.
    record, is_tensor, name, *values = min(changes, key=lambda change: change[:3])
    numbers = [None if is_tensor else float(value[record]) for value in values]
    step, is_reset = _step_of(a, record)
    return StateChange(name, step, is_reset, reference=numbers[0], target=numbers[1])


def stream_change(a: Contract, b: Contract) -> StateChange | None:
    """Return the first reset or step after which a random generator has another state."""
    if a.states is None or b.states is None or a.states.rows != b.states.rows:
        return None
    changes = [
        (change.step, name)
        for name, one in a.states.streams.items()
        if (other := b.states.streams.get(name)) is not None
        and (change := compare_tensors(one, other)) is not None
        and change.step is not None
    ]
    if not changes:
        return None
    record, name = min(changes)
    step, is_reset = _step_of(a, record)
    return StateChange(name, step, is_reset, is_random=True)


def _step_of(contract: Contract, record: int) -> tuple[int | None, bool]:
    """Return the step of a record, from 0, and whether it is the reset after it."""
    step = -1
    for segment in contract.inputs:
        if record <= segment.steps:
            step += record
            return (None if step < 0 else step), record == 0
        record -= segment.steps + 1
        step += segment.steps
    return step, False


def _common_rows(
    ours: dict[str, StateRecord], theirs: dict[str, StateRecord], in_rows: tuple[bool, bool]
) -> tuple[dict[str, StateRecord], dict[str, StateRecord]]:
    """Return both states with one row for each sub-env that both have."""
    rows = min(
        (
            record.shape[0] if batched else 1
            for side, batched in zip((ours, theirs), in_rows, strict=True)
            for record in side.values()
            if record.shape or not batched
        ),
        default=1,
    )

    def cut(state: dict[str, StateRecord], *, batched: bool) -> dict[str, StateRecord]:
        kept: dict[str, StateRecord] = {}
        for name, record in state.items():
            value = record.value
            if value is not None:
                value = value[:rows] if batched else value[None]
            shape = (rows, *(record.shape[1:] if batched else record.shape))
            code = record.digest if value is None else digest(value)
            kept[name] = replace(record, shape=shape, digest=code, value=value)
        return kept

    return cut(ours, batched=in_rows[0]), cut(theirs, batched=in_rows[1])
