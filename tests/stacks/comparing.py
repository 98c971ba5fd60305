"""Seeded runs of Gymnasium envs, and what they have to have in common."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tdx.inspection.stack_import import StackImport
from tdx.pipeline import format_stage
from tdx.stacks import open_stack

CLOCKS = {
    "t",
    "episode_start_time",
    "episode_start_times",
    "time_queue",
    "t_start",
    "episode_times",
}
"""Names of durations, which differ between runs."""


def make_seeded(make: Callable[[], Any]) -> Any:
    """Create an env, whose random actions and NumPy's random numbers are seeded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = make()
    env.action_space.seed(7)
    np.random.seed(7)
    return env


def run(env: Any, steps: int, actions: list[Any]) -> list[Any]:
    """Return everything that the outermost wrapper returned.

    Args:
        env: The env.
        steps: Number of steps.
        actions: Actions to repeat; completed with random ones.
    """
    results: list[Any] = [env.reset(seed=3)]
    for index in range(steps):
        if len(actions) <= index:
            actions.append(env.action_space.sample())
        result = env.step(actions[index])
        results.append(result)
        if np.ndim(result[2]) == 0 and (result[2] or result[3]):
            results.append(env.reset())
    return results


def is_equal(one: Any, other: Any) -> bool:
    """Return True if two results are equal bit by bit, apart from durations."""
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, dict):
        keys = {key for key in one if key not in CLOCKS and key != "_t"}
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in keys)
    if isinstance(one, np.ndarray) and one.dtype == object:
        return is_equal(list(one), list(other))
    if isinstance(one, np.ndarray | np.generic):
        left, right = np.asarray(one), np.asarray(other)
        return left.dtype == right.dtype and left.tobytes() == right.tobytes()
    return type(one) is type(other) and bool(one == other or one != one)


def owners_of(env: Any) -> list[Any]:
    """Return the objects of a stack."""
    stack: Any = open_stack(env)
    return [owner for level in stack.levels for owner in level.owners]


def methods(env: Any) -> list[Any]:
    """Return the bound methods of each object of a stack, and what its instance replaces."""
    return [
        (vars(owner).get(name), getattr(owner, name).__func__)
        for owner in owners_of(env)
        for name in ("step", "reset")
    ]


def attributes(env: Any) -> list[Any]:
    """Return the names of the attributes of each object of a stack."""
    return [tuple(vars(owner)) for owner in owners_of(env)]


def assert_equal_states(one: Any, other: Any) -> None:
    """Compare the states of the stages of two envs, apart from durations."""
    left, right = open_stack(one).state(), open_stack(other).state()
    assert left.keys() == right.keys()
    for index, values in left.items():
        assert values.keys() == right[index].keys()
        for name, value in values.items():
            if name.rpartition(".")[2] not in CLOCKS:
                same = value.equal(right[index][name])
                assert same or bool(value.isnan().any()), (index, name)


def stages(found: StackImport) -> list[str]:
    """Stages of an imported pipeline in the ``--t`` grammar."""
    return [format_stage(each) for each in found.pipeline.transforms]


def proofs(found: StackImport) -> list[str]:
    """Comparisons of an import as text."""
    return [f"{each.part}: {each}" for each in found.comparisons]
