"""What an export is going to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tdx.rollouts.formats.results import Entry
from tdx.rollouts.formats.stored import Stored, columns_of


@dataclass(frozen=True, slots=True)
class Plan:
    """What an export is going to write.

    Args:
        entries: what of the dump, and where.
        episodes: how many.
        size: of the numbers in bytes, before they are compressed; none where it is not known.
        notes: what is worth knowing.
    """

    entries: tuple[Entry, ...]
    episodes: int
    size: int | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, stored: Stored) -> Self:
        """All entries under their own names."""
        entries = stored.entries(columns_of(stored.manifest))
        return cls(entries, len(stored.episodes), stored.manifest.size)
