"""The events of a stack: what each call of a level received and returned, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from tdx.stacks.observe.copies import SharedPaths

RecordedMethod = Literal["reset", "step", "step_async", "step_wait"]
"""Methods whose calls contracts record; the last two are those of a VecEnv of
Stable-Baselines3."""
Method = Literal[RecordedMethod, "inverse"]
"""Methods that are observed; ``inverse`` is that of a stage of tdx."""
OBSERVATION, ACTION, REWARD, INFO = "observation", "action", "reward", "info"
FLAGS = ("terminated", "truncated")

MAX_DEPTH = 16
"""Nesting of recorded values; what is deeper is opaque."""
_MAX_TEXT = 10_000
_MAX_ITEMS = 10_000
_MAX_BYTES = 2**26


class _Opaque:
    """Stands for a value that is neither a number, a text, nor a container of them."""

    def __repr__(self) -> str:
        return "OPAQUE"


OPAQUE = _Opaque()


def plain_copy(value: object, depth: int = 0) -> Any:
    """Copy a value as plain data: numbers, texts, arrays, tensors, and containers of them.

    Other objects become :data:`OPAQUE`, so that a recording means the same in memory and on disk.

    Example:
        >>> plain_copy({"a": np.zeros(2), "b": [1, object()]})
        {'a': array([0., 0.]), 'b': [1, OPAQUE]}
    """
    if isinstance(value, np.ndarray | np.generic):
        is_numeric = value.dtype.kind in "biuf" and value.nbytes <= _MAX_BYTES
        return value.copy() if is_numeric else OPAQUE
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value) if len(value) <= _MAX_TEXT else OPAQUE
    if isinstance(value, Tensor):
        is_small = value.nbytes <= _MAX_BYTES
        return value.detach().cpu().clone() if is_small else OPAQUE
    if depth < MAX_DEPTH:
        if isinstance(value, Mapping) and len(value) <= _MAX_ITEMS:
            if all(isinstance(name, str | int) for name in value):
                return {name: plain_copy(item, depth + 1) for name, item in value.items()}
        elif isinstance(value, tuple | list) and len(value) <= _MAX_ITEMS:
            items = [plain_copy(item, depth + 1) for item in value]
            return items if isinstance(value, list) else tuple(items)
    try:
        array = np.asarray(value)
    except Exception:
        return OPAQUE
    return plain_copy(np.array(array)) if array.dtype.kind in "biuf" else OPAQUE


def fill_opaque(value: object, live: object) -> Any:
    """Return recorded plain data with the parts of a live value where it is opaque."""
    if value is OPAQUE:
        return live
    if isinstance(value, dict):
        known = live if isinstance(live, Mapping) else {}
        return {name: fill_opaque(item, known.get(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        parts = live if isinstance(live, list | tuple) and len(live) == len(value) else None
        items = [
            fill_opaque(item, None if parts is None else parts[index])
            for index, item in enumerate(value)
        ]
        return items if isinstance(value, list) else tuple(items)
    return value


def map_arrays(value: object, function: Callable[[Any], Any]) -> object:
    """Return a value with a function applied to each array and tensor in it."""
    if isinstance(value, dict):
        return {name: map_arrays(item, function) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [map_arrays(item, function) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return function(value) if isinstance(value, np.ndarray | Tensor) else value


def take_rows(value: object, rows: Sequence[int]) -> Any:
    """Return rows of a batch: of each array, or the items of a tuple of one action per row."""
    index = list(rows)
    return map_arrays(value, lambda array: array[index] if array.ndim else array)


@dataclass(frozen=True, slots=True)
class LevelForm:
    """How a level is called."""

    # Values of Gymnasium, of Stable-Baselines3, or of tdx and TorchRL.
    protocol: Literal["env", "vec_env", "tensordict"] = "env"
    is_batch: bool = False  # True if its values have a batch dim.


@dataclass(slots=True)
class Event:
    """One call of a level."""

    level: int  # -1 for the env inside.
    row: int  # Sub-env; 0 outside of sub-envs.
    method: Method
    given: Any  # The action, or the arguments of a reset by name; plain data.
    start: int  # Number when it began, from which the generators were seeded.
    returned: Any = None  # Plain data; in a batch, of the recorded rows.
    end: int = 0  # Number when it ended.
    children: list[Event] = field(default_factory=list)  # Calls that it made, in order.
    own_ns: int = 0  # Duration without its children.
    error: Exception | None = None
    shared: SharedPaths = ()  # Where its observation is in the memory of the previous one.
    previous: object = None  # Copy of the previous observation, if they share memory.

    def walk(self) -> Iterator[Event]:
        """Yield this event and all events inside it, in the order in which they began."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def takes_action(self) -> bool:
        return self.method in ("step", "step_async")

    def failed_event(self) -> Event | None:
        """Return the innermost event that raised the error."""
        for child in reversed(self.children):
            if child.error is not None and child.error is self.error:
                return child.failed_event()
        return None if self.error is None else self


@dataclass(frozen=True, slots=True)
class CallRecording:
    """The events of a few episodes of a stack."""

    seed: int  # Of the env and of all generators.
    rows: int  # Recorded sub-envs; 1 for a single env.
    forms: Mapping[int, LevelForm]  # By index of the level.
    roots: tuple[Event, ...]  # Calls of the outermost level.
    # Counters, flags and queues of an episode, when the recording began.
    start: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    learning: bool = False  # True if the statistics were learning.
    # Levels that did not repeat their outputs on the same inputs.
    unrepeatable: frozenset[int] = frozenset()
    env_repeats: bool = True  # True if the env inside returned the same for the same calls.

    def walk(self) -> Iterator[Event]:
        """Yield all events in the order in which they began."""
        for root in self.roots:
            yield from root.walk()

    @property
    def steps(self) -> int:
        return sum(root.takes_action for root in self.roots)
