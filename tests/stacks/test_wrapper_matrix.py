"""Every wrapper of Gymnasium on envs of each family: specs, values, times, state, equal runs.

Each wrapper runs on one of the envs that it takes. ``TDX_WRAPPER_STEPS=1000`` makes the acceptance
run: each wrapper on all of them, 1,000 steps each.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import SyncVectorEnv

import tdx
from tdx.core import StepTrace
from tdx.core.tracing import TraceChecker
from tdx.stacks import open_stack
from tests.stacks.comparing import (
    assert_equal_states,
    attributes,
    is_equal,
    make_seeded,
    methods,
    run,
)
from tests.stacks.wrapper_recipes import (
    ENVS,
    NEEDS,
    RECIPES,
    VECTOR_RECIPES,
    Recipe,
    chosen,
    make_wrapped,
)

STEPS = int(os.environ.get("TDX_WRAPPER_STEPS", "8"))
CHECKED = 50
"""Number of traces that are compared with the specs."""

# What Gymnasium's envs warn about is not the subject.
pytestmark = pytest.mark.filterwarnings("ignore")


def compare(make: Callable[[], Any], name: str, recipe: Recipe) -> None:
    """Compare an attached run with a bare one, and what the stage shows with what it returns."""
    actions: list[Any] = []
    bare, env = make_seeded(make), make_seeded(make)
    np.random.seed(7)
    expected = run(bare, STEPS, actions)
    before = methods(env)
    stack: Any = open_stack(env)
    checker = TraceChecker(stack)
    traces: list[StepTrace] = []
    problems: dict[str, Any] = {}

    def on_trace(trace: StepTrace) -> None:
        traces.append(trace)
        if len(traces) <= CHECKED:
            for each in checker.check(trace):
                problems.setdefault(f"{each.by.place} {each.violation.key}", each.violation)

    np.random.seed(7)
    with stack.attach(on_trace):
        found = run(env, STEPS, actions)
    assert is_equal(found, expected)
    assert methods(env) == before
    assert attributes(env) == attributes(bare)
    assert len(traces) == len(expected)
    assert not problems, problems
    assert stack.stages[-1].name == name
    assert_stage_shows(stack, traces, found)
    assert_equal_states(bare, env)
    assert_times(env, actions)
    # A run may end with a reset, after which a wrapper has no last action.
    assert set(recipe.state) <= stack.state().get(stack.stages[-1].index, {}).keys()
    assert methods(env) == before
    bare.close()
    env.close()


def assert_stage_shows(stack: Any, traces: list[StepTrace], results: list[Any]) -> None:
    """Compare the specs and the values after the outermost stage with what it returned."""
    index, space = stack.stages[-1].index, stack.levels[-1].observation_space
    spec = stack.specs()[-1].output_spec["full_observation_spec"]
    for trace, result in list(zip(traces, results, strict=True))[:CHECKED]:
        after = trace.after(index)
        if isinstance(space, spaces.Box):
            value = after["observation"].value
            assert value.dtype == spec["observation"].dtype
            assert value.shape == spec["observation"].shape
            assert np.array_equal(value.numpy(), np.asarray(result[0]))
        elif isinstance(space, spaces.Dict):
            for key, part in result[0].items():
                assert np.array_equal(after["observation", key].value.numpy(), np.asarray(part))
        if len(result) == 5:
            assert np.array_equal(after["reward"].value.numpy(), np.asarray(result[1], np.float64))
            assert after["truncated"].value.tolist() == np.asarray(result[3]).tolist()
    (last,) = [
        each for each in traces[-1].stages if each.index == index and each.direction == "forward"
    ]
    assert last.time_ns > 0


def assert_times(env: Any, actions: list[Any]) -> None:
    """Measure a reset and a step: each stage has a row."""
    with tdx.profile(env, all_wrappers=True) as measured:
        env.reset(seed=1)
        env.step(actions[0])
    (mode,) = measured.result.modes
    shown = [row.part.index for row in mode.rows if row.part.lane == "step"]
    assert sorted(shown) == [level.index for level in open_stack(env).levels]  # type: ignore[attr-defined]
    assert all(row.total_ns > 0 for row in mode.rows)
    assert mode.unattributed <= 0.05


@pytest.mark.parametrize("env", ENVS)
def test_wrappers(env: str, subtests: pytest.Subtests) -> None:
    for name in chosen(RECIPES, env, STEPS >= 1_000):
        with subtests.test(wrapper=name):
            compare(partial(make_wrapped, RECIPES[name], env), name, RECIPES[name])


@pytest.mark.parametrize("env", ENVS)
def test_vector_wrappers(env: str, subtests: pytest.Subtests) -> None:
    for name in chosen(VECTOR_RECIPES, env, STEPS >= 1_000):
        with subtests.test(wrapper=name):
            make = partial(make_wrapped, VECTOR_RECIPES[name], env, num_envs=2)
            compare(make, name, VECTOR_RECIPES[name])


@pytest.mark.parametrize(
    ("module", "recipes"), [(wrappers, RECIPES), (wrappers.vector, VECTOR_RECIPES)]
)
def test_every_wrapper_is_tested_on_some_env(module: Any, recipes: dict[str, Recipe]) -> None:
    assert set(module.__all__) - {"vector"} == recipes.keys() | NEEDS.keys()
    assert {name for env in ENVS for name in chosen(recipes, env)} == recipes.keys()


@pytest.mark.parametrize(("name", "package"), NEEDS.items())
def test_untested_wrappers_cannot_be_created(name: str, package: str, tmp_path: Path) -> None:
    assert find_spec(package) is None, f"{package} is installed: add a recipe for {name}"
    arguments = {"video_folder": str(tmp_path)} if name == "RecordVideo" else {}
    make = partial(ENVS["CartPole"], render_mode="rgb_array")
    for module, env in ((wrappers, make()), (wrappers.vector, SyncVectorEnv([make]))):
        with pytest.raises((ImportError, DependencyNotInstalled)):
            getattr(module, name)(env, **arguments)
        env.close()
