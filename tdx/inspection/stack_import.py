"""Convert a stack of another library to a pipeline, and compare the values of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, ClassVar

from tdx.compare.report import Difference, SmallestCase, kind_of_edits
from tdx.compare.rollouts import Record, explain_records
from tdx.compare.smallest import smallest_of_record
from tdx.compare.values import Change, Tolerance, compare_entries, element_gaps, largest_gap
from tdx.foundation.errors import ArgumentError, TdxError
from tdx.foundation.keys import format_key
from tdx.foundation.serialization import Entries, Result
from tdx.pipeline import EnvConfig, Pipeline, StageConfig, build_checked_env
from tdx.specs.leaf import LeafSpec, composite_leaves
from tdx.stacks.conversion import (
    ConvertedStack,
    ConvertedStage,
    Convertible,
    Counterpart,
    NamedTensors,
    RandomStream,
    list_segments,
    require_convertible,
)
from tdx.stacks.refusals import Missing

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.envs import EnvBase
    from tdx.stacks import Stack

STEPS = 1_000
"""Number of steps in which the values are compared."""
_RECORDS_BEFORE, _RECORDS_AFTER = 16, 32
"""Resets and steps around the first difference whose values are explained."""
_SUM_TOLERANCE = 1e-4
"""Tolerance of sums over an episode, which Gymnasium adds in float64 and tdx in float32."""

OpenStack = Callable[[], "Stack"]


@dataclass(frozen=True, slots=True)
class PartComparison(Result):
    """Comparison of a part of a stack, between two stages without counterpart.

    Args:
        below: Stage without counterpart under the part, which both sides share; -1: the env.
        last: Last stage of the part.
        steps: Number of steps.
        largest: Largest difference, relative to values above 1.
        difference: First difference above the tolerance. ``None``: the values are equal.
        shares_env: True if both sides have the env of the stack, which the pipeline cannot name.
        left_out: Entries that are not tensors, such as text, and were not compared.
    """

    json_entries: ClassVar[Entries] = (
        *("part", "below", "last", "steps", "largest", "difference", "shares_env", "left_out"),
    )

    below: int
    last: int
    steps: int
    largest: float
    difference: Difference | None
    shares_env: bool = False
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        difference = self.difference
        if difference is not None:
            step = difference.step
            when = "in the first reset" if step is None else f"at step {step}"
            return f"first difference {when}: {difference.title}: {difference.sentence}"
        text = f"equal for {self.steps:,} steps"
        if self.largest:
            text += f", largest difference {self.largest:.0e}"
        return f"{text}; not compared: {', '.join(self.left_out)}" if self.left_out else text

    @property
    def part(self) -> str:
        """The stages that were compared, as text."""
        first, last = self.below + 1, self.last
        if last < first:
            return "the env"
        stages = f"stage {first}" if first == last else f"stages {first} to {last}"
        if self.below >= 0:
            return f"{stages} on top of stage {self.below}"
        return f"{stages} on top of the env" if self.shares_env else stages


@dataclass(frozen=True, slots=True)
class StackImport(Result):
    """A pipeline that replaces a stack.

    Args:
        pipeline: The pipeline.
        stages: The stages of the stack with their counterparts.
        comparisons: Comparisons of its parts.
        seed: Seed of the envs and the actions.
        missing_env: Why the env of the pipeline is only a proposal. ``None``: it is compared.
        leaves: Specs of the env inside, if the pipeline cannot name it.
    """

    json_entries: ClassVar[Entries] = (
        *("is_equal", "seed", "stages", "missing_env", "missing", "comparisons"),
    )

    pipeline: Pipeline
    stages: tuple[ConvertedStage, ...]
    comparisons: tuple[PartComparison, ...]
    seed: int
    missing_env: Missing | None = None
    leaves: tuple[LeafSpec, ...] | None = None

    @property
    def is_equal(self) -> bool:
        """True if all of the stack was converted, and no part of it differs."""
        return not self.missing and not self.has_difference

    @property
    def has_difference(self) -> bool:
        """True if a part that was converted differs."""
        return any(comparison.difference is not None for comparison in self.comparisons)

    @property
    def missing(self) -> tuple[str, ...]:
        """What was not converted: stages, such as ``2 AtariPreprocessing``, and the env."""
        env = () if self.missing_env is None else ("the env inside",)
        return (*env, *(f"{s.index} {s.name}" for s in self.stages if s.missing))

    @property
    def gap(self) -> str:
        """What was compared and what was not, as a sentence; empty if the pipeline is complete."""
        if not self.missing:
            return ""
        compared = sum(stage.missing is None for stage in self.stages)
        return (
            f"compared {compared} of {len(self.stages)} stages; not converted: "
            f"{', '.join(self.missing)}; "
            "the pipeline as a whole is not equal"
        )


def import_stack(open_stack: OpenStack, *, steps: int = STEPS, seed: int = 0) -> StackImport:
    """Convert a stack to a pipeline, and compare seeded rollouts with the same actions.

    A stage without counterpart divides the stack. The part above it is compared on top of it, so a
    difference always belongs to a stage that was converted.

    ``open_stack`` is called once or twice for each part.

    Example:
        >>> import gymnasium
        >>> from tdx.stacks import open_stack
        >>> def make():
        ...     env = gymnasium.make("Pendulum-v1", g=9.0)
        ...     return open_stack(gymnasium.wrappers.ClipReward(env, -1.0, 1.0))
        >>> found = import_stack(make, steps=10)
        >>> found.pipeline.env.kwargs, [stage.name for stage in found.pipeline.transforms]
        ({'g': 9.0}, ['RewardClipping'])
        >>> str(found.comparisons[0])
        'equal for 10 steps'
    """
    with closing(open_stack()) as stack:
        hint = "return an env of tdx, Gymnasium, Stable-Baselines3, Tianshou, PufferLib or TorchRL"
        converted = require_convertible(stack, hint).convert()
    trial = _Trial(open_stack, converted, seed)
    trial.leave_out_misfits()
    converted = trial.converted
    if not any(stage.stages or stage.sets_env for stage in converted.stages):
        if converted.missing_env is not None:
            raise ArgumentError(
                f"neither the env nor a stage has a counterpart: {converted.missing_env.reason}",
                hint=converted.missing_env.advice,
            )
        for stage in converted.stages:
            if isinstance(stage.result, Missing):
                raise ArgumentError(
                    f"no stage has a counterpart: {stage.name}: {stage.result.reason}",
                    hint=stage.result.advice,
                )
    comparisons = [
        trial.compare_part(below, last, steps)
        for below, last in list_segments(converted.stages)
        if last >= 0 or converted.missing_env is None
    ]
    leaves = None
    if converted.missing_env is not None:
        with closing(trial.open_base(-1)) as base:
            leaves = composite_leaves(base.input_spec, base.output_spec)
    pipeline = Pipeline(
        converted.env_up_to(len(converted.stages) - 1),
        tuple(config for stage in converted.stages for config in stage.stages),
    )
    return StackImport(
        *(pipeline, converted.stages, tuple(comparisons), seed, converted.missing_env, leaves)
    )


@dataclass(slots=True)
class _Trial:
    """Builds parts of a converted stack, and runs them beside the stack."""

    open_stack: OpenStack
    converted: ConvertedStack
    seed: int

    def open_base(self, last: int) -> EnvBase:
        """Return the stack up to a stage as one env of tdx."""
        stack = self.open_stack()
        assert isinstance(stack, Convertible)
        return stack.base_env(last, self.converted.key_after(last))

    def leave_out_misfits(self) -> None:
        """Leave out the stages that need one without counterpart, such as its shape."""
        converted = self.converted
        first = next((stage.index for stage in converted.stages if stage.missing), None)
        if first is None:
            return
        env = converted.env_up_to(len(converted.stages) - 1)
        reason = f"it needs the values of stage {first}, which has no counterpart"
        missing = Missing(reason, "add it when that stage is replaced")
        chain: tuple[StageConfig, ...] = ()
        kept: list[ConvertedStage] = []
        for stage in converted.stages:
            longer = (*chain, *stage.stages)
            base = None
            if stage.index > first and stage.stages:
                try:
                    base = None if converted.missing_env is None else self.open_base(-1)
                    _build(Pipeline(env, longer), base).close()
                except TdxError:
                    kept.append(replace(stage, result=missing))
                    continue
            kept.append(stage)
            chain = longer
        self.converted = replace(converted, stages=tuple(kept))

    def compare_part(self, below: int, last: int, steps: int) -> PartComparison:
        """Compare a part; if it differs, find the first stage that does, and explain it."""
        comparison = self._compare(below, last, steps)
        if comparison.difference is None:
            return comparison
        first = comparison.difference.step
        enough = 1 if first is None else first + 1
        for stage in self.converted.stages[below + 1 : last]:
            if not isinstance(stage.result, Counterpart) or stage.result.observable:
                inner = self._compare(below, stage.index, enough)
                if inner.difference is not None:
                    comparison = inner
                    break
        assert comparison.difference is not None
        return replace(comparison, difference=self._explained(comparison, comparison.difference))

    def _compare(self, below: int, last: int, steps: int) -> PartComparison:
        converted = self.converted
        largest, left_out = 0.0, set[str]()
        difference: Difference | None = None
        tolerance = self._tolerance(below, last)
        with self._running(below, last, steps) as (_, results):
            for result in results:
                first = result.first_change(tolerance)
                if first is None:
                    largest = max(largest, *result.gaps(), 0.0)
                    if result.step is None:
                        left_out.update(_other_entries(result.given))
                    continue
                key, change = first
                name = converted.stages[last].name if last >= 0 else converted.env_up_to(-1).id
                text = "{} in the stack, {} in the pipeline".format(*change.sides)
                is_declared = change.kind in ("dtype", "spec")
                difference = Difference(
                    "spec" if is_declared else "value",
                    *(last, last, name, key, text, change.size),
                    step=result.step,
                    noun="stack",
                )
                break
        shares_env = converted.missing_env is not None
        return PartComparison(
            below, last, steps, largest, difference, shares_env, tuple(sorted(left_out))
        )

    def _explained(self, comparison: PartComparison, difference: Difference) -> Difference:
        """Return a difference with the edit that predicts the values of the pipeline."""
        key, first, below, last = difference.key, difference.step, comparison.below, comparison.last
        if key is None or difference.size is None:
            return difference
        at = -1 if first is None else first
        records: list[Record] = []
        starts: list[int] = []
        smallest: SmallestCase | None = None
        tolerance = Tolerance(*[self._tolerance(below, last)] * 2)
        episode, first_step, size = -1, 0, difference.size
        # What either side raises after the difference does not matter.
        with (
            suppress(TdxError),
            self._running(below, last, at + 1 + _RECORDS_AFTER) as (env, results),
        ):
            for result in results:
                if result.is_reset:
                    episode, first_step = episode + 1, 0 if result.step is None else result.step + 1
                if result.is_sum or (result.step or 0) < at - _RECORDS_BEFORE:
                    continue
                if isinstance(result.given, TdxError):
                    break
                expected, given = result.expected.get(key), result.values.get(key)
                if expected is not None and given is not None:
                    if result.is_reset:
                        starts.append(len(records))
                    # The env may write its next results into the same memory.
                    sides = [
                        side.clone() if env.ndim else side[None].clone()
                        for side in (expected, given)
                    ]
                    records.append((sides[0], sides[1], None))
                    if sides[0].shape == sides[1].shape:
                        size = max(size, largest_gap(*sides))
                    step = None if result.is_reset else (result.step or 0) - first_step
                    case = smallest or smallest_of_record(
                        key, records[-1], tolerance, episode, step
                    )
                    smallest = case
                if any(
                    change is not None and flag.rpartition(".")[2] in ("done", "terminated")
                    for flag, change in compare_entries(result.expected, result.values).items()
                ):
                    break
        difference = replace(difference, size=size, smallest=smallest)
        explanation = explain_records(records, starts, tolerance)
        if explanation is None:
            return difference
        return replace(
            difference,
            kind=kind_of_edits(explanation) or difference.kind,
            message=explanation.text,
            hint=explanation.hint,
            explanation=explanation,
        )

    def _tolerance(self, below: int, last: int) -> float:
        part = self.converted.stages[below + 1 : last + 1]
        results = [stage.result for stage in part if isinstance(stage.result, Counterpart)]
        return max((result.tolerance for result in results), default=0.0)

    @contextmanager
    def _running(
        self, below: int, last: int, steps: int
    ) -> Iterator[tuple[EnvBase, Iterator[_Results]]]:
        """Open a part of the stack and of the pipeline, and yield what both return."""
        converted = self.converted
        part = converted.stages[below + 1 : last + 1]
        # A wrapper that writes the same entry of `info` as an inner one replaces it.
        keys = {
            path: key
            for stage in part
            if isinstance(stage.result, Counterpart)
            for key, path in stage.result.recorded.items()
        }
        configs = tuple(config for stage in part for config in stage.stages)
        with ExitStack() as opened:
            base = None
            if below >= 0 or converted.missing_env is not None:
                base = opened.enter_context(closing(self.open_base(below)))
            stack = opened.enter_context(closing(self.open_stack()))
            assert isinstance(stack, Convertible)
            reference = stack.reference(last, converted.key_after(last), self.seed)
            opened.enter_context(closing(reference))
            pipeline = Pipeline(converted.env_up_to(last), configs)
            env = opened.enter_context(closing(_build(pipeline, base)))
            yield env, _run_both(reference, env, steps, self.seed, keys)


def _path(key: str) -> tuple[str, ...]:
    return tuple(key.split("."))


def _build(pipeline: Pipeline, base: EnvBase | None) -> EnvBase:
    if base is not None:
        # The env exists, so that its name does not matter.
        pipeline = replace(pipeline, env=EnvConfig("env"))
    # Code that the stages name is that of the stack, which was imported to open it.
    return build_checked_env(pipeline, allow_code=True, base=base)


@dataclass(frozen=True, slots=True)
class _Results:
    """What both sides returned.

    Args:
        step: Step, from 0. ``None``: the reset before the first one.
        given: TensorDict of the pipeline, or the error that it raised.
    """

    step: int | None
    expected: NamedTensors
    given: Any
    is_sum: bool = False
    is_reset: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """Values of the pipeline for the keys of the stack; ``None`` for a missing one."""
        return {key: self.given.get(_path(key), None) for key in self.expected}

    def first_change(self, tolerance: float) -> tuple[str, Change] | None:
        """Return the first key that differs, and how; ``None`` if all agree."""
        if isinstance(self.given, TdxError):
            sides = "values", f"an error: {self.given.message}"
            return "all keys", Change("value", "the pipeline fails", sides=sides)
        limit = _SUM_TOLERANCE if self.is_sum else tolerance
        changes = compare_entries(self.expected, self.values, Tolerance(limit, limit))
        return next(((key, change) for key, change in changes.items() if change is not None), None)

    def gaps(self) -> Iterator[float]:
        """Yield the largest difference of each key, relative to values above 1."""
        for key, given in self.values.items():
            expected = self.expected[key]
            if expected.is_floating_point() and expected.numel():
                scale = expected.double().abs().nan_to_num(nan=1.0).clamp_min(1.0)
                yield float((element_gaps(expected, given) / scale).nan_to_num(nan=0.0).max())


def _run_both(
    reference: Any, env: EnvBase, steps: int, seed: int, keys: Mapping[tuple[str, ...], str]
) -> Iterator[_Results]:
    """Step a stack and a pipeline with the same actions; ``keys`` are by path in ``info``."""
    import torch

    from tdx.core.envs.step_mdp import step_mdp

    stream = RandomStream(seed)

    def run(function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with stream.active():
                return function(*arguments)
        except TdxError as error:
            return error

    env.set_seed(seed)
    expected, current = reference.reset(seed), run(env.reset)
    yield _Results(None, expected, current, is_reset=True)
    for step in range(steps):
        action, entries = reference.sample_action()
        expected, info = reference.step(action)
        current = run(env.step, current.update({_path(key): entries[key] for key in entries}))
        failed = isinstance(current, TdxError)
        yield _Results(step, expected, current if failed else current["next"])
        if bool(expected["done"].any()):
            ended = current["next", "done"]
            sums = {
                key: torch.as_tensor(reduce(getitem, path, info), dtype=torch.float32).reshape(-1)
                for path, key in keys.items()
            }
            given = {_path(key): current["next"][key][ended].float() for key in sums}
            yield _Results(step, sums, given, is_sum=True)
            expected = reference.reset(None)
            current = run(env.maybe_reset, step_mdp(current))
            yield _Results(step, expected, current, is_reset=True)
        else:
            current = step_mdp(current)


def _other_entries(tensordict: TensorDictBase, outer: tuple[str, ...] = ()) -> Iterator[str]:
    """Iterate over the keys of entries that are not tensors, such as text."""
    from tensordict import TensorDictBase, is_non_tensor
    from torch import Tensor

    for name in tensordict.keys():
        value, key = tensordict.get(name), (*outer, name)
        if isinstance(value, TensorDictBase) and not is_non_tensor(value):
            yield from _other_entries(value, key)
        elif not isinstance(value, Tensor):
            yield format_key(key)
