"""View of a deployment descriptor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tdx.cli.views import NONE, Block, Cell, Heading, Table, View, fact

if TYPE_CHECKING:
    from tdx.stacks.descriptors import Descriptor, Term
    from tdx.stacks.descriptors.model import Numbers

_SHOWN = 4
"""Number of values of a list that are shown."""


def descriptor_view(descriptor: Descriptor) -> View:
    """Lay out the terms, actions and joints of a descriptor, in order."""

    def blocks() -> Iterator[Block]:
        yield Heading(str(descriptor.path), descriptor.library, level=1)
        if descriptor.step is not None:
            yield fact("control step", f"{descriptor.step:g} s")
        if descriptor.commands:
            yield fact("commands", ", ".join(descriptor.commands))
        yield Heading("observations")
        yield Table.of(
            ("", "term", "shape", "history", "scale", "clip", "joints"),
            [
                [
                    Cell(str(index), "dim"),
                    Cell(term.name, "name"),
                    Cell(_shape(term.shape)),
                    Cell(_history(term)),
                    Cell(_numbers(term.scale)),
                    Cell(_clip(term.clip)),
                    Cell(str(len(term.joints)) if term.joints else NONE),
                ]
                for index, term in enumerate(descriptor.terms)
            ],
        )
        yield Heading("actions")
        yield Table.of(
            ("", "term", "shape", "scale", "offset", "joints"),
            [
                [
                    Cell(str(index), "dim"),
                    Cell(action.name, "name"),
                    Cell(_shape(action.shape)),
                    Cell(_numbers(action.scale)),
                    Cell(_numbers(action.offset)),
                    Cell(str(len(action.joints)) if action.joints else NONE),
                ]
                for index, action in enumerate(descriptor.actions)
            ],
        )
        yield from _joints(descriptor)
        for note in descriptor.notes:
            yield fact("note", note)

    return View("descriptor", descriptor, blocks, lambda: descriptor.terms)


def _joints(descriptor: Descriptor) -> Iterator[Block]:
    robot = descriptor.robot
    if not robot.joints:
        return
    columns = [robot.positions, robot.stiffness, robot.damping]
    titles = ("", "joint", "default position", "stiffness", "damping")
    rows = [
        [
            Cell(str(index), "dim"),
            Cell(name, "name"),
            *(Cell(_at(values, index, len(robot.joints))) for values in columns),
        ]
        for index, name in enumerate(robot.joints)
    ]
    yield Heading("joints")
    yield Table.of(titles, rows, numbers=titles[2:])


def _at(values: Numbers | None, index: int, size: int) -> str:
    # A list of another length does not say which joints its values belong to.
    if values is None or len(values) not in (1, size):
        return NONE
    return f"{values[index if len(values) > 1 else 0]:g}"


def _shape(shape: tuple[int, ...] | None) -> str:
    return NONE if shape is None else f"[{', '.join(map(str, shape))}]"


def _history(term: Term) -> str:
    if term.history is None:
        return NONE
    is_stacked = term.history > 1 and term.flat_history is False
    return f"{term.history}, not flat" if is_stacked else str(term.history)


def _numbers(values: Numbers | None) -> str:
    if not values:
        return NONE
    if len(set(values)) == 1:
        return f"{values[0]:g}"
    shown = ", ".join(f"{value:g}" for value in values[:_SHOWN])
    return f"[{shown}{', …' if len(values) > _SHOWN else ''}]"


def _clip(clip: Numbers | None) -> str:
    if clip is None or all(math.isinf(bound) for bound in clip):
        return NONE
    return _numbers(clip)
