"""A deployment descriptor as plain data: observation terms, actions and joints."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import ClassVar

from tdx.foundation.serialization import Entries, Entry, Result

Numbers = tuple[float, ...]
"""One number per joint or dim; a single one applies to all of them."""


@dataclass(frozen=True, slots=True)
class Term(Result):
    """An observation term, which is concatenated with the others.

    Args:
        name: Name of the term.
        shape: Shape of one frame; ``None`` if the descriptor does not say.
        history: Number of frames; 1 without a history. ``None`` if the descriptor does not say.
        flat_history: True if the frames of a term follow one another, before the next term. False
            if they keep a dimension of their own.
        scale: Factor; ``None`` if there is none, or if the descriptor does not say.
        clip: Lower and upper bound.
        joints: Joints of its numbers, in order.
        offsets: What is subtracted from the position or velocity of each joint.
    """

    name: str
    shape: tuple[int, ...] | None = None
    history: int | None = None
    flat_history: bool | None = None
    scale: Numbers | None = None
    clip: Numbers | None = None
    joints: tuple[str, ...] = ()
    offsets: Numbers | None = None


@dataclass(frozen=True, slots=True)
class Action(Result):
    """An action term: ``target = offset + scale * action``.

    Args:
        name: Name of the term.
        shape: Shape of the action.
        scale: Factor; ``None`` if the descriptor does not say.
        offset: Summand.
        clip: Lower and upper bound, one pair after the other.
        joints: Joints that it moves, in order.
    """

    name: str
    shape: tuple[int, ...] | None = None
    scale: Numbers | None = None
    offset: Numbers | None = None
    clip: Numbers | None = None
    joints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Robot(Result):
    """The joints of a robot.

    Args:
        joints: Their names, in order.
        positions: Default positions.
        stiffness: Stiffness of their actuators.
        damping: Damping of their actuators.
    """

    joints: tuple[str, ...] = ()
    positions: Numbers | None = None
    stiffness: Numbers | None = None
    damping: Numbers | None = None


@dataclass(frozen=True, slots=True)
class Descriptor(Result):
    """What a policy reads and returns.

    Args:
        path: Its file.
        library: Library that wrote it.
        terms: Observation terms of the policy, in the order in which they are concatenated.
        actions: Action terms, in order.
        robot: The joints.
        step: Seconds between two actions; ``None`` if the descriptor does not say.
        commands: Names of the commands.
        tolerance: How much rounding may have changed a number.
        notes: What was not read, each a sentence.
        is_ordered: False if the order of the terms is not that of a concatenation.
        observation_size: Size of the concatenated terms, if that is known without them.
        vocabulary: What a file of this format can declare, whether or not this one does: names of
            fields of terms, actions, the robot and the descriptor, such as ``action scale``.
    """

    json_entries: ClassVar[Entries] = (
        Entry("path", convert=str, type=str),
        *("library", "terms", "actions", "robot", "step", "commands", "notes"),
    )

    path: Path
    library: str
    terms: tuple[Term, ...]
    actions: tuple[Action, ...] = ()
    robot: Robot = Robot()
    step: float | None = None
    commands: tuple[str, ...] = ()
    tolerance: float = 1e-6
    notes: tuple[str, ...] = ()
    is_ordered: bool = True
    observation_size: int | None = None
    vocabulary: frozenset[str] = frozenset()

    @property
    def size(self) -> int | None:
        """Size of the concatenated terms with their histories; ``None`` if it is not known."""
        shapes = [term.shape for term in self.terms]
        if self.observation_size is not None or not shapes or None in shapes:
            return self.observation_size
        return sum(prod(term.shape or ()) * (term.history or 1) for term in self.terms)


def number_repeats(names: tuple[str, ...]) -> tuple[str, ...]:
    """Number the repeats of a name: terms of one function have one name.

    Example:
        >>> number_repeats(("command", "joint_pos", "command"))
        ('command', 'joint_pos', 'command (2)')
    """
    counts: dict[str, int] = {}
    numbered = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        numbered.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return tuple(numbered)
