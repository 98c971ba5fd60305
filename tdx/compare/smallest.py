"""Reduce a difference to one number: step, sub-env and feature, with what the stage received."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product, repeat
from operator import lt, mul
from typing import TYPE_CHECKING

from tdx.compare.model import Contract, Lane, StageRecord, display_key, key_name
from tdx.compare.report import Difference, SmallestCase
from tdx.compare.roles import part_of
from tdx.compare.values import Tolerance, Values, differing_elements, element_gaps
from tdx.foundation.text import dtype_name
from tdx.foundation.torch_internals import unravel_positions
from tdx.stacks.observe import base_key

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.compare.replay import Replayed
    from tdx.compare.rollouts import Record

_MAX_SHOWN = 8
"""Numbers of a received vector that are shown."""


@dataclass(frozen=True, slots=True)
class _Record:
    """Values of one call on both sides, ``[R, ...]``, and what the stage received.

    Of a thumbnail, ``strides`` are the distances of its elements in the value.
    """

    expected: Tensor
    obtained: Tensor
    row: int = 0
    episode: int = 0
    step: int | None = None
    received: Mapping[str, Tensor] = field(default_factory=dict)
    strides: tuple[int, ...] = ()


def find_smallest(
    difference: Difference,
    sides: tuple[Contract, Contract],
    lanes: Sequence[Lane],
    replayed: Replayed | None,
    tolerance: Tolerance,
) -> SmallestCase | None:
    """Return the first number that differs; of several in one call, the one that differs most.

    ``None``: no number of the key differs, or the shapes do.
    """
    key = difference.key
    if key is None:
        return None
    indices = difference.reference_stage, difference.stage
    a, b = (
        None if index is None else side.stage(index)
        for side, index in zip(sides, indices, strict=True)
    )
    keys = [key]
    if b is not None and any(tensor.name == key for tensor in b.state):
        # The values show what the state changes.
        keys = list(dict.fromkeys(name for _, name in b.written))
    for lane, name in product(lanes, keys):
        # A stage that the target lacks has made no calls.
        if replayed is None or b is None:
            records = _golden_records(sides, lane, name, (a, b))
        else:
            records = _replayed_records(replayed, lane, name, indices)
        for record in records:
            if record.expected.shape != record.obtained.shape:
                return None
            differing = differing_elements(record.expected, record.obtained, tolerance)
            if bool(differing.any()):
                rows = 1 if replayed is None else replayed.run.shared_rows
                return _case(name, record, differing, is_one_of_several=rows > 1)
    return None


def smallest_of_record(
    key: str,
    record: Record,
    tolerance: Tolerance,
    episode: int,
    step: int | None,
) -> SmallestCase | None:
    """Return the number of one step that differs most; ``None`` if none does, or the shapes do."""
    expected, obtained, received = record
    if expected.shape != obtained.shape:
        return None
    differing = differing_elements(expected, obtained, tolerance)
    if not bool(differing.any()):
        return None
    inputs = {} if received is None else {key: received}
    case = _Record(expected, obtained, 0, episode, step, inputs)
    return _case(key, case, differing, is_one_of_several=False)


def _case(key: str, record: _Record, differing: Tensor, *, is_one_of_several: bool) -> SmallestCase:
    gaps = element_gaps(record.expected, record.obtained).masked_fill(~differing, 0)
    place = [int(part) for part in unravel_positions(gaps.argmax(), gaps.shape)]
    expected, obtained = (side[tuple(place)].item() for side in (record.expected, record.obtained))
    rows = len(differing) > 1 or is_one_of_several
    return SmallestCase(
        record.episode,
        record.step,
        record.row + place[0] if rows else None,
        tuple(map(mul, place[1:], record.strides or repeat(1))),
        expected,
        obtained,
        key=display_key(key),
        received={
            display_key(name): _text(value[min(place[0], len(value) - 1)], place[1:])
            for name, value in record.received.items()
        },
    )


def _text(value: Tensor, place: list[int]) -> str:
    """Return the numbers of a vector; of a larger value, the one at the place that differs."""
    if value.ndim == 0:
        return f"{value.item():.6g}"
    if value.ndim == 1 and len(value) <= _MAX_SHOWN:
        return f"[{', '.join(f'{number:.6g}' for number in value.tolist())}]"
    text = f"{dtype_name(value.dtype)} {list(value.shape)}"
    if value.ndim == len(place) and all(map(lt, place, value.shape)):
        text += f" with {value[tuple(place)].item():.6g} there"
    return text


def _golden_records(
    sides: tuple[Contract, Contract],
    lane: Lane,
    key: str,
    stages: tuple[StageRecord | None, StageRecord | None],
) -> Iterator[_Record]:
    """Yield what both stages made of the recorded results of the env inside.

    Without a stage on one side, it is what the stage of the other side received.
    """
    inside = -1 if lane == "forward" else 1

    def value_of(side: int, key: str, offset: int = 0) -> Values | None:
        stage = stages[side]
        if stage is None or stage.index + offset < -1:
            return None
        return sides[side].value_at(lane, stage.index + offset, key)[0]

    one = value_of(0, key) if stages[0] is not None else value_of(1, key, inside)
    other = value_of(1, key) if stages[1] is not None else value_of(0, key, inside)
    if one is None or other is None:
        return
    is_whole = one.whole is not None and other.whole is not None
    side = 0 if stages[1] is None else 1
    names = [key]
    if value_of(side, key, inside) is None:
        # The stage makes the key from other ones.
        names = [name for at, _, name in sides[side].values if at == lane]
        names = [name for name in names if part_of(sides[side], name) == "observation"]
    received = {
        name: value.numbers
        for name in dict.fromkeys(names)
        if (value := value_of(side, name, inside)) is not None and not value.digests
    }
    expected, obtained = (
        value.whole if is_whole and value.whole is not None else value.numbers
        for value in (one, other)
    )
    if expected.shape[2:] != obtained.shape[2:]:
        return
    strides = tuple(
        -(-size // shown) if shown else 1
        for size, shown in zip(one.shape, expected.shape[2:], strict=True)
    )
    # The target may have fewer sub-envs.
    rows = min(expected.shape[1], obtained.shape[1])
    # Rewards have no record of a reset, so observations do not stand beside them.
    received = {name: value for name, value in received.items() if len(value) == len(expected)}
    for record, (place, *_) in enumerate(sides[0].row_places(lane, len(expected), 1)):
        if record < len(obtained):
            yield _Record(
                *(expected[record, :rows], obtained[record, :rows], 0, place.episode, place.step),
                {name: value[record] for name, value in received.items()},
                strides,
            )


def _replayed_records(
    replayed: Replayed, lane: Lane, key: str, indices: tuple[int | None, int | None]
) -> Iterator[_Record]:
    """Yield what both stages made of the recorded calls of the stage."""
    reference, level = indices
    assert level is not None
    if reference is None:
        records = replayed.extra.get((lane, level, key), [])
        inputs = {number: {key: one} for number, one, _ in records}
    else:
        records = replayed.values.get((lane, level, key), [])
        is_paired = level in replayed.run.pairs
        read = replayed.run.received(lane, level) if is_paired and level >= 0 else {}
        inputs = {
            number: {key_name(base_key(name)): value for name, value in entries.items()}
            for number, entries in read.items()
        }
    recording = replayed.run.recording
    rows = {event.start: event.row for event in recording.walk()}
    for number, expected, obtained in records:
        episode, step = -1, None
        for root in recording.roots:
            if root.start > number:
                break
            if root.method == "reset":
                episode, step = episode + 1, None
            elif root.takes_action:
                step = 0 if step is None else step + 1
        received = inputs.get(number, {})
        known = {key: received[key]} if key in received else received
        yield _Record(expected, obtained, rows.get(number, 0), max(episode, 0), step, known)
