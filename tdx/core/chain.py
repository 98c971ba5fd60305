"""A chain stage by stage: its order, the specs after each stage, and the forms of a stage.

A stage runs over a chunk, on the dict of one step, or by its hooks. Each stage is defined by its
transform alone; hooks that a subclass overrides are called as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Self
from weakref import WeakSet

import torch

from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.env_specs import EnvSpecs, spec_on
from tdx.core.transforms import Compose, Transform
from tdx.core.transforms.callable_transform import CallableTransform
from tdx.core.transforms.kernels import ChunkKernel, DictStep, implements_together, owner
from tdx.foundation.errors import ChainError
from tdx.foundation.keys import NestedKey
from tdx.specs import Composite, TensorSpec

# Specs


class ChainSpecs(EnvSpecs):
    """Specs, batch size and device of an env with a chain around it.

    They are computed from those of the env inside when they are read, without a step, and again
    after a change of the env inside or of the chain.
    """

    def __init__(self, inner: EnvBase, chain: Transform) -> None:
        self.inner, self.chain = inner, chain
        self._changes = 0
        self._known_version: float = -1
        self._placed_version: float = -1
        self.invalidate()
        self.placed()

    @property
    def stages(self) -> tuple[Transform, ...]:
        """Transforms in order."""
        chain = self.chain
        return tuple(chain) if isinstance(chain, Compose) else (chain,)

    @property
    def version(self) -> float:  # type: ignore[override]
        """Number that grows whenever a spec changes, here or in the env inside."""
        return self._changes + self.inner.env_specs.version

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

    @property
    def is_locked(self) -> bool:  # type: ignore[override]
        """True if the specs of the env inside cannot be changed in place."""
        return self.inner.env_specs.is_locked

    @property
    def lone_flag(self) -> NestedKey | None:  # type: ignore[override]
        """Key of the only done flag that the env inside was given."""
        return self.inner.env_specs.lone_flag

    def lock(self) -> None:
        """Lock the specs of the env inside."""
        self.inner.env_specs.lock()

    def unlock(self) -> None:
        """Unlock the specs of the env inside; those after the chain follow from them."""
        self.inner.env_specs.unlock()

    def invalidate(self) -> None:
        """Drop everything derived from the env inside and the chain."""
        self._changes += 1
        self._known_version = self._placed_version = self._stages_version = -1.0
        self._input_spec = self._output_spec = None
        self._cache: dict[str, Any] = {}
        self._stage_specs: list[StageSpecs] = []

    def placed(self) -> Self:
        """Update batch size and device if the env inside or the chain has changed."""
        version = self.inner.env_specs.version
        if version != self._placed_version:
            self.batch_size = self.chain.transform_env_batch_size(self.inner.batch_size)
            device = self.chain.transform_env_device(self.inner.device)
            self.device = None if device is None else torch.device(device)
            self.main_device = self.device or self.inner.main_device
            self._placed_version = version
        return self

    def compute(self) -> None:
        """Compute the specs if the env inside or the chain has changed."""
        inner = self.inner
        if self._output_spec is not None and inner.env_specs.version == self._known_version:
            return
        known = inner.input_spec, inner.output_spec
        self.placed()
        self.chain.follow_env_device(inner.device)
        input_spec, output_spec = self.chain.transform_specs(*known)
        self._input_spec = self._locked(input_spec)
        self._output_spec = self._locked(output_spec)
        self._cache = {}
        self._known_version = inner.env_specs.version

    def after_each_stage(self) -> list[StageSpecs]:
        """Return the specs before the chain and after each stage; see :func:`stage_specs`.

        They are computed again only if the env inside or the chain has changed.
        """
        if self._stage_specs and self.inner.env_specs.version == self._stages_version:
            return list(self._stage_specs)
        result = stage_specs(self.inner)
        for stage in self.stages:
            before = result[-1]
            try:
                after = stage.transform_specs(before.input_spec, before.output_spec)
            except Exception as error:
                if not isinstance(self.chain, Compose):
                    raise
                where = "the computation of its specs"
                raise self.chain.locate_error(error, stage, where) from None
            locked = [spec if spec.is_locked else spec.lock_() for spec in after]
            result.append(StageSpecs(before.index + 1, type(stage).__name__, stage, *locked))
        self._stage_specs, self._stages_version = result, self.inner.env_specs.version
        return list(result)

    def _locked(self, spec: Composite) -> Composite:
        if self.device is not None and spec.device != self.device:
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
    specs = env.env_specs
    return (*chain_stages(specs.inner), *specs.stages) if isinstance(specs, ChainSpecs) else ()


def flatten_chain(env: EnvBase) -> tuple[EnvBase, tuple[Transform, ...]]:
    """Return the env before all chains, and the stages of nested envs and nested ``Compose``."""
    stages: tuple[Transform, ...] = ()
    while isinstance(specs := env.env_specs, ChainSpecs):
        stages = (*flatten_stages(specs.stages), *stages)
        env = specs.inner
    return env, stages


def flatten_stages(stages: tuple[Transform, ...]) -> tuple[Transform, ...]:
    """Return the stages with those of nested ``Compose`` in their place."""
    flat: list[Transform] = []
    for stage in stages:
        flat.extend(flatten_stages(tuple(stage)) if type(stage) is Compose else (stage,))
    return tuple(flat)


def stage_modes(stages: tuple[Transform, ...]) -> tuple[Any, ...]:
    """Return the settings that may change how a stage runs without a change of the chain."""
    return tuple(
        (stage.training, getattr(stage, "_frozen", None), stage.missing_tolerance)
        for stage in stages
    )


def stage_specs(env: EnvBase) -> list[StageSpecs]:
    """Return the specs of the env before its chain, and those after each stage.

    Nested transformed envs are walked from the inside out; they continue the count of stages. The
    specs are locked.

    Raises:
        TdxError: A stage does not accept the specs before it; the error names the stage.

    Example:
        >>> from tdx import GymEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter())
        >>> [stage.name for stage in stage_specs(env)]
        ['GymEnv', 'StepCounter']
    """
    specs = env.env_specs
    if not isinstance(specs, ChainSpecs):
        return [StageSpecs(-1, type(env).__name__, None, env.input_spec, env.output_spec)]
    return specs.after_each_stage()


# Capabilities that a class declares

_NO_CODE = {"__dict__", "__weakref__", "__annotate__", "__annotate_func__", "_abc_impl"}


def declares(kind: type, capability: str) -> bool:
    """Return True if a class declares a capability and no subclass has added code since.

    A declaration holds for the class that makes it and for subclasses without methods of their own.
    A subclass that overrides or adds a method has to declare the capability again, so it is never
    inherited by code that nobody checked.

    Example:
        >>> class Base:
        ...     is_checked = True
        ...     def run(self): ...
        >>> class Renamed(Base):
        ...     name = "renamed"
        >>> class Changed(Base):
        ...     def run(self): ...
        >>> [declares(kind, "is_checked") for kind in (Base, Renamed, Changed)]
        [True, True, False]
    """
    return _declares(kind, capability)


@cache
def _declares(kind: Any, capability: str) -> bool:
    for base in kind.__mro__:
        members = vars(base)
        if capability in members:
            return members[capability] is True
        for name, value in members.items():
            if name not in _NO_CODE and (callable(value) or hasattr(type(value), "__get__")):
                return False
    return False


# Forms of a stage


_HOOKS = ("_step", "_call", "_reset", "_reset_env_preprocess")

not_pointwise: WeakSet[Transform] = WeakSet()
"""Stages that claimed to be pointwise and were found not to be."""


@dataclass(frozen=True, slots=True)
class StageForms:
    """A stage of a chain, and the forms in which it can run."""

    index: int  # from 0; nested chains and nested envs continue the count
    stage: Transform
    chunk_kernel: ChunkKernel | None  # None: the stage has to see the steps one by one
    dict_step: DictStep | None  # None: the stage needs a TensorDict
    reads: tuple[NestedKey, ...] | None  # entries of a step's output; None: any
    writes: tuple[NestedKey, ...] | None  # None: any
    sees_input: bool = False  # True if it may read any entry of a step's input

    @property
    def name(self) -> str:
        """Class name of the transform."""
        return type(self.stage).__name__

    @property
    def is_opaque(self) -> bool:
        """True if it may read and write any entry of a step's output."""
        return self.writes is None

    @property
    def root(self) -> tuple[NestedKey, ...]:
        """Entries of a step's input that it reads."""
        return () if self.chunk_kernel is None else self.chunk_kernel.root

    @property
    def drops(self) -> tuple[NestedKey, ...]:
        """Entries that it removes."""
        return () if self.chunk_kernel is None else self.chunk_kernel.drops


