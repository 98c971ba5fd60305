"""Fuzzy matching of short queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Match:
    """Letters of a query found in a text.

    Args:
        score: Quality of the match; higher is better.
        positions: Indices of the letters in the text.
    """

    score: float
    positions: tuple[int, ...]


def fuzzy_match(query: str, text: str) -> Match | None:
    """Find the letters of ``query`` in ``text`` in order; ``None`` if a letter is missing.

    Letters at the start of a word and consecutive letters score higher; spaces are ignored.

    Example:
        >>> fuzzy_match("cf", "CatFrames").positions
        (0, 3)
        >>> fuzzy_match("xyz", "CatFrames")
    """
    letters = "".join(query.casefold().split())
    folded = text.casefold()
    if not letters:
        return Match(0.0, ())
    whole = folded.find(letters)
    if whole >= 0:
        run = tuple(range(whole, whole + len(letters)))
        return Match(_score(run, text) + 20.0, run)
    starts = [place for place, sign in enumerate(folded) if sign == letters[0]]
    found = (_from(start, letters, folded, text) for start in starts)
    matches = [
        Match(_score(positions, text), positions) for positions in found if positions is not None
    ]
    return max(matches, key=lambda match: match.score, default=None)


def fuzzy_sorted(query: str, items: Iterable[T], text: Callable[[T], str]) -> list[tuple[T, Match]]:
    """Return the matching items, best first; in their own order if the query is empty.

    Args:
        query: Letters to find.
        items: Items to search.
        text: Returns the text of an item.
    """
    matched = ((item, fuzzy_match(query, text(item))) for item in items)
    found = [(item, match) for item, match in matched if match is not None]
    return sorted(found, key=lambda pair: -pair[1].score)


def _from(start: int, letters: str, folded: str, text: str) -> tuple[int, ...] | None:
    """Return the positions of the letters from ``start`` on, at starts of words if possible."""
    positions = [start]
    for letter in letters[1:]:
        after = positions[-1] + 1
        place = next(
            (
                each
                for each in range(after, len(folded))
                if folded[each] == letter and (_starts_word(each, text) or each == after)
            ),
            folded.find(letter, after),
        )
        if place < 0:
            return None
        positions.append(place)
    return tuple(positions)


def _score(positions: tuple[int, ...], text: str) -> float:
    starts = sum(_starts_word(place, text) for place in positions)
    rows = sum(b == a + 1 for a, b in pairwise(positions))
    return 5.0 * starts + 4.0 * rows - 0.2 * positions[0] - 0.05 * len(text)


def _starts_word(place: int, text: str) -> bool:
    if place == 0:
        return True
    before, sign = text[place - 1], text[place]
    return not before.isalnum() or (sign.isupper() and not before.isupper())
