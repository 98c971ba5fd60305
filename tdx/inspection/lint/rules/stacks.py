"""What should come in front of a stack of frames: stack small things, last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tdx.inspection.lint.context import LintContext, LintStage
from tdx.inspection.lint.fix import Edit, Fix, changed
from tdx.inspection.lint.rule import Found, rule
from tdx.keys import NestedKey, format_key

_IMAGES = ("Resize", "CenterCrop", "GrayScale", "ToTensorImage")
_NORMS = ("ObservationNorm", "VecNorm")
_TO_FRONT = {-1: -3, -2: -1, -3: -2}
"""Where a dim of [H, W, C] is in [C, H, W]."""
_PIXELS = "--env CartPole-v1 --from-pixels"


@rule(
    "TDX441",
    "frames are stacked before they are made small",
    "warning",
    why="""
    `CatFrames` keeps the last N frames. Behind it, `Resize`, `CenterCrop`, `GrayScale` and
    `ToTensorImage` work on N frames in every step, N - 1 of which they worked on a step ago, and
    the frames it keeps are as large as the env made them. `GrayScale` cannot even tell the colours
    of a stack apart.

    Stack last: the same result for an Nth of the work.
    """,
    wrong=f"{_PIXELS} --t ToTensorImage --t 'CatFrames(4, dim=-3)' --t 'Resize(64)'",
    right=f"{_PIXELS} --t ToTensorImage --t 'Resize(64)' --t 'CatFrames(4, dim=-3)'",
    replaces=True,
)
def stacked_before_small(context: LintContext) -> Iterator[Found]:
    """A stack with work on single images behind it."""
    for stack, late, key in _followed(context, _IMAGES):
        message = f"it stacks {format_key(key)!r} before stage {late[-1].index} ({late[-1].name})"
        hint = f"put it behind {late[-1].name}: less memory and time"
        yield Found(message, hint, stack.index, key, _stacking_last(stack, late))


@rule(
    "TDX442",
    "stacks are normalised in the place of frames",
    "warning",
    why="""
    A normalisation behind `CatFrames` computes N frames in every step where one is new. With
    running statistics, as of `VecNorm`, each frame of a stack gets numbers of its own, each frame
    is counted N times, and equal frames no longer look equal.

    Normalise one frame, then stack.
    """,
    wrong="""--env Pendulum-v1 --t 'CatFrames(4, dim=-1, in_keys=["observation"])'
    --t 'ObservationNorm(0.0, 0.5, in_keys=["observation"])'""",
    right="""--env Pendulum-v1 --t 'ObservationNorm(0.0, 0.5, in_keys=["observation"])'
    --t 'CatFrames(4, dim=-1, in_keys=["observation"])'""",
)
def normalised_after_stacking(context: LintContext) -> Iterator[Found]:
    """A stack with a normalisation behind it."""
    for stack, late, key in _followed(context, _NORMS):
        plain = all(_one_number(stage) for stage in late)
        place = f"stage {late[-1].index} ({late[-1].name})"
        message = f"{place} normalises {format_key(key)!r} after it is stacked"
        fix = _stacking_last(stack, late) if plain else None
        yield Found(message, f"put it behind {late[-1].name}", stack.index, key, fix)


@rule(
    "TDX443",
    "stacks are stacked",
    "warning",
    why="""
    A second `CatFrames` on the same entry stacks stacks: with 4 and 4 a step holds 16 frames, of
    which 7 are different. One `CatFrames` with a larger N holds them once.
    """,
    wrong="""--env Pendulum-v1 --t 'CatFrames(2, dim=-1, in_keys=["observation"])'
    --t 'CatFrames(2, dim=-1, in_keys=["observation"])'""",
    right="""--env Pendulum-v1 --t 'CatFrames(4, dim=-1, in_keys=["observation"])'""",
)
def stacks_stacked(context: LintContext) -> Iterator[Found]:
    """Two stacks of one entry along one dim."""
    for first, second, key in context.pairs(["CatFrames"], ["CatFrames"]):
        if 1 not in (first.arguments["N"], second.arguments["N"]):
            message = f"{format_key(key)!r} is a stack already, made by stage {first.index}"
            yield Found(message, "stack once, with a larger N", second.index, key)


@rule(
    "TDX444",
    "a cast comes behind the stack",
    "advice",
    why="""
    `CatFrames` keeps frames in the dtype that it meets. A cast of doubles to floats behind it
    casts N frames a step where one is new, and doubles the memory that the stack takes.
    """,
    wrong="""--env HalfCheetah-v5 --t 'CatFrames(4, dim=-1, in_keys=["observation"])'
    --t DoubleToFloat""",
    right="""--env HalfCheetah-v5 --t DoubleToFloat
    --t 'CatFrames(4, dim=-1, in_keys=["observation"])'""",
)
def cast_behind_stack(context: LintContext) -> Iterator[Found]:
    """A cast to something smaller behind a stack."""
    for stack, late, key in _followed(context, ("DoubleToFloat",)):
        cast = late[0]
        message = f"stage {cast.index} ({cast.name}) casts {format_key(key)!r} after it is stacked"
        fix = _stacking_last(stack, late) if cast.index == stack.index + 1 else None
        yield Found(message, f"put it behind {cast.name}", stack.index, key, fix)


def _followed(
    context: LintContext, names: Sequence[str]
) -> Iterator[tuple[LintStage, list[LintStage], NestedKey]]:
    """Every stack with those stages of these names behind it that read it."""
    late: dict[int, list[LintStage]] = {}
    keys: dict[int, NestedKey] = {}
    for stack, reader, key in context.pairs(["CatFrames"], names):
        if not stack.arguments.get("as_inverse") and stack.arguments["N"] != 1:
            late.setdefault(stack.index, []).append(reader)
            keys.setdefault(stack.index, key)
    for index, readers in late.items():
        yield context.stages[index], readers, keys[index]


def _stacking_last(stack: LintStage, late: Sequence[LintStage]) -> Fix | None:
    """The stack moved behind them, along the same dim of the images."""
    if stack.in_keys != stack.out_keys:
        return None
    edits: list[Edit] = []
    dim = stack.arguments["dim"]
    if any(stage.name == "ToTensorImage" for stage in late) and dim in _TO_FRONT:
        edits += changed(stack.index, stack.config, dim=_TO_FRONT[dim]).edits
    edits.append(Edit("move", stack.index, late[-1].index))
    return Fix(f"move {stack.name} behind {late[-1].name}", tuple(edits))


def _one_number(norm: LintStage) -> bool:
    """Whether a normalisation does the same to a frame as to a stack of them."""
    numbers = (norm.arguments.get("loc"), norm.arguments.get("scale"))
    return norm.name == "VecNorm" or all(isinstance(each, int | float) for each in numbers)
