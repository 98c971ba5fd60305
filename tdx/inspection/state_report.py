"""The state that each stage keeps: running statistics, counters, queues and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tdx.serialization import Entries, Entry, Result
from tdx.stacks import open_stack

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.stacks import Stack

State = Mapping[int, Mapping[str, "Tensor"]]


def _to_list(value: Tensor) -> Any:
    return value.tolist()


@dataclass(frozen=True, slots=True)
class StateEntry(Result):
    """One tensor that a stage keeps.

    Args:
        stage: Index of the stage, from 0 for the innermost one.
        transform: Class name of the stage.
        name: Name of the tensor, such as ``obs_rms.mean``.
        value: Copy of the tensor.
        changed: True if the steps changed it; ``None`` if there were no steps.
    """

    json_entries: ClassVar[Entries] = (
        *("stage", "transform", "name", "shape", "dtype", "changed"),
        Entry("value", convert=_to_list),
    )

    stage: int
    transform: str
    name: str
    value: Tensor = field(compare=False)
    changed: bool | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> str:
        """Name of its dtype."""
        return str(self.value.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class StateReport(Result):
    """State of the stages of a stack.

    Args:
        env: Name of the env.
        steps: Number of random steps before the state was read.
        entries: Tensors of all stages, innermost stage first.
    """

    env: str
    steps: int
    entries: tuple[StateEntry, ...]


def inspect_state(
    env: Any, name: str | None = None, *, steps: int = 0, seed: int | None = None
) -> StateReport:
    """Report the state of each stage, after a number of random steps.

    Args:
        env: Env of tdx or of another library, with its wrappers.
        name: Name in the report. Defaults to the name of the env before the chain.
        steps: Number of steps to make; with 0 the env is neither reset nor stepped.
        seed: Seed of the env and of the actions. ``None``: do not seed.

    Raises:
        ArgumentError: ``env`` is neither an env nor a stack.
        TdxError: The env or a stage raised.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.wrappers.NormalizeReward(gymnasium.make("Pendulum-v1"))
        >>> report = inspect_state(env, steps=3, seed=0)
        >>> [entry.name for entry in report.entries if entry.transform == "NormalizeReward"][:3]
        ['return_rms.mean', 'return_rms.var', 'return_rms.count']
    """
    stack = open_stack(env)
    before = stack.state()
    if steps:
        with stack.seeded(seed):
            stack.tracer().run(steps)
    entries = tuple(_entries(stack, before if steps else None, stack.state()))
    return StateReport(name or stack.name, steps, entries)


def _entries(stack: Stack, before: State | None, after: State) -> Iterator[StateEntry]:
    for stage in stack.stages:
        for name, value in after.get(stage.index, {}).items():
            changed = None
            if before is not None:
                old = before.get(stage.index, {}).get(name)
                changed = old is None or old.shape != value.shape or not old.equal(value)
            yield StateEntry(stage.index, stage.name, name, value, changed)
