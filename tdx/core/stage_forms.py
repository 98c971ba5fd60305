"""How each stage of a chain can run: over a chunk, on the dict of one step, or by its hooks.

Each stage is defined by its transform alone; hooks that a subclass overrides are called as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from weakref import WeakSet

from tdx.core.capabilities import implements_together, owner
from tdx.core.envs.failures import stage_failure
from tdx.core.transforms import Transform
from tdx.core.transforms.callable_transform import CallableTransform
from tdx.core.transforms.chunk import ChunkKernel
from tdx.core.transforms.pointwise import DictStep
from tdx.errors import TdxError, Where
from tdx.keys import NestedKey

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
