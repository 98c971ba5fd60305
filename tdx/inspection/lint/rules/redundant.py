"""TDX49x: stages without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.rule import Edit, Fix, Violation, remove_stage, rule

_Arguments = Mapping[str, Any]
_COVERED_BY_OTHER_RULES = (
    *("ToTensorImage", "GrayScale", "CatFrames", "ObservationNorm", "VecNorm", "Resize"),
    *("StepCounter", "InitTracker", "ActionScaling", "ActionDiscretizer", "DeviceCastTransform"),
    *("DoubleToFloat", "DTypeCastTransform"),
)


def _is_identity(arguments: _Arguments) -> bool:
    has_inverse = bool(arguments.get("in_keys_inv"))
    return arguments.get("loc") == 0 and arguments.get("scale") == 1 and not has_inverse


@rule(
    "TDX491",
    "stage has no effect",
    "warning",
    why="""
    With these arguments, or at this position, the stage returns its input: a scaling by 1, a
    clipping without bounds, a stack of one frame, a resize to the current size. It costs time
    in each step, and often an argument is missing.
    """,
    wrong="Pendulum-v1 -t 'RewardScaling(0.0, 1.0)'",
    right="Pendulum-v1 -t 'RewardScaling(0.0, 0.1)'",
)
def stage_without_effect(context: LintContext) -> Iterator[Violation]:
    """Find stages whose arguments or specs show that they change nothing."""
    for stage in context.stages:
        if stage.info is None or stage.in_keys != stage.out_keys:
            continue
        has_no_effect, why = _NO_EFFECT.get(stage.name, (lambda _: False, ""))
        if not has_no_effect(stage.arguments):
            if stage.name not in _SAME_SHAPE or not _same_size(stage):
                continue
            why = _SAME_SHAPE[stage.name]
        fix = remove_stage(stage.index, stage.config, safe=True)
        key = stage.in_keys[0] if stage.in_keys else None
        yield Violation(why, "remove the stage, or change its arguments", stage.index, key, fix)


@rule(
    "TDX492",
    "stage undoes the previous one",
    "warning",
    why="""
    Two adjacent stages cancel out, such as adding and removing a dim. Remove both, or apply one
    of them to another key.
    """,
    wrong="""Pendulum-v1 -t 'UnsqueezeTransform(-1, in_keys=["observation"])'
    -t 'SqueezeTransform(-1, in_keys=["observation"])'""",
    right="Pendulum-v1",
)
def stage_undone(context: LintContext) -> Iterator[Violation]:
    """Find adjacent stages that cancel out."""
    for first, second in zip(context.stages, context.stages[1:], strict=False):
        if first.in_keys_inv or second.in_keys_inv:
            continue
        if _cancels(first, second):
            message = f"it undoes stage {first.index} ({first.name})"
            edits = (Edit("remove", second.index), Edit("remove", first.index))
            fix = Fix(f"remove {first.name} and {second.name}", edits, safe=True)
            yield Violation(message, "remove both stages", second.index, second.out_keys[0], fix)


@rule(
    "TDX493",
    "stage is repeated",
    "suggestion",
    why="""
    Two adjacent stages are equal. A scaling is then applied twice, and most other stages do
    nothing the second time. The line was probably pasted twice.
    """,
    wrong="Pendulum-v1 -t 'RewardScaling(0.0, 0.1)' -t 'RewardScaling(0.0, 0.1)'",
    right="Pendulum-v1 -t 'RewardScaling(0.0, 0.1)'",
)
def repeated_stage(context: LintContext) -> Iterator[Violation]:
    """Find equal adjacent stages that no other rule covers."""
    for first, second in zip(context.stages, context.stages[1:], strict=False):
        is_checked = second.info is not None and second.name not in _COVERED_BY_OTHER_RULES
        if is_checked and first.name == second.name and first.arguments == second.arguments:
            fix = remove_stage(second.index, second.config)
            message = f"it equals stage {first.index}"
            yield Violation(message, "remove one of the two", second.index, fix=fix)


def _same_size(stage: LintStage) -> bool:
    if stage.before is None or stage.after is None or not stage.in_keys:
        return False
    before, after = stage.before.outputs, stage.after.outputs
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
        # Squeezing first is a no-op if the dim is not of size 1.
        return first.name == "UnsqueezeTransform" and there.get("dim") == back.get("dim")
    if first.name == second.name == "PermuteTransform":
        dims, again = list(there["dims"]), list(back["dims"])
        if len(dims) != len(again) or any(dim >= 0 for dim in (*dims, *again)):
            return False
        return [dims[dim] for dim in again] == list(range(-len(dims), 0))
    return False


_NO_EFFECT: dict[str, tuple[Callable[[_Arguments], bool], str]] = {
    "RewardScaling": (_is_identity, "it multiplies by 1 and adds 0"),
    "ObservationNorm": (_is_identity, "it multiplies by 1 and adds 0"),
    "RewardClipping": (
        lambda arguments: arguments.get("clamp_min") is None and arguments.get("clamp_max") is None,
        "clamp_min and clamp_max are not set",
    ),
    "CatFrames": (
        lambda arguments: arguments.get("N") == 1,
        "a stack of one frame equals the frame",
    ),
    "FrameSkipTransform": (
        lambda arguments: arguments.get("frame_skip") == 1,
        "frame_skip=1 skips no frames",
    ),
    "NoopResetEnv": (lambda arguments: arguments.get("noops") == 0, "noops=0 makes no step"),
    "DTypeCastTransform": (
        lambda arguments: arguments.get("dtype_in") == arguments.get("dtype_out"),
        "dtype_in equals dtype_out",
    ),
}

_SAME_SHAPE = {
    "Resize": "the images already have this size",
    "CenterCrop": "the images already have this size",
    "SqueezeTransform": "the dim has another size than 1, so it stays",
}
"""Stages that do nothing if the shape stays the same."""
