"""Find changes of a pipeline that may make it cheaper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from tdx.core.plan.build import Program, program_of
from tdx.core.stage_specs import stage_specs
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Transform
from tdx.keys import NestedKey, normal_key
from tdx.pipeline import Pipeline, StageConfig, format_stage
from tdx.pipeline.arguments import name_arguments
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
            ``launch-bound``, or ``lint`` for one that somebody else found.
        stages: the places of the stages that it is about.
        found: what is seen there.
        change: what to do.
        pipeline: the pipeline, mended.
        prepare: what is done to its env besides; nothing by default.
        mode: how it runs; as before by default.
        changes_values: whether other values may come out of it.
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
    """What the remedies look at."""

    pipeline: Pipeline
    env: TransformedEnv
    program: Program
    measured: ModeProfile

    @property
    def configs(self) -> tuple[StageConfig, ...]:
        return self.pipeline.transforms

    @property
    def stages(self) -> tuple[Transform, ...]:
        return tuple(form.stage for form in self.program.forms)

    def mended(self, stages: list[StageConfig]) -> Pipeline:
        return self.pipeline.with_stages(*stages)


def find_candidates(
    pipeline: Pipeline, env: TransformedEnv, measured: ModeProfile
) -> list[Candidate]:
    """Everything that may be worth a try.

    Args:
        pipeline: the pipeline.
        env: its env.
        measured: what it takes.
    """
    chain = _Chain(pipeline, env, program_of(env), measured)
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
    return [remedy for find in finders for remedy in find(chain)]


def _find_late_casts(chain: _Chain) -> Iterator[Candidate]:
    """Pixels that become floats before they become few."""
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
            each.name in _SHRINKING_STAGES for each in run
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
            full = replace(full, kwargs={**full.kwargs, "shape_tolerant": True})
        names = " and ".join(dict.fromkeys(each.name for each in run))
        yield Candidate(
            "bytes",
            tuple(range(cast, end)),
            f"pixels become floats in stage {cast}, before {names}",
            f"{names} bytes first, and make floats of what is left: {format_stage(full)} behind",
            chain.mended([*before, *run, full, *chain.configs[end:]]),
        )


def _is_channels_last(specs: object, keys: list[NestedKey], batch_dims: int) -> bool | None:
    """Whether the channels of byte images are last; ``None`` for what are none."""
    found = set()
    for key in keys:
        leaf = specs.get(("full_observation_spec", *_key_parts(key)), None)  # type: ignore[attr-defined]
        if leaf is None or str(leaf.dtype) != "torch.uint8" or len(leaf.shape) != batch_dims + 3:
            return None
        first, last = leaf.shape[-3] in _CHANNEL_COUNTS, leaf.shape[-1] in _CHANNEL_COUNTS
        if first == last:
            return None
        found.add(last)
    return found.pop() if len(found) == 1 else None


def _key_parts(key: NestedKey) -> tuple[str, ...]:
    known = normal_key(key)
    return known if isinstance(known, tuple) else (known,)


def _find_reorderings(chain: _Chain) -> Iterator[Candidate]:
    """Neighbours that work on the same images, and may do so in the other order."""
    for place in range(len(chain.configs) - 1):
        first, second = chain.configs[place], chain.configs[place + 1]
        both = {first.name, second.name} <= {*_IMAGE_STAGES} and first.name != second.name
        if both and chain.stages[place].in_keys == chain.stages[place + 1].in_keys:
            stages = list(chain.configs)
            stages[place : place + 2] = [second, first]
            yield Candidate(
                "order",
                (place, place + 1),
                f"{first.name} works on images that {second.name} makes smaller",
                f"put {second.name} in front of {first.name}",
                chain.mended(stages),
            )


def _find_opaque(chain: _Chain) -> Iterator[Candidate]:
    """Stages that do not say how they depend on time, and what is before them."""
    for form in chain.program.forms:
        held = [each for each in range(form.index) if each in chain.program.now]
        if not form.is_opaque or not held or form.index not in chain.program.now:
            continue
        stages = list(chain.configs)
        stages.insert(0, stages.pop(form.index))
        numbers = ", ".join(map(str, held))
        yield Candidate(
            "opaque",
            (form.index, *held),
            f"{form.name} may read any entry, so stages {numbers} run in each step as well",
            f"put {form.name} at the front, or write it as _apply_transform with its in_keys",
            chain.mended(stages),
        )


def _find_dead(chain: _Chain) -> Iterator[Candidate]:
    """Stages that write what nobody reads and what does not come out."""
    plan = chain.program.plan
    dead = {version.name for version in plan.dead}
    for stage in plan.stages:
        if not stage.writes or not dead.issuperset(stage.writes):
            continue
        if stage.inverse or chain.stages[stage.index]._step_limits():
            continue
        keys = {name.rpartition("@")[0] for name in stage.writes}
        vain = [stage, *(each for each in plan.stages if each.drops and keys >= {*each.drops})]
        gone = {each.index for each in vain}
        stages = [config for at, config in enumerate(chain.configs) if at not in gone]
        yield Candidate(
            "dead",
            tuple(sorted(gone)),
            f"nobody reads what {stage.name} writes, and it does not come out",
            f"remove {' and '.join(each.name for each in vain)}",
            chain.mended(stages),
        )


def _find_reverted_casts(chain: _Chain) -> Iterator[Candidate]:
    """Two casts of which the later one may undo the earlier one."""
    casts = [at for at, each in enumerate(chain.configs) if each.name in _CAST_STAGES]
    for first, second in pairwise(casts):
        stages = list(chain.configs)
        del stages[second], stages[first]
        names = chain.configs[first].name, chain.configs[second].name
        yield Candidate(
            "back-and-forth",
            (first, second),
            f"stage {second} ({names[1]}) takes back what stage {first} ({names[0]}) does",
            f"remove {names[0]} and {names[1]}",
            chain.mended(stages),
        )


def _find_unfrozen(chain: _Chain) -> Iterator[Candidate]:
    """Running statistics that still run."""
    for place, stage in enumerate(chain.stages):
        if getattr(stage, "frozen", None) is False and hasattr(stage, "freeze"):
            yield Candidate(
                "frozen",
                (place,),
                f"the statistics of {type(stage).__name__} are brought up to date in each step",
                f"freeze them once they are good: env.transform[{place}].freeze()",
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
    """Stages that the device waits for."""
    waiting = {key for key, use in chain.measured.on_device.items() if use.launch_bound}
    places = sorted({row.part.index for row in chain.measured.rows if row.key in waiting} - {-1})
    if places and chain.measured.mode != "compiled":
        numbers = ", ".join(map(str, places))
        yield Candidate(
            "launch-bound",
            tuple(places),
            f"the device waits for the host in stages {numbers}",
            "make one function of neighbouring stages: compile=True",
            chain.pipeline,
            mode="compiled",
        )
