"""Stages that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.fix import Edit, Fix, removed
from tdx.inspection.lint.rule import Found, rule

_Arguments = Mapping[str, Any]


def _no_affine(given: _Arguments) -> bool:
    inverse = bool(given.get("in_keys_inv"))
    return given.get("loc") == 0 and given.get("scale") == 1 and not inverse


_IDLE: dict[str, tuple[Callable[[_Arguments], bool], str]] = {
    "RewardScaling": (_no_affine, "it multiplies by 1 and adds 0"),
    "ObservationNorm": (_no_affine, "it multiplies by 1 and adds 0"),
    "RewardClipping": (
        lambda given: given.get("clamp_min") is None and given.get("clamp_max") is None,
        "it has neither end of a range",
    ),
    "CatFrames": (lambda given: given.get("N") == 1, "a stack of one frame is that frame"),
    "FrameSkipTransform": (lambda given: given.get("frame_skip") == 1, "it skips no frame"),
    "NoopResetEnv": (lambda given: given.get("noops") == 0, "it makes no step"),
    "DTypeCastTransform": (
        lambda given: given.get("dtype_in") == given.get("dtype_out"),
        "it casts to the dtype that it casts from",
    ),
}
_TWICE_ELSEWHERE = (
    *("ToTensorImage", "GrayScale", "CatFrames", "ObservationNorm", "VecNorm", "Resize"),
    *("StepCounter", "InitTracker", "ActionScaling", "ActionDiscretizer", "DeviceCastTransform"),
    *("DoubleToFloat", "DTypeCastTransform"),
)


@rule(
    "TDX491",
    "a stage that changes nothing",
    "warning",
    why="""
    With these arguments, or at this place, the stage hands on what it gets: a scaling by 1, a
    clipping without ends, a stack of one frame, an image resized to the size that it has. It is a
    step's time for nothing, and often an argument is missing.
    """,
    wrong="--env Pendulum-v1 --t 'RewardScaling(0.0, 1.0)'",
    right="--env Pendulum-v1 --t 'RewardScaling(0.0, 0.1)'",
)
def stage_that_changes_nothing(context: LintContext) -> Iterator[Found]:
    """Stages whose arguments or specs say so."""
    for stage in context.stages:
        if stage.info is None or stage.in_keys != stage.out_keys:
            continue
        idle, why = _IDLE.get(stage.name, (lambda _: False, ""))
        if not idle(stage.arguments):
            if stage.name not in ("Resize", "CenterCrop") or not _same_size(stage):
                continue
            why = "the images have that size already"
        fix = removed(stage.index, stage.config)
        key = stage.in_keys[0] if stage.in_keys else None
        yield Found(why, "remove it, or give it what it is to do", stage.index, key, fix)


@rule(
    "TDX492",
    "a stage that undoes the one before it",
    "warning",
    why="""
    Two stages next to each other cancel out, such as a dim that is added and removed again. Both
    can go, or one of them was meant for another entry.
    """,
    wrong="""--env Pendulum-v1 --t 'UnsqueezeTransform(-1, in_keys=["observation"])'
    --t 'SqueezeTransform(-1, in_keys=["observation"])'""",
    right="--env Pendulum-v1",
)
def stage_undone(context: LintContext) -> Iterator[Found]:
    """A dim added and removed, dims permuted back, keys renamed back."""
    for first, second in zip(context.stages, context.stages[1:], strict=False):
        if first.in_keys_inv or second.in_keys_inv:
            continue
        if _cancels(first, second):
            message = f"it undoes stage {first.index} ({first.name})"
            edits = (Edit("remove", second.index), Edit("remove", first.index))
            fix = Fix(f"remove {first.name} and {second.name}", edits)
            yield Found(message, "remove both", second.index, second.out_keys[0], fix)


@rule(
    "TDX493",
    "the same stage twice in a row",
    "advice",
    why="""
    Two equal stages stand one behind the other. A scaling then works twice, and most others do
    nothing the second time. It is usually a line that was pasted twice.
    """,
    wrong="--env Pendulum-v1 --t 'RewardScaling(0.0, 0.1)' --t 'RewardScaling(0.0, 0.1)'",
    right="--env Pendulum-v1 --t 'RewardScaling(0.0, 0.1)'",
)
def same_stage_twice(context: LintContext) -> Iterator[Found]:
    """Neighbours that are equal, where no other rule speaks of it."""
    for first, second in zip(context.stages, context.stages[1:], strict=False):
        known = second.info is not None and second.name not in _TWICE_ELSEWHERE
        if known and first.name == second.name and first.arguments == second.arguments:
            fix = removed(second.index, second.config)
            message = f"it is the same as stage {first.index}"
            yield Found(message, "remove one of the two", second.index, fix=fix)


def _same_size(stage: LintStage) -> bool:
    if stage.before is None or stage.after is None or not stage.in_keys:
        return False
    before, after = stage.before.output, stage.after.output
    if any(key not in before or key not in after for key in stage.in_keys):
        return False
    return all(before[key].shape == after[key].shape for key in stage.in_keys)


def _cancels(first: LintStage, second: LintStage) -> bool:
    there, back = first.arguments, second.arguments
    if first.name == second.name == "RenameTransform":
        return first.in_keys == second.out_keys and first.out_keys == second.in_keys
    same = first.in_keys == first.out_keys == second.in_keys == second.out_keys
    if not same or not first.in_keys:
        return False
    if {first.name, second.name} == {"UnsqueezeTransform", "SqueezeTransform"}:
        # Squeezing first might have left a dim alone that is not of size 1.
        return first.name == "UnsqueezeTransform" and there.get("dim") == back.get("dim")
    if first.name == second.name == "PermuteTransform":
        dims, again = list(there["dims"]), list(back["dims"])
        if len(dims) != len(again) or any(dim >= 0 for dim in (*dims, *again)):
            return False
        return [dims[dim] for dim in again] == list(range(-len(dims), 0))
    return False
