"""Seeded mutations of stacks of five libraries, with labels, to measure explanations."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

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

__all__ = ["LIBRARIES", "Fault", "Mutation", "clean_pairs", "double_mutations", "single_mutations"]


def single_mutations(library: str, seed: int = 0, count: int = 30) -> list[Mutation]:
    """Return mutations of a library with one fault."""
    module = module_of(library)
    if library == "lerobot":
        result: list[Mutation] = module.single(seed, count)
        return result
    return edits.single(module.LAYOUT, module.build, seed, count)


def double_mutations(library: str, seed: int = 0, count: int = 30) -> list[Mutation]:
    """Return mutations of a library with two faults."""
    module = module_of(library)
    if library == "lerobot":
        result: list[Mutation] = module.double(seed, count)
        return result
    return edits.double(module.LAYOUT, module.build, seed, count)


def clean_pairs(library: str, seed: int = 0, count: int = 30) -> list[Mutation]:
    """Return pairs of equal stacks of a library."""
    module = module_of(library)
    if library == "lerobot":
        result: list[Mutation] = module.clean(seed, count)
        return result
    return edits.clean(module.LAYOUT, module.build, seed, count)


def module_of(library: str) -> ModuleType:
    """Return the module that builds the chains of a library."""
    return import_module(f"tests.explanations.mutations.{LIBRARIES[library]}")
