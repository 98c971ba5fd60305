"""Golden values of two stages: what both received and made, for an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from tdx.compare.explanations import Sides, predict_stage
from tdx.compare.model import Contract, Lane, StageRecord, display_key
from tdx.compare.values import Tolerance, Values, compare_values

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
    """Return the golden values of a key after two stages.

    If both have received the same, those of the reference are as recorded. Otherwise they are what
    its stage would have made of what the target's stage received.

    Args:
        contracts: The contract and the target.
        lane: Direction.
        key: Name of the key.
        stages: The stage of the contract, and that of the target.
        tolerance: Largest difference that counts as equal.
        keys: All keys that the stage writes.

    Returns:
        The values; ``None`` if there are none, or what the stage of the reference would have made
        is not known.
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
    # The target may have fewer sub-envs.
    rows = min(ours.numbers.shape[1], theirs.numbers.shape[1])

    def received(key: str) -> tuple[Tensor, Tensor, bool] | None:
        """Return what both stages received, and whether it is the same."""
        one, other = values_at(key, inside)
        if one is None or other is None or not len(one.numbers) == len(other.numbers) == records:
            return None
        is_same = compare_values(one, other, tolerance, exact_dtype=False) is None
        return one.numbers[:, :rows], other.numbers[:, :rows], is_same

    lengths = [segment.steps + (lane == "forward") for segment in contracts[0].inputs]
    starts = tuple(accumulate(lengths[:-1], initial=0)) if sum(lengths) == records else (0,)
    others: dict[str, tuple[Tensor, Tensor]] = {}
    for name in keys:
        inputs, (made, _) = received(name), values_at(name, 0)
        if name == key or inputs is None or made is None or len(made.numbers) != records:
            continue
        if inputs[2] and inputs[0].is_floating_point():
            others[display_key(name)] = inputs[0], made.numbers[:, :rows]
    given, (before, before_own) = received(key), values_at(key, inside)
    # Of a large value only a thumbnail is known, which shows no neighbors.
    is_whole = not any(
        values.digests for values in (before, before_own, ours, theirs) if values is not None
    )
    sides = Sides(
        ours.numbers[:, :rows],
        theirs.numbers[:, :rows],
        given[0] if given is not None and is_whole else None,
        starts,
        tolerance,
        others,
    )
    if given is None or given[2]:
        return sides
    reference = predict_stage(sides, given[1])
    return None if reference is None else replace(sides, reference=reference, received=given[1])


def extra_sides(contract: Contract, lane: Lane, key: str, stage: StageRecord) -> Sides | None:
    """Return what a stage received, and what it made of it.

    Args:
        contract: The contract, or the target.
        lane: Direction.
        key: Name of the key.
        stage: The stage.
    """
    inside = -1 if lane == "forward" else 1
    received, _ = contract.value_at(lane, stage.index + inside, key)
    made, _ = contract.value_at(lane, stage.index, key)
    if received is None or made is None or len(received.numbers) != len(made.numbers):
        return None
    lengths = [segment.steps + (lane == "forward") for segment in contract.inputs]
    is_known = sum(lengths) == len(made.numbers)
    starts = tuple(accumulate(lengths[:-1], initial=0)) if is_known else (0,)
    return Sides(received.numbers, made.numbers, received.numbers, starts, stage.tolerance)
