"""``NextObservationDelta`` in an env, and in place of the stored next observation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict

from tdx import (
    Bounded,
    Compose,
    LazyTensorStorage,
    NextObservationDelta,
    RenameTransform,
    ReplayBuffer,
    StepCounter,
    TransformedEnv,
)
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError, StoredDataError
from tests.transforms.envs import GroupsEnv, RowsEnv
from tests.transforms.fixed_rollouts import assert_same, fixed_rollout

EXACT: dict[str, Any] = {"delta_dtype": torch.float64}


def test_delta_is_the_change_since_the_current_observation() -> None:
    env = TransformedEnv(RowsEnv((4,)), NextObservationDelta(["observation"], **EXACT))
    rollout = fixed_rollout(env, 8)
    change = rollout["next", "observation"] - rollout["observation"]
    assert torch.equal(rollout["next", "delta", "observation"], change.double())


def test_delta_is_zero_at_the_start_of_an_episode() -> None:
    chain = Compose(StepCounter(), NextObservationDelta(["observation"], ["change"]))
    rollout = fixed_rollout(TransformedEnv(RowsEnv((4,)), chain), 8)
    starts = (rollout["step_count"] == 0).squeeze(-1)
    assert starts.sum() > 4
    assert not rollout["change"][starts].any()
    assert rollout["change"][~starts].any(-1).all()
    assert rollout["next", "change"].any(-1).all()


def test_all_floating_observations_are_the_default() -> None:
    env = TransformedEnv(RowsEnv(), NextObservationDelta())
    keys = set(env.observation_spec["delta"].keys(True, True))
    assert keys == {"observation", "precise", "image"}
    env = TransformedEnv(RowsEnv(), NextObservationDelta(excluded_dtypes=(torch.float32,)))
    assert set(env.observation_spec["delta"].keys(True, True)) == {"precise"}


def test_bounds_are_those_of_a_difference() -> None:
    env = TransformedEnv(RowsEnv(), NextObservationDelta(["precise", "pixels"]))
    spec = env.observation_spec["delta"]
    for key, widest in (("precise", 200.0), ("pixels", 255.0)):
        assert isinstance(spec[key], Bounded)
        assert spec[key].dtype is torch.float16
        assert (spec[key].low.min().item(), spec[key].high.max().item()) == (-widest, widest)


def test_bytes_do_not_wrap_around() -> None:
    env = TransformedEnv(RowsEnv((4,)), NextObservationDelta(["pixels"]))
    step = env.rand_step(env.reset())
    expected = step["next", "pixels"].int() - step["pixels"].int()
    assert (expected < 0).any()
    assert torch.equal(step["next", "delta", "pixels"].int(), expected)


def test_a_later_stage_may_rename_what_it_reads() -> None:
    chain = Compose(
        NextObservationDelta(["observation"], **EXACT), RenameTransform(["observation"], ["seen"])
    )
    rollout = fixed_rollout(TransformedEnv(RowsEnv((4,)), chain), 8)
    change = rollout["next", "seen"] - rollout["seen"]
    assert torch.equal(rollout["next", "delta", "observation"], change.double())


def test_each_group_follows_its_own_reset() -> None:
    keys = [("solo", "observation"), ("pair", "observation")]
    env = TransformedEnv(GroupsEnv((3,)), NextObservationDelta(keys))
    rollout = fixed_rollout(env, 6)
    # Group solo ends every 2 steps, group pair every 3; both count up by 1.
    solo = rollout["delta", "solo", "observation"][0, :, 0].tolist()
    pair = rollout["delta", "pair", "observation"][0, :, 1, 0].tolist()
    assert solo == [0, 1, 0, 1, 0, 1]
    assert pair == [0, 1, 1, 0, 1, 1]


# Stored data


@pytest.mark.parametrize("key", ["observation", "precise", "pixels"])
def test_next_observation_is_restored_from_a_buffer(key: str) -> None:
    stored = fixed_rollout(TransformedEnv(RowsEnv((4,)), NextObservationDelta([key])), 8)
    expected = stored["next", key].clone()
    transform = NextObservationDelta([key])
    kept = transform.inv(stored)
    assert ("next", key) in stored.keys(True)
    assert ("next", key) not in kept.keys(True)
    again = transform(kept)
    assert again["next", key].dtype is expected.dtype
    near = 0.0 if key == "pixels" else 2e-3
    torch.testing.assert_close(again["next", key], expected, rtol=near, atol=near)
    assert "delta" not in again.keys()
    assert "delta" not in again["next"].keys()


def test_buffer_stores_only_the_differences() -> None:
    data = fixed_rollout(TransformedEnv(RowsEnv(), NextObservationDelta(["precise"])), 8)
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=8)
    buffer.append_transform(Compose(NextObservationDelta(["precise"])))
    buffer.extend(data)
    held = buffer.storage[:]["next"]
    assert "precise" not in held.keys()
    assert held["delta", "precise"].dtype is torch.float16
    batch = buffer.sample()
    assert "delta" not in batch["next"].keys()
    torch.testing.assert_close(
        batch["next", "precise"].sort(0).values,
        data["next", "precise"].sort(0).values,
        rtol=2e-3,
        atol=2e-3,
    )


@pytest.mark.parametrize("drop_delta", [False, True])
def test_data_without_differences_is_stored_as_it_is(drop_delta: bool) -> None:
    large = torch.tensor([[0.0, 0.1], [1e6, -1e6]])
    data = TensorDict(x=torch.zeros(2, 2), next=TensorDict(x=large, batch_size=[2]), batch_size=[2])
    transform = NextObservationDelta(["x"], drop_delta=drop_delta)
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), transform=transform)
    buffer.extend(data)
    assert_same(buffer.storage[:], data)
    assert torch.equal(buffer[:]["next", "x"], large)


def test_difference_out_of_range_is_not_stored() -> None:
    following = TensorDict(x=torch.tensor([[1e6]]), batch_size=[1])
    following["delta", "x"] = following["x"].half()
    data = TensorDict(x=torch.zeros(1, 1), next=following, batch_size=[1])
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), transform=NextObservationDelta(["x"]))
    with pytest.raises(StoredDataError, match=r"a difference of 1e\+06 does not fit into torch.fl"):
        buffer.extend(data)
    assert len(buffer) == 0


def test_data_stored_without_the_transform_is_not_changed() -> None:
    stored = fixed_rollout(RowsEnv((4,)), 3)
    result = NextObservationDelta(["observation"])(stored.clone())
    assert (result == stored).all()
    with_it = NextObservationDelta(["observation"], drop_delta=False, **EXACT)(stored.clone())
    change = stored["next", "observation"] - stored["observation"]
    assert torch.equal(with_it["next", "delta", "observation"], change.double())


def test_dtype_of_the_restored_observation() -> None:
    transform = NextObservationDelta(["x"], restore_dtype=torch.float64)
    following = TensorDict(x=torch.full((2,), 1.5), delta=TensorDict(x=torch.full((2,), 0.5)))
    data = TensorDict(x=torch.ones(2), next=following)
    result = transform(transform.inv(data))
    assert result["next", "x"].dtype is torch.float64
    assert result["next", "x"].tolist() == [1.5, 1.5]


# Errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NextObservationDelta(delta_dtype=torch.int8), "delta_dtype must be a floating"),
        (lambda: NextObservationDelta(restore_dtype=cast(Any, "rot")), "a dtype or 'root'"),
        (lambda: NextObservationDelta(None, ["change"]), "out_keys are given without in_keys"),
        (lambda: NextObservationDelta(["a", "b"], ["c"]), "2 in-keys and 1 out-keys"),
    ],
)
def test_invalid_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_unknown_observation() -> None:
    env = TransformedEnv(RowsEnv(), NextObservationDelta(["observatoin"]))
    with pytest.raises(KeyNotFoundError, match="existing keys: observation"):
        env.output_spec  # noqa: B018


def test_stored_data_without_the_observation_is_not_changed() -> None:
    for stored in (TensorDict(x=torch.ones(1)), TensorDict(other=torch.ones(1))):
        assert_same(NextObservationDelta(["x"])(stored.clone()), stored)


def test_stored_data_needs_named_keys() -> None:
    with pytest.raises(ChainError, match="has no in_keys for"):
        NextObservationDelta()(fixed_rollout(RowsEnv(), 1))
