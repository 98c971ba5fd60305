"""Seeded mutations of stacks of five libraries, with labels, to measure explanations."""

from __future__ import annotations

from importlib import import_module

from tests.explanations.mutations import edits
from tests.explanations.mutations.model import Fault, Mutation

LIBRARIES = {
    "tdx": "native",
    "gymnasium": "gymnasium_wrappers",
    "sb3": "sb3_wrappers",
    "torchrl": "torchrl_transforms",
    "lerobot": "lerobot_steps",
}
"""Module of each library."""

__all__ = [
    "LIBRARIES", "Fault", "Mutation", "clean_pairs", "double_mutations", "held_out_mutations",
    "single_mutations",
]  # fmt: skip


def single_mutations(library: str, seed: int = 0, count: int = 30) -> list[Mutation]:
    """Return mutations of a library with one fault."""
    return _mutations(library, "single", seed, count)


def held_out_mutations(library: str, seed: int = 0, count: int = 30) -> list[Mutation]:
    """Return mutations of a library with one fault of a kind that the engine was not made for."""
    return _mutations(library, "held_out", seed, count)


def double_mutations(library: str, seed: int = 0, count: int = 30) -> list[Mutation]:
    """Return mutations of a library with two faults."""
    return _mutations(library, "double", seed, count)


def clean_pairs(library: str, seed: int = 0, count: int = 30) -> list[Mutation]:
    """Return pairs of equal stacks of a library."""
    return _mutations(library, "clean", seed, count)


def _mutations(library: str, form: str, seed: int, count: int) -> list[Mutation]:
    module = import_module(f"tests.explanations.mutations.{LIBRARIES[library]}")
    # The steps of LeRobot are edited as files.
    own = getattr(module, form, None)
    result: list[Mutation]
    if own is not None:
        result = own(seed, count)
    else:
        result = getattr(edits, form)(module.LAYOUT, module.build, seed, count)
    return result
