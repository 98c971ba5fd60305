"""``inspect spec`` and ``check`` on real envs, compared with Gymnasium's spaces."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tdx.envs import EnvBase
from tdx.envs.gym.registry import find_env
from tdx.foundation.keys import NestedKey
from tdx.inspection.check_report import check_pipeline
from tdx.inspection.spec_report import SpecReport, inspect_spec
from tdx.pipeline import EnvConfig, Pipeline, build_checked_env
from tdx.specs.leaf import LeafSpec
from tests.programs import sampled
from tests.real_envs.ids import ATARI, MUJOCO, alternating_params

Spaces = dict[NestedKey, spaces.Space[Any]]


@pytest.fixture(scope="module")
def spaces_of() -> Any:
    """The observation and action spaces of an id, by the keys that tdx documents for them."""
    known: dict[str, tuple[Spaces, Spaces]] = {}

    def find(env_id: str) -> tuple[Spaces, Spaces]:
        if env_id not in known:
            with gymnasium.make(find_env(env_id), disable_env_checker=True) as bare:
                known[env_id] = (
                    dict(flat(bare.observation_space, root_key(bare.observation_space))),
                    dict(flat(bare.action_space, "action")),
                )
        return known[env_id]

    return find


def root_key(space: spaces.Space[Any]) -> NestedKey:
    image = isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3
    return () if isinstance(space, spaces.Dict) else "pixels" if image else "observation"


def flat(space: spaces.Space[Any], key: NestedKey) -> list[tuple[NestedKey, spaces.Space[Any]]]:
    """The spaces in a space, each with its key."""
    start = (key,) if isinstance(key, str) else key
    if isinstance(space, spaces.Dict):
        inside = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        inside = [(str(index), inner) for index, inner in enumerate(space.spaces)]
    else:
        return [(start[0] if len(start) == 1 else start, space)]
    return [found for name, inner in inside for found in flat(inner, (*start, name))]


def assert_is_the_spec_of(leaf: LeafSpec, space: spaces.Space[Any], lead: tuple[int, ...]) -> None:
    if isinstance(space, spaces.Box):
        assert leaf.shape == (*lead, *space.shape)
        assert leaf.dtype == str(space.dtype)
        assert_bounds(leaf, space)
    elif isinstance(space, spaces.Discrete):
        assert leaf.kind == "OneHot"
        assert (leaf.shape, leaf.dtype) == ((*lead, space.n), "int64")
        assert leaf.domain.choices == space.n
    else:
        assert type(space).__name__.endswith("MissionSpace")
        assert (leaf.shape, leaf.dtype) == (lead, "object")


def assert_bounds(leaf: LeafSpec, space: spaces.Box) -> None:
    if leaf.domain.low is None:
        limits: Any = np.iinfo if np.issubdtype(space.dtype, np.integer) else np.finfo
        assert (space.low <= limits(space.dtype).min).all()
        assert (space.high >= limits(space.dtype).max).all()
    else:
        for ends, wanted in ((leaf.domain.low, space.low), (leaf.domain.high, space.high)):
            given = np.broadcast_to(np.asarray(ends), leaf.shape)
            np.testing.assert_array_equal(given, np.broadcast_to(wanted, leaf.shape))


def assert_is_in_the_specs(env: EnvBase) -> None:
    """One real step is in the specs of the report."""
    start = env.rand_action(env.reset())
    result = env.step(start)["next"]
    for spec, data in (
        (env.full_action_spec, start),
        (env.observation_spec, start),
        (env.full_done_spec, start),
        (env.observation_spec, result),
        (env.full_reward_spec, result),
        (env.full_done_spec, result),
    ):
        for key, leaf in spec.items(include_nested=True, leaves_only=True):
            value = data.get(key)
            assert tuple(value.shape) == tuple(leaf.shape), key
            assert leaf.is_in(value), key


def sides(report: SpecReport, part: str) -> tuple[dict[Any, LeafSpec], dict[Any, LeafSpec]]:
    """The leaves of a part, in the env and behind the chain."""
    changes = [change for change in report.changes if change.part == part]
    before = {change.key: change.before for change in changes if change.before}
    return before, {change.key: change.after for change in changes if change.after}


@sampled(3)
@pytest.mark.parametrize(("env_id", "chain", "num_envs"), alternating_params(0))
def test_inspect_spec(
    spaces_of: Any, env_id: str, chain: tuple[str, ...], num_envs: int | None
) -> None:
    lead = () if num_envs is None else (num_envs,)
    observations, actions = spaces_of(env_id)
    with build_checked_env(Pipeline.of(EnvConfig(env_id, num_envs=num_envs), *chain)) as env:
        report = inspect_spec(env, env_id)
        assert_is_in_the_specs(env)
    assert report.before.batch_size == report.after.batch_size == lead
    for part, wanted in (("observation", observations), ("action", actions)):
        before, after = sides(report, part)
        assert before.keys() == wanted.keys()
        for key, space in wanted.items():
            assert_is_the_spec_of(before[key], space, lead)
        assert before.keys() <= after.keys()
    for part, dtype in (("reward", "float32"), ("done", "bool")):
        assert {(leaf.shape, leaf.dtype) for leaf in sides(report, part)[0].values()} == {
            ((*lead, 1), dtype)
        }
    assert_the_chain_shows(report, env_id, lead)
    data = report.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def assert_the_chain_shows(report: SpecReport, env_id: str, lead: tuple[int, ...]) -> None:
    before, after = sides(report, "observation")
    if env_id in ATARI:
        assert (after["pixels"].shape, after["pixels"].dtype) == ((*lead, 12, 16, 16), "float32")
        assert before["pixels"].shape[-1] == 3
        (reward,) = sides(report, "reward")[1].values()
        assert (reward.domain.low, reward.domain.high) == (-1, 1)
    elif env_id in MUJOCO:
        assert before["observation"].dtype == "float64"
        assert after["observation"].dtype == "float32"
        assert after["observation"].shape == before["observation"].shape
        assert after["episode_reward"].shape == (*lead, 1)
    else:
        assert after.keys() - before.keys() == {"step_count", "episode_reward"}
        assert after["step_count"].shape == (*lead, 1)


@sampled(3)
@pytest.mark.parametrize(("env_id", "chain", "num_envs"), alternating_params(1))
def test_check(env_id: str, chain: tuple[str, ...], num_envs: int | None) -> None:
    report = check_pipeline(Pipeline.of(EnvConfig(env_id, num_envs=num_envs, seed=0), *chain))
    assert report.ok, report.findings
    assert report.checks == ("arguments", "specs", "steps", "lints")
