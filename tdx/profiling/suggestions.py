"""Find changes that may make a pipeline cheaper, try them, and suggest those that saved time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal

from tensordict import TensorDictBase

from tdx.compare.rollouts import compare_rollouts, run_seeded_rollout
from tdx.compare.values import Tolerance
from tdx.core.chain import stage_specs
from tdx.core.envs import EnvBase
from tdx.core.plan.build import Program, program_of
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Transform
from tdx.foundation.errors import TdxError
from tdx.foundation.keys import NestedKey, split_key
from tdx.foundation.serialization import Entries, Entry, Result, finite
from tdx.pipeline import Pipeline, StageConfig, format_stage
from tdx.pipeline.arguments import name_arguments
from tdx.pipeline.values import FileArguments
from tdx.profiling.interleaved import Contender, TimeDifference, measure_interleaved
from tdx.profiling.result import Mode, ModeProfile
from tdx.profiling.run import ProfilePlan
from tdx.stacks.building import build_env

Agreement = Literal["same", "close", "other"]
MAX_TRIED = 12
"""Maximum number of changes that are tried."""
_STEPS, _SEED = 12, 0
_CLOSE = Tolerance(0.01, 0.01)
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
            or ``lint`` for a fix of the linter.
        stages: Indices of the affected stages.
        found: Description of the problem.
        change: Description of the change.
        pipeline: The changed pipeline.
        prepare: Also applied to the built env. ``None``: nothing.
        changes_values: Whether the change may affect values.
    """

    kind: str
    stages: tuple[int, ...]
    found: str
    change: str
    pipeline: Pipeline
    prepare: Callable[[TransformedEnv], None] | None = None
    changes_values: bool = False


@dataclass(frozen=True, slots=True)
class _Chain:
    """Input of the functions that find candidates."""

    pipeline: Pipeline
    env: TransformedEnv
    program: Program

    @property
    def configs(self) -> tuple[StageConfig, ...]:
        return self.pipeline.transforms

    @property
    def stages(self) -> tuple[Transform, ...]:
        return tuple(form.stage for form in self.program.stages)


def find_candidates(pipeline: Pipeline, env: TransformedEnv) -> list[Candidate]:
    """Find all changes that are worth a try."""
    chain = _Chain(pipeline, env, program_of(env))
    if len(chain.stages) != len(chain.configs):
        return []
    finders = (
        _find_late_casts,
        _find_reorderings,
        _find_opaque,
        _find_dead,
        _find_reverted_casts,
        _find_unfrozen,
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
            chain.pipeline.with_stages(*before, *run, full, *chain.configs[end:]),
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
                chain.pipeline.with_stages(*stages),
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
            chain.pipeline.with_stages(*stages),
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
            chain.pipeline.with_stages(*stages),
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
            chain.pipeline.with_stages(*stages),
        )


def _find_unfrozen(chain: _Chain) -> Iterator[Candidate]:
    """Find running statistics that are still updated."""
    for place, stage in enumerate(chain.stages):
        if getattr(stage, "frozen", None) is False and hasattr(stage, "freeze"):

            def freeze(env: TransformedEnv, place: int = place) -> None:
                running: Any = env.stages[place]
                running.freeze()

            yield Candidate(
                "frozen",
                (place,),
                f"{type(stage).__name__} updates its statistics in each step",
                f"freeze the statistics once they have converged: env.transform[{place}].freeze()",
                chain.pipeline,
                prepare=freeze,
                changes_values=True,
            )


def _format_stages(stages: Sequence[StageConfig]) -> list[str]:
    return [format_stage(stage) for stage in stages]


