"""A search among the keys of the spec tree."""

from __future__ import annotations

from collections.abc import Iterable

from tdx.tui.specs.spec_tree import Line, Path


class SpecSearch:
    """What is searched for, and the lines where it stands."""

    def __init__(self) -> None:
        self.words = ""
        self.matches: list[Path] = []
        self.opened: frozenset[Path] = frozenset()

    @property
    def found(self) -> frozenset[Path]:
        """The lines that match."""
        return frozenset(self.matches)

    def look(self, lines: Iterable[Line]) -> None:
        """Look for it in all lines, also in those that are folded away."""
        words = self.words.casefold().split()
        self.matches = [
            line.path
            for line in lines
            if words and line.key is not None and all(w in line.key.casefold() for w in words)
        ]
        self.opened = frozenset(path[:n] for path in self.matches for n in range(1, len(path)))

    def next(self, path: Path | None, by: int) -> Path | None:
        """The match that comes ``by`` after a line, around the end; none where nothing matches."""
        if not self.matches:
            return None
        if path not in self.matches:
            return self.matches[-1 if by < 0 else 0]
        return self.matches[(self.matches.index(path) + by) % len(self.matches)]

    def note(self, path: Path | None) -> str:
        """Which match of how many the cursor is on."""
        if not self.words.strip():
            return ""
        if not self.matches:
            return f"no key has {self.words}"
        at = f"{self.matches.index(path) + 1} of " if path in self.matches else ""
        return f"{at}{len(self.matches)} match{'' if len(self.matches) == 1 else 'es'}"
