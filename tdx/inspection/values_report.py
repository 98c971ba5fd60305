"""What each stage of a chain really wrote, held against what its specs promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tdx.errors import ArgumentError, TdxError
from tdx.inspection.leaf import LeafSpec, leaf_spec
from tdx.inspection.stage_values import Kind, Phase, PhaseValues, StageValues, ValueLie
from tdx.inspection.value_stats import RunningStats
from tdx.keys import NestedKey

if TYPE_CHECKING:
    from tdx.core import StageTrace, StepTrace
    from tdx.core.envs.services import Policy
    from tdx.core.tracing import TraceChecker
    from tdx.envs import EnvBase


@dataclass(frozen=True, slots=True)
class ValuesReport:
    """The values of a few steps of an env with its chain.

    Args:
        env: name of the env.
        batch_size: of the env, after the chain.
        steps: how many steps were made.
        resets: how many resets, partial ones included.
        phases: what was written in each phase.
        lies: every promise that was not kept, the first liar first.
        error: what was raised in the middle; none where all went well.
    """

    env: str
    batch_size: tuple[int, ...]
    steps: int
    resets: int
    phases: tuple[PhaseValues, ...]
    lies: tuple[ValueLie, ...]
    error: TdxError | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "env": self.env,
            "batch_size": list(self.batch_size),
            "steps": self.steps,
            "resets": self.resets,
            "phases": [phase.to_dict() for phase in self.phases],
            "lies": [lie.to_dict() for lie in self.lies],
            "error": None if self.error is None else self.error.to_dict(),
        }


def inspect_values(
    env: EnvBase,
    name: str | None = None,
    *,
    steps: int = 1,
    seed: int | None = None,
    policy: Policy | None = None,
    each: bool = False,
) -> ValuesReport:
    """Reset and step an env, and look at all that its stages write.

    Args:
        env: the env, transformed or not; it is reset and stepped.
        name: what to call it; by default the class of the innermost env.
        steps: how many steps to make; rows that are done are reset in between.
        seed: for the env and for the random actions; none leaves the env's as it is.
        policy: gives the actions; random by default.
        each: whether each reset and step is a phase of its own, instead of all together.

    Returns:
        what was seen. Where the env or a stage raised, that is what was seen until then, with
        the error.

    Raises:
        ArgumentError: ``steps`` is below 1.
        TdxError: a stage cannot take the specs before it.

    Example:
        >>> from tdx import GymEnv, RewardClipping, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), RewardClipping(-1.0, 1.0))
        >>> report = inspect_values(env, steps=3, seed=0)
        >>> [stage.place for stage in report.phases[-1].stages if stage.values]
        ['policy', 'env', '0 RewardClipping']
        >>> report.lies
        ()
    """
    from tdx.core import Tracer
    from tdx.core.tracing import TraceChecker
    from tdx.inspection.spec_report import innermost

    if steps < 1:
        raise ArgumentError(f"steps must be at least 1, got {steps}", hint="make at least one step")
    gathered = _Gathered(TraceChecker(env), each=each)
    tracer = Tracer(env, policy)
    error: TdxError | None = None
    with _seeded(env, seed):
        try:
            tracer.run(steps, on_step=gathered.add)
        except TdxError as raised:
            error = raised
            if tracer.last is not None and tracer.last.error is raised:
                gathered.add(tracer.last)
    return ValuesReport(
        env=name or type(innermost(env)).__name__,
        batch_size=tuple(env.batch_size),
        steps=tracer.steps,
        resets=tracer.resets,
        phases=gathered.phases(),
        lies=gathered.lies(),
        error=error,
    )


@contextmanager
def _seeded(env: EnvBase, seed: int | None) -> Iterator[None]:
    import torch

    devices = [env.device] if env.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        if seed is not None:
            torch.manual_seed(seed)
            env.set_seed(seed)
        yield


@dataclass(slots=True)
class _Draft:
    """One stage while its values are gathered."""

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
class _PhaseDraft:
    phase: Phase
    first: int
    count: int
    stages: dict[tuple[str, int, str], _Draft]


class _Gathered:
    """Gathers traces into phases and lies."""

    def __init__(self, promises: TraceChecker, *, each: bool) -> None:
        self._promises, self._each = promises, each
        self._phases: dict[tuple[str, int], _PhaseDraft] = {}
        self._lies: dict[tuple[object, ...], ValueLie] = {}
        self._specs: dict[int, tuple[Any, LeafSpec]] = {}

    def add(self, trace: StepTrace) -> None:
        """Look at one more reset or step."""
        token = (trace.phase, trace.index if self._each else 0)
        draft = self._phases.setdefault(token, _PhaseDraft(trace.phase, trace.step, 0, {}))
        draft.count += 1
        for stage in trace.stages:
            self._add_stage(draft, stage, trace)
        for lie in self._promises.check(trace):
            # A spec without bounds allows nan; it is counted beside the other numbers.
            if lie.violation.code == "nan":
                continue
            self._blame(trace, lie.by, lie.violation)
            key = lie.violation.key
            stats = draft.stages[_token(lie.by)].values.get(key) if key is not None else None
            if stats is not None:
                stats.blame(lie.violation.code)

    def _add_stage(self, phase: _PhaseDraft, stage: StageTrace, trace: StepTrace) -> None:
        token = _token(stage)
        draft = phase.stages.get(token)
        if draft is None:
            draft = phase.stages[token] = _Draft(
                stage.kind, _index(stage), stage.name, stage.direction, {}, {}, {}
            )
        draft.dropped.update(dict.fromkeys(stage.dropped))
        draft.undeclared.update(dict.fromkeys(stage.undeclared))
        declared = self._promises.specs_for(stage, trace.tensordict) if stage.written else {}
        for key, version in stage.written.items():
            stats = draft.values.get(key)
            if stats is None:
                leaf = declared.get(key)
                spec = None if leaf is None else self._plain(stage, key, leaf)
                stats = draft.values[key] = RunningStats(key, version.name, leaf, spec)
            stats.add(version.value)

    def _blame(self, trace: StepTrace, by: StageTrace, finding: Any) -> None:
        token = (by.kind, by.index, *finding.identity)
        known = self._lies.get(token)
        if known is None:
            leaf = self._promises.specs_for(by, trace.tensordict).get(finding.key)
            known = ValueLie(
                phase=trace.phase,
                step=trace.step,
                count=0,
                kind=by.kind,
                index=_index(by),
                name=by.name,
                key=finding.key,
                code=finding.code,
                message=finding.message,
                hint=finding.hint,
                spec=None if leaf is None else self._plain(by, finding.key, leaf),
            )
        self._lies[token] = replace(known, count=known.count + 1)

    def _plain(self, stage: StageTrace, key: NestedKey, leaf: Any) -> LeafSpec:
        known = self._specs.get(id(leaf))
        if known is None:
            part: Any = self._promises.part_of(stage, key)
            # The spec is held as well: an id is free for another object once its own is gone.
            known = self._specs[id(leaf)] = (leaf, leaf_spec(part, key, leaf))
        return known[1]

    def phases(self) -> tuple[PhaseValues, ...]:
        """What was gathered, in the order in which it began."""
        return tuple(
            PhaseValues(
                draft.phase,
                draft.first,
                draft.count,
                tuple(stage.result() for stage in _in_order(draft)),
            )
            for draft in self._phases.values()
        )

    def lies(self) -> tuple[ValueLie, ...]:
        """Every lie once."""
        return tuple(self._lies.values())


def _token(stage: StageTrace) -> tuple[str, int, str]:
    return stage.kind, stage.index, stage.direction


def _index(stage: StageTrace) -> int | None:
    return stage.index if stage.kind == "stage" else None


def _in_order(phase: _PhaseDraft) -> list[_Draft]:
    """What is given comes first, also where it was not given the first time."""
    return sorted(phase.stages.values(), key=lambda draft: draft.kind != "given")