def stage_forms(index: int, stage: Transform) -> StageForms:
    """Return the forms in which a stage can run, and the entries that it accesses."""
    kind: type = type(stage)
    dict_step = dict_step_of(stage)
    chunk_kernel = (
        stage.make_chunk_kernel()
        if implements_together(kind, "make_chunk_kernel", _HOOKS)
        else None
    )
    if (
        chunk_kernel is not None
        and not chunk_kernel.scan
        and not implements_together(kind, "time_behavior", ("_apply_transform",))
    ):
        # The inherited time behavior says nothing about an overridden map.
        chunk_kernel = None
    if stage in not_pointwise:
        chunk_kernel = None
    if chunk_kernel is not None:
        reads, writes = chunk_kernel.reads, chunk_kernel.writes
        return StageForms(index, stage, chunk_kernel, dict_step, reads, writes)
    if not any(_overrides(kind, hook) for hook in _HOOKS):
        reads, writes = tuple(stage.in_keys), tuple(stage.out_keys)
        return StageForms(index, stage, None, dict_step, reads, writes)
    # `_call` gets the output of a step only.
    sees_input = kind is not CallableTransform and any(
        _overrides(kind, hook) for hook in _HOOKS if hook != "_call"
    )
    return StageForms(index, stage, None, None, None, None, sees_input)


def dict_step_of(stage: Transform) -> DictStep | None:
    """Return the step of a stage on plain dicts; ``None`` if it needs TensorDicts.

    A subclass that overrides a hook below the class that implements the step on dicts needs them.
    """
    kind: type = type(stage)
    implements = implements_together(kind, "make_dict_step", ("_step", "_call"))
    return stage.make_dict_step() if implements else None


@cache
def _overrides(kind: type, hook: str) -> bool:
    return owner(kind, hook) is not Transform
