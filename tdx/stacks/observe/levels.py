"""What a library tells about the levels of a stack: how they are called, and what values mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from tdx.core.meter import Lane
from tdx.foundation.keys import NestedKey
from tdx.foundation.patches import Patches
from tdx.stacks.observe.copies import CopyResult, LevelEntries, copy_result
from tdx.stacks.observe.events import Event, LevelForm, Method

Original = Callable[..., Any]
RowEntries = dict[NestedKey, Tensor]
"""Values by key, ``[R, ...]`` for R rows. An entry of a ``Dict`` observation has its own key."""


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A method of an object that is observed."""

    level: int  # -1 for the env inside.
    row: int  # Sub-env; 0 outside of sub-envs.
    form: LevelForm
    method: Method
    owner: Any = None
    copy: CopyResult | None = copy_result  # Of what the method returned. None: it returns nothing.
    attribute: str = ""  # Name of the method of the object, if it is another one.

    @property
    def name(self) -> str:
        return self.attribute or self.method


Wrap = Callable[[Slot, Original], Original | None]
"""Returns the function to call instead of a method; ``None``: the method stays."""


class Levels(ABC):
    """The levels of a stack, whose calls are observed; one subclass for each library."""

    num_envs: int | None
    """Number of sub-envs; ``None`` for a single env."""

    @property
    def num_rows(self) -> int:
        """Number of sub-envs; 1 for a single env."""
        return self.num_envs or 1

    @abstractmethod
    def slots(self, rows: int | None = None) -> Iterator[Slot]:
        """Yield the methods of all levels, each object once.

        ``rows`` is the number of sub-envs that are observed. ``None``: all.
        """

    @contextmanager
    def attached(self, wrap: Wrap, rows: int | None = None) -> Iterator[None]:
        """Replace the methods of all levels in a block."""
        with Patches() as patches:
            for slot in self.slots(rows):
                patches.hook(slot.owner, slot.name, partial(wrap, slot))
            yield

    @abstractmethod
    def base_entries(self, slot: Slot, result: object) -> RowEntries:
        """Return the values of a result of the env inside, with the rows of the slot."""

    @abstractmethod
    def base_result(self, slot: Slot, entries: RowEntries, live: object) -> object:
        """Return a result of the env inside that has given values.

        What is missing in ``entries`` or of another shape becomes zeros. ``live`` is what the
        method returned itself; ``None`` if it raised.
        """


class NestedLevels(Levels):
    """Levels whose methods call those of the level inside, as wrappers do.

    Their calls are recorded as trees of events, and replayed one by one.
    """

    top: int
    """Index of the outermost level."""

    @abstractmethod
    def forms(self) -> Mapping[int, LevelForm]:
        """Return how each level is called, by its index; levels in other processes are left out."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the name of a level."""

    @abstractmethod
    def count_rows(self, index: int) -> int | None:
        """Return the number of sub-envs that have a level each; ``None`` outside of sub-envs."""

    @abstractmethod
    def lane(self, slot: Slot) -> Lane | None:
        """Return the lane that the time of a method counts in; ``None`` if it takes none."""

    # Values of events

    @abstractmethod
    def given_entries(self, index: int, given: object) -> LevelEntries:
        """Return a copy of an action as tensors by key."""

    @abstractmethod
    def returned_entries(self, index: int, method: Method, returned: object) -> LevelEntries:
        """Return a copy of a result as tensors by key."""

    @abstractmethod
    def has_same_entries(self, one: int, other: int, *, of_actions: bool) -> bool:
        """Return True if equal values of two levels have equal entries."""

    @abstractmethod
    def overwritten_keys(self, event: Event, entries: LevelEntries) -> Sequence[Any]:
        """Return the keys of an observation that replaced another value in the same memory."""

    def complete_reset(
        self, index: int, entries: LevelEntries, current: LevelEntries
    ) -> LevelEntries:
        """Return the entries after a level in a reset, with those that it does not return.

        ``current`` are the entries after the level inside.
        """
        return entries

    def merge_infos(self, rows: Sequence[LevelEntries]) -> LevelEntries:
        """Return the entries of the infos of sub-envs, if their vector env passes them on."""
        return {}

    def find_autoresets(self, root: Event) -> set[int]:
        """Return the ids of the events in a step that begin the next episode of a sub-env.

        Their time counts, but the vector env writes their values.
        """
        return set()

    def next_entries(self, current: LevelEntries) -> LevelEntries:
        """Return the entries of ``next`` that the outermost level returned otherwise."""
        return {}

    # Replay

    @abstractmethod
    def silenced(self) -> AbstractContextManager[None]:
        """Keep the episodes of a block out of the logs of the stages."""

    @abstractmethod
    def generators(self) -> list[object]:
        """Return the random generators of the env and of all stages."""

    @abstractmethod
    def begin(self, seed: int) -> None:
        """Seed and reset the env inside, so that each recording and replay starts alike.

        Wrappers directly around it that only watch are reset with it: a stage outside of them may
        step before it resets.
        """

    @abstractmethod
    def call(self, method: Method, argument: object) -> object:
        """Call the outermost level: a reset with arguments by name, or a step with an action."""

    @abstractmethod
    def assigned_names(self, index: int) -> set[str]:
        """Return the attributes of a stage that its code for steps and resets assigns."""
