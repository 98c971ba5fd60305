"""Checks the values of a trace against the specs after each stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tensordict import TensorDictBase

from tdx.core.chain import StageSpecs, stage_specs
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.spec_violations import Phase, SpecViolation, check_value, spec_leaves
from tdx.core.tracing.traces import StageTrace, StepTrace, Versions
from tdx.foundation.errors import SpecError
from tdx.foundation.keys import NestedKey, format_key, split_key
from tdx.specs import Composite, NonTensor, TensorSpec

Leaves = dict[NestedKey, TensorSpec]


class SpecSource(Protocol):
    """A stack, as :mod:`tdx.stacks` defines it."""

    @property
    def free_keys(self) -> tuple[str, ...]:
        """First parts of keys that need no spec."""
        ...

    @property
    def batch_locked(self) -> bool:
        """True if the env takes one batch size only."""
        ...

    def specs(self) -> Sequence[StageSpecs]:
        """Return the specs before the chain and those after each stage."""
        ...


@dataclass(frozen=True, slots=True)
class TracedViolation:
    """A value that violates the spec of the stage that wrote it.

    Args:
        by: The stage, env or policy that wrote it.
        violation: The violation.
    """

    by: StageTrace
    violation: SpecViolation


class TraceChecker:
    """Checks traces of an env against the specs after each stage of its chain.

    Args:
        env: The env, transformed or not, or a stack of another library.

    Raises:
        TdxError: A stage does not accept the specs before it.
    """

    def __init__(self, env: EnvBase | SpecSource) -> None:
        self._specs = stage_specs(env) if isinstance(env, EnvBase) else env.specs()
        self._any_size = not env.batch_locked
        self._free_keys = () if isinstance(env, EnvBase) else env.free_keys
        self._cache: dict[tuple[int, int, str], Leaves] = {}
        self._changed: dict[tuple[int, int], Leaves] = {}

    def specs_for(self, stage: StageTrace, tensordict: TensorDictBase) -> Leaves:
        """Return the declared specs of the keys that a stage may write.

        Args:
            stage: Trace of the stage; of a policy, for the input of the outermost stage.
            tensordict: TensorDict of the whole step, ``[*B]``.
        """
        side = "input" if stage.direction == "inverse" else "output"
        return self._leaves(self._index(stage), side, tensordict)

    def _index(self, stage: StageTrace) -> int:
        """Return the index of the stage whose specs describe what a stage writes."""
        if stage.kind in ("policy", "given", "kept"):
            return len(self._specs) - 2
        return stage.index - 1 if stage.direction == "inverse" else stage.index

    def part_of(self, stage: StageTrace, key: NestedKey) -> str:
        """Return the part of the specs that declares a key: ``reward``, ``action`` and so on."""
        specs = self._specs[self._index(stage) + 1]
        whole = specs.input_spec if stage.direction == "inverse" else specs.output_spec
        found = (name for name, part in whole.items() if key in part.keys(True, True))
        return next(found).removeprefix("full_").removesuffix("_spec")

    def check(self, trace: StepTrace) -> list[TracedViolation]:
        """Return the violations in a trace, each attributed to the first stage that shows it."""
        found: list[TracedViolation] = []
        reported: set[object] = set()
        values: dict[NestedKey, object] = {}
        dropped: dict[NestedKey, StageTrace] = {}
        for stage in trace.stages:
            if stage.kind == "kept":
                continue
            if stage.direction == "forward":
                values.update({key: version.value for key, version in stage.written.items()})
                for key in stage.dropped:
                    values.pop(key, None)
                    dropped[key] = stage
            for violation in self._violations(stage, trace, values):
                if violation.identity not in reported:
                    reported.add(violation.identity)
                    found.append(TracedViolation(stage, _with_stage(violation, stage)))
        lost = {key: stage for key, stage in dropped.items() if key not in values}
        for key, stage in lost.items() if trace.error is None else ():
            if key in self.specs_for(stage, trace.tensordict):
                violation = _missing_violation(key, trace.phase)
                if violation.identity not in reported:
                    found.append(TracedViolation(stage, _with_stage(violation, stage)))
        return found

    def _violations(
        self, stage: StageTrace, trace: StepTrace, values: dict[NestedKey, object]
    ) -> Iterator[SpecViolation]:
        declared = self.specs_for(stage, trace.tensordict)
        if stage.direction == "inverse":
            if stage.hook == "step":
                yield from _check_written(stage.written, declared, "inverse")
            return
        phase: Phase = trace.phase
        yield from _check_written(stage.written, declared, phase)
        if trace.error is None or stage is not trace.stages[-1]:
            yield from self._missing(stage, trace, declared, values)
        known = declared.keys() | self._leaves(stage.index, "state", trace.tensordict).keys()
        for key in stage.written:
            if key not in known and split_key(key)[0] not in self._free_keys:
                hint = f"declare {format_key(key)!r}, or do not write it"
                message = f"it is written in a {phase}, but no spec declares it"
                yield SpecViolation("undeclared", key, phase, message, hint)

    def _missing(
        self,
        stage: StageTrace,
        trace: StepTrace,
        declared: Leaves,
        values: dict[NestedKey, object],
    ) -> Iterator[SpecViolation]:
        """Check the keys that the stage's specs change and that it did not write."""
        rewards = self._leaves(stage.index, "reward", trace.tensordict)
        for key, leaf in self._changed_leaves(stage, declared, trace.tensordict).items():
            if key in stage.written or (trace.phase == "reset" and key in rewards):
                continue
            if key not in values:
                yield _missing_violation(key, trace.phase)
            elif not isinstance(leaf, NonTensor):
                yield from check_value(key, leaf, values[key], trace.phase)

    def _changed_leaves(
        self, stage: StageTrace, declared: Leaves, tensordict: TensorDictBase
    ) -> Leaves:
        """Return the specs after a stage that differ from those before it."""
        if stage.kind == "env":
            return declared
        token = (stage.index, tensordict.ndim)
        known = self._changed.get(token)
        if known is None:
            before = self._leaves(stage.index - 1, "output", tensordict)
            known = self._changed[token] = {
                key: leaf
                for key, leaf in declared.items()
                if key not in before or before[key] != leaf
            }
        return known

    def _leaves(self, index: int, side: str, tensordict: TensorDictBase) -> Leaves:
        token = (index, tensordict.ndim, side)
        known = self._cache.get(token)
        if known is None:
            known = self._cache[token] = self._build_leaves(
                self._specs[index + 1], side, tensordict
            )
        return known

    def _build_leaves(self, specs: StageSpecs, side: str, tensordict: TensorDictBase) -> Leaves:
        parts: list[Composite]
        if side in ("state", "reward"):
            whole = specs.input_spec if side == "state" else specs.output_spec
            parts = [whole[f"full_{side}_spec"]]
        else:
            whole = specs.input_spec if side == "input" else specs.output_spec
            parts = [part for _, part in whole.items()]
        leaves: Leaves = {}
        for part in parts:
            ahead = tensordict.ndim - part.ndim
            larger = self._any_size and ahead > 0 and tensordict.batch_size[ahead:] == part.shape
            try:
                leaves |= spec_leaves(part.expand(tensordict.batch_size) if larger else part)
            except SpecError:
                # Different envs in a batch may have no spec in common.
                continue
        return leaves


def _missing_violation(key: NestedKey, phase: Phase) -> SpecViolation:
    message = f"the spec declares it, but it is missing after a {phase}"
    hint = f"write {format_key(key)!r}, or remove it from the spec"
    return SpecViolation("missing", key, phase, message, hint)


def _check_written(written: Versions, declared: Leaves, phase: Phase) -> Iterator[SpecViolation]:
    for key, version in written.items():
        leaf = declared.get(key)
        if leaf is not None and not isinstance(leaf, NonTensor):
            yield from check_value(key, leaf, version.value, phase)


def _with_stage(violation: SpecViolation, stage: StageTrace) -> SpecViolation:
    return violation.at_stage(stage.index, stage.name) if stage.kind == "stage" else violation
