"""What a labeled fault of a real stack is, and whether a report explains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tdx.contracts import ContractReport, Difference


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        stage: Class name of the stage that a report must name.
        kinds: Kinds of a difference, or of its explanation, that are right.
        numbers: Parameters of the explanation.
        says: Text of the sentence or of the effect, such as both values of an argument.
    """

    stage: str
    kinds: tuple[str, ...]
    numbers: Mapping[str, object] = field(default_factory=dict)
    says: str = ""


@dataclass(frozen=True)
class Case:
    """Two stacks.

    Args:
        reference: Makes the reference.
        target: Makes the target.
        faults: What differs. Empty: no value differs.
    """

    reference: Callable[[], Any]
    target: Callable[[], Any]
    faults: tuple[Fault, ...]


def fault(
    stage: str, *kinds: str, says: str = "", numbers: Mapping[str, object] | None = None
) -> Fault:
    """Return a fault."""
    return Fault(stage, kinds, numbers or {}, says)


def is_explained(case: Case, report: ContractReport) -> bool:
    """Return True if a report names the stage, the kind and the numbers of all faults, and no other
    stage."""
    if not case.faults:
        return report.same or all(
            "no difference of values is observed" in cause.sentence for cause in report.causes
        )
    stages = {fault.stage for fault in case.faults}
    return all(
        any(_names(cause, fault) for cause in report.causes) for fault in case.faults
    ) and all(cause.name in stages for cause in report.causes)


def _names(cause: Difference, fault: Fault) -> bool:
    explanation = cause.explanation
    edits = () if explanation is None else (*explanation.edits, *explanation.alternatives)
    kinds = {cause.kind, *(edit.kind for edit in edits)}
    text = f"{cause.sentence}; {'' if explanation is None else explanation.text}"
    if cause.name != fault.stage or not kinds & set(fault.kinds) or fault.says not in text:
        return False
    return all(
        any(name in edit.parameters and _near(edit.parameters[name], value) for edit in edits)
        for name, value in fault.numbers.items()
    )


def _near(one: object, other: object) -> bool:
    if isinstance(other, str):
        return one == other
    ours, theirs = (np.asarray(side, np.float64) for side in (one, other))
    return ours.size == theirs.size and np.allclose(ours.ravel(), theirs.ravel(), 1e-2, 1e-3)


def sequence(*functions: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that applies others one after another."""

    def apply(value: Any) -> Any:
        for function in functions:
            value = function(value)
        return value

    return apply


def table(cases: Sequence[tuple[str, Case]]) -> dict[str, Case]:
    """Return cases by name, and check that names are unique."""
    named = dict(cases)
    assert len(named) == len(cases)
    return named
