"""The pass for operators: which of torch's are called in each part, and what they take."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tdx.profiling.passes.ranges import MEMORY, HostEvent, Ranges
from tdx.profiling.result import ModeProfile, OperatorUse

SLOWED = (
    "The times of operators are from a pass of their own, which torch's profiler slows down: "
    "they compare with each other, not with the other columns."
)

_GRAPH = re.compile(r"## Call CompiledFxGraph \w+ ##")
"""What a compiled graph is called, with a hash of its code in it."""


@dataclass(slots=True)
class _Count:
    calls: int = 0
    own_ns: int = 0


@dataclass(slots=True)
class _Open:
    """Something that has begun; ``count`` is none for a part."""

    end_ns: int
    place: int
    count: _Count | None


class Operators(Ranges):
    """Counts the operators that each part calls itself, those inside other operators too."""

    def __init__(self) -> None:
        super().__init__(memory=False)

    def found(self, profile: ModeProfile, steps: int) -> ModeProfile:
        """See :class:`Observer`."""
        uses = dict(profile.operators)
        for place, counts in operators_by_part(self.events).items():
            part = self.parts[place]
            uses[part.label, part.lane] = tuple(
                OperatorUse(name, count.calls / steps, count.own_ns / steps / 1000)
                for name, count in sorted(counts.items(), key=lambda item: -item[1].own_ns)
            )
        return replace(profile, operators=uses, notes=(*profile.notes, SLOWED))


def operators_by_part(events: Iterable[HostEvent]) -> dict[int, dict[str, _Count]]:
    """Calls and own time of each operator, by the place of the part around it.

    Args:
        events: in the order in which they began.
    """
    found: dict[int, dict[str, _Count]] = defaultdict(lambda: defaultdict(_Count))
    around: list[_Open] = []
    for event in events:
        while around and around[-1].end_ns <= event.start_ns:
            around.pop()
        if event.name == MEMORY or (not around and event.place < 0):
            continue
        taken = event.end_ns - event.start_ns
        if around and around[-1].count is not None:
            around[-1].count.own_ns -= taken
        if event.place >= 0:
            around.append(_Open(event.end_ns, event.place, None))
            continue
        place = around[-1].place
        count = found[place][_GRAPH.sub("CompiledFxGraph", event.name)]
        count.calls += 1
        count.own_ns += taken
        around.append(_Open(event.end_ns, place, count))
    return {place: dict(counts) for place, counts in found.items()}
