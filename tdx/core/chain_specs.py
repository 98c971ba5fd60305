"""Specs after a chain and after each of its stages, and the stages that violate them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from tensordict import TensorDictBase

from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.env_specs import EnvSpecs, spec_on
from tdx.core.envs.failures import env_errors
from tdx.core.envs.spec_violations import (
    Phase,
    SpecViolation,
    check_batch_size,
    check_entries,
    entry_keys,
    spec_leaves,
    unique_violations,
)
from tdx.core.transforms import Compose, Transform
from tdx.errors import ChainError, TdxError, Where, get_first_line
from tdx.keys import NestedKey
from tdx.specs import Composite, TensorSpec
from tdx.tensordicts import new_tensordict


class ChainSpecs(EnvSpecs):
    """Specs, batch size and device of an env with a chain around it.

    They are computed from those of the env inside when they are read, without a step, and again
    after a change of the env inside or of the chain.

    Args:
        inner: The env inside.
        chain: The chain.
    """

    def __init__(self, inner: EnvBase, chain: Transform) -> None:
        self.inner, self.chain = inner, chain
        self._changes = 0
        self.invalidate()
        self.placed()

    @property
    def stages(self) -> tuple[Transform, ...]:
        """Transforms in order."""
        chain = self.chain
        return tuple(chain) if isinstance(chain, Compose) else (chain,)

    @property
    def version(self) -> int:  # type: ignore[override]
        """Number that grows whenever a spec changes, here or in the env inside."""
        return self._changes + self.inner._specs.version

    @property
    def cache(self) -> dict[str, Any]:  # type: ignore[override]
        """Results that are derived from the specs, by name."""
        self.compute()
        return self._cache

    @property
    def output_spec(self) -> Composite:
        """What the env returns after the chain; locked."""
        self.compute()
        assert self._output_spec is not None
        return self._output_spec

    @property
    def input_spec(self) -> Composite:
        """What the env takes before the chain; locked."""
        self.compute()
        assert self._input_spec is not None
        return self._input_spec

    def invalidate(self) -> None:
        """Drop everything derived from the env inside and the chain."""
        self._changes += 1
        self._known_version = self._placed_version = -1
        self._input_spec = self._output_spec = None
        self._cache: dict[str, Any] = {}

    def placed(self) -> Self:
        """Update batch size and device if the env inside or the chain has changed."""
        version = self.inner._specs.version
        if version != self._placed_version:
            self.batch_size = self.chain.transform_env_batch_size(self.inner.batch_size)
            self.device = torch.device(self.chain.transform_env_device(self.inner.device))
            self._placed_version = version
        return self

    def compute(self) -> None:
        """Compute the specs if the env inside or the chain has changed.

        Raises:
            TdxError: A stage does not accept the specs before it.
        """
        inner = self.inner
        if self._output_spec is not None and inner._specs.version == self._known_version:
            return
        known = inner.input_spec, inner.output_spec
        self.placed()
        self.chain._follow_device(inner.device)
        input_spec, output_spec = self.chain._transform_specs(*known)
        self._input_spec = self._locked(input_spec)
        self._output_spec = self._locked(output_spec)
        self._cache = {}
        self._known_version = inner._specs.version

    def _locked(self, spec: Composite) -> Composite:
        if spec.device != self.device:
            return spec_on(spec, self.device)
        return spec if spec.is_locked else spec.lock_()

    def set_part(self, name: str, value: TensorSpec) -> None:
        """Raise an error: the specs follow from the chain."""
        raise ChainError(
            f"cannot set {name} of a transformed env: it follows from the chain",
            hint=f"set it on the env inside: env.base_env.{name.removeprefix('full_')} = ...",
        )

    def set_batch_size(self, batch_size: torch.Size) -> None:
        """Raise an error: the batch size follows from the chain."""
        raise ChainError(
            "cannot set the batch size of a transformed env: it follows from the chain",
            hint="set it on the env inside: env.base_env.batch_size = ...",
        )


@dataclass(frozen=True, slots=True)
class StageSpecs:
    """Specs right after one stage.

    Args:
        index: Position of the stage in the chain, from 0; -1 for the env before the chain.
        name: Class name of the transform, or of the env for -1.
        transform: The transform; ``None`` for -1.
        input_spec: What the stage takes from the policy side.
        output_spec: What the stage returns to the policy side.
    """

    index: int
    name: str
    transform: Transform | None
    input_spec: Composite
    output_spec: Composite


def chain_stages(env: EnvBase) -> tuple[Transform, ...]:
    """Return the stages of an env's whole chain, those of nested transformed envs first.

    Example:
        >>> from tdx import GymEnv, RewardSum, StepCounter, TransformedEnv
        >>> inner = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
        >>> [type(stage).__name__ for stage in chain_stages(TransformedEnv(inner, RewardSum()))]
        ['StepCounter', 'RewardSum']
    """
    specs = env._specs
    return (*chain_stages(specs.inner), *specs.stages) if isinstance(specs, ChainSpecs) else ()


def flatten_chain(env: EnvBase) -> tuple[EnvBase, tuple[Transform, ...]]:
    """Return the env before all chains, and the stages of nested envs and nested ``Compose``."""
    stages: tuple[Transform, ...] = ()
    while isinstance(specs := env._specs, ChainSpecs):
        stages = (*flatten_stages(specs.stages), *stages)
        env = specs.inner
    return env, stages


def flatten_stages(stages: tuple[Transform, ...]) -> tuple[Transform, ...]:
    """Return the stages with those of nested ``Compose`` in their place."""
    found: list[Transform] = []
    for stage in stages:
        found.extend(flatten_stages(tuple(stage)) if type(stage) is Compose else (stage,))
    return tuple(found)


def stage_count(env: EnvBase) -> int:
    """Return the number of stages in an env's whole chain, with nested transformed envs."""
    return len(chain_stages(env))


