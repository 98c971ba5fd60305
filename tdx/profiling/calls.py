"""The calls of a rollout in the order in which they were made, one inside the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tdx.core.meter import UNATTRIBUTED
from tdx.profiling.result import ModeProfile, Row

WHOLE = "whole step"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one part.

    Args:
        row: the part's row.
        place: the row's place among those of its mode.
        repeat: in which repeat it was.
        start_ns: when it began, from the beginning of that repeat.
        end_ns: when it ended.
        own_ns: its time without the other parts inside it.
        steps: how many steps it stands for.
        depth: how many others it is inside of.
    """

    row: Row
    place: int
    repeat: int
    start_ns: int
    end_ns: int
    own_ns: int
    steps: int
    depth: int


def calls_of(mode: ModeProfile, most: int | None = None) -> Iterator[Call]:
    """The calls of all repeats as they began; what is inside another one never outlasts it.

    Args:
        mode: whose.
        most: how many; all by default.
    """
    counts = [len(row.times_ns) for row in mode.rows]
    if not sum(counts):
        return
    place = np.repeat(np.arange(len(counts)), counts)
    start, span, own, steps, repeat = (
        np.concatenate([getattr(row, name) for row in mode.rows])
        for name in ("starts_ns", "spans_ns", "times_ns", "steps", "repeats")
    )
    order = np.lexsort((-span, start, repeat))[:most]
    columns = (place, repeat, start, start + span, own, steps)
    inside: list[int] = []
    before = -1
    for row, number, begun, over, alone, covered in zip(
        *(column[order].tolist() for column in columns), strict=True
    ):
        if number != before:
            inside, before = [], number
        while inside and inside[-1] <= begun:
            inside.pop()
        ended = min(over, inside[-1]) if inside else over
        yield Call(mode.rows[row], row, number, begun, ended, alone, covered, len(inside))
        inside.append(ended)


def call_count(mode: ModeProfile) -> int:
    """How many calls were timed."""
    return sum(len(row.times_ns) for row in mode.rows)


@dataclass(slots=True)
class Node:
    """What one part takes of the mean step inside of another one.

    Args:
        label: the part's.
        lane: which of its calls.
        work: what kind of thing it is.
        step_us: its time in a mean step, with what is inside it.
        own_us: without that.
        calls: in a step.
        children: what is inside it, in the order of the first calls.
    """

    label: str
    lane: str
    work: str
    step_us: float = 0.0
    own_us: float = 0.0
    calls: float = 0.0
    children: dict[tuple[str, str], Node] = field(default_factory=dict)

    def depth(self) -> int:
        """How many levels there are below and with this one."""
        return 1 + max((child.depth() for child in self.children.values()), default=0)


def mean_step(mode: ModeProfile) -> Node:
    """The mean step as a tree of who is called inside of whom.

    Example:
        >>> import tdx
        >>> env = tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), tdx.RewardSum())
        >>> with tdx.profile(env) as measured:
        ...     _ = env.rollout(20)
        >>> tree = mean_step(measured.result.modes[0])
        >>> tree.step_us > sum(child.own_us for child in tree.children.values())
        True
    """
    steps = max(int(mode.steps.sum()), 1)
    root = Node(WHOLE, "", "engine", mode.step_us, calls=1.0)
    inside = [root]
    for call in calls_of(mode):
        del inside[call.depth + 1 :]
        if call.row.part.name == UNATTRIBUTED:
            # What holds all the others is the step itself.
            inside.append(inside[-1])
            continue
        key, work = call.row.key, call.row.part.work
        node = inside[-1].children.setdefault(key, Node(*key, work))
        node.step_us += (call.end_ns - call.start_ns) / steps / 1000
        node.own_us += call.own_ns / steps / 1000
        node.calls += 1 / steps
        inside.append(node)
    root.own_us = max(root.step_us - sum(each.step_us for each in root.children.values()), 0.0)
    return root
