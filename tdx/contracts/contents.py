"""What a contract covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tdx.compare.model import display_key
from tdx.foundation.serialization import Result

if TYPE_CHECKING:
    from tdx.compare.model import Contract


@dataclass(frozen=True, slots=True)
class ContractStage(Result):
    """A stage of a contract.

    Args:
        index: Index of the stage, from 0 for the innermost one; -1 for the env inside.
        name: Class name.
        role: What it does; stages of different libraries share roles.
        writes: Keys that it writes, as ``forward observation``.
        state: Names of the tensors that it keeps across episodes.
        random: ``seeded`` if it follows the seed; ``excluded`` if it does not, and its values are
            not compared; ``opaque`` if it was not run; ``None`` if it has no randomness.
    """

    index: int
    name: str
    role: str
    writes: tuple[str, ...]
    state: tuple[str, ...]
    random: str | None


@dataclass(frozen=True, slots=True)
class ContractContents(Result):
    """What a contract covers.

    Args:
        path: Its folder.
        stack_kind: Kind of the stack, such as ``stable-baselines3``.
        env: Name of the env inside.
        seed: Seed of the reference steps.
        steps: Number of reference steps.
        compare: Parts that are compared.
        libraries: Versions of the libraries that recorded it.
        stages: The env inside, then the stages.
        tolerances: Tolerances of keys beside those of the stages.
        notes: What it does not cover, each a sentence.
    """

    path: str
    stack_kind: str
    env: str
    seed: int
    steps: int
    compare: tuple[str, ...]
    libraries: Mapping[str, str]
    stages: tuple[ContractStage, ...]
    tolerances: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...]


def summarize_contract(contract: Contract, path: str | Path) -> ContractContents:
    """Return what a contract covers."""
    stages = tuple(
        ContractStage(
            stage.index,
            stage.name,
            stage.role,
            tuple(f"{lane} {display_key(key)}" for lane, key in stage.written),
            tuple(record.name for record in stage.state),
            stage.random,
        )
        for stage in contract.stages
    )
    return ContractContents(
        str(path),
        contract.kind,
        contract.env,
        contract.seed,
        contract.steps,
        contract.compare,
        contract.libraries,
        stages,
        {display_key(key): fields for key, fields in contract.tolerances.items()},
        contract.notes,
    )
