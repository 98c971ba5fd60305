"""Write lock of a composite."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from tdx.errors import SpecError


class CompositeLock:
    """Write lock of a composite, which the composites that contain it may hold too.

    A copy or a pickle keeps the state, but not the parents: those are set when the outer composite
    is restored.
    """

    def __init__(self) -> None:
        self.is_locked = False
        self._parents: tuple[weakref.ref[CompositeLock], ...] = ()

    def add_parent(self, parent: CompositeLock) -> None:
        """Register the lock of an outer composite, which must be unlocked first."""
        others = [ref for ref in self._parents if ref() not in (None, parent)]
        self._parents = (*others, weakref.ref(parent))

    def remove_parent(self, parent: CompositeLock) -> None:
        """Forget the lock of an outer composite."""
        self._parents = tuple(ref for ref in self._parents if ref() is not parent)

    def check_parents(self, unlocked: Sequence[CompositeLock] = ()) -> None:
        """Check that the composite may be unlocked.

        Args:
            unlocked: Locks of composites that are unlocked at the same time.

        Raises:
            SpecError: Another composite that contains it is locked.
        """
        parents = [parent for ref in self._parents if (parent := ref()) is not None]
        if any(parent.is_locked and parent not in unlocked for parent in parents):
            raise SpecError(
                "the Composite is nested in a locked one", hint="unlock the outermost one"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"is_locked": self.is_locked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.is_locked = state["is_locked"]
        self._parents = ()
