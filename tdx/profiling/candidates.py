"""Find changes of a pipeline that may make it cheaper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from tdx.core.chain import stage_specs
from tdx.core.plan.build import Program, program_of
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Transform
from tdx.foundation.keys import NestedKey, split_key
from tdx.pipeline import Pipeline, StageConfig, format_stage
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.values import FileArguments
from tdx.profiling.result import Mode, ModeProfile

_FLOAT_CASTS = ("ToTensorImage",)
_IMAGE_STAGES = ("Resize", "CenterCrop", "GrayScale")
_SHRINKING_STAGES = ("Resize", "CenterCrop")
_CAST_STAGES = ("DTypeCastTransform", "DeviceCastTransform", "DoubleToFloat")
_CHANNEL_COUNTS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change of a pipeline that may save time.

    Args:
        kind: ``bytes``, ``order``, ``opaque``, ``dead``, ``back-and-forth``, ``frozen``,
            ``launch-bound``, or ``lint`` for a fix of the linter.
        stages: Indices of the affected stages.
        found: Description of the problem.
        change: Description of the change.
        pipeline: The changed pipeline.
        prepare: Also applied to the built env. ``None``: nothing.
        mode: Mode of the rollouts. ``None``: unchanged.
        changes_values: Whether the change may affect values.
    """

    kind: str
    stages: tuple[int, ...]
    found: str
    change: str
    pipeline: Pipeline
    prepare: Callable[[TransformedEnv], None] | None = None
    mode: Mode | None = None
    changes_values: bool = False


@dataclass(frozen=True, slots=True)
class _Chain:
    """Input of the functions that find candidates."""

    pipeline: Pipeline
    env: TransformedEnv
    program: Program
    baseline: ModeProfile

    @property
    def configs(self) -> tuple[StageConfig, ...]:
        return self.pipeline.transforms

    @property
    def stages(self) -> tuple[Transform, ...]:
        return tuple(form.stage for form in self.program.stages)

    def with_stages(self, stages: list[StageConfig]) -> Pipeline:
        return self.pipeline.with_stages(*stages)


def find_candidates(
    pipeline: Pipeline, env: TransformedEnv, baseline: ModeProfile
) -> list[Candidate]:
    """Find all changes that are worth a try.

    Args:
        pipeline: The pipeline.
        env: Its env.
        baseline: Its profile.
    """
    chain = _Chain(pipeline, env, program_of(env), baseline)
    if len(chain.stages) != len(chain.configs):
        return []
    finders = (
        _find_late_casts,
        _find_reorderings,
        _find_opaque,
        _find_dead,
        _find_reverted_casts,
        _find_unfrozen,
        _find_launch_bound,
    )
    return [candidate for find in finders for candidate in find(chain)]


def _find_late_casts(chain: _Chain) -> Iterator[Candidate]:
    specs = stage_specs(chain.env)
    for cast, config in enumerate(chain.configs):
        end = cast + 1
        keys = chain.stages[cast].in_keys
        while end < len(chain.configs) and chain.configs[end].name in _IMAGE_STAGES:
            if chain.stages[end].in_keys != keys:
                break
            end += 1
        run = list(chain.configs[cast + 1 : end])
        if config.name not in _FLOAT_CASTS or not any(
            stage.name in _SHRINKING_STAGES for stage in run
        ):
            continue
        layout = _is_channels_last(specs[cast].output_spec, keys, chain.env.ndim)
        if layout is None or chain.stages[cast].out_keys != keys:
            continue
        full = name_arguments(config)
        before = list(chain.configs[:cast])
        if layout:
            permuted = {"in_keys": tuple(keys)}
            before.append(StageConfig("PermuteTransform", ((-1, -3, -2),), permuted))
            full = replace(
                full,
                kwargs=FileArguments.like(full.kwargs, {**full.kwargs, "shape_tolerant": True}),
            )
        names = " and ".join(dict.fromkeys(stage.name for stage in run))
        yield Candidate(
            "bytes",
            tuple(range(cast, end)),
            f"stage {cast} converts pixels to floats before {names}",
            f"apply {names} to bytes first, then {format_stage(full)}",
            chain.with_stages([*before, *run, full, *chain.configs[end:]]),
        )


def _is_channels_last(specs: object, keys: list[NestedKey], batch_dims: int) -> bool | None:
    """Return whether the channels of byte images are last; ``None`` for other entries."""
    layouts = set()
    for key in keys:
        leaf = specs.get(("full_observation_spec", *split_key(key)), None)  # type: ignore[attr-defined]
        if leaf is None or str(leaf.dtype) != "torch.uint8" or len(leaf.shape) != batch_dims + 3:
            return None
        first, last = leaf.shape[-3] in _CHANNEL_COUNTS, leaf.shape[-1] in _CHANNEL_COUNTS
        if first == last:
            return None
        layouts.add(last)
    return layouts.pop() if len(layouts) == 1 else None


