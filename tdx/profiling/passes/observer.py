"""What the passes beside the clean one share: they look on where calls begin and end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from tdx.core.meter import AnyFunction, Part
from tdx.profiling.result import ModeProfile


class Observer(ABC):
    """A meter of something beside time; see :class:`~tdx.core.meter.Meter`.

    It looks on only while :meth:`recording`, in a rollout of its own: to look on takes time.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        """Whose calls there were; the others name a part by its place in here."""
        self._places: dict[Part, int] = {}
        self._on = False

    def timed(
        self, part: Part, function: AnyFunction, steps: Callable[..., int] | None = None
    ) -> AnyFunction:
        """See :class:`~tdx.core.meter.Meter`; what is found is counted for all steps."""
        if getattr(function, "is_timed", False):
            return function
        place = self._place(part)

        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._on:
                return function(*args, **kwargs)
            self._begin(place)
            try:
                return function(*args, **kwargs)
            finally:
                self._end()

        made: Any = run
        made.is_timed = True
        return cast(AnyFunction, made)

    def in_turn(self, functions: Sequence[AnyFunction]) -> Sequence[AnyFunction]:
        """See :class:`~tdx.core.meter.Meter`."""
        return functions

    def hindrance(self) -> str | None:
        """Why it cannot look on now, as a sentence; ``None`` where it can."""
        return None

    @abstractmethod
    def recording(self) -> AbstractContextManager[None]:
        """Look on while the block runs; what is set for the whole process is as before after it."""

    @abstractmethod
    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """The profile, with what was seen.

        Args:
            profile: what is known so far.
            steps: how many were made in all blocks, at least one.
        """

    @abstractmethod
    def _begin(self, place: int) -> None:
        """A call of a part begins."""

    @abstractmethod
    def _end(self) -> None:
        """The last call that has begun, and not ended, ends."""

    def _place(self, part: Part) -> int:
        if part not in self._places:
            self._places[part] = len(self.parts)
            self.parts.append(part)
        return self._places[part]
