"""Report the values that each stage writes, with its spec violations, and the state it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tdx.compare.statistics import is_changed
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, TdxError, did_you_mean
from tdx.foundation.keys import NestedKey, format_key
from tdx.foundation.serialization import Entries, Entry, Result
from tdx.inspection.value_stats import (
    NumberSummary,
    Phase,
    PhaseValues,
    RunningStats,
    StageValues,
    ValueViolation,
    count_outside,
)
from tdx.specs.leaf import LeafSpec, leaf_spec
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.core import StageTrace, StepTrace
    from tdx.core.tracing import TraceChecker, TracedViolation
    from tdx.core.tracing.passages import PassageId
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

    env: str
    batch_size: tuple[int, ...]
    steps: int
    resets: int
    phases: tuple[PhaseValues, ...]
    violations: tuple[ValueViolation, ...]
    error: TdxError | None = None

    def only(self, key: str) -> ValuesReport:
        """Return the report restricted to one key."""
        known: dict[str, None] = {}
        phases: list[PhaseValues] = []
        for phase in self.phases:
            stages: list[StageValues] = []
            for stage in phase.stages:
                known |= dict.fromkeys(format_key(value.key) for value in stage.values)
                known |= dict.fromkeys(map(format_key, stage.dropped))
                kept = replace(
                    stage,
                    values=tuple(v for v in stage.values if format_key(v.key) == key),
                    dropped=tuple(name for name in stage.dropped if format_key(name) == key),
                    undeclared=tuple(name for name in stage.undeclared if format_key(name) == key),
                )
                if kept.values or kept.dropped:
                    stages.append(kept)
            if stages:
                phases.append(replace(phase, stages=tuple(stages)))
        # The stage that writes it may come after the one that raised.
        if key not in known and self.error is None:
            hint = did_you_mean(key, list(known), otherwise=f"the keys are {', '.join(known)}")
            raise KeyNotFoundError(f"unknown key {key!r}: no stage wrote it", hint=hint)
        violations = tuple(
            violation
            for violation in self.violations
            if violation.key is None or format_key(violation.key) == key
        )
        return replace(self, phases=tuple(phases), violations=violations)


def inspect_values(
    env: object,
    name: str | None = None,
    *,
    steps: int = 1,
    seed: int | None = None,
    policy: Any = None,
    each: bool = False,
    on_trace: OnTrace | None = None,
) -> ValuesReport:
    """Reset and step an env, and record all values that its stages write.

    ``each`` reports each reset and step as a phase of its own. If the env or a stage raises, the
    report has the values so far and the error.

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


class _StageCollector:
    """Values after one stage of a phase, while they are collected.

    A key that the stage has not written may be written in a later step, and its statistics cover
    the steps before: those of all keys are collected.
    """

    def __init__(self, stage: StageTrace) -> None:
        self.stage = stage
        self.is_traced = False
        self.stats: dict[NestedKey, RunningStats] = {}
        self.written: dict[NestedKey, LeafSpec | None] = {}
        self.dropped: dict[NestedKey, None] = {}
        self.undeclared: dict[NestedKey, None] = {}

    @property
    def order(self) -> tuple[int, int]:
        """Position in the order of execution, which no single trace need show."""
        kind, index = self.stage.kind, self.stage.index
        if kind == "stage" and self.stage.direction == "inverse":
            return 2, -index
        return ("given", "policy", "inverse", "env", "stage", "kept").index(kind), index

    def result(self, numbers: dict[tuple[str, NestedKey], int]) -> StageValues:
        """Return the values of the keys that the stage wrote, and update their version numbers."""
        stage, values = self.stage, []
        for key, spec in self.written.items():
            lane = stage.direction, key
            is_stage = stage.kind in ("stage", "kept")
            number = numbers.get(lane)
            if number is None:
                number = int(stage.kind == "stage")
            elif is_stage:
                number += 1
            numbers[lane] = number
            version = f"{format_key(key)}@{number}"
            values.append(self.stats[key].result(version, spec, is_stage=is_stage))
        return StageValues(
            kind=stage.kind,
            index=_stage_index(stage),
            name=stage.name,
            direction=stage.direction,
            values=tuple(values),
            dropped=tuple(self.dropped),
            undeclared=tuple(self.undeclared),
        )


@dataclass(slots=True)
class _PhaseCollector:
    phase: Phase
    first: int
    count: int
    stages: dict[PassageId, _StageCollector]


class ViolationCollector:
    """Collects the spec violations in the traces of a stack, each once."""

    def __init__(self, promises: TraceChecker) -> None:
        self._promises = promises
        self._violations: dict[tuple[object, ...], ValueViolation] = {}
        self._specs: dict[int, tuple[Any, LeafSpec]] = {}

    def add_violations(self, trace: StepTrace) -> list[TracedViolation]:
        """Add the violations in a trace, and return them."""
        violations = self._promises.check(trace)
        for traced in violations:
            by, finding = traced.by, traced.violation
            violation_id = (by.kind, by.index, *finding.identity)
            violation = self._violations.get(violation_id)
            if violation is None:
                declared: Mapping[Any, Any] = self._promises.specs_for(by, trace.tensordict)
                leaf = declared.get(finding.key)
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
        return violations

    def _to_leaf_spec(self, stage: StageTrace, key: Any, leaf: Any) -> LeafSpec:
        entry = self._specs.get(id(leaf))
        if entry is None:
            part: Any = self._promises.part_of(stage, key)
            # Keep the spec alive: its id could be reused otherwise.
            entry = self._specs[id(leaf)] = (leaf, leaf_spec(part, key, leaf))
        return entry[1]

    def violations(self) -> tuple[ValueViolation, ...]:
        """Return every violation once."""
        return tuple(self._violations.values())


