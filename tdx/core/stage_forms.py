"""How each stage of a chain can run: over a chunk, on the dict of one step, or by its hooks.

A new TensorDict per stage, with checked reads and writes, costs more than the arithmetic of most
transforms. If an env returns its step as a dict, the leading stages that have a function over
dicts run on it, and one TensorDict is made at the end. Each stage is defined by its transform
alone; hooks that a subclass overrides are called as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakSet

from tensordict import TensorDictBase

from tdx.core.capabilities import implements_together, owner
from tdx.core.envs.failures import note_stage, stage_failure
from tdx.core.meter import base_parts, meter_of
from tdx.core.transforms import Compose, Transform
from tdx.core.transforms.callable_transform import CallableTransform
from tdx.core.transforms.kernels import ChunkKernel, DictStep
from tdx.errors import TdxError, Where
from tdx.keys import NestedKey
from tdx.tensordicts import TensorDictFactory, make_tensordict_factory

_HOOKS = ("_step", "_call", "_reset", "_reset_env_preprocess")

not_pointwise: WeakSet[Transform] = WeakSet()
"""Stages that claimed to be pointwise and were found not to be."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of a chain, and the ways in which it can run.

    Args:
        index: Position in the chain, from 0; nested chains and nested envs continue the count.
        stage: The transform.
        chunk_form: Runs it over a chunk. ``None``: it has to see the steps one by one.
        step_form: Runs it on the dict of one step. ``None``: it needs a TensorDict.
        reads: Entries of a step's output that it reads. ``None``: any.
        writes: Entries that it writes. ``None``: any.
        sees_input: True if it may read any entry of a step's input.
    """

    index: int
    stage: Transform
    chunk_form: ChunkKernel | None
    step_form: DictStep | None
    reads: tuple[NestedKey, ...] | None
    writes: tuple[NestedKey, ...] | None
    sees_input: bool = False

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
        return () if self.chunk_form is None else self.chunk_form.root

    @property
    def drops(self) -> tuple[NestedKey, ...]:
        """Entries that it removes."""
        return () if self.chunk_form is None else self.chunk_form.drops


def plan_stage(index: int, stage: Transform) -> PlannedStage:
    """Find out in which ways a stage can run."""
    kind: type = type(stage)
    step_form = stage._step_dict() if has_step_dict(kind) else None
    chunk_form = (
        stage._chunk_kernel() if implements_together(kind, "_chunk_kernel", _HOOKS) else None
    )
    if (
        chunk_form is not None
        and not chunk_form.scan
        and not implements_together(kind, "time_behaviour", ("_apply_transform",))
    ):
        # The inherited time behaviour says nothing about an overridden map.
        chunk_form = None
    if stage in not_pointwise:
        chunk_form = None
    if chunk_form is not None:
        reads, writes = chunk_form.reads, chunk_form.writes
        return PlannedStage(index, stage, chunk_form, step_form, reads, writes)
    if not any(_overrides(kind, hook) for hook in _HOOKS):
        reads, writes = tuple(stage.in_keys), tuple(stage.out_keys)
        return PlannedStage(index, stage, None, step_form, reads, writes)
    return PlannedStage(index, stage, None, None, None, None, _may_see_input(kind))


@cache
def has_step_dict(kind: type) -> bool:
    """Return True if no subclass overrides a hook that the function over dicts stands for."""
    return implements_together(kind, "_step_dict", ("_step", "_call"))


def step_form_inplace(planned: PlannedStage) -> DictStep | None:
    """Return the function over dicts for a loop that alone holds the entries of its dicts."""
    kind: type = type(planned.stage)
    if planned.step_form is not None and implements_together(
        kind, "_step_dict_inplace", ("_step_dict",)
    ):
        return planned.stage._step_dict_inplace()
    return planned.step_form


@cache
def _overrides(kind: type, hook: str) -> bool:
    return owner(kind, hook) is not Transform


@cache
def _may_see_input(kind: type) -> bool:
    """Return True if a hook of its own gets the input of a step or a reset."""
    if kind is CallableTransform:
        return False
    return any(_overrides(kind, hook) for hook in _HOOKS if hook != "_call")


def with_stage(error: Exception, planned: PlannedStage) -> TdxError:
    """Return the error with the stage that raised it."""
    if isinstance(error, TdxError):
        return error.at(stage=planned.index, transform=planned.name)
    return stage_failure(error, Where(stage=planned.index, transform=planned.name))


FieldsOf = Callable[[TensorDictBase], tuple[dict[str, Any], Any]]


class StepProgram:
    """One eager step of an env and its chain, on plain dicts as far as possible.

    Args:
        fields_of: Step of the env: from a TensorDict to a dict of root entries, and the info.
        on_dicts: The leading stages with their functions over dicts.
        rest: The remaining stages.
        make: Makes a TensorDict of the env's batch size and device.
        chain: The chain, which names a stage that raises.
    """

    __slots__ = ("_chain", "_fields_of", "_make", "_on_dicts", "_rest")

    def __init__(
        self,
        fields_of: FieldsOf,
        on_dicts: tuple[tuple[Transform, DictStep], ...],
        rest: tuple[Transform, ...],
        make: TensorDictFactory,
        chain: Transform,
    ) -> None:
        self._fields_of, self._on_dicts, self._rest = fields_of, on_dicts, rest
        self._make, self._chain = make, chain

    def step(self, tensordict: Any, preset: dict[str, Any] | None) -> TensorDictBase:
        """Step the env and run the chain.

        Args:
            tensordict: Input of the env, ``[*B]``: a plain TensorDict.
            preset: Existing entries of ``next``. The chain sees those that the env does not
                write.

        Returns:
            Output of the step, ``[*B]``.
        """
        fields, _ = self._fields_of(tensordict)
        if preset is not None:
            fields = {**preset, **fields}
        entries = tensordict._tensordict
        stage: Transform
        try:
            for stage, step in self._on_dicts:  # noqa: B007 - the handler names it
                step(entries, fields)
            following: TensorDictBase = self._make(fields)
            for stage in self._rest:
                following = stage._step(tensordict, following)
        except Exception as error:
            if isinstance(self._chain, Compose):
                raise self._chain._located(error, stage, "a step") from error.__cause__
            note_only_stage(error, stage)
            raise
        return following


def note_only_stage(error: Exception, stage: Transform) -> None:
    """Record in an error that the only stage of a chain raised it."""
    name = type(stage).__name__
    container = None if stage._container_ref is None else stage._container_ref()
    index: int = getattr(container, "_first_stage", 0)
    if isinstance(error, TdxError):
        error.at(stage=index, transform=name)
    else:
        note_stage(error, index, name)


def compile_steps(env: Any, chain: Transform, stages: tuple[Transform, ...]) -> StepProgram | None:
    """Return the step program of a chain around an env, or ``None`` if it would gain nothing.

    Args:
        env: The env inside; ``_step_fields`` is its step over dicts, if it has one.
        chain: The chain.
        stages: Its stages in order.
    """
    fields_of: FieldsOf | None = env._step_fields
    if fields_of is None or chain._changes_batch:
        return None
    on_dicts: list[tuple[Transform, DictStep]] = []
    for stage in stages:
        kind: type = type(stage)
        step = stage._step_dict() if has_step_dict(kind) else None
        if step is None:
            break
        on_dicts.append((stage, step))
    meter = meter_of(env)
    if meter is not None:
        fields_of = meter.timed(base_parts(env)[0], fields_of)
        timed = meter.in_turn([step for _, step in on_dicts])
        on_dicts = [(stage, step) for (stage, _), step in zip(on_dicts, timed, strict=True)]
    make = make_tensordict_factory(env.batch_size, env.device)
    return StepProgram(fields_of, tuple(on_dicts), stages[len(on_dicts) :], make, chain)
