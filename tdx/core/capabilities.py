"""What classes declare about themselves, and the forms in which a stage can run.

A stage runs over a chunk, on the dict of one step, or by its hooks. Each stage is defined by its
transform alone; hooks that a subclass overrides are called as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakSet

from tdx.core.envs.failures import stage_failure
from tdx.core.transforms import Transform
from tdx.core.transforms.callable_transform import CallableTransform
from tdx.core.transforms.kernels import ChunkKernel, DictStep
from tdx.errors import TdxError, Where
from tdx.keys import NestedKey

_NO_CODE = {"__dict__", "__weakref__", "__annotate__", "__annotate_func__", "_abc_impl"}


def declares(kind: type, capability: str) -> bool:
    """Return True if a class declares a capability and no subclass has added code since.

    A declaration holds for the class that makes it and for subclasses without methods of their
    own. A subclass that overrides or adds a method has to declare the capability again, so it is
    never inherited by code that nobody checked.

    Args:
        kind: Class of the object.
        capability: Name of the class attribute that declares it.

    Example:
        >>> class Base:
        ...     is_checked = True
        ...     def run(self): ...
        >>> class Renamed(Base):
        ...     name = "renamed"
        >>> class Changed(Base):
        ...     def run(self): ...
        >>> [declares(each, "is_checked") for each in (Base, Renamed, Changed)]
        [True, True, False]
    """
    return _declares(kind, capability)


@cache
def _declares(kind: Any, capability: str) -> bool:
    for base in kind.__mro__:
        members = vars(base)
        if capability in members:
            return members[capability] is True
        if any(_is_code(name, value) for name, value in members.items()):
            return False
    return False


def _is_code(name: str, value: object) -> bool:
    return name not in _NO_CODE and (callable(value) or hasattr(type(value), "__get__"))


def implements_together(kind: type, form: str, hooks: tuple[str, ...]) -> bool:
    """Return True if no subclass overrides a hook below the class that implements a form of it.

    A faster form of a hook is valid as long as it and the hook come from the same class, or the
    form from a subclass.

    Args:
        kind: Class of the transform.
        form: Name of the method that implements the faster form.
        hooks: Names of the methods that it stands for.
    """
    return all(issubclass(owner(kind, form), owner(kind, hook)) for hook in hooks)


def owner(kind: type, name: str) -> type:
    """Return the class in the MRO that defines an attribute."""
    return next(base for base in kind.__mro__ if name in vars(base))


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
        and not implements_together(kind, "time_behavior", ("_apply_transform",))
    ):
        # The inherited time behavior says nothing about an overridden map.
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
