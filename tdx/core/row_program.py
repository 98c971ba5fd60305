"""The step loop of a chain around one env, on plain dicts of tensors.

A TensorDict a stage, its checked reads and its writes cost more than the arithmetic of most
transforms. Where the env hands out its step as a dict, the leading stages that offer a function
over dicts run on it, and one TensorDict is made at the end. What each stage does is defined in
its transform alone; hooks that a subclass overrides are called as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tensordict import TensorDictBase

from tdx.core.envs.failures import from_stage
from tdx.core.meter import base_parts, meter_of
from tdx.core.transforms import Compose, Transform
from tdx.core.transforms.pointwise import DictStep
from tdx.errors import TdxError
from tdx.tensordicts import Maker, tensordict_maker

FieldsOf = Callable[[TensorDictBase], tuple[dict[str, Any], Any]]


class RowProgram:
    """The stages that run on dicts, and those after them that need TensorDicts.

    Args:
        fields_of: the env's step, as a dict of root entries, and its info.
        rows: the leading stages with their functions over dicts.
        rest: the stages after those.
        make: makes a TensorDict of the env's batch size and device.
        chain: the chain, for naming a stage that raises.
    """

    __slots__ = ("_chain", "_fields_of", "_make", "_rest", "_rows")

    def __init__(
        self,
        fields_of: FieldsOf,
        rows: tuple[tuple[Transform, DictStep], ...],
        rest: tuple[Transform, ...],
        make: Maker,
        chain: Transform,
    ) -> None:
        self._fields_of, self._rows, self._rest = fields_of, rows, rest
        self._make, self._chain = make, chain

    def step(self, tensordict: Any, preset: dict[str, Any] | None) -> TensorDictBase:
        """One step of the env and the chain.

        Args:
            tensordict: what goes into the env, ``[*B]``: a plain TensorDict.
            preset: what its ``next`` holds already; the chain sees what the env does not write.

        Returns:
            the step's output, ``[*B]``.
        """
        fields, _ = self._fields_of(tensordict)
        if preset is not None:
            fields = {**preset, **fields}
        entries = tensordict._tensordict
        stage: Transform
        try:
            for stage, step in self._rows:  # noqa: B007 - the handler names it
                step(entries, fields)
            following: TensorDictBase = self._make(fields)
            for stage in self._rest:
                following = stage._step(tensordict, following)
        except Exception as error:
            if isinstance(self._chain, Compose):
                raise self._chain._located(error, stage, "a step") from error.__cause__
            blame_only_stage(error, stage)
            raise
        return following


def blame_only_stage(error: Exception, stage: Transform) -> None:
    """Say in an error that it comes from a chain's only stage."""
    name = type(stage).__name__
    owner = None if stage._container_ref is None else stage._container_ref()
    index: int = getattr(owner, "_first_stage", 0)
    if isinstance(error, TdxError):
        error.at(stage=index, transform=name)
    else:
        from_stage(error, index, name)


def compile_rows(env: Any, chain: Transform, stages: tuple[Transform, ...]) -> RowProgram | None:
    """The program for a chain around an env, or ``None`` where it would gain nothing.

    Args:
        env: the env inside; its ``_step_fields`` says whether it hands out dicts.
        chain: the chain.
        stages: its stages in order.
    """
    fields_of: FieldsOf | None = env._step_fields
    if fields_of is None or chain._changes_batch:
        return None
    rows: list[tuple[Transform, DictStep]] = []
    for stage in stages:
        kind: type = type(stage)
        step = stage._step_dict() if row_step_holds(kind) else None
        if step is None:
            break
        rows.append((stage, step))
    meter = meter_of(env)
    if meter is not None:
        fields_of = meter.timed(base_parts(env)[0], fields_of)
        timed = meter.in_turn([step for _, step in rows])
        rows = [(stage, step) for (stage, _), step in zip(rows, timed, strict=True)]
    make = tensordict_maker(env.batch_size, env.device)
    return RowProgram(fields_of, tuple(rows), stages[len(rows) :], make, chain)


@cache
def row_step_holds(kind: type) -> bool:
    """Whether no subclass has implemented anew what the function over dicts stands for."""

    def owner(hook: str) -> type:
        return next(base for base in kind.__mro__ if hook in base.__dict__)

    return all(issubclass(owner("_step_dict"), owner(hook)) for hook in ("_step", "_call"))
