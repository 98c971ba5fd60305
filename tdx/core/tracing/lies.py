"""What a trace holds against what the specs at each place promise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensordict import TensorDictBase

from tdx.core.envs import EnvBase
from tdx.core.envs.spec_findings import Phase, SpecFinding, leaf_findings, leaves_of
from tdx.core.stage_specs import StageSpecs, stage_specs
from tdx.core.tracing.traces import StageTrace, StepTrace, Versions
from tdx.errors import SpecError
from tdx.keys import NestedKey, format_key
from tdx.specs import Composite, NonTensor, TensorSpec

Leaves = dict[NestedKey, TensorSpec]


@dataclass(frozen=True, slots=True)
class Lie:
    """A value that is not what the spec at its place says.

    Args:
        by: who wrote it.
        finding: what is wrong.
    """

    by: StageTrace
    finding: SpecFinding


class Promises:
    """The specs at every place of an env's chain, to hold traces against.

    Args:
        env: the env, transformed or not.

    Raises:
        TdxError: a stage cannot take the specs before it.
    """

    def __init__(self, env: EnvBase) -> None:
        self._places = stage_specs(env)
        self._any_size = not env.batch_locked
        self._cache: dict[tuple[int, int, str], Leaves] = {}

    def of(self, stage: StageTrace, tensordict: TensorDictBase) -> Leaves:
        """What is declared of the keys that a stage may write, by key.

        Args:
            stage: the stage's trace; where a policy wrote, what the outermost stage takes.
            tensordict: of the whole step, ``[*B]``.
        """
        side = "input" if stage.direction == "inverse" else "output"
        return self._leaves(self._index(stage), side, tensordict)

    def _index(self, stage: StageTrace) -> int:
        """The place whose specs speak of what a stage writes."""
        if stage.kind in ("policy", "given", "kept"):
            return len(self._places) - 2
        return stage.index - 1 if stage.direction == "inverse" else stage.index

    def part_of(self, stage: StageTrace, key: NestedKey) -> str:
        """What a key that is declared at a stage's place is to the env: ``reward``, ``action``."""
        specs = self._places[self._index(stage) + 1]
        whole = specs.input_spec if stage.direction == "inverse" else specs.output_spec
        found = (name for name, part in whole.items() if key in part.keys(True, True))
        return next(found).removeprefix("full_").removesuffix("_spec")

    def lies(self, trace: StepTrace) -> list[Lie]:
        """Every value that a stage wrote or promised, and that is not what its spec says.

        Each lie is blamed on the first who shows it, and told once.
        """
        found: list[Lie] = []
        seen: set[object] = set()
        values: dict[NestedKey, object] = {}
        for stage in trace.stages:
            if stage.kind == "kept":
                continue
            if stage.direction == "forward":
                values.update({key: version.value for key, version in stage.written.items()})
                for key in stage.dropped:
                    values.pop(key, None)
            for finding in self._findings(stage, trace, values):
                if finding.identity not in seen:
                    seen.add(finding.identity)
                    found.append(Lie(stage, _placed(finding, stage)))
        return found

    def _findings(
        self, stage: StageTrace, trace: StepTrace, values: dict[NestedKey, object]
    ) -> Iterator[SpecFinding]:
        declared = self.of(stage, trace.tensordict)
        if stage.direction == "inverse":
            if stage.hook == "step":
                yield from _held(stage.written, declared, "way in")
            return
        phase: Phase = trace.phase
        yield from _held(stage.written, declared, phase)
        if trace.error is None or stage is not trace.stages[-1]:
            yield from self._missing(stage, trace, declared, values)
        known = declared.keys() | self._leaves(stage.index, "state", trace.tensordict).keys()
        for key in stage.written:
            if key not in known:
                hint = f"declare {format_key(key)!r}, or do not write it"
                message = f"it is written in a {phase}, but no spec declares it"
                yield SpecFinding("undeclared", key, phase, message, hint)

    def _missing(
        self,
        stage: StageTrace,
        trace: StepTrace,
        declared: Leaves,
        values: dict[NestedKey, object],
    ) -> Iterator[SpecFinding]:
        """What the stage's specs promise anew, held against what is there after it."""
        before = (
            {} if stage.kind == "env" else self._leaves(stage.index - 1, "output", trace.tensordict)
        )
        rewards = self._leaves(stage.index, "reward", trace.tensordict)
        for key, leaf in declared.items():
            if key in stage.written or (trace.phase == "reset" and key in rewards):
                continue
            if key in before and before[key] == leaf:
                continue
            if key not in values:
                message = f"the spec declares it, but it is not there after a {trace.phase}"
                hint = f"write {format_key(key)!r}, or take it out of the spec"
                yield SpecFinding("missing", key, trace.phase, message, hint)
            elif not isinstance(leaf, NonTensor):
                yield from leaf_findings(key, leaf, values[key], trace.phase)

    def _leaves(self, index: int, side: str, tensordict: TensorDictBase) -> Leaves:
        token = (index, tensordict.ndim, side)
        known = self._cache.get(token)
        if known is None:
            known = self._cache[token] = self._made(self._places[index + 1], side, tensordict)
        return known

    def _made(self, specs: StageSpecs, side: str, tensordict: TensorDictBase) -> Leaves:
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
                leaves |= leaves_of(part.expand(tensordict.batch_size) if larger else part)
            except SpecError:
                # Unlike envs in a batch may have no spec in common; then there is none to hold to.
                continue
        return leaves


def _held(written: Versions, declared: Leaves, phase: Phase) -> Iterator[SpecFinding]:
    for key, version in written.items():
        leaf = declared.get(key)
        if leaf is not None and not isinstance(leaf, NonTensor):
            yield from leaf_findings(key, leaf, version.value, phase)


def _placed(finding: SpecFinding, stage: StageTrace) -> SpecFinding:
    return finding.at_stage(stage.index, stage.name) if stage.kind == "stage" else finding
