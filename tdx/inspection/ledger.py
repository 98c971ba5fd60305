"""Which versions of keys there are, written down while a chain is followed from stage to stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from tdx.keys import NestedKey, format_key

if TYPE_CHECKING:
    from tdx.inspection.leaf import LeafSpec

PlaceT = TypeVar("PlaceT")
How = Literal["overwritten", "dropped", "renamed"]


@dataclass
class Version(Generic[PlaceT]):
    """One value that a key has on its way through the chain.

    Args:
        key: the key.
        number: 0 for what the chain is given, then 1, 2, ….
        writer: who writes it.
        spec: what is promised of it, where that is known.
        source: the version that it is made from, such as ``"reward@0"``.
        readers: who reads it.
        ended_by: after whom it is gone; none where it leaves the chain.
        how: what becomes of it there.
    """

    key: NestedKey
    number: int
    writer: PlaceT
    spec: LeafSpec | None = None
    source: str | None = None
    readers: list[PlaceT] = field(default_factory=list)
    ended_by: PlaceT | None = None
    how: How | None = None

    @property
    def name(self) -> str:
        """Key and number, ``observation@2``."""
        return f"{format_key(self.key)}@{self.number}"


class Ledger(Generic[PlaceT]):
    """Writes down the versions of one direction.

    Example:
        >>> ledger = Ledger[str]()
        >>> ledger.begin("reward", "env")
        >>> ledger.read("reward", "RewardSum")
        >>> ledger.write("reward", "RewardClipping", source="reward@0")
        >>> [(each.name, each.readers, each.how) for each in ledger.versions]
        [('reward@0', ['RewardSum'], 'overwritten'), ('reward@1', [], None)]
    """

    def __init__(self) -> None:
        self.versions: list[Version[PlaceT]] = []
        self.current: dict[NestedKey, Version[PlaceT]] = {}
        self._last: dict[NestedKey, int] = {}

    def begin(self, key: NestedKey, writer: PlaceT, spec: LeafSpec | None = None) -> None:
        """The chain is given a key."""
        self._add(Version(key, 0, writer, spec))

    def read(self, key: NestedKey, reader: PlaceT) -> None:
        """Somebody reads what a key is now; nothing where there is no such key."""
        version = self.current.get(key)
        if version is not None and reader not in version.readers:
            version.readers.append(reader)

    def write(
        self,
        key: NestedKey,
        writer: PlaceT,
        spec: LeafSpec | None = None,
        source: str | None = None,
    ) -> None:
        """Somebody writes a key; 1 is the first version of one that the chain is not given."""
        self.end(key, writer, "overwritten")
        self._add(Version(key, self._last.get(key, 0) + 1, writer, spec, source))

    def end(self, key: NestedKey, place: PlaceT, how: How) -> None:
        """What a key is now ends; nothing where there is no such key."""
        version = self.current.pop(key, None)
        if version is not None:
            version.ended_by, version.how = place, how

    def name(self, key: NestedKey | None) -> str | None:
        """The name of what a key is now."""
        version = None if key is None else self.current.get(key)
        return None if version is None else version.name

    def by_key(self) -> list[Version[PlaceT]]:
        """The versions, those of one key one after the other."""
        grouped: dict[NestedKey, list[Version[PlaceT]]] = {}
        for version in self.versions:
            grouped.setdefault(version.key, []).append(version)
        return [version for versions in grouped.values() for version in versions]

    def _add(self, version: Version[PlaceT]) -> None:
        self.current[version.key] = version
        self._last[version.key] = version.number
        self.versions.append(version)