def stage_specs(env: EnvBase) -> list[StageSpecs]:
    """Return the specs of the env before its chain, and those after each stage.

    Nested transformed envs are walked from the inside out; they continue the count of stages.

    Raises:
        TdxError: A stage does not accept the specs before it; the error names the stage.

    Example:
        >>> from tdx import GymEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
        >>> [stage.name for stage in stage_specs(env)]
        ['GymEnv', 'StepCounter']
    """
    specs = env._specs
    if not isinstance(specs, ChainSpecs):
        return [StageSpecs(-1, type(env).__name__, None, env.input_spec, env.output_spec)]
    result = stage_specs(specs.inner)
    compose = specs.chain if isinstance(specs.chain, Compose) else None
    for stage in specs.stages:
        before = result[-1]
        try:
            after = stage._transform_specs(before.input_spec, before.output_spec)
        except Exception as error:
            if compose is None:
                raise
            raise compose._located(error, stage, "the computation of its specs") from None
        result.append(StageSpecs(before.index + 1, type(stage).__name__, stage, *after))
    return result


def find_stage_violations(
    env: EnvBase, check_dtype: bool, tensordict: TensorDictBase | None, steps: int
) -> list[SpecViolation]:
    """Run a chain stage by stage and check the output of each stage against its specs.

    A violation is attributed to the first stage whose data shows it, not to the stages after it
    that pass it on. Violations of the env before the chain have no stage.

    Args:
        env: The env with its chain; it is reset and stepped.
        check_dtype: If True, compare dtypes.
        tensordict: Argument of the reset, ``[*B]``; none by default.
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


class _Walk:
    """Runs a chain and collects violations; nested transformed envs from the inside out.

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

    def reset(self, env: EnvBase, reset_input: TensorDictBase | None) -> TensorDictBase:
        """Reset the env and check the output of every stage; return the result, ``[*B]``."""
        specs = env._specs
        if not isinstance(specs, ChainSpecs):
            with env_errors(env, "reset"):
                result = env._completed_reset(reset_input)
            self._check(0, result, "reset")
            return result
        passed = (
            new_tensordict({}, env.batch_size, env.device) if reset_input is None else reset_input
        )
        inner = specs.chain._reset_env_preprocess(passed.clone(recurse=False))
        is_trivial = inner.is_empty() and inner.batch_size == specs.inner.batch_size
        result = self.reset(specs.inner, None if reset_input is None and is_trivial else inner)
        first, chain = stage_count(specs.inner) + 1, specs.chain
        views = chain._stage_inputs(passed) if isinstance(chain, Compose) else [passed]
        for place, stage in enumerate(specs.stages, first):
            with _stage_errors(place, stage, "a reset"):
                result = stage._reset(views[place - first], result)
            self._check(place, result, "reset")
        return result

    def step(self, env: EnvBase, tensordict: TensorDictBase) -> TensorDictBase:
        """Step the env and check the output of every stage; return the result, ``[*B]``."""
        specs = env._specs
        if not isinstance(specs, ChainSpecs):
            with env_errors(env, "step"):
                result = env._completed_step(tensordict)
            self._check(0, result, "step")
            return result
        first, inner = stage_count(specs.inner) + 1, tensordict.clone(recurse=False)
        for place, stage in reversed(list(enumerate(specs.stages, first))):
            if stage.invertible:
                known = {each.identity for each in self._inverse_violations(place, inner)}
                with _stage_errors(place, stage, "the inverse"):
                    inner = stage._inv_call(inner)
                self._add(place, self._inverse_violations(place - 1, inner), known)
        result = self.step(specs.inner, inner)
        for place, stage in enumerate(specs.stages, first):
            with _stage_errors(place, stage, "a step"):
                result = stage._step(inner, result)
                inner = stage._to_outer_batch(inner)
            self._check(place, result, "step")
        return result

    def _check(self, place: int, result: TensorDictBase, phase: Phase) -> None:
        specs = self.places[place]
        output_spec = self._expanded(specs.output_spec, result)
        declared: dict[NestedKey, TensorSpec] = {}
        for part, spec in output_spec.items():
            if part != "full_reward_spec" or phase == "step":
                declared |= spec_leaves(spec)
        allowed = self.passed.union(spec_leaves(specs.input_spec["full_state_spec"]))
        violations = [
            *check_batch_size(result, output_spec.shape, phase),
            *check_entries(result, declared, phase, check_dtype=self.check_dtype, allowed=allowed),
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
