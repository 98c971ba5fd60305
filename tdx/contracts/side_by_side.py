"""The stages of a contract and of a target side by side, with what differs at each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tdx.compare.values import Tolerance, Values
from tdx.contracts.model import Contract, Lane, StageRecord
from tdx.contracts.report import ContractReport, Difference
from tdx.contracts.roles import Pair, align, is_relevant, part_of

RowStatus = Literal["same", "differs", "follows", "not compared"]


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key that a stage writes, on both sides.

    Args:
        lane: Direction.
        key: Name of the key.
        a: Its values after the stage of the contract. ``None``: it has none.
        b: Its values after the stage of the target. ``None``: it has none.
        tolerance: Largest difference of the stages so far.
    """

    lane: Lane
    key: str
    a: Values | None
    b: Values | None
    tolerance: Tolerance


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage of both sides, or of one.

    Args:
        a: Stage of the contract. ``None``: it does not have it.
        b: Stage of the target. ``None``: it does not have it.
        status: ``differs`` if a difference has its cause here, ``follows`` if all follow from
            earlier ones, ``not compared`` for stages that change nothing that a policy reads, and
            for those of training only that an evaluation does not have.
        differences: What differs here.
        keys: Keys that are compared after the stage.
    """

    a: StageRecord | None
    b: StageRecord | None
    status: RowStatus
    differences: tuple[Difference, ...]
    keys: tuple[KeyRow, ...]


def side_by_side(a: Contract, b: Contract | None, report: ContractReport) -> list[StageRow]:
    """Return the env and all stages of both sides, in the order of the data flow.

    Args:
        a: The contract.
        b: The observed target. ``None``: it failed with the inputs of the contract.
        report: Their comparison.
    """
    if b is None:
        return [_row_of_failure(a, each, report) for each in a.stages]
    ends = Pair("paired", a.stage(-1), b.stage(-1))
    rows = [_row(a, b, ends, report)]
    # Stages that are not compared are shown where they are.
    ours = [each for each in a.stages[1:] if not is_relevant(a, each)]
    theirs = [each for each in b.stages[1:] if not is_relevant(b, each)]
    pairs = align(a, b)
    for at, pair in enumerate(pairs):
        # A stage that one side lacks does not part those of both sides around it.
        next_a = next((each.a for each in pairs[at:] if each.a is not None), None)
        next_b = next((each.b for each in pairs[at:] if each.b is not None), None)
        rows += _ignored_rows(_take_before(ours, next_a), _take_before(theirs, next_b))
        rows.append(_row(a, b, pair, report))
    return rows + _ignored_rows(ours, theirs)


def _take_before(stages: list[StageRecord], limit: StageRecord | None) -> list[StageRecord]:
    """Remove the stages before another one, and return them; all if there is none."""
    taken = [each for each in stages if limit is None or each.index < limit.index]
    del stages[: len(taken)]
    return taken


def _ignored_rows(ours: list[StageRecord], theirs: list[StageRecord]) -> list[StageRow]:
    rows: list[StageRow] = []
    rest = list(theirs)
    for one in ours:
        other = next((each for each in rest if each.role == one.role), None)
        if other is not None:
            rest.remove(other)
        rows.append(StageRow(one, other, "not compared", (), ()))
    return rows + [StageRow(None, each, "not compared", (), ()) for each in rest]


def _row(a: Contract, b: Contract, pair: Pair, report: ContractReport) -> StageRow:
    found = tuple(
        each
        for each in (*report.causes, *report.follows)
        if (pair.b is not None and each.stage == pair.b.index)
        or (pair.b is None and pair.a is not None and each.reference_stage == pair.a.index)
    )
    keys = tuple(_key_rows(a, b, pair))
    status = _status(found, report)
    if (
        not found
        and pair.b is None
        and any(
            pair.a is not None and each.reference_stage == pair.a.index
            for each in report.training_only
        )
    ):
        status = "not compared"
    return StageRow(pair.a, pair.b, status, found, keys)


def _status(found: tuple[Difference, ...], report: ContractReport) -> RowStatus:
    if not found:
        return "same"
    return "differs" if any(each in report.causes for each in found) else "follows"


def _key_rows(a: Contract, b: Contract, pair: Pair) -> Iterator[KeyRow]:
    one, other = pair.a, pair.b
    writes = dict.fromkeys(
        name for side in (one, other) if side is not None for name in side.writes
    )
    for name in sorted(writes):
        lane: Lane = "inverse" if name.startswith("inverse ") else "forward"
        key = name.partition(" ")[2]
        is_compared = "action" in a.compare if lane == "inverse" else part_of(a, key) in a.compare
        if is_compared:
            left, tolerance = (None, Tolerance())
            if one is not None:
                left, tolerance = a.value_at(lane, one.index, key)
                tolerance = tolerance.widened(one.tolerance)
            right = None if other is None else b.value_at(lane, other.index, key)[0]
            if b.reference is not None and other is not None:
                # Each stage got its recorded inputs: both sides by the index of the target.
                left = b.reference.get((lane, other.index, key))
                right = b.values.get((lane, other.index, key))
            yield KeyRow(lane, key, left, right, tolerance)


def _row_of_failure(a: Contract, stage: StageRecord, report: ContractReport) -> StageRow:
    """Return the row of a target that has no values."""
    found = tuple(each for each in report.differences if each.reference_stage == stage.index)
    if stage.index < 0:
        found = tuple(each for each in report.differences if each.reference_stage in (None, -1))
    keys = tuple(
        KeyRow(lane, key, values, None, stage.tolerance)
        for (lane, index, key), values in a.values.items()
        if index == stage.index
    )
    return StageRow(stage, None, "differs" if found else "not compared", found, keys)
