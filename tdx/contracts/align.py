"""Pair the stages of two stacks by what they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from tdx.contracts.model import Contract, StageRecord
from tdx.contracts.roles import PASSIVE

Status = Literal["paired", "missing", "extra", "moved"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A stage of both sides, or of one.

    Args:
        status: ``missing`` if only the contract has it, ``extra`` if only the target has it.
        a: Stage of the contract.
        b: Stage of the target.
    """

    status: Status
    a: StageRecord | None
    b: StageRecord | None


def align(a: Contract, b: Contract) -> list[Pair]:
    """Pair the stages of a contract and a target that change what a policy reads or does.

    Args:
        a: The contract.
        b: The target.

    Returns:
        The pairs in the order of the target; a missing stage is where the contract has it.
    """
    ours, theirs = relevant_stages(a), relevant_stages(b)
    pairs: list[Pair] = []
    names = [_identity(each, a, b) for each in ours], [_identity(each, a, b) for each in theirs]
    matcher = SequenceMatcher(None, *names, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            pairs += [
                Pair("paired", one, other)
                for one, other in zip(ours[i1:i2], theirs[j1:j2], strict=True)
            ]
        else:
            pairs += [Pair("missing", each, None) for each in ours[i1:i2]]
            pairs += [Pair("extra", None, each) for each in theirs[j1:j2]]
    return _merge_moved(pairs, a, b)


def relevant_stages(contract: Contract) -> list[StageRecord]:
    """Return the stages that change what a policy reads or does, or may do so."""
    return [each for each in contract.stages[1:] if is_relevant(contract, each)]


def is_relevant(contract: Contract, stage: StageRecord) -> bool:
    """Return True if a stage changes a compared key, or keeps a state."""
    if stage.role in PASSIVE:
        return False
    if any(_is_compared(contract, name) for name in stage.writes):
        return True
    if stage.state and not stage.writes:
        return True
    before, after = (
        {each.key: each for each in specs if each.part in contract.compare}
        for specs in (contract.stage(stage.index - 1).specs, stage.specs)
    )
    if before != after:
        return True
    # A stage that is known to act may have had no reason to do so in a few steps.
    is_known = stage.role != stage.name
    return is_known or (not stage.writes and "reward" not in stage.name.casefold())


def _is_compared(contract: Contract, written: str) -> bool:
    lane, _, key = written.partition(" ")
    return (lane == "inverse" and "action" in contract.compare) or part_of(
        contract, key
    ) in contract.compare


def part_of(contract: Contract, key: str) -> str:
    """Return the part that a key belongs to; an undeclared key counts as an observation."""
    for stage in contract.stages:
        found = stage.spec(key)
        if found is not None:
            return found.part
    return "reward" if key.rpartition(".")[2] == "reward" else "observation"


def _identity(stage: StageRecord, a: Contract, b: Contract) -> str:
    return stage.name if a.kind == b.kind and stage.role == stage.name else stage.role


def _merge_moved(pairs: Sequence[Pair], a: Contract, b: Contract) -> list[Pair]:
    """Join a missing and an extra stage that do the same at different positions."""
    found = list(pairs)
    for missing in [each for each in found if each.status == "missing"]:
        assert missing.a is not None
        for extra in found:
            if extra.status != "extra" or extra.b is None:
                continue
            if _identity(missing.a, a, b) == _identity(extra.b, a, b):
                found[found.index(extra)] = Pair("moved", missing.a, extra.b)
                found.remove(missing)
                break
    return found
