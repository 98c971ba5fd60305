"""Convert a stack of another library to a pipeline, and compare the values of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import getitem
from typing import TYPE_CHECKING, Any

from tdx.compare.values import Tolerance, compare_entries, element_gaps
from tdx.foundation.errors import ArgumentError, TdxError
from tdx.foundation.keys import format_key
from tdx.pipeline import EnvConfig, Pipeline, StageConfig, build_env
from tdx.specs.leaf import LeafSpec, composite_leaves
from tdx.stacks.conversion import (
    ConvertedStack,
    ConvertedStage,
    Convertible,
    Counterpart,
    Entries,
    Missing,
    RandomStream,
    list_segments,
)

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor

    from tdx.envs import EnvBase
    from tdx.stacks import Stack

STEPS = 1_000
"""Number of steps in which the values are compared."""
_SUM_TOLERANCE = 1e-4
"""Tolerance of sums over an episode, which Gymnasium adds in float64 and tdx in float32."""

OpenStack = Callable[[], "Stack"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first value in which a stack and its pipeline differ.

    Args:
        step: Step, from 0. ``None``: the reset before the first step.
        key: Key of the value.
        stage: Index of the stage in the stack; -1 for the env.
        name: Class name of the stage.
        in_stack: Value of the stack, as text.
        in_pipeline: Value of the pipeline, as text.
    """

    step: int | None
    key: str
    stage: int
    name: str
    in_stack: str
    in_pipeline: str

    def __str__(self) -> str:
        where = "in the first reset" if self.step is None else f"at step {self.step}"
        stage = "the env" if self.stage < 0 else f"stage {self.stage} ({self.name})"
        return (
            f"first difference {where}, {self.key!r} after {stage}: "
            f"{self.in_stack} in the stack, {self.in_pipeline} in the pipeline"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
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

    below: int
    last: int
    steps: int
    largest: float
    difference: Difference | None
    shares_env: bool = False
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.difference is not None:
            return str(self.difference)
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
class StackImport:
    """A pipeline that replaces a stack.

    Args:
        pipeline: The pipeline.
        stages: The stages of the stack with their counterparts.
        comparisons: Comparisons of its parts.
        seed: Seed of the envs and the actions.
        missing_env: Why the env of the pipeline is only a proposal. ``None``: it is compared.
        leaves: Specs of the env inside, if the pipeline cannot name it.
    """

    pipeline: Pipeline
    stages: tuple[ConvertedStage, ...]
    comparisons: tuple[Comparison, ...]
    seed: int
    missing_env: Missing | None = None
    leaves: tuple[LeafSpec, ...] | None = None

    @property
    def is_equal(self) -> bool:
        """True if no part that was converted differs."""
        return all(each.difference is None for each in self.comparisons)

    @property
    def gap(self) -> str:
        """What was compared and what was not, as a sentence; empty if the pipeline is complete."""
        names = [] if self.missing_env is None else ["the env inside"]
        names += [f"{each.index} {each.name}" for each in self.stages if each.is_missing]
        if not names:
            return ""
        compared = sum(not stage.is_missing for stage in self.stages)
        return (
            f"compared {compared} of {len(self.stages)} stages; not converted: {', '.join(names)}; "
            "the pipeline as a whole is not equal"
        )


def import_stack(open_stack: OpenStack, *, steps: int = STEPS, seed: int = 0) -> StackImport:
    """Convert a stack to a pipeline, and compare seeded rollouts with the same actions.

    A stage without counterpart divides the stack. The part above it is compared on top of it, so a
    difference always belongs to a stage that was converted.

    Args:
        open_stack: Creates the stack; called once or twice for each part.
        steps: Number of steps to compare.
        seed: Seed of the envs and the actions.

    Raises:
        ArgumentError: The stack is of a kind that cannot be converted, or no stage has a
            counterpart.
        EnvError: The stack raises.

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
        converted = _convert(stack)
    converted = _without_misfits(open_stack, converted)
    _check_any(converted)
    comparisons = [
        _compare_part(open_stack, converted, below, last, steps, seed)
        for below, last in list_segments(converted.stages)
        if last >= 0 or converted.missing_env is None
    ]
    leaves = None
    if converted.missing_env is not None:
        with closing(_base_env(open_stack, converted, -1)) as base:
            leaves = composite_leaves(base.input_spec, base.output_spec)
    pipeline = Pipeline(
        converted.env_up_to(len(converted.stages) - 1),
        tuple(each for stage in converted.stages for each in stage.stages),
    )
    return StackImport(
        *(pipeline, converted.stages, tuple(comparisons), seed, converted.missing_env, leaves)
    )


def _convert(stack: Stack) -> ConvertedStack:
    if not isinstance(stack, Convertible):
        raise ArgumentError(
            f"{stack.name} is a stack of {stack.kind}, which cannot be converted",
            hint="return an env of Gymnasium, Stable-Baselines3 or TorchRL with its stages",
        )
    return stack.convert()


def _check_any(converted: ConvertedStack) -> None:
    has_stages = any(stage.stages or stage.sets_env for stage in converted.stages)
    if converted.missing_env is not None and not has_stages:
        raise ArgumentError(
            f"neither the env nor a stage has a counterpart: {converted.missing_env.reason}",
            hint=converted.missing_env.advice,
        )
    missing = [stage for stage in converted.stages if isinstance(stage.result, Missing)]
    if missing and not has_stages:
        first = missing[0].result
        assert isinstance(first, Missing)
        raise ArgumentError(
            f"no stage has a counterpart: {missing[0].name}: {first.reason}",
            hint=first.advice,
        )


def _without_misfits(open_stack: OpenStack, converted: ConvertedStack) -> ConvertedStack:
    """Return the stack without stages that need one without counterpart, such as its shape."""
    first = next((each.index for each in converted.stages if each.is_missing), None)
    if first is None:
        return converted
    env = converted.env_up_to(len(converted.stages) - 1)
    reason = f"it needs the values of stage {first}, which has no counterpart"
    missing = Missing(reason, "add it when that stage is replaced")
    chain: tuple[StageConfig, ...] = ()
    kept: list[ConvertedStage] = []
    for stage in converted.stages:
        longer = (*chain, *stage.stages)
        if (
            stage.index > first
            and stage.stages
            and not _can_be_built(open_stack, converted, Pipeline(env, longer))
        ):
            kept.append(replace(stage, result=missing))
        else:
            kept.append(stage)
            chain = longer
    return replace(converted, stages=tuple(kept))


def _can_be_built(open_stack: OpenStack, converted: ConvertedStack, pipeline: Pipeline) -> bool:
    base = None
    if converted.missing_env is not None:
        base = _base_env(open_stack, converted, -1)
    try:
        _build(pipeline, base).close()
    except TdxError:
        return False
    return True


def _build(pipeline: Pipeline, base: EnvBase | None) -> EnvBase:
    if base is not None:
        # The env exists, so that its name does not matter.
        pipeline = replace(pipeline, env=EnvConfig("env"))
    return build_env(pipeline, base=base)


def _base_env(open_stack: OpenStack, converted: ConvertedStack, last: int) -> EnvBase:
    """Return the stack up to a stage as one env of tdx."""
    stack = open_stack()
    assert isinstance(stack, Convertible)
    return stack.base_env(last, converted.key_after(last))


def _compare_part(
    open_stack: OpenStack, converted: ConvertedStack, below: int, last: int, steps: int, seed: int
) -> Comparison:
    """Compare a part; if it differs, find the first stage that does."""
    found = _compare(open_stack, converted, below, last, steps, seed)
    if found.difference is None:
        return found
    enough = 1 if found.difference.step is None else found.difference.step + 1
    for stage in converted.stages[below + 1 : last]:
        if isinstance(stage.result, Counterpart) and not stage.result.observable:
            continue
        inner = _compare(open_stack, converted, below, stage.index, enough, seed)
        if inner.difference is not None:
            return inner
    return found


def _compare(
    open_stack: OpenStack, converted: ConvertedStack, below: int, last: int, steps: int, seed: int
) -> Comparison:
    part = converted.stages[below + 1 : last + 1]
    key = converted.key_after(last)
    chain = Pipeline(
        converted.env_up_to(last), tuple(each for stage in part for each in stage.stages)
    )
    name = converted.stages[last].name if last >= 0 else "env"
    run = _Run(_tolerance(part), _recorded(part), last, name)
    shares_env = converted.missing_env is not None
    with ExitStack() as opened:
        base = None
        if below >= 0 or shares_env:
            base = opened.enter_context(closing(_base_env(open_stack, converted, below)))
        stack = opened.enter_context(closing(open_stack()))
        assert isinstance(stack, Convertible)
        reference = opened.enter_context(closing(stack.reference(last, key, seed)))
        env = opened.enter_context(closing(_build(chain, base)))
        run.compare(reference, env, steps, seed)
    return Comparison(
        below, last, steps, run.largest, run.difference, shares_env, tuple(sorted(run.left_out))
    )


def _tolerance(part: tuple[ConvertedStage, ...]) -> float:
    results = (stage.result for stage in part)
    return max((each.tolerance for each in results if isinstance(each, Counterpart)), default=0.0)


def _recorded(part: tuple[ConvertedStage, ...]) -> Mapping[str, tuple[str, ...]]:
    results = (stage.result for stage in part)
    found = [each.recorded for each in results if isinstance(each, Counterpart)]
    # A wrapper that writes the same entry of `info` as an inner one replaces it.
    keys = {path: key for recorded in found for key, path in recorded.items()}
    return {key: path for path, key in keys.items()}


class _Run:
    """Steps a stack and a pipeline with the same actions until a value differs.

    Args:
        tolerance: Largest relative difference. 0: bit-identical.
        recorded: Keys of the pipeline for entries of ``info``.
        stage: Index of the last stage, for messages.
        name: Its name.
    """

    def __init__(
        self, tolerance: float, recorded: Mapping[str, tuple[str, ...]], stage: int, name: str
    ) -> None:
        self.largest = 0.0
        self.difference: Difference | None = None
        self.left_out: set[str] = set()
        self._tolerance, self._recorded = tolerance, recorded
        self._stage, self._name = stage, name
        self._random = RandomStream(0)

    def compare(self, reference: Any, env: EnvBase, steps: int, seed: int) -> None:
        from tdx.core.envs.step_mdp import step_mdp

        self._random = RandomStream(seed)
        env.set_seed(seed)
        expected, current = reference.reset(seed), self._try(None, env.reset)
        if current is not None:
            self.left_out.update(_other_entries(current))
        if current is None or not self._check(None, expected, current):
            return
        for step in range(steps):
            action, entries = reference.sample_action()
            expected, info = reference.step(action)
            current = current.update(
                {tuple(key.split(".")): value for key, value in entries.items()}
            )
            current = self._try(step, partial(env.step, current))
            if current is None or not self._check(step, expected, current["next"]):
                return
            ended = bool(expected["done"].any())
            if ended and not self._check_recorded(step, info, current["next"]):
                return
            current = step_mdp(current)
            if ended:
                restart = partial(env.maybe_reset, current)
                expected, current = reference.reset(None), self._try(step, restart)
                if current is None or not self._check(step, expected, current):
                    return

    def _try(self, step: int | None, call: Callable[[], Any]) -> Any:
        try:
            with self._random.active():
                return call()
        except TdxError as error:
            message = f"an error: {error.message}"
            self._differ(step, "all keys", "values", message)
            return None

    def _check(self, step: int | None, expected: Entries, current: Any) -> bool:
        given = {key: current.get(tuple(key.split(".")), None) for key in expected}
        return self._agree(step, expected, given, self._tolerance)

    def _check_recorded(self, step: int, info: Mapping[str, Any], current: Any) -> bool:
        import torch

        ended = current["done"]
        expected = {
            key: torch.as_tensor(reduce(getitem, path, info), dtype=torch.float32).reshape(-1)
            for key, path in self._recorded.items()
        }
        given = {key: current[key][ended].float() for key in expected}
        return self._agree(step, expected, given, _SUM_TOLERANCE)

    def _agree(
        self, step: int | None, expected: Entries, given: Mapping[str, Any], tolerance: float
    ) -> bool:
        allowed = Tolerance(tolerance, tolerance)
        for key, change in compare_entries(expected, given, allowed).items():
            if change is not None:
                sides = change.sides if change.kind != "missing" else ("a value", "no value")
                return self._differ(step, key, *sides)
            self.largest = max(self.largest, _relative_gap(expected[key], given[key]))
        return True

    def _differ(self, step: int | None, key: str, in_stack: str, in_pipeline: str) -> bool:
        self.difference = Difference(step, key, self._stage, self._name, in_stack, in_pipeline)
        return False


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


def _relative_gap(a: Tensor, b: Tensor) -> float:
    """Return the largest difference, relative to values above 1."""
    if not a.is_floating_point() or not a.numel():
        return 0.0
    scale = a.double().abs().nan_to_num(nan=1.0).clamp_min(1.0)
    return float((element_gaps(a, b) / scale).nan_to_num(nan=0.0).max())
