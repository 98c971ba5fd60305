"""Compare two pipelines: stages, specs, and the values of seeded rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, cast

from tdx.compare.alignment import match_stages
from tdx.compare.arguments import (
    MISSING,
    argument_text,
    changed_arguments,
    is_fingerprint,
    is_same_argument,
    plain_argument,
)
from tdx.compare.edits import Explanation
from tdx.compare.report import Difference
from tdx.foundation.serialization import Entries, Result
from tdx.inspection.spec_report import KeyChange, compare_leaves
from tdx.pipeline import EnvConfig, Pipeline, RolloutConfig, StageConfig, format_stage, format_value
from tdx.pipeline.arguments import name_arguments, stage_identity
from tdx.pipeline.values import Value
from tdx.specs.leaf import LeafSpec, composite_leaves
from tdx.stacks.stack import StageInfo, format_argument

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from tdx.compare.values import Change, ChangeKind
    from tdx.core import TransformedEnv


StageStatus = Literal["same", "changed", "moved", "added", "removed"]
ValueStatus = Literal["same", "different", "shape", "only_a", "only_b"]
SideLeaves = tuple[LeafSpec, ...]


@dataclass(frozen=True, slots=True)
class SettingChange(Result):
    """A setting or argument that differs.

    Args:
        name: Name of the setting.
        a: Value on the first side, as text.
        b: Value on the second side.
    """

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class StageChange(Result):
    """A stage on both sides.

    Args:
        status: Kind of change.
        a_index: Index on the first side; ``None`` if it is missing there.
        b_index: Index on the second side.
        a: The stage as the text of ``-t``.
        b: The same on the second side.
        arguments: Arguments that differ.
    """

    status: StageStatus
    a_index: int | None
    b_index: int | None
    a: str | None
    b: str | None
    arguments: tuple[SettingChange, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueChange(Result):
    """Values of one key in both rollouts.

    Args:
        key: The key, with dots between its parts.
        status: Result of the comparison.
        largest: Largest absolute difference; ``None`` if it cannot be computed.
        first_step: First step at which they differ, from 0.
        note: Both shapes or dtypes, if they differ.
        explanation: In what way they differ. ``None``: no edit of the values of the first side
            predicts those of the second one, or none was tried.
    """

    key: str
    status: ValueStatus
    largest: float | None = None
    first_step: int | None = None
    note: str = ""
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True)
class DiffReport(Result):
    """Differences between two sides.

    Args:
        a: Name of the first side.
        b: Name of the second side.
        env: Settings that differ.
        stages: Every stage in the order of the second side; removed ones keep their position.
        env_specs: Specs of the envs without their chains.
        chain_specs: Specs of the envs with their chains.
        steps: Number of compared steps; ``None`` if values were not compared.
        seed: Seed of the rollouts; ``None`` for recorded samples.
        samples: What the steps are if they are not those of an env: ``drawn`` or ``recorded``
            samples.
        values: Every key of the rollouts.
        differences: Stages at which the values differ first, with the kind of each difference.
        follows: Differences that follow from them.
        notes: What is not compared, or not explained.
    """

    json_entries: ClassVar[Entries] = (
        *("a", "b", "same", "env", "stages", "env_specs", "chain_specs"),
        *("steps", "seed", "samples", "values", "differences", "follows", "notes"),
    )

    a: str
    b: str
    env: tuple[SettingChange, ...]
    stages: tuple[StageChange, ...]
    env_specs: tuple[KeyChange, ...]
    chain_specs: tuple[KeyChange, ...]
    steps: int | None = None
    seed: int | None = None
    samples: str | None = None
    values: tuple[ValueChange, ...] = ()
    differences: tuple[Difference, ...] = ()
    follows: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def same_values(self) -> bool:
        """True if no compared value differs."""
        return all(value.status == "same" for value in self.values)

    @property
    def same(self) -> bool:
        """True if nothing differs."""
        specs = (*self.env_specs, *self.chain_specs)
        return (
            not self.env
            and all(stage.status == "same" for stage in self.stages)
            and all(change.change == "same" for change in specs)
            and self.same_values
        )


class DiffSide(Protocol):
    """One side of a comparison: a pipeline, or a dump with a manifest and shards."""

    @property
    def name(self) -> str:
        """Name of the side."""

    @property
    def pipeline(self) -> Pipeline:
        """Its env and chain as data."""

    @property
    def stages(self) -> Sequence[StageConfig]:
        """Its stages: those of the pipeline, or of the env that its factory returns."""

    def specs(self) -> tuple[SideLeaves, SideLeaves]:
        """Return the specs before and after the chain."""

    def rollout(self, steps: int, seed: int) -> TensorDictBase:
        """Return a rollout ``[*B, T]``."""

    def close(self) -> None:
        """Release its resources."""


class PipelineSide:
    """A pipeline as one side of a comparison."""

    def __init__(self, name: str, pipeline: Pipeline, allow_code: bool = False) -> None:
        from tdx.stacks.building import build_env, build_stack

        self.name = name
        self.pipeline = pipeline
        self.stages: Sequence[StageConfig] = pipeline.transforms
        if pipeline.is_factory:
            stack = build_stack(pipeline, allow_code)
            self.stages = [_stage_config(stage) for stage in stack.stages]
            self._env: TransformedEnv = build_env(pipeline, allow_code, stack.as_env())
        else:
            self._env = build_env(pipeline, allow_code)

    def specs(self) -> tuple[SideLeaves, SideLeaves]:
        """Return the specs before and after the chain."""
        from tdx.core.chain import flatten_chain

        base, _ = flatten_chain(self._env)
        before = composite_leaves(base.input_spec, base.output_spec)
        return before, composite_leaves(self._env.input_spec, self._env.output_spec)

    def rollout(self, steps: int, seed: int) -> TensorDictBase:
        """Return a rollout ``[*B, T]`` with random actions.

        The actions of a step depend only on the seed, the step and the action spec, so both sides
        take the same actions if their action specs agree.
        """
        from tdx.compare.rollouts import run_seeded_rollout

        return run_seeded_rollout(self._env, steps, seed)

    def close(self) -> None:
        """Close the env."""
        self._env.close()


def _stage_config(stage: StageInfo) -> StageConfig:
    """Return a stage of a stack as a stage of a pipeline; objects become text."""
    kwargs: dict[str, Value] = {}
    for name, value in stage.arguments.items():
        is_array = hasattr(value, "tolist") and hasattr(value, "dtype")
        if is_array:
            # The text of a large array leaves out most of it.
            kwargs[name] = cast("Value", plain_argument(value))
        elif isinstance(value, str | int | float | NoneType):
            kwargs[name] = value
        else:
            kwargs[name] = format_argument(value)
    return StageConfig(stage.name, (), kwargs)


def compare_pipelines(
    a: DiffSide,
    b: DiffSide,
    *,
    steps: int | None = None,
    seed: int = 0,
    explain_values: bool = False,
) -> DiffReport:
    """Compare two sides.

    Without ``steps``, no values are compared. ``explain_values`` explains values that differ by the
    rollouts alone, without their chains.

    Example:
        >>> from tdx.inspection.diff import PipelineSide
        >>> one, other = (
        ...     PipelineSide(stage, Pipeline.of("Pendulum-v1", stage))
        ...     for stage in ("StepCounter", "StepCounter(max_steps=9)")
        ... )
        >>> report = compare_pipelines(one, other)
        >>> report.same, report.stages[0].status
        (False, 'changed')
    """
    (env_a, chain_a), (env_b, chain_b) = a.specs(), b.specs()
    report = DiffReport(
        a=a.name,
        b=b.name,
        env=tuple(_compare_settings(a.pipeline, b.pipeline)),
        stages=tuple(align_stages(a.stages, b.stages)),
        env_specs=compare_leaves(env_a, env_b),
        chain_specs=compare_leaves(chain_a, chain_b),
    )
    if steps is None:
        return report
    rollouts = a.rollout(steps, seed), b.rollout(steps, seed)
    values = compare_values(*rollouts, explain=explain_values)
    return dataclasses.replace(report, steps=steps, seed=seed, values=values)


def _compare_settings(a: Pipeline, b: Pipeline) -> Iterator[SettingChange]:
    pairs = ((a.env, b.env, EnvConfig), (a.rollout, b.rollout, RolloutConfig))
    for one, other, kind in pairs:
        for field in dataclasses.fields(kind):
            yield from _compare_setting(
                field.name, getattr(one, field.name), getattr(other, field.name)
            )
    yield from _compare_setting("policy", a.policy, b.policy)


def _compare_setting(name: str, one: Value, other: Value) -> Iterator[SettingChange]:
    if not is_same_argument(one, other):
        sides = [side if isinstance(side, str) else format_value(side) for side in (one, other)]
        yield SettingChange(name, *sides)


def align_stages(a: Sequence[StageConfig], b: Sequence[StageConfig]) -> list[StageChange]:
    """Pair the stages of two chains: equal ones first, then those with equal names.

    A stage that is in both chains at different positions has moved.
    """
    one, other = (list(map(stage_identity, side)) for side in (a, b))
    on_both = {*one} & {*other}

    def pair_by_name(a_range: range, b_range: range) -> Iterator[tuple[int, int]]:
        names = [a[index].name for index in a_range], [b[index].name for index in b_range]
        for i, j, size in SequenceMatcher(None, *names, autojunk=False).get_matching_blocks():
            for pair in zip(a_range[i : i + size], b_range[j : j + size], strict=True):
                # A stage that has moved has not changed.
                if not {one[pair[0]], other[pair[1]]} & on_both:
                    yield pair

    changes: list[StageChange] = []
    for match in match_stages(one, other, pair_by_name):
        before, after = (
            None if index is None else side[index] for side, index in ((a, match.a), (b, match.b))
        )
        status: StageStatus
        arguments: tuple[SettingChange, ...] = ()
        if before is None or after is None:
            status = "added" if before is None else "removed"
        else:
            arguments = tuple(_compare_arguments(before, after))
            status = "moved" if match.status == "moved" else "changed" if arguments else "same"
        texts = [None if stage is None else format_stage(stage) for stage in (before, after)]
        changes.append(StageChange(status, match.a, match.b, texts[0], texts[1], arguments))
    return changes


def _compare_arguments(one: StageConfig, other: StageConfig) -> Iterator[SettingChange]:
    first, second = name_arguments(one), name_arguments(other)
    for name, *values in changed_arguments(first.kwargs, second.kwargs):
        sides = ["default" if value is MISSING else _argument_text(value) for value in values]
        if sides[0] == sides[1]:
            sides[1] += ", with other values"
        yield SettingChange(name, *sides)
    if not is_same_argument(first.args, second.args):
        yield SettingChange("positional", format_value(first.args), format_value(second.args))


def _argument_text(value: object) -> str:
    return argument_text(value) if is_fingerprint(value) else format_value(cast("Value", value))


_VALUE_STATUS: dict[ChangeKind, ValueStatus] = {
    "missing": "only_a",
    "extra": "only_b",
    "spec": "shape",
}


def compare_values(
    a: TensorDictBase, b: TensorDictBase, *, explain: bool = False
) -> tuple[ValueChange, ...]:
    """Compare every key of two rollouts ``[*B, T]``; NaN equals NaN.

    NaN equals NaN.
    """
    from tdx.compare.rollouts import compare_rollouts, explain_rollouts

    changes = compare_rollouts(a, b)
    return describe_values(changes, explain_rollouts(a, b, changes) if explain else {})


def describe_values(
    changes: Mapping[str, Change | None],
    explanations: Mapping[str, Explanation] = MappingProxyType({}),
) -> tuple[ValueChange, ...]:
    """Describe how the values of each key differ; ``None`` stands for those that agree."""
    described: list[ValueChange] = []
    for key, change in changes.items():
        if change is None:
            described.append(ValueChange(key, "same", 0.0))
            continue
        note = " and ".join(change.sides) if change.kind in ("spec", "dtype") else ""
        largest = 0.0 if change.kind == "dtype" and change.size is None else change.size
        status = _VALUE_STATUS.get(change.kind, "different")
        explanation = explanations.get(key)
        described.append(ValueChange(key, status, largest, change.step, note, explanation))
    return tuple(described)
