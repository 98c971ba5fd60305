"""The output of a transform is within its declared spec, and upstream specs are not mutated."""

from __future__ import annotations

import pytest
import torch

from tdx import TransformedEnv, check_env_specs
from tdx.core.envs import EnvBase
from tdx.foundation.keys import normalize_key
from tdx.pipeline import load_catalog
from tdx.specs import Composite
from tdx.specs.arguments import ends_with
from tests.programs import sampled
from tests.transforms.contract.examples import (
    EXAMPLES,
    NAMES,
    example_of,
    made,
    rows_of,
    whole_chain,
)
from tests.transforms.envs import RowsEnv
from tests.transforms.fixed_rollouts import assert_same, entries, fixed_rollout


def assert_keeps_promise(env: EnvBase) -> None:
    """A rollout has exactly the declared keys, and each value is within its spec."""
    rollout = fixed_rollout(env, 6)
    given = {normalize_key(key) for key in env.full_action_spec.keys(True, True)}
    expected: dict[str, Composite] = {
        "full_observation_spec": env.full_observation_spec,
        "full_done_spec": env.full_done_spec,
    }
    following = {**expected, "full_reward_spec": env.full_reward_spec}
    root = entries(rollout.exclude("next"))
    for found, parts in ((root, expected), (entries(rollout["next"]), following)):
        leaves = {
            normalize_key(key): spec
            for part in parts.values()
            for key, spec in part.items(True, True)
        }
        assert set(found) - given == set(leaves)
        for key, spec in leaves.items():
            value = found[key].movedim(env.ndim, 0)
            assert value.ndim == spec.ndim + 1, key
            assert ends_with(value.shape, spec.shape), key
            assert spec.why_not_in(value) is None, (key, spec.why_not_in(value))


def test_examples_name_existing_transforms() -> None:
    assert sorted(EXAMPLES) == NAMES


def test_the_catalog_names_every_transform() -> None:
    assert sorted(info.name for info in load_catalog().transforms) == NAMES


@pytest.mark.parametrize("batch_size", [(), (2, 3)], ids=["single", "2x3"])
def test_output_is_within_the_spec(name: str, batch_size: tuple[int, ...]) -> None:
    env = TransformedEnv(rows_of(name, batch_size), made(name))
    assert_keeps_promise(env)
    check_env_specs(env)


@sampled(4)
def test_nested_keys(name: str) -> None:
    env = TransformedEnv(example_of(name).groups((2, 3)), made(name, "nested"))
    assert_keeps_promise(env)
    check_env_specs(env)


@sampled(4)
def test_custom_out_key_does_not_change_other_entries(name: str) -> None:
    if example_of(name).out is None:
        pytest.skip("it writes nothing in the forward direction")
    plain = rows_of(name, (2, 3))
    env = TransformedEnv(rows_of(name, (2, 3)), made(name, "out"))
    for part in ("full_observation_spec", "full_reward_spec", "full_done_spec"):
        before, after = getattr(plain, part), getattr(env, part)
        for key, spec in before.items(True, True):
            assert after[key] == spec, key
    assert_keeps_promise(env)
    assert_same(fixed_rollout(env), fixed_rollout(plain), superset=True)


def test_upstream_specs_are_never_mutated(name: str) -> None:
    base = rows_of(name, (4,))
    transform = made(name)
    output_spec, input_spec = base.output_spec.clone(), base.input_spec.clone()
    env = TransformedEnv(base, transform)
    changed = env.output_spec, env.input_spec
    fixed_rollout(env, 2)
    assert base.output_spec == output_spec
    assert base.input_spec == input_spec
    for spec, hook in (
        (output_spec, transform.transform_output_spec),
        (input_spec, transform.transform_input_spec),
    ):
        given = spec.clone()
        hook(given)
        assert given == spec
    assert (env.output_spec, env.input_spec) == changed


def test_input_tensors_are_never_written_to(name: str) -> None:
    base = rows_of(name, (4,))
    env = TransformedEnv(base, made(name))
    tensordict = env.rand_action(env.reset())
    before = {key: value.clone() for key, value in entries(tensordict).items()}
    env.step(tensordict)
    for key, value in before.items():
        assert torch.equal(tensordict[key], value), key


def test_chain_of_all_transforms() -> None:
    env = TransformedEnv(RowsEnv((4,)), whole_chain())
    assert_keeps_promise(env)
    check_env_specs(env)