def _find_reorderings(chain: _Chain) -> Iterator[Candidate]:
    for place in range(len(chain.configs) - 1):
        first, second = chain.configs[place], chain.configs[place + 1]
        both = {first.name, second.name} <= {*_IMAGE_STAGES} and first.name != second.name
        if both and chain.stages[place].in_keys == chain.stages[place + 1].in_keys:
            stages = list(chain.configs)
            stages[place : place + 2] = [second, first]
            yield Candidate(
                "order",
                (place, place + 1),
                f"{first.name} runs on images before {second.name} shrinks them",
                f"move {second.name} before {first.name}",
                chain.with_stages(stages),
            )


def _find_opaque(chain: _Chain) -> Iterator[Candidate]:
    """Find stages with unknown dependence on time, which force earlier stages into each step."""
    for form in chain.program.stages:
        waiting_stages = [index for index in range(form.index) if index in chain.program.immediate]
        if not form.is_opaque or not waiting_stages or form.index not in chain.program.immediate:
            continue
        stages = list(chain.configs)
        stages.insert(0, stages.pop(form.index))
        numbers = ", ".join(map(str, waiting_stages))
        yield Candidate(
            "opaque",
            (form.index, *waiting_stages),
            f"{form.name} may read any entry, so stages {numbers} cannot be deferred",
            f"move {form.name} to the front, or implement _apply_transform with in_keys",
            chain.with_stages(stages),
        )


def _find_dead(chain: _Chain) -> Iterator[Candidate]:
    plan = chain.program.plan
    dead = {version.name for version in plan.dead}
    for stage in plan.stages:
        if not stage.writes or not dead.issuperset(stage.writes):
            continue
        if stage.inverse or chain.stages[stage.index].step_limits():
            continue
        keys = {name.rpartition("@")[0] for name in stage.writes}
        unused = [
            stage,
            *(other for other in plan.stages if other.drops and keys >= {*other.drops}),
        ]
        removed = {stage.index for stage in unused}
        stages = [config for at, config in enumerate(chain.configs) if at not in removed]
        yield Candidate(
            "dead",
            tuple(sorted(removed)),
            f"the output of {stage.name} is never read or returned",
            f"remove {' and '.join(stage.name for stage in unused)}",
            chain.with_stages(stages),
        )


def _find_reverted_casts(chain: _Chain) -> Iterator[Candidate]:
    """Find pairs of casts of which the second may undo the first."""
    casts = [at for at, config in enumerate(chain.configs) if config.name in _CAST_STAGES]
    for first, second in pairwise(casts):
        stages = list(chain.configs)
        del stages[second], stages[first]
        names = chain.configs[first].name, chain.configs[second].name
        yield Candidate(
            "back-and-forth",
            (first, second),
            f"stage {second} ({names[1]}) undoes stage {first} ({names[0]})",
            f"remove {names[0]} and {names[1]}",
            chain.with_stages(stages),
        )


def _find_unfrozen(chain: _Chain) -> Iterator[Candidate]:
    """Find running statistics that are still updated."""
    for place, stage in enumerate(chain.stages):
        if getattr(stage, "frozen", None) is False and hasattr(stage, "freeze"):
            yield Candidate(
                "frozen",
                (place,),
                f"{type(stage).__name__} updates its statistics in each step",
                f"freeze them once they have converged: env.transform[{place}].freeze()",
                chain.pipeline,
                prepare=_make_freeze(place),
                changes_values=True,
            )


def _make_freeze(place: int) -> Callable[[TransformedEnv], None]:
    def freeze(env: TransformedEnv) -> None:
        stage: object = env.stages[place]
        stage.freeze()  # type: ignore[attr-defined]

    return freeze


def _find_launch_bound(chain: _Chain) -> Iterator[Candidate]:
    waiting = {key for key, use in chain.baseline.on_device.items() if use.launch_bound}
    places = sorted({row.part.index for row in chain.baseline.rows if row.key in waiting} - {-1})
    if places and chain.baseline.mode != "compiled":
        numbers = ", ".join(map(str, places))
        yield Candidate(
            "launch-bound",
            tuple(places),
            f"the device waits for the host in stages {numbers}",
            "compile neighboring stages into one function: compile=True",
            chain.pipeline,
            mode="compiled",
        )
