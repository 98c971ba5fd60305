"""Report the values that each stage writes, with its spec violations, and the state it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tdx.errors import ArgumentError, TdxError
from tdx.inspection.leaf import LeafSpec, leaf_spec
from tdx.inspection.value_stats import (
    Kind,
    Phase,
    PhaseValues,
    RunningStats,
    StageValues,
    ValueViolation,
)
from tdx.keys import NestedKey
from tdx.serialization import Entries, Entry, Result
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.core import StageTrace, StepTrace
    from tdx.core.tracing import TraceChecker, TracedViolation
    from tdx.stacks import Stack
    from tdx.stacks.tracer import OnTrace


@dataclass(frozen=True, slots=True)
class ValuesReport(Result):
    """Values of a few steps of an env with its chain.

    Args:
        env: Name of the env.
        batch_size: Batch size after the chain.
        steps: Number of steps.
        resets: Number of resets, including partial ones.
        phases: Values of each phase.
        violations: Spec violations; the stage that causes them comes first.
        error: Error that ended the run early.
    """

    json_entries: ClassVar[Entries] = (
        *("env", "batch_size", "steps", "resets", "phases"),
        *("violations", "error"),
    )

    env: str
    batch_size: tuple[int, ...]
    steps: int
    resets: int
    phases: tuple[PhaseValues, ...]
    violations: tuple[ValueViolation, ...]
    error: TdxError | None = None


def inspect_values(
    env: Any,
    name: str | None = None,
    *,
    steps: int = 1,
    seed: int | None = None,
    policy: Any = None,
    each: bool = False,
    on_trace: OnTrace | None = None,
) -> ValuesReport:
    """Reset and step an env, and record all values that its stages write.

    Args:
        env: Env of tdx, with or without a chain, or a stack of another library; it is reset and
            stepped.
        name: Name in the report. Defaults to the class name of the base env.
        steps: Number of steps; rows that are done are reset in between.
        seed: Seed of the env and of random actions. ``None``: do not seed.
        policy: Selects the actions: a function of a TensorDict for an env of tdx, of an observation
            for other libraries. Defaults to random actions.
        each: Report each reset and step as a phase of its own.
        on_trace: Called with the trace of each reset and step.

    Returns:
        The values up to the last step, or up to the error if the env or a stage raised one.

    Raises:
        ArgumentError: ``steps`` is below 1, or ``env`` is neither an env nor a stack.
        TdxError: A stage does not accept the specs before it.

    Example:
        >>> from tdx import GymEnv, RewardClipping, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), RewardClipping(-1.0, 1.0))
        >>> report = inspect_values(env, steps=3, seed=0)
        >>> [stage.place for stage in report.phases[-1].stages if stage.values]
        ['policy', 'env', '0 RewardClipping']
        >>> report.violations
        ()
    """
    from tdx.core.tracing import TraceChecker
    from tdx.stacks import open_stack

    if steps < 1:
        raise ArgumentError(f"steps must be at least 1, got {steps}", hint="pass steps=1 or more")
    stack = open_stack(env)
    specs = stack.specs()
    collector = _ValueCollector(TraceChecker(stack), each=each)
    tracer = stack.tracer(policy)
    error: TdxError | None = None

    def add(trace: StepTrace) -> None:
        collector.add(trace)
        if on_trace is not None:
            on_trace(trace)

    with stack.seeded(seed):
        try:
            tracer.run(steps, on_step=add)
        except TdxError as raised:
            error = raised
            if tracer.last is not None and tracer.last.error is raised:
                collector.add(tracer.last)
    return ValuesReport(
        env=name or stack.name,
        batch_size=tuple(specs[-1].output_spec.shape),
        steps=tracer.steps,
        resets=tracer.resets,
        phases=collector.phases(),
        violations=collector.violations(),
        error=error,
    )


class ViolationCollector:
    """Collects the spec violations in the traces of a stack.

    Args:
        stack: The stack.
    """

    def __init__(self, stack: Stack) -> None:
        from tdx.core.tracing import TraceChecker

        self._collector = _ValueCollector(TraceChecker(stack), each=False)

    def add(self, trace: StepTrace) -> None:
        """Add the violations in a trace."""
        self._collector.add_violations(trace)

    def violations(self) -> tuple[ValueViolation, ...]:
        """Return every violation once."""
        return self._collector.violations()


@dataclass(slots=True)
class _StageCollector:
    """Values of one stage, while they are collected."""

    kind: Kind
    index: int | None
    name: str
    direction: Literal["forward", "inverse"]
    values: dict[NestedKey, RunningStats]
    dropped: dict[NestedKey, None]
    undeclared: dict[NestedKey, None]

    def result(self) -> StageValues:
        values = tuple(stats.result() for stats in self.values.values())
        dropped, undeclared = tuple(self.dropped), tuple(self.undeclared)
        return StageValues(
            self.kind, self.index, self.name, self.direction, values, dropped, undeclared
        )


@dataclass(slots=True)
class _PhaseCollector:
    phase: Phase
    first: int
    count: int
    stages: dict[tuple[str, int, str], _StageCollector]


class _ValueCollector:
    """Groups the values and violations of traces by phase and stage."""

    def __init__(self, promises: TraceChecker, *, each: bool) -> None:
        self._promises, self._per_step = promises, each
        self._phases: dict[tuple[str, int], _PhaseCollector] = {}
        self._violations: dict[tuple[object, ...], ValueViolation] = {}
        self._specs: dict[int, tuple[Any, LeafSpec]] = {}

    def add(self, trace: StepTrace) -> None:
        """Add the trace of a reset or step."""
        phase_id = (trace.phase, trace.index if self._per_step else 0)
        phase = self._phases.setdefault(phase_id, _PhaseCollector(trace.phase, trace.step, 0, {}))
        phase.count += 1
        for stage in trace.stages:
            self._add_stage(phase, stage, trace)
        for violation in self.add_violations(trace):
            key = violation.violation.key
            stats = (
                phase.stages[_stage_id(violation.by)].values.get(key) if key is not None else None
            )
            if stats is not None:
                stats.add_violation(violation.violation.code)

    def add_violations(self, trace: StepTrace) -> list[TracedViolation]:
        """Add the violations in a trace, and return them."""
        # A spec without bounds allows NaN, which is counted in the statistics.
        found = [each for each in self._promises.check(trace) if each.violation.code != "nan"]
        for each in found:
            self._add_violation(trace, each.by, each.violation)
        return found

    def _add_stage(self, phase: _PhaseCollector, stage: StageTrace, trace: StepTrace) -> None:
        stage_id = _stage_id(stage)
        draft = phase.stages.get(stage_id)
        if draft is None:
            draft = phase.stages[stage_id] = _StageCollector(
                stage.kind, _stage_index(stage), stage.name, stage.direction, {}, {}, {}
            )
        draft.dropped.update(dict.fromkeys(stage.dropped))
        draft.undeclared.update(dict.fromkeys(stage.undeclared))
        declared = self._promises.specs_for(stage, trace.tensordict) if stage.written else {}
        for key, version in stage.written.items():
            stats = draft.values.get(key)
            if stats is None:
                leaf = declared.get(key)
                spec = None if leaf is None else self._to_leaf_spec(stage, key, leaf)
                stats = draft.values[key] = RunningStats(key, version.name, leaf, spec)
            stats.add(version.value)

    def _add_violation(self, trace: StepTrace, by: StageTrace, finding: Any) -> None:
        violation_id = (by.kind, by.index, *finding.identity)
        violation = self._violations.get(violation_id)
        if violation is None:
            leaf = self._promises.specs_for(by, trace.tensordict).get(finding.key)
            violation = ValueViolation(
                phase=trace.phase,
                step=trace.step,
                count=0,
                kind=by.kind,
                index=_stage_index(by),
                name=by.name,
                key=finding.key,
                code=finding.code,
                message=finding.message,
                hint=finding.hint,
                spec=None if leaf is None else self._to_leaf_spec(by, finding.key, leaf),
            )
        self._violations[violation_id] = replace(violation, count=violation.count + 1)

    def _to_leaf_spec(self, stage: StageTrace, key: NestedKey, leaf: Any) -> LeafSpec:
        entry = self._specs.get(id(leaf))
        if entry is None:
            part: Any = self._promises.part_of(stage, key)
            # Keep the spec alive: its id could be reused otherwise.
            entry = self._specs[id(leaf)] = (leaf, leaf_spec(part, key, leaf))
        return entry[1]

    def phases(self) -> tuple[PhaseValues, ...]:
        """Return the values of each phase, in order of appearance."""
        return tuple(
            PhaseValues(
                draft.phase,
                draft.first,
                draft.count,
                tuple(stage.result() for stage in _sort_stages(draft)),
            )
            for draft in self._phases.values()
        )

    def violations(self) -> tuple[ValueViolation, ...]:
        """Return every violation once."""
        return tuple(self._violations.values())


def _stage_id(stage: StageTrace) -> tuple[str, int, str]:
    return stage.kind, stage.index, stage.direction


def _stage_index(stage: StageTrace) -> int | None:
    return stage.index if stage.kind == "stage" else None


def _sort_stages(phase: _PhaseCollector) -> list[_StageCollector]:
    """Put the inputs first, even if the first trace has none."""
    return sorted(phase.stages.values(), key=lambda stage: stage.kind != "given")


State = Mapping[int, Mapping[str, "Tensor"]]


def _to_list(value: Tensor) -> Any:
    return value.tolist()


@dataclass(frozen=True, slots=True)
class StateEntry(Result):
    """One tensor that a stage keeps.

    Args:
        stage: Index of the stage, from 0 for the innermost one.
        transform: Class name of the stage.
        name: Name of the tensor, such as ``obs_rms.mean``.
        value: Copy of the tensor.
        changed: True if the steps changed it; ``None`` if there were no steps.
    """

    json_entries: ClassVar[Entries] = (
        *("stage", "transform", "name", "shape", "dtype", "changed"),
        Entry("value", convert=_to_list, type=float | bool | list[Any]),
    )

    stage: int
    transform: str
    name: str
    value: Tensor = field(compare=False)
    changed: bool | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> str:
        """Name of its dtype."""
        return str(self.value.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class StateReport(Result):
    """State of the stages of a stack.

    Args:
        env: Name of the env.
        steps: Number of random steps before the state was read.
        entries: Tensors of all stages, innermost stage first.
    """

    env: str
    steps: int
    entries: tuple[StateEntry, ...]


def inspect_state(
    env: Any, name: str | None = None, *, steps: int = 0, seed: int | None = None
) -> StateReport:
    """Report the state of each stage, after a number of random steps.

    Args:
        env: Env of tdx or of another library, with its wrappers.
        name: Name in the report. Defaults to the name of the env before the chain.
        steps: Number of steps to make; with 0 the env is neither reset nor stepped.
        seed: Seed of the env and of the actions. ``None``: do not seed.

    Raises:
        ArgumentError: ``env`` is neither an env nor a stack.
        TdxError: The env or a stage raised.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.wrappers.NormalizeReward(gymnasium.make("Pendulum-v1"))
        >>> report = inspect_state(env, steps=3, seed=0)
        >>> [entry.name for entry in report.entries if entry.transform == "NormalizeReward"][:3]
        ['return_rms.mean', 'return_rms.var', 'return_rms.count']
    """
    stack = open_stack(env)
    before = stack.state()
    if steps:
        with stack.seeded(seed):
            stack.tracer().run(steps)
    entries = tuple(_entries(stack, before if steps else None, stack.state()))
    return StateReport(name or stack.name, steps, entries)


def _entries(stack: Stack, before: State | None, after: State) -> Iterator[StateEntry]:
    for stage in stack.stages:
        for name, value in after.get(stage.index, {}).items():
            changed = None
            if before is not None:
                old = before.get(stage.index, {}).get(name)
                changed = old is None or old.shape != value.shape or not old.equal(value)
            yield StateEntry(stage.index, stage.name, name, value, changed)
