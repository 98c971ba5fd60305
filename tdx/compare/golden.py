"""Reference values of two stages: what both received and made, for an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from tdx.compare.edits import Explanation, renamed
from tdx.compare.explanations import Sides, predict_stage
from tdx.compare.model import Contract, Lane, StageRecord, display_key
from tdx.compare.values import EXACT, Tolerance, Values, compare_values, differing_elements

if TYPE_CHECKING:
    from torch import Tensor


def golden_sides(
    contracts: tuple[Contract, Contract],
    lane: Lane,
    key: str,
    stages: tuple[StageRecord, StageRecord],
    tolerance: Tolerance,
    keys: Sequence[str],
) -> Sides | None:
    """Return the reference values of a key after two stages, which write ``keys``.

    If both have received the same, those of the reference are as recorded. Otherwise they are what
    its stage would have made of what the target's stage received; ``None`` if that is not known.
    """
    inside = -1 if lane == "forward" else 1

    def values_at(key: str, offset: int) -> tuple[Values | None, Values | None]:
        one, other = (
            contract.value_at(lane, stage.index + offset, key)[0]
            for contract, stage in zip(contracts, stages, strict=True)
        )
        return one, other

    ours, theirs = values_at(key, 0)
    if ours is None or theirs is None or len(ours.numbers) != len(theirs.numbers):
        return None
    records = len(ours.numbers)
    known = [side for side in (*values_at(key, inside), ours, theirs) if side is not None]
    # Of a large value of a contract on disk only a thumbnail is known, which shows no neighbors.
    is_whole = all(side.whole is not None for side in known)
    is_thumbnail = not is_whole and any(side.digests for side in known)
    # The target may have fewer sub-envs.
    rows = min(ours.numbers.shape[1], theirs.numbers.shape[1])

    def received(key: str) -> tuple[Tensor, Tensor, bool] | None:
        """Return what both stages received, and whether it is the same."""
        one, other = values_at(key, inside)
        if one is None or other is None or not len(one.numbers) == len(other.numbers) == records:
            return None
        is_same = compare_values(one, other, tolerance, exact_dtype=False) is None
        numbers, own = (_numbers(side, is_whole=is_whole)[:, :rows] for side in (one, other))
        return numbers, own, is_same

    starts = _episode_starts(contracts[0], lane, records)
    others: dict[str, tuple[Tensor, Tensor]] = {}
    for name in keys:
        inputs, (made, _) = received(name), values_at(name, 0)
        if name == key or inputs is None or made is None or len(made.numbers) != records:
            continue
        if inputs[2] and inputs[0].is_floating_point():
            others[display_key(name)] = inputs[0], _numbers(made, is_whole=is_whole)[:, :rows]
    given = received(key)
    sides = Sides(
        _numbers(ours, is_whole=is_whole)[:, :rows],
        _numbers(theirs, is_whole=is_whole)[:, :rows],
        given[0] if given is not None and not is_thumbnail else None,
        starts,
        tolerance,
        others,
    )
    if given is None or given[2]:
        return sides
    found = predict_stage(sides, given[1])
    if found is None:
        return None
    reference, slack = found
    tolerance = tolerance.widened(Tolerance(0.0, slack))
    if reference.shape == given[0].shape == given[1].shape == sides.target.shape:
        # Beyond the values that the stage of the reference received, a clip of it is not known.
        low, high = (
            limit(given[0].double().flatten(0, 1), 0) for limit in (torch.amin, torch.amax)
        )
        is_known = (given[1] >= low) & (given[1] <= high)
        if not bool((differing_elements(reference, sides.target, tolerance) & is_known).any()):
            return None
    return replace(sides, reference=reference, received=given[1], tolerance=tolerance)


def _episode_starts(contract: Contract, lane: Lane, records: int) -> tuple[int, ...]:
    lengths = [segment.steps + (lane == "forward") for segment in contract.inputs]
    # A reward has no record of the resets.
    return tuple(accumulate(lengths[:-1], initial=0)) if sum(lengths) == records else (0,)


def _numbers(values: Values, *, is_whole: bool) -> Tensor:
    return values.whole if is_whole and values.whole is not None else values.numbers


def extra_sides(
    contract: Contract, lane: Lane, key: str, stage: StageRecord, *, is_made: bool = False
) -> Sides | None:
    """Return what a stage received, and what it made of it.

    ``is_made``: the reference is what it made, not what it received.
    """
    inside = -1 if lane == "forward" else 1
    received, _ = contract.value_at(lane, stage.index + inside, key)
    made, _ = contract.value_at(lane, stage.index, key)
    if received is None or made is None or len(received.numbers) != len(made.numbers):
        return None
    starts = _episode_starts(contract, lane, len(made.numbers))
    is_whole = received.whole is not None and made.whole is not None
    one, other = (_numbers(side, is_whole=is_whole) for side in (received, made))
    return Sides(other if is_made else one, other, one, starts, stage.tolerance)


def is_applied_twice(contract: Contract, one: StageRecord, other: StageRecord) -> bool:
    """Return True if two stages of a target do the same to their values."""
    known = predict_each_other((contract, contract), (one, other))
    # Without numbers, a class whose role is known does the same with the same arguments.
    return one.has_known_role if known is None else known


def predict_each_other(
    contracts: tuple[Contract, Contract], stages: tuple[StageRecord, StageRecord]
) -> bool | None:
    """Return whether each of two stages does to what the other received what the other did.

    ``None``: what they do is not known.
    """
    checked = False
    for lane, key in stages[0].written:
        first, second = (
            extra_sides(contract, lane, key, stage, is_made=True)
            for contract, stage in zip(contracts, stages, strict=True)
        )
        if first is None or second is None or second.received is None:
            continue
        # A stage that changes nothing here may do something else: both must predict the other.
        for side, other_side in ((first, second), (second, first)):
            assert other_side.received is not None
            predicted = predict_stage(side, other_side.received)
            if predicted is None or predicted[0].shape != other_side.target.shape:
                break
            widest = stages[0].tolerance.widened(Tolerance(0.0, predicted[1]))
            target = other_side.target.double()
            if bool(differing_elements(predicted[0], target, widest).any()):
                return False
        else:
            checked = True
    return checked or None


def renamed_key(contract: Contract, lane: Lane, stage: StageRecord) -> Explanation | None:
    """Return that a stage writes a key with the values of another one, if it does so."""
    inside = -1 if lane == "forward" else 1
    # The policy is outside of the last stage.
    before = contract.stage(min(stage.index + inside, contract.last)).specs
    for name in (key for at, key in stage.written if at == lane):
        made, _ = contract.value_at(lane, stage.index, name)
        for spec in before:
            received, _ = contract.value_at(lane, stage.index + inside, spec.key)
            if made is None or received is None or spec.key == name:
                continue
            if compare_values(received, made, EXACT) is None:
                return renamed(display_key(spec.key), display_key(name))
    return None
