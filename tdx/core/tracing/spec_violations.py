"""Checks what the stages of a chain write against the specs after each stage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Literal, Protocol

import torch
from tensordict import TensorDictBase

from tdx.core.chain import ChainSpecs, StageSpecs, flatten_chain, stage_specs
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import env_errors
from tdx.core.tracing.places import TracedChain
from tdx.core.tracing.traces import Direction, Hook, Place, StageTrace, StepTrace
from tdx.foundation.errors import ChainError, SpecError, TdxError, Where, get_first_line
from tdx.foundation.keys import NestedKey, split_key
from tdx.foundation.tensordicts import logged_reads, read
from tdx.foundation.torch_internals import in_place_count
from tdx.specs import Composite, TensorSpec
from tdx.specs.composite import all_leaves, spec_leaves
from tdx.specs.violations import (
    SpecViolation,
    check_batch_size,
    entry_keys,
    find_violations,
    get_entry,
    unique_violations,
)

TensorSpecs = dict[NestedKey, TensorSpec]
Side = Literal["input", "output", "state", "reward"]


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


class ChainLeaves:
    """Leaf specs after each stage of a chain, for data of any batch size that the env accepts.

    ``any_size``: the env is not batch-locked, so that leading dimensions may be added.
    """

    def __init__(self, specs: Sequence[StageSpecs], any_size: bool) -> None:
        self.specs = specs
        self._any_size = any_size
        self._leaves: dict[tuple[int, Side, torch.Size], TensorSpecs] = {}
        self._changed: dict[tuple[int, torch.Size], TensorSpecs] = {}

    def get(self, index: int, side: Side, batch_size: torch.Size) -> TensorSpecs:
        """Return the leaf specs ``[*B, ...]`` after a stage; -1: of the env before the chain."""
        known = self._leaves.get((index, side, batch_size))
        if known is not None:
            return known
        specs = self.specs[index + 1]
        whole = specs.input_spec if side in ("input", "state") else specs.output_spec
        parts = whole.values() if side in ("input", "output") else [whole[f"full_{side}_spec"]]
        leaves: TensorSpecs = {}
        for part in parts:
            try:
                leaves |= spec_leaves(self.expand(part, batch_size))
            except SpecError:
                # Different envs in a batch may have no spec in common.
                continue
        self._leaves[index, side, batch_size] = leaves
        return leaves

    def returned(self, index: int, hook: Hook, batch_size: torch.Size) -> TensorSpecs:
        """Return the leaves that a reset or a step returns after a stage: a reset has no reward."""
        rewards = self.get(index, "reward", batch_size) if hook == "reset" else ()
        declared = self.get(index, "output", batch_size)
        return {key: leaf for key, leaf in declared.items() if key not in rewards}

    def expand(self, spec: Composite, batch_size: torch.Size) -> Composite:
        """Return a spec for data with more leading dimensions, if the env accepts them."""
        ahead = len(batch_size) - spec.ndim
        larger = self._any_size and ahead > 0 and batch_size[ahead:] == spec.shape
        return spec.expand(batch_size) if larger else spec

    def changed(self, index: int, batch_size: torch.Size) -> TensorSpecs:
        """Return the leaves that a stage returns with a spec other than the one before it."""
        declared = self.get(index, "output", batch_size)
        if index < 0:
            return declared
        known = self._changed.get((index, batch_size))
        if known is None:
            before = self.get(index - 1, "output", batch_size)
            known = self._changed[index, batch_size] = {
                key: leaf
                for key, leaf in declared.items()
                if key not in before or not _is_equal(before[key], leaf)
            }
        return known


def _is_equal(one: TensorSpec, other: TensorSpec) -> bool:
    try:
        return one == other
    except RuntimeError:
        # Specs of different agents may have no common shape.
        return False


def _attribute(
    violations: Iterable[SpecViolation], index: int, name: str, reported: set[object]
) -> Iterator[SpecViolation]:
    """Yield the violations that no stage before has shown, attributed to a stage.

    ``index`` is -1 for what is no stage; ``reported`` are the identities of those before.
    """
    for violation in violations:
        if violation.identity not in reported:
            reported.add(violation.identity)
            yield violation if index < 0 else violation.at_stage(index, name)


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
        specs = stage_specs(env) if isinstance(env, EnvBase) else env.specs()
        self._leaves = ChainLeaves(specs, not env.batch_locked)
        self._free_keys = () if isinstance(env, EnvBase) else env.free_keys

    def specs_for(self, stage: StageTrace, tensordict: TensorDictBase) -> TensorSpecs:
        """Return the declared specs of the keys that a stage may write.

        Args:
            stage: Trace of the stage; of a policy, for the input of the outermost stage.
            tensordict: TensorDict of the whole step, ``[*B]``.
        """
        side: Side = "input" if stage.direction == "inverse" else "output"
        return self._leaves.get(self._index(stage), side, tensordict.batch_size)

    def _index(self, stage: StageTrace) -> int:
        """Return the index of the stage whose specs describe what a stage writes."""
        if stage.kind in ("policy", "given", "kept"):
            return len(self._leaves.specs) - 2
        return stage.index - 1 if stage.direction == "inverse" else stage.index

    def part_of(self, stage: StageTrace, key: NestedKey) -> str:
        """Return the part of the specs that declares a key: ``reward``, ``action`` and so on."""
        specs = self._leaves.specs[self._index(stage) + 1]
        whole = specs.input_spec if stage.direction == "inverse" else specs.output_spec
        parts = (name for name, part in whole.items() if key in part.keys(True, True))
        return next(parts).removeprefix("full_").removesuffix("_spec")

    def check(self, trace: StepTrace) -> list[TracedViolation]:
        """Return the violations in a trace, each attributed to the first stage that shows it.

        NaN is none where a spec without bounds allows it.
        """
        violations: list[TracedViolation] = []
        reported: set[object] = set()
        values: dict[NestedKey, object] = {}
        dropped: dict[NestedKey, StageTrace] = {}

        def add(stage: StageTrace, new: Iterator[SpecViolation]) -> None:
            index = stage.index if stage.kind == "stage" else -1
            certain = (violation for violation in new if violation.code != "nan")
            shown = _attribute(certain, index, stage.name, reported)
            violations.extend(TracedViolation(stage, violation) for violation in shown)

        for stage in trace.stages:
            if stage.kind == "kept":
                continue
            if stage.direction == "forward":
                values.update({key: version.value for key, version in stage.written.items()})
                for key in stage.dropped:
                    values.pop(key, None)
                    dropped[key] = stage
            add(stage, self._find(stage, trace, values))
        if trace.error is None:
            for key, stage in dropped.items():
                declared = self.specs_for(stage, trace.tensordict)
                if key not in values and key in declared:
                    add(stage, find_violations({}, {key: declared[key]}, trace.phase))
        return violations

    def _find(
        self, stage: StageTrace, trace: StepTrace, values: dict[NestedKey, object]
    ) -> Iterator[SpecViolation]:
        if stage.direction == "inverse" and stage.hook != "step":
            return iter(())
        declared = self.specs_for(stage, trace.tensordict)
        written = {key: version.value for key, version in stage.written.items()}
        expected = {key: declared[key] for key in written if key in declared}
        if stage.direction == "inverse":
            return find_violations(written, expected, "inverse", allowed=None)
        batch_size = trace.tensordict.batch_size
        if trace.error is None or stage is not trace.stages[-1]:
            # Specs that the stage changes hold for entries that it passes on, too.
            changed = self._leaves.changed(stage.index, batch_size)
            returned = self._leaves.returned(stage.index, trace.phase, batch_size)
            is_env = stage.kind == "env"
            expected |= {key: leaf for key, leaf in returned.items() if is_env or key in changed}
        state = self._leaves.get(stage.index, "state", batch_size)
        allowed = {
            key
            for key in written
            if key in declared or key in state or split_key(key)[0] in self._free_keys
        }
        entries = {key: values[key] for key in expected if key in values} | written
        return find_violations(entries, expected, trace.phase, allowed=allowed | expected.keys())


def find_stage_violations(
    env: EnvBase, check_dtype: bool, tensordict: TensorDictBase | None, steps: int
) -> list[SpecViolation]:
    """Run a chain stage by stage and check the output of each stage against its specs.

    A violation is attributed to the first stage whose data shows it, not to the stages after it
    that pass it on. Violations of the env before the chain have no stage.

    The env is reset and stepped, the reset with ``tensordict``, ``[*B]``.

    Raises:
        EnvError: The env before the chain raised in a reset or a step.
        ChainError: A transform raised in a reset or a step.
    """
    if not isinstance(env.env_specs, ChainSpecs):
        return []
    base, _ = flatten_chain(env)
    nested = base.find_stage_violations(check_dtype, None, steps)
    chain = TracedChain(env)
    chain.record = checker = _HookChecker(
        env, chain.inner, check_dtype, () if tensordict is None else entry_keys(tensordict)
    )
    chain.thread = get_ident()
    reset_input = None if tensordict is None else tensordict.clone(recurse=False)
    with chain.attached():
        with checker.checking("reset", None):
            current = env.completed_reset(reset_input)
        if reset_input is not None:
            current = reset_input.update(current)
        for step in range(steps):
            with env_errors(env, "step", step):
                current = env.rand_action(current)
                with checker.checking("step", current):
                    following = env.completed_step(current)
                current.set("next", following)
            with env_errors(env, "reset", step + 1):
                current = env.maybe_reset(env.step_mdp(current))
    violations = []
    for violation in nested:
        # The stage of a chain inside a batch of envs moves from the location to the message.
        location = f": stage {violation.stage} ({violation.transform}): "
        message = violation.message.replace(": ", location, 1)
        violations.append(replace(violation, message=message, stage=None, transform=None))
    return unique_violations([*violations, *checker.violations])


class _HookChecker:
    """Calls the hooks of a :class:`TracedChain` and collects the violations in what they return.

    ``inner`` is the env that is called as a whole; ``passed`` are the keys that a reset gets.
    """

    def __init__(
        self, env: EnvBase, inner: EnvBase, check_dtype: bool, passed: Collection[NestedKey]
    ) -> None:
        self.violations: list[SpecViolation] = []
        self.is_busy = True
        """True outside of what is checked, and inside a hook: other hooks run as they are."""
        self._leaves = ChainLeaves(stage_specs(env), not env.batch_locked)
        self._inner, self._check_dtype, self._passed = inner, check_dtype, set(passed)
        self._hook: Hook = "reset"
        self._given: TensorDictBase | None = None
        self._reported: set[object] = set()
        # Value, how often it was written in place, and spec of the last check of each key.
        self._checked: dict[NestedKey, tuple[object, int | None, TensorSpec]] = {}

    @contextmanager
    def checking(self, hook: Hook, given: TensorDictBase | None) -> Iterator[None]:
        """Check a reset or a step in a block, with the input of the step."""
        self._hook, self._given = hook, given
        self.is_busy = False
        try:
            yield
        finally:
            self.is_busy = True

    def settle(self, place: Place, direction: Direction, result: object) -> None:
        """Ignore entries that no hook wrote."""

    def call(
        self,
        place: Place,
        direction: Direction,
        function: Callable[..., TensorDictBase],
        *arguments: TensorDictBase,
    ) -> TensorDictBase:
        """Call a hook, check what it returns, and return it."""
        self.is_busy, stage = True, place.stage
        try:
            if stage is None:
                with env_errors(self._inner, self._hook):
                    result = function(*arguments)
                self._check(place.index, result)
            elif direction == "inverse" and self._hook == "reset":
                with _stage_errors(place, "a reset"):
                    result = function(*arguments)
            elif direction == "inverse":
                before = {
                    violation.identity
                    for violation in self._inverse_violations(place.index, arguments[0])
                }
                with _stage_errors(place, "the inverse"):
                    result = function(*arguments)
                violations = self._inverse_violations(place.index - 1, result)
                new = [violation for violation in violations if violation.identity not in before]
                self._add(place.index, new)
            else:
                log: AbstractContextManager[set[NestedKey] | None] = nullcontext()
                if self._hook == "step" and stage.needs_declared_input:
                    log = logged_reads(arguments[0])
                with _stage_errors(place, f"a {self._hook}"), log as keys:
                    result = function(*arguments)
                self._check(place.index, result)
                if keys:
                    self._check_input(place.index, arguments[0], keys)
            return result
        finally:
            self.is_busy = False

    def _check(self, index: int, result: TensorDictBase) -> None:
        hook, size = self._hook, result.batch_size
        declared = self._leaves.returned(index, hook, size)
        allowed = self._passed.union(self._leaves.get(index, "state", size), declared)
        # A value that an earlier stage had under an equal spec is not checked again.
        expected = {}
        for key, leaf in declared.items():
            value = get_entry(result, key)
            count = in_place_count(value)
            known = self._checked.get(key)
            if (
                count is None
                or known is None
                or known[0] is not value
                or known[1] != count
                or not (known[2] is leaf or _is_equal(known[2], leaf))
            ):
                expected[key] = leaf
                self._checked[key] = value, count, leaf
        shape = self._leaves.expand(self._leaves.specs[index + 1].output_spec, size).shape
        violations = find_violations(
            result, expected, hook, check_dtype=self._check_dtype, allowed=allowed
        )
        self._add(index, [*check_batch_size(result, shape, hook), *violations])

    def _check_input(
        self, index: int, tensordict: TensorDictBase, keys: Collection[NestedKey]
    ) -> None:
        """Check that a stage reads no entry of the previous step that is not declared as state."""
        specs, given = self._leaves.specs, self._given
        assert given is not None
        after, before = specs[index + 1], specs[index]
        added = all_leaves(after.output_spec).keys() - all_leaves(before.output_spec).keys()
        inputs = {key for stage in specs for key in all_leaves(stage.input_spec)}
        message = "a step reads it from the previous step, but it is not declared as state"
        hint = "add it to full_state_spec in transform_input_spec, so that batched envs pass it on"
        violations = [
            SpecViolation("carried", key, "step", message, hint)
            for key in sorted(added - inputs, key=split_key)
            # Others were written by an inverse of this step.
            if key in keys and read(tensordict, key) is read(given, key)
        ]
        self._add(index, violations)

    def _inverse_violations(
        self, index: int, tensordict: TensorDictBase
    ) -> Iterator[SpecViolation]:
        declared = self._leaves.get(index, "input", tensordict.batch_size)
        return find_violations(
            tensordict, declared, "inverse", check_dtype=self._check_dtype, allowed=None
        )

    def _add(self, index: int, violations: Iterable[SpecViolation]) -> None:
        name = self._leaves.specs[index + 1].name
        self.violations += _attribute(violations, index, name, self._reported)


@contextmanager
def _stage_errors(place: Place, phase: str) -> Iterator[None]:
    """Add the location of a stage to whatever it raises."""
    try:
        yield
    except TdxError as error:
        error.at(stage=place.index, transform=place.name)
        raise
    except Exception as error:
        raise ChainError(
            f"it raised {type(error).__name__} in {phase}: {get_first_line(error)}",
            where=Where(stage=place.index, transform=place.name),
            hint="correct the stage; --debug shows the traceback",
        ) from error