@dataclass(frozen=True, slots=True)
class TriedChange(Result):
    """A change that was measured.

    Args:
        candidate: The change, with the changed pipeline.
        saving: Time that it saves per step.
        values: Effect on values: ``same`` bit for bit, ``close`` within 1 %, or ``other``.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry(name, f"candidate.{name}") for name in ("kind", "stages", "found", "change")),
        Entry("chain", "candidate.pipeline.transforms", _format_stages),
        *(
            Entry(name, f"saving.{name}", finite)
            for name in ("before_us", "after_us", "saved_us", "saved_share", "noise_us")
        ),
        "values",
    )

    candidate: Candidate
    saving: TimeDifference
    values: Agreement

    @property
    def message(self) -> str:
        """Message for the user."""
        saving = self.saving
        note = {"same": "", "close": "; values differ by rounding", "other": "; values differ"}
        return (
            f"{self.candidate.found}: {self.candidate.change}. "
            f"It saved {_format_us(saving.saved_us)} of "
            f"{_format_us(saving.before_us)} per step ({saving.saved_share:.0%}, "
            f"±{_format_us(saving.noise_us)}){note[self.values]}"
        )


def _format_us(time: float) -> str:
    return f"{time:.0f} µs" if abs(time) >= 100 else f"{time:.3g} µs"


@dataclass(frozen=True, slots=True)
class Suggestions(Result):
    """Results of all changes that were tried.

    Args:
        mode: Mode of the rollouts.
        advice: Changes that saved time, largest saving first.
        without_gain: Changes that saved no time beyond the noise.
        refused: Changes that could not be tried or change the values, each a sentence.
        interrupted: Whether Ctrl-C ended the measurement early.
    """

    mode: Mode
    advice: tuple[TriedChange, ...]
    without_gain: tuple[TriedChange, ...]
    refused: tuple[str, ...]
    interrupted: bool = False


def try_changes(
    pipeline: Pipeline,
    baseline: ModeProfile,
    plan: ProfilePlan | None = None,
    *,
    allow_code: bool = False,
    further: Sequence[Candidate] = (),
    policy_of: Callable[[EnvBase], Any] | None = None,
) -> Suggestions:
    """Measure changes that may make a pipeline cheaper, in alternation with the original pipeline.

    ``baseline`` is its profile in the mode that should become faster, and ``further`` has more
    changes to try, such as lint fixes. ``policy_of`` creates the policy for an env, instead of that
    of the plan.

    Raises:
        TdxError: The original pipeline cannot be built.
    """
    plan = plan or ProfilePlan()
    with ExitStack() as stack:

        def build(changed: Pipeline) -> TransformedEnv:
            env = build_env(changed, allow_code)
            stack.callback(env.close)
            return env

        def contender(env: TransformedEnv) -> Contender:
            return Contender(env, plan.policy if policy_of is None else policy_of(env))

        env = build(pipeline)
        proposed: list[Candidate] = []
        for candidate in (*find_candidates(pipeline, env), *further):
            known = [pipeline, *(other.pipeline for other in proposed)]
            if candidate.prepare is not None or candidate.pipeline not in known:
                proposed.append(candidate)
        refused: list[str] = []
        tried: list[tuple[Candidate, Agreement]] = []
        contenders = [contender(env)]
        expected = run_seeded_rollout(env, _STEPS, _SEED) if proposed else None
        for candidate in proposed[:MAX_TRIED]:
            try:
                changed = build(candidate.pipeline)
                if candidate.prepare is not None:
                    candidate.prepare(changed)
                values = find_agreement(expected, run_seeded_rollout(changed, _STEPS, _SEED))
            except TdxError as error:
                refused.append(f"{candidate.change}: {error}")
                continue
            if values == "other" and not candidate.changes_values:
                refused.append(f"{candidate.change}: the values change")
                continue
            tried.append((candidate, values))
            contenders.append(contender(changed))
        if not tried:
            return Suggestions(baseline.mode, (), (), tuple(refused))
        turns = measure_interleaved(contenders, baseline.mode, plan)
    changes: list[TriedChange] = []
    for place, (candidate, values) in enumerate(tried, 1):
        if place in turns.failures or 0 in turns.failures or not len(turns.step_us):
            refused.append(f"{candidate.change}: {turns.failures.get(place, 'not measured')}")
            continue
        changes.append(TriedChange(candidate, turns.difference(0, place), values))
    changes.sort(key=lambda change: -change.saving.saved_us)
    good = [
        change for change in changes if change.saving.is_significant and change.saving.saved_us > 0
    ]
    rest = tuple(change for change in changes if change not in good)
    return Suggestions(baseline.mode, tuple(good), rest, tuple(refused), turns.interrupted)


def find_agreement(expected: TensorDictBase | None, changed: TensorDictBase) -> Agreement:
    """Compare the values of two rollouts."""
    if expected is None or expected.batch_size != changed.batch_size:
        return "other"
    if not any(compare_rollouts(expected, changed).values()):
        return "same"
    return "other" if any(compare_rollouts(expected, changed, _CLOSE).values()) else "close"
