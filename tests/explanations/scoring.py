"""Whether an explanation names the stage and the kind of a labeled fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

import tdx
from tdx.compare.model import Part
from tdx.contracts import ContractReport, Difference
from tests.explanations.corrections import REFERENCE, TARGET, corrected, edit_folder, predicted
from tests.explanations.mutations import Fault, Mutation
from tests.explanations.mutations.edits import SEEN, WIDE
from tests.explanations.mutations.envs import record
from tests.explanations.mutations.lerobot_steps import samples, write
from tests.explanations.mutations.model import Stage, differ, simulate
from tests.stacks.checkpoints.folders import Folder

KINDS: dict[str, tuple[str, ...]] = {
    "missing stage": ("missing stage",),
    "extra stage": ("missing stage",),
    "order": ("order",),
    # A stage that is not active does what one without statistics does.
    "inactive": ("inactive", "missing stage"),
    "sometimes inactive": ("inactive",),
    "statistics fresh": ("fresh statistics", "inactive"),
    "statistics moving": ("moving statistics",),
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


def record_reference(mutation: Mutation) -> tdx.Contract:
    """Record the reference of a mutation, with which several targets are compared."""
    reference = _opened(mutation, mutation.reference())
    return tdx.freeze(reference, compare=get_args(Part))


def compare(
    mutation: Mutation, target: object | None = None, contract: tdx.Contract | None = None
) -> ContractReport:
    """Compare a target with the reference of a mutation.

    Args:
        mutation: The mutation.
        target: The target. Defaults to that of the mutation.
        contract: The recorded reference. ``None``: it is recorded.
    """
    contract = record_reference(mutation) if contract is None else contract
    target = mutation.target() if target is None else target
    return tdx.check_contract(_opened(mutation, target), contract)


def _opened(mutation: Mutation, side: object) -> object:
    if mutation.library == "lerobot":
        return tdx.open_stack(side, samples=samples())
    return side


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
    # Those that only the reference has take its places.
    lacking = sorted(
        each.reference_stage
        for each in report.differences
        if each.stage is None and each.reference_stage is not None
    )
    for index in lacking:
        place += index <= place
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


def names_parameters(fault: Fault, report: ContractReport) -> bool:
    """Return True if a difference at the stage of a fault has its kind and its numbers.

    A changed argument has both of its values in the report, and a missing, repeated or moved stage
    is all that there is to say about it.
    """
    first, last = _interval(fault)
    accepted = set(KINDS.get(fault.kind, (fault.kind,)))
    for each in report.differences:
        if not _is_between(each, report, first, last):
            continue
        edits = () if each.explanation is None else each.explanation.edits
        if each.explanation is not None:
            edits += each.explanation.alternatives
        if {each.kind, *(edit.kind for edit in edits)} & accepted and (
            each.kind == "argument"
            or fault.kind not in _NUMBERS
            # The class of a stage of a library is all that there is to say about it.
            or (fault.kind == "extra stage" and not {"low", "factor"} & set(fault.parameters))
            or any(_has_numbers(fault, edit.parameters) for edit in edits)
        ):
            return True
    return False


_NUMBERS = (
    *("extra stage", "scale", "feature scale", "range", "statistics of another width", "clip"),
    *("permutation", "selection", "padding", "channel order", "axis order", "crop", "resampling"),
    *("gray weights", "history", "rounding", "noise", "time shift"),
    *("sometimes inactive", "statistics moving"),
)
_FILLS = {"same": "first", "zeros": "zeros"}


def _has_numbers(fault: Fault, named: Mapping[str, Any]) -> bool:
    label: Mapping[str, Any] = fault.parameters

    def near(one: object, other: object) -> bool:
        ours, theirs = (np.asarray(side, np.float64) for side in (one, other))
        # A step and its features may be joined: the numbers of a feature repeat.
        if ours.size > theirs.size > 1 and ours.size % theirs.size == 0:
            theirs = np.tile(theirs.ravel(), ours.size // theirs.size)
        if ours.size > 1 and theirs.size > 1 and ours.size != theirs.size:
            return False
        return np.allclose(ours.ravel(), theirs.ravel(), 1e-3, 1e-4)

    if "factor" in label:
        if "widths" in named:
            return near(1 / np.asarray(named["widths"]), label["factor"])
        offset = label.get("offset", 0.0)
        return (
            "factor" in named
            and near(named["factor"], label["factor"])
            and near(named["offset"], offset)
        )
    match fault.kind:
        case "clip" | "extra stage":
            limits = [(named[k], label[k]) for k in ("low", "high") if k in named and k in label]
            # A limit that no value reaches cannot be named.
            seen = [pair for pair in limits if np.isfinite(pair[0]) and abs(pair[1]) < WIDE]
            is_named = "low" not in label or bool(seen)
            return is_named and all(near(*pair) for pair in seen)
        case "permutation" | "channel order":
            return list(named.get("order", ())) == list(label["order"])
        case "axis order":
            return list(named.get("axes", ())) == list(label["order"])
        case "selection":
            return list(named.get("order", ())) == list(label["indices"])
        case "padding":
            before, after = label["before"], label["after"]
            order = list(named.get("order", ()))
            return [place < 0 for place in order] == [True] * before + [False] * (
                len(order) - before - after
            ) + [True] * after
        case "crop":
            return all(named.get(name) == value for name, value in label.items() if name != "key")
        case "resampling":
            kernels = {"overlap": "area"}
            own = {**named, "kernel": kernels.get(named.get("kernel", ""), named.get("kernel"))}
            return all(
                own.get(name) == label[name]
                for name in label
                if name in ("height", "width", "kernel")
            )
        case "gray weights":
            return "weights" in named and np.allclose(named["weights"], label["weights"], atol=5e-3)
        case "history":
            fill = "previous episode" if label["start"] == "kept" else _FILLS[label["padding"]]
            return named.get("newest_first") == (label["order"] == "newest first") and (
                named.get("length") == label["length"] and named.get("padding") == fill
            )
        case "rounding":
            return named.get("to") == label["dtype"]
        case "noise":
            return "deviation" in named
        case "sometimes inactive":
            return named.get("in") == label["in"]
        case "statistics moving":
            return near(named.get("count", 0.0), label["count"])
        case "time shift":
            return named.get("steps") == label["steps"]
    return False


OTHER_ROLLOUT = 31
"""Seed of a rollout with other starts and actions than those that are explained."""


def reproduces(mutation: Mutation, report: ContractReport) -> bool:
    """Return True if the edits of a report make the target of the reference in another rollout."""
    causes = [cause.to_dict() for cause in report.causes]
    if mutation.folders is not None:
        reference, target = mutation.folders()
        edit_folder(reference, target, causes, REFERENCE)
        return _are_same_folders(reference, target, OTHER_ROLLOUT)
    assert mutation.chains is not None
    one, other = mutation.chains
    edited = predicted(one, other, causes, mutation.offset)
    names: list[list[Mapping[str, object]]] = []
    plain: list[list[Stage]] = []
    for chain in (edited, other):
        names.append([s.arguments for s in chain.stages if s.operation == "rename"])
        plain.append([s for s in chain.stages if s.operation != "rename"])
    frames = record(one.base, OTHER_ROLLOUT)
    try:
        ours, theirs = (simulate(stages, frames) for stages in plain)
    except (ValueError, IndexError, RuntimeError, TypeError):
        return False
    return names[0] == names[1] and not differ(theirs, ours, SEEN)


def _are_same_folders(reference: Folder, target: Folder, seed: int) -> bool:
    ours, theirs = (
        tdx.open_stack(write(side), samples=samples(seed)) for side in (reference, target)
    )
    return tdx.diff_stacks(ours, theirs, seed=seed).same


def passes_corrected(
    mutation: Mutation, report: ContractReport, contract: tdx.Contract | None = None
) -> bool:
    """Return True if the check passes after the steps of a report are taken in the target."""
    causes = [cause.to_dict() for cause in report.causes]
    if mutation.folders is not None:
        one, other = mutation.folders()
        edit_folder(other, one, causes, TARGET)
        return _are_same_folders(one, other, 0)
    assert mutation.chains is not None
    assert mutation.build is not None
    reference, target = mutation.chains
    fixed = corrected(target, reference, causes, mutation.offset)
    try:
        return compare(mutation, mutation.build(fixed), contract).same
    except (ValueError, IndexError, RuntimeError, TypeError, tdx.TdxError):
        return False
