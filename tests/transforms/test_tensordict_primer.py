"""Trap 9 of the reference: primers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx import (
    Composite,
    SerialEnv,
    TensorDictPrimer,
    TransformedEnv,
    Unbounded,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError, ChainError
from tests.transforms.envs import GroupsEnv, RowsEnv

# Primers


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("expand_specs", [None, True])
def test_specs_are_expanded_even_if_a_dim_equals_the_number_of_workers(
    workers: int, expand_specs: bool | None
) -> None:
    primer = TensorDictPrimer(
        {"flat": Unbounded((2,)), "layers": Unbounded((2, 3)), ("n", "one"): Unbounded((2, 2))},
        expand_specs=expand_specs,
    )
    env = TransformedEnv(SerialEnv(workers, RowsEnv), primer)
    check_env_specs(env)
    first = env.reset()
    assert first["flat"].shape == (workers, 2)
    assert first["layers"].shape == (workers, 2, 3)
    assert first["n", "one"].shape == (workers, 2, 2)


def test_batch_dims_are_given_by_a_composite_or_without_expansion() -> None:
    spec = Unbounded((2, 3))
    for primer in (
        TensorDictPrimer(Composite(mykey=spec, shape=(2,))),
        TensorDictPrimer(mykey=spec, expand_specs=False),
    ):
        env = TransformedEnv(SerialEnv(2, RowsEnv), primer)
        check_env_specs(env)
        assert env.reset()["mykey"].shape == (2, 3)
    env = TransformedEnv(SerialEnv(3, RowsEnv), TensorDictPrimer(mykey=spec, expand_specs=False))
    with pytest.raises(ChainError, match="does not start with the env's batch size"):
        env.output_spec  # noqa: B018


def test_sibling_nested_specs_are_kept() -> None:
    primer = TensorDictPrimer({("solo", "hidden"): Unbounded((2,))}, reset_key=("solo", "_reset"))
    base = GroupsEnv()
    env = TransformedEnv(base, primer)
    for key, spec in base.observation_spec.items(True, True):
        assert env.observation_spec[key] == spec
    assert env.reset()["solo"].keys() >= {"hidden", "observation", "precise"}


def test_values_are_carried_into_next_unless_present() -> None:
    env = TransformedEnv(RowsEnv(), TensorDictPrimer(mykey=Unbounded((3,)), default_value=2.0))
    first = env.reset()
    assert torch.equal(env.rand_step(first.clone())["next", "mykey"], torch.full((3,), 2.0))
    changed = env.rand_step(first.clone().set("mykey", torch.full((3,), 5.0)))
    assert torch.equal(changed["next", "mykey"], torch.full((3,), 5.0))
    there = env.rand_step(first.clone().set(("next", "mykey"), torch.ones(3)))
    assert torch.equal(there["next", "mykey"], torch.ones(3))


def test_single_default_value_returns_the_reset_rows() -> None:
    asked: list[list[bool]] = []

    def made(reset: Tensor) -> TensorDict:
        asked.append(reset.tolist())
        rows = int(reset.sum())
        return TensorDict(h=torch.full((rows, 2), float(len(asked))), batch_size=[rows])

    primer = TensorDictPrimer(h=Unbounded((2,)), default_value=made, single_default_value=True)
    env = TransformedEnv(RowsEnv((3,)), primer)
    first = env.reset()
    again = env.reset(first.set("_reset", torch.tensor([[False], [True], [False]])))
    assert asked == [[True, True, True], [False, True, False]]
    assert again["h"].tolist() == [[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]]


@pytest.mark.parametrize("single", [True, False])
def test_steps_without_the_entry_get_a_new_value(single: bool) -> None:
    def made() -> Any:
        rows = torch.full((3, 2), 4.0)
        return TensorDict(h=rows, batch_size=[3]) if single else rows

    primer = TensorDictPrimer(h=Unbounded((2,)), default_value=made, single_default_value=single)
    env = TransformedEnv(RowsEnv((3,)), primer)
    following = env.rand_step(env.reset().exclude("h"))["next"]
    assert following["h"].tolist() == [[4.0, 4.0]] * 3


def test_call_before_env_reset_passes_the_value_to_the_env() -> None:
    seen: list[Any] = []

    class Listening(RowsEnv):
        def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
            seen.append(None if tensordict is None else tensordict.get("h", None))
            return super()._reset(tensordict, **kwargs)

    primer = TensorDictPrimer(h=Unbounded((2,)), default_value=3.0, call_before_env_reset=True)
    env = TransformedEnv(Listening(), primer)
    assert env.reset()["h"].tolist() == [3.0, 3.0]
    assert seen[-1].tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorDictPrimer(cast(Any, {"h": 3})),
        lambda: TensorDictPrimer({"h": Unbounded(1)}, h=Unbounded(1)),
        lambda: TensorDictPrimer(h=Unbounded(1), random=True, default_value=1.0),
        lambda: TensorDictPrimer(h=Unbounded(1), default_value={"g": 1.0}),
        lambda: TensorDictPrimer(h=Unbounded(1), single_default_value=True),
        lambda: TensorDictPrimer(h=Unbounded(1), default_value=torch.ones(7))(TensorDict()),
    ],
)
def test_invalid_arguments(make: Callable[[], Any]) -> None:
    with pytest.raises(ArgumentError):
        make()
