"""Stages of a chain whose output violates their specs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.chain import ChainSpecs, chain_stages, flatten_chain, stage_specs
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.failures import env_errors
from tdx.core.envs.spec_violations import (
    Phase,
    SpecViolation,
    check_batch_size,
    check_entries,
    entry_keys,
    spec_identity,
    spec_leaves,
    unique_violations,
)
from tdx.core.tracing.places import is_plain
from tdx.core.transforms import Compose, Transform
from tdx.foundation.errors import ChainError, TdxError, Where, get_first_line
from tdx.foundation.keys import NestedKey, split_key
from tdx.foundation.tensordicts import logged_reads, new_tensordict, read
from tdx.specs import Composite, TensorSpec


def find_stage_violations(
    env: EnvBase, check_dtype: bool, tensordict: TensorDictBase | None, steps: int
) -> list[SpecViolation]:
    """Run a chain stage by stage and check the output of each stage against its specs.

    A violation is attributed to the first stage whose data shows it, not to the stages after it
    that pass it on. Violations of the env before the chain have no stage.

    Args:
        env: The env with its chain; it is reset and stepped.
        check_dtype: If True, compare dtypes.
        tensordict: Argument of the reset, ``[*B]``. ``None``: no argument.
        steps: Number of steps to check.

    Raises:
        EnvError: The env before the chain raised in a reset or a step.
        ChainError: A transform raised in a reset or a step.
    """
    if not isinstance(env._specs, ChainSpecs):
        return []
    base, _ = flatten_chain(env)
    nested = base._find_stage_violations(check_dtype, None, steps)
    walk = _Walk(env, check_dtype, () if tensordict is None else entry_keys(tensordict))
    reset_input = None if tensordict is None else tensordict.clone(recurse=False)
    current = walk.reset(env, reset_input)
    if reset_input is not None:
        current = reset_input.update(current)
    for step in range(steps):
        with env_errors(env, "step", step):
            current = env.rand_action(current)
            current.set("next", walk.step(env, current))
        with env_errors(env, "reset", step + 1):
            current = env.maybe_reset(env.step_mdp(current))
    return unique_violations([*map(_with_inner_location, nested), *walk.violations])


def _with_inner_location(violation: SpecViolation) -> SpecViolation:
    """Move the stage of a chain inside a batch of envs from the location to the message."""
    location = f": stage {violation.stage} ({violation.transform}): "
    message = violation.message.replace(": ", location, 1)
    return replace(violation, message=message, stage=None, transform=None)


@dataclass(frozen=True, slots=True)
class _Declared:
    """What a place declares for the output of a reset or a step.

    Args:
        leaves: Leaf specs by key, ``[*B, ...]``.
        identities: A number for each leaf that equal leaves share; ``None`` for one of a kind.
        allowed: Keys that may exist.
        shape: Batch size, ``[*B]``.
    """

    leaves: dict[NestedKey, TensorSpec]
    identities: dict[NestedKey, int | None]
    allowed: set[NestedKey]
    shape: torch.Size


class _Walk:
    """Runs a chain and collects violations; nested transformed envs from the inside out.

    An env whose class overrides how a chain is run is called as a whole.

    A *place* is an index into the result of :func:`stage_specs`: 0 is the env before the chain,
    ``i + 1`` is stage ``i``.
    """

    def __init__(self, env: EnvBase, check_dtype: bool, passed: Collection[NestedKey]) -> None:
        self.places = stage_specs(env)
        self.check_dtype = check_dtype
        self.passed = set(passed)
        self.any_size = not env.batch_locked
        self.violations: list[SpecViolation] = []
        self._reported: set[object] = set()
        self._checked: dict[NestedKey, tuple[Tensor, tuple[int, int]]] = {}
        self._declared: dict[tuple[int, bool, torch.Size], _Declared] = {}
        self._numbers: dict[object, int] = {}
        self._number_of: dict[int, int | None] = {}

    def reset(self, env: EnvBase, reset_input: TensorDictBase | None) -> TensorDictBase:
        """Reset the env and check the output of every stage; return the result, ``[*B]``."""
        specs = env._specs
        if not isinstance(specs, ChainSpecs) or not is_plain(env):
            with env_errors(env, "reset"):
                result = env._completed_reset(reset_input)
            self._check(len(chain_stages(env)), result, "reset")
            return result
        passed = (
            new_tensordict({}, env.batch_size, env.device) if reset_input is None else reset_input
        )
        inner = specs.chain._reset_env_preprocess(passed.clone(recurse=False))
        is_trivial = inner.is_empty() and inner.batch_size == specs.inner.batch_size
        result = self.reset(specs.inner, None if reset_input is None and is_trivial else inner)
        first, chain = len(chain_stages(specs.inner)) + 1, specs.chain
        views = chain._stage_inputs(passed) if isinstance(chain, Compose) else [passed]
        for place, stage in enumerate(specs.stages, first):
            with _stage_errors(place, stage, "a reset"):
                result = stage._reset(views[place - first], result)
            self._check(place, result, "reset")
        return result

    def step(self, env: EnvBase, tensordict: TensorDictBase) -> TensorDictBase:
        """Step the env and check the output of every stage; return the result, ``[*B]``."""
        specs = env._specs
        if not isinstance(specs, ChainSpecs) or not is_plain(env):
            with env_errors(env, "step"):
                result = env._completed_step(tensordict)
            self._check(len(chain_stages(env)), result, "step")
            return result
        first, inner = len(chain_stages(specs.inner)) + 1, tensordict.clone(recurse=False)
        for place, stage in reversed(list(enumerate(specs.stages, first))):
            if stage.invertible:
                known = {each.identity for each in self._inverse_violations(place, inner)}
                with _stage_errors(place, stage, "the inverse"):
                    inner = stage._inv_call(inner)
                self._add(place, self._inverse_violations(place - 1, inner), known)
        result = self.step(specs.inner, inner)
        for place, stage in enumerate(specs.stages, first):
            with _stage_errors(place, stage, "a step"):
                with logged_reads(inner) if stage._needs_declared_input else nullcontext() as keys:
                    result = stage._step(inner, result)
                inner = stage._to_outer_batch(inner)
            self._check(place, result, "step")
            if keys:
                # The others were written by an inverse of this step.
                given = [key for key in keys if read(inner, key) is read(tensordict, key)]
                self._check_input(place, given)
        return result

    def _check(self, place: int, result: TensorDictBase, phase: Phase) -> None:
        declared = self._declared_at(place, result, phase)
        changed = self._changed(result, declared)
        allowed, check_dtype = declared.allowed, self.check_dtype
        violations = [
            *check_batch_size(result, declared.shape, phase),
            *check_entries(result, changed, phase, check_dtype=check_dtype, allowed=allowed),
        ]
        self._add(place, violations)

    def _declared_at(self, place: int, result: TensorDictBase, phase: Phase) -> _Declared:
        """Return what a place declares, which is the same in each step."""
        at = place, phase == "step", result.batch_size
        known = self._declared.get(at)
        if known is not None:
            return known
        specs = self.places[place]
        output_spec = self._expanded(specs.output_spec, result)
        leaves: dict[NestedKey, TensorSpec] = {}
        for part, spec in output_spec.items():
            if part != "full_reward_spec" or phase == "step":
                leaves |= spec_leaves(spec)
        allowed = self.passed.union(spec_leaves(specs.input_spec["full_state_spec"]), leaves)
        identities = {key: self._number(leaf) for key, leaf in leaves.items()}
        found = self._declared[at] = _Declared(leaves, identities, allowed, output_spec.shape)
        return found

    def _number(self, leaf: TensorSpec) -> int | None:
        """Return the number that a leaf shares with equal ones, while they live."""
        known = self._number_of.get(id(leaf), -1)
        if known != -1:
            return known
        try:
            identity = spec_identity(leaf)
        except RuntimeError:  # specs of unlike agents, which have no common shape
            identity = None
        number = None
        if identity is not None:
            number = self._numbers.setdefault(identity, len(self._numbers))
        self._number_of[id(leaf)] = number
        return number

    def _changed(self, result: TensorDictBase, declared: _Declared) -> dict[NestedKey, TensorSpec]:
        """Return the leaves whose value no earlier place had under an equal spec."""
        changed, checked, identities = {}, self._checked, declared.identities
        for key, leaf in declared.leaves.items():
            identity, known = identities[key], checked.get(key)
            try:
                value = read(result, key)
            except RuntimeError:  # entries of unlike agents, which have no common shape
                value = None
            if identity is None or not isinstance(value, Tensor) or value.is_inference():
                changed[key] = leaf
                continue
            now = value._version, identity
            if known is None or known[0] is not value or known[1] != now:
                changed[key] = leaf
                checked[key] = value, now
        return changed

    def _check_input(self, place: int, keys: Collection[NestedKey]) -> None:
        """Check that a stage reads no entry of the previous step that is not declared as state."""
        specs = self.places[place]
        added = _leaf_keys(specs.output_spec) - _leaf_keys(self.places[place - 1].output_spec)
        inputs = {key for each in self.places for key in _leaf_keys(each.input_spec)}
        message = "a step reads it from the previous step, but it is not declared as state"
        hint = "add it to full_state_spec in transform_input_spec, so that batched envs pass it on"
        violations = [
            SpecViolation("carried", key, "step", message, hint)
            for key in sorted(added - inputs, key=split_key)
            if key in keys
        ]
        self._add(place, violations)

    def _inverse_violations(self, place: int, tensordict: TensorDictBase) -> list[SpecViolation]:
        declared: dict[NestedKey, TensorSpec] = {}
        for spec in self._expanded(self.places[place].input_spec, tensordict).values():
            declared |= spec_leaves(spec)
        return list(
            check_entries(
                tensordict, declared, "inverse", check_dtype=self.check_dtype, allowed=None
            )
        )

    def _expanded(self, spec: Composite, tensordict: TensorDictBase) -> Composite:
        """Expand a spec to the input of an env that is not batch-locked, ``[*A, *B]``."""
        ahead = tensordict.ndim - spec.ndim
        if not self.any_size or ahead < 1 or tensordict.batch_size[ahead:] != spec.shape:
            return spec
        return spec.expand(tensordict.batch_size)

    def _add(
        self, place: int, violations: list[SpecViolation], known: Collection[object] = ()
    ) -> None:
        """Keep the violations that no earlier place has shown, attributed to this one."""
        specs = self.places[place]
        for violation in violations:
            if violation.identity not in self._reported and violation.identity not in known:
                self._reported.add(violation.identity)
                located = violation if place == 0 else violation.at_stage(specs.index, specs.name)
                self.violations.append(located)


def _leaf_keys(spec: Composite) -> set[NestedKey]:
    return {key for part in spec.values() for key in spec_leaves(part)}


@contextmanager
def _stage_errors(place: int, stage: Transform, phase: str) -> Iterator[None]:
    """Add the location of a stage to whatever it raises.

    Raises:
        ChainError: Something other than an error of tdx was raised.
    """
    index, name = place - 1, type(stage).__name__
    try:
        yield
    except TdxError as error:
        error.at(stage=index, transform=name)
        raise
    except Exception as error:
        raise ChainError(
            f"it raised {type(error).__name__} in {phase}: {get_first_line(error)}",
            where=Where(stage=index, transform=name),
            hint="correct the stage; --debug shows the traceback",
        ) from error
