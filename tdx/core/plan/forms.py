"""How each stage of a chain can run: over many steps, over one step's dict, or by its hooks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from weakref import WeakSet

from tdx.core.envs import EnvBase
from tdx.core.row_program import row_step_holds
from tdx.core.transformed_env import TransformedEnv
from tdx.core.transforms import Compose, Transform
from tdx.core.transforms.chunk import ChunkKernel
from tdx.core.transforms.pointwise import DictStep
from tdx.keys import NestedKey

_OWN_HOOKS = ("_step", "_call", "_reset", "_reset_env_preprocess")
_MAPS = ("_apply_transform",)

not_pointwise: WeakSet[Transform] = WeakSet()
"""Stages that were found to map a block of steps to something else than its steps."""


@dataclass(frozen=True, slots=True)
class StageForm:
    """A stage of a chain, and the ways in which it can run.

    Args:
        index: its place, from 0, with nested chains and nested envs run on.
        stage: the transform.
        form: over many steps; ``None`` if it must see them one by one.
        row: over a step's dict; ``None`` if it needs a TensorDict.
        reads: the entries of a step's output that it reads; ``None`` for any.
        writes: the entries that it writes; ``None`` for any.
        sees_input: whether it may read any entry of a step's input.
    """

    index: int
    stage: Transform
    form: ChunkKernel | None
    row: DictStep | None
    reads: tuple[NestedKey, ...] | None
    writes: tuple[NestedKey, ...] | None
    sees_input: bool = False

    @property
    def name(self) -> str:
        """The transform's class name."""
        return type(self.stage).__name__

    @property
    def is_opaque(self) -> bool:
        """Whether it may read and write any entry of a step's output."""
        return self.writes is None

    @property
    def root(self) -> tuple[NestedKey, ...]:
        """The entries of a step's input that it reads."""
        return () if self.form is None else self.form.root

    @property
    def drops(self) -> tuple[NestedKey, ...]:
        """The entries that it takes away."""
        return () if self.form is None else self.form.drops


def flattened(env: EnvBase) -> tuple[EnvBase, tuple[Transform, ...]]:
    """The env before all chains, and the stages of all of them from the inside out."""
    stages: tuple[Transform, ...] = ()
    while isinstance(env, TransformedEnv):
        stages = (*_each(env.stages), *stages)
        env = env.base_env
    return env, stages


def _each(stages: tuple[Transform, ...]) -> tuple[Transform, ...]:
    found: list[Transform] = []
    for stage in stages:
        found.extend(_each(tuple(stage)) if type(stage) is Compose else (stage,))
    return tuple(found)


def stage_form(index: int, stage: Transform) -> StageForm:
    """The ways in which a stage can run."""
    kind: type = type(stage)
    row = stage._step_dict() if row_step_holds(kind) else None
    form = stage._chunk_kernel() if defines(kind, "_chunk_kernel", _OWN_HOOKS) else None
    if form is not None and not form.scan and not defines(kind, "time_behaviour", _MAPS):
        form = None  # What it inherits says nothing of a map of its own.
    if stage in not_pointwise:
        form = None
    if form is not None:
        return StageForm(index, stage, form, row, form.reads, form.writes)
    if not any(_overrides(kind, hook) for hook in _OWN_HOOKS):
        return StageForm(index, stage, None, row, tuple(stage.in_keys), tuple(stage.out_keys))
    return StageForm(index, stage, None, None, None, None, _may_see_input(kind))


def step_reads(env: TransformedEnv) -> tuple[NestedKey, ...] | None:
    """What a step of the env reads beside actions; ``None`` if that is not known."""
    base, stages = flattened(env)
    known = base._step_reads
    if known is None or type(env) is not TransformedEnv:
        return None
    reads = dict.fromkeys(known)
    for index, stage in enumerate(stages):
        form = stage_form(index, stage)
        if form.sees_input or (stage.invertible and set(stage.in_keys_inv) - set(base.action_keys)):
            return None
        reads.update(dict.fromkeys(form.root))
    return tuple(reads)


def _owner(kind: type, hook: str) -> type:
    return next(base for base in kind.__mro__ if hook in base.__dict__)


@cache
def defines(kind: type, form: str, hooks: tuple[str, ...]) -> bool:
    """Whether no subclass has implemented anew what the form stands for."""
    return all(issubclass(_owner(kind, form), _owner(kind, hook)) for hook in hooks)


@cache
def _overrides(kind: type, hook: str) -> bool:
    return _owner(kind, hook) is not Transform


@cache
def _may_see_input(kind: type) -> bool:
    """Whether a hook of its own gets a step's or a reset's input."""
    from tdx.core.transforms.callable_transform import CallableTransform

    if kind is CallableTransform:
        return False
    return any(_overrides(kind, hook) for hook in _OWN_HOOKS if hook != "_call")
