"""Align the stages of two chains: equal ones in order, then similar ones, then those that moved."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

Status = Literal["paired", "missing", "extra", "moved"]
MatchSection = Callable[[range, range], Iterable[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Match:
    """A stage of both sides, or of one.

    Args:
        status: ``missing`` if only the first side has it, ``extra`` if only the second one has it.
        a: Its index on the first side.
        b: Its index on the second side.
    """

    status: Status
    a: int | None
    b: int | None


def match_stages(
    a: Sequence[Hashable], b: Sequence[Hashable], match_section: MatchSection
) -> list[Match]:
    """Align two chains by the identities of their stages, such as their roles.

    ``match_section`` pairs the stages of two sections without equal identities, in order. The
    result is in the order of the second side. A missing stage is where the first side has it; one
    that is on both sides at different positions has moved.

    Example:
        >>> [(match.status, match.a, match.b) for match in match_stages("xyz", "zx", zip)]
        [('moved', 2, 0), ('paired', 0, 1), ('missing', 1, None)]
    """
    matches: list[Match] = []
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        sections = range(i1, i2), range(j1, j2)
        pairs = zip(*sections, strict=True) if tag == "equal" else match_section(*sections)
        next_a, next_b = i1, j1
        for i, j in (*pairs, (i2, j2)):
            matches += [Match("missing", index, None) for index in range(next_a, i)]
            matches += [Match("extra", None, index) for index in range(next_b, j)]
            if i < i2:
                matches.append(Match("paired", i, j))
            next_a, next_b = i + 1, j + 1
    for missing in [match for match in matches if match.status == "missing"]:
        for place, extra in enumerate(matches):
            is_same = missing.a is not None and extra.b is not None and a[missing.a] == b[extra.b]
            if is_same and extra.status == "extra":
                matches[place] = Match("moved", missing.a, extra.b)
                matches.remove(missing)
                break
    return matches