class _ValueCollector(ViolationCollector):
    """Groups the values and violations of traces by phase and stage."""

    def __init__(self, promises: TraceChecker, *, each: bool) -> None:
        super().__init__(promises)
        self._per_step = each
        self._phases: dict[tuple[str, int], _PhaseCollector] = {}
        self._leaves: dict[NestedKey, list[Any]] = {}

    def add(self, trace: StepTrace) -> None:
        """Add the trace of a reset or step."""
        from tdx.core.tracing import list_passages

        phase_id = (trace.phase, trace.index if self._per_step else 0)
        phase = self._phases.setdefault(phase_id, _PhaseCollector(trace.phase, trace.step, 0, {}))
        phase.count += 1
        reader = _TraceNumbers()
        for passage in list_passages(trace):
            draft = phase.stages.get(passage.identity)
            if draft is None:
                draft = phase.stages[passage.identity] = _StageCollector(passage.stage)
            declared = self._promises.specs_for(passage.stage, trace.tensordict)
            for key, version in passage.entries.items():
                stats = draft.stats.get(key)
                if stats is None:
                    stats = draft.stats[key] = RunningStats(
                        key, self._shared(declared.get(key), key)
                    )
                numbers = reader.numbers(version.value)
                outside = reader.outside(version.value, stats.leaf)
                stats.add(numbers, outside, is_changed=key in passage.changed)
        for stage in trace.stages:
            draft = phase.stages[stage.kind, stage.index, stage.direction]
            draft.is_traced = True
            draft.dropped.update(dict.fromkeys(stage.dropped))
            draft.undeclared.update(dict.fromkeys(stage.undeclared))
            declared = self._promises.specs_for(stage, trace.tensordict) if stage.written else {}
            for key in stage.written:
                if key not in draft.written:
                    leaf = declared.get(key)
                    spec = None if leaf is None else self._to_leaf_spec(stage, key, leaf)
                    draft.written[key] = spec
        for violation in self.add_violations(trace):
            broken, by = violation.violation.key, violation.by
            draft = phase.stages[by.kind, by.index, by.direction]
            if broken is not None and broken in draft.stats:
                draft.stats[broken].violations[violation.violation.code] = None

    def _shared(self, leaf: Any, key: NestedKey) -> Any:
        """Return one object for equal specs, so that a value is compared with it once."""
        if leaf is None:
            return None
        known = self._leaves.setdefault(key, [])
        equal = next((other for other in known if other == leaf), None)
        if equal is None:
            known.append(leaf)
        return leaf if equal is None else equal

    def phases(self) -> tuple[PhaseValues, ...]:
        """Return the values of each phase, in order of appearance."""
        phases = []
        for draft in self._phases.values():
            numbers: dict[tuple[str, NestedKey], int] = {}
            ordered = sorted(draft.stages.values(), key=lambda stage: stage.order)
            stages = tuple(stage.result(numbers) for stage in ordered if stage.is_traced)
            phases.append(PhaseValues(draft.phase, draft.first, draft.count, stages))
        return tuple(phases)


class _TraceNumbers:
    """Statistics of the values of one trace, each of which may pass many stages."""

    def __init__(self) -> None:
        self._numbers: dict[int, NumberSummary] = {}
        self._outside: dict[tuple[int, int], int | None] = {}

    def numbers(self, value: Any) -> NumberSummary:
        known = self._numbers.get(id(value))
        if known is None:
            known = self._numbers[id(value)] = NumberSummary(value)
        return known

    def outside(self, value: Any, leaf: Any) -> int | None:
        if leaf is None:
            return None
        token = id(value), id(leaf)
        if token not in self._outside:
            self._outside[token] = count_outside(leaf, value)
        return self._outside[token]


def _stage_index(stage: StageTrace) -> int | None:
    return stage.index if stage.kind == "stage" else None


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
        Entry("value", convert=lambda value: value.tolist(), type=float | bool | list[Any]),
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
    env: object, name: str | None = None, *, steps: int = 0, seed: int | None = None
) -> StateReport:
    """Report the state of each stage, after a number of random steps.

    With 0 steps, the env is neither reset nor stepped.

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
    after = stack.state()
    entries = []
    for stage in stack.stages:
        for entry, value in after.get(stage.index, {}).items():
            old = before.get(stage.index, {}).get(entry)
            changed = is_changed(old, value) if steps else None
            entries.append(StateEntry(stage.index, stage.name, entry, value, changed))
    return StateReport(name or stack.name, steps, tuple(entries))
