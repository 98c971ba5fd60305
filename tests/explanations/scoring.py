"""Whether an explanation names the stage and the kind of a labeled fault."""

from __future__ import annotations

import tdx
from tdx.contracts import ContractReport, Difference
from tests.explanations.mutations import Fault, Mutation
from tests.explanations.mutations.lerobot_steps import samples

KINDS: dict[str, tuple[str, ...]] = {
    "missing stage": ("missing stage",),
    "extra stage": ("missing stage",),
    "order": ("order",),
    # A stage that is not active does what one without statistics does.
    "inactive": ("inactive", "missing stage"),
    "statistics fresh": ("state fresh", "inactive"),
    "statistics moving": ("state still learning", "moving statistics"),
    # All of them are a factor and an offset for each feature.
    # The modes of a normalizer of LeRobot, and the names that it gives, are arguments.
    "statistics of another width": ("width", "feature scale", "scale", "argument"),
    "renamed key": ("renamed key", "argument"),
    "statistics swapped between keys": ("swapped statistics", "feature scale"),
    "feature scale": ("feature scale", "width", "scale"),
    "range": ("range", "inactive"),
    "crop": ("crop", "argument"),
    "resampling": ("resampling", "argument"),
}
"""Kinds of a difference or of its explanation that are right for a label; itself by default."""


def compare(mutation: Mutation, *, seed: int = 0) -> ContractReport:
    """Compare both stacks of a mutation."""
    sides = [mutation.reference(), mutation.target()]
    if mutation.library == "lerobot":
        sides = [tdx.open_stack(side, samples=samples()) for side in sides]
    one, other = sides
    return tdx.diff_stacks(one, other, seed=seed)


def names_stage(fault: Fault, report: ContractReport) -> bool:
    """Return True if a difference is at the stage of a fault, or at one that it commutes with."""
    return any(_is_between(each, report, *_interval(fault)) for each in report.differences)


def _interval(fault: Fault) -> tuple[int, int]:
    """Return the first and the last stage at which a fault may be named."""
    stages = fault.parameters.get("stages")
    if isinstance(stages, tuple):
        return min(stages), max(stages)
    return fault.commutes or (fault.stage, fault.stage)


def _is_between(difference: Difference, report: ContractReport, first: int, last: int) -> bool:
    if difference.reference_stage is not None:
        return first <= difference.reference_stage <= last
    if difference.stage is None:
        return False
    # A stage that only the target has is one place further out, as are those after it.
    place = difference.stage - sum(
        each.reference_stage is None and (each.stage or 0) < difference.stage
        for each in report.differences
    )
    return first <= place <= last + 1


def names_kind(fault: Fault, report: ContractReport) -> bool:
    """Return True if a difference at the stage of a fault has its kind."""
    first, last = _interval(fault)
    accepted = KINDS.get(fault.kind, (fault.kind,))
    for each in report.differences:
        kinds = {each.kind, each.explanation.kind if each.explanation is not None else ""}
        if _is_between(each, report, first, last) and kinds & set(accepted):
            return True
    return False
