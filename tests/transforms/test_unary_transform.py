"""Entries mapped by a function, and their hashes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorDict
from torch import Tensor

from tdx import (
    Composite,
    GymEnv,
    Hash,
    NonTensor,
    TransformedEnv,
    UnaryTransform,
    Unbounded,
    check_env_specs,
)
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError
from tests.transforms.envs import RowsEnv


def as_text(value: Tensor) -> str:
    return str(value.numpy().tobytes())


def split(value: Tensor) -> TensorDict:
    return TensorDict(first=value[..., 0], rest=value[..., 1:]).auto_batch_size_(value.ndim - 1)


def test_entries_that_are_not_tensors() -> None:
    text = UnaryTransform(["observation"], ["text"], fn=as_text)
    env = TransformedEnv(GymEnv("Pendulum-v1"), text).append_transform(Hash(["text"], ["hash"]))
    assert isinstance(env.observation_spec["text"], NonTensor)
    assert env.observation_spec["hash"] == Unbounded((32,), dtype=torch.uint8)
    check_env_specs(env)
    rollout = env.rollout(3)
    wanted = [as_text(each) for each in rollout["observation"]]
    assert rollout.get("text").tolist() == wanted
    assert torch.equal(rollout["hash"], torch.stack(list(map(Hash.reproducible_hash, wanted))))
    assert rollout["hash"].unique(dim=0).shape == (3, 32)


def test_groups_of_entries() -> None:
    env = TransformedEnv(RowsEnv((2,)), UnaryTransform(["observation"], ["parts"], fn=split))
    spec = env.observation_spec["parts"]
    assert isinstance(spec, Composite)
    assert dict(spec.items()) == {"first": Unbounded((2,)), "rest": Unbounded((2, 2))}
    rollout = env.rollout(2)
    assert torch.equal(rollout["parts", "rest"], rollout["observation"][..., 1:])


def test_actions() -> None:
    base = RowsEnv()
    transform = UnaryTransform(
        [], [], ["action"], ["angle"], fn=torch.rad2deg, inv_fn=torch.deg2rad
    )
    env = TransformedEnv(base, transform)
    assert list(env.full_action_spec.keys()) == ["angle"]
    env.step(env.reset().set("angle", torch.tensor([90.0, 45.0])))
    assert base.given is not None
    torch.testing.assert_close(base.given, torch.tensor([torch.pi / 2, torch.pi / 4]))


def test_raw_values() -> None:
    seen: list[Any] = []

    def keep(value: Any) -> Tensor:
        seen.append(value)
        return torch.zeros(1)

    data = TensorDict(text="north")
    UnaryTransform(["text"], ["a"], fn=keep)(data)
    UnaryTransform(["text"], ["a"], fn=keep, use_raw_nontensor=True)(data)
    assert seen[0] == "north"
    assert isinstance(seen[1], NonTensorData)
    both = TensorDict(text=NonTensorData("south", batch_size=[2]), batch_size=[2])
    lengths = UnaryTransform(["text"], ["a"], fn=lambda texts: torch.tensor([*map(len, texts)]))
    assert lengths(both)["a"].tolist() == [5, 5]


def test_values_are_found_by_their_hashes() -> None:
    known: dict[Any, Any] = {}
    hashes = Hash(["text"], ["hash"], ["text"], ["hash"], repertoire=known)
    hashed = hashes(TensorDict(text="north"))
    assert list(known.values()) == ["north"]
    assert hashes.inv(hashed.select("hash"))["text"] == "north"
    assert hashes.get_input_from_hash(hashed["hash"]) == "north"
    with pytest.raises(ChainError, match="no value with this hash"):
        hashes.get_input_from_hash(torch.zeros(32))
    with pytest.raises(ChainError, match="no value with this hash"):
        Hash(["text"], ["hash"]).get_input_from_hash(hashed["hash"])


def test_a_hash_of_each_element() -> None:
    rows = Hash.reproducible_hash(["a", "b"])
    assert rows.shape == (2, 32)
    assert torch.equal(rows[1], Hash.reproducible_hash("b"))
    assert torch.equal(Hash.reproducible_hash("b", "a"), Hash.reproducible_hash("ab"))
    assert torch.equal(Hash.reproducible_hash(None), Hash.reproducible_hash(""))


def test_unsupported_entries_are_refused() -> None:
    fn: Any = "exp"
    with pytest.raises(ArgumentError, match="fn must be a function"):
        UnaryTransform(["a"], ["b"], fn=fn)
    with pytest.raises(ArgumentError, match="inv_fn must be a function"):
        UnaryTransform(["a"], ["b"], fn=torch.exp, inv_fn=fn)
    with pytest.raises(KeyNotFoundError, match="no key 'b'"):
        UnaryTransform(["b"], ["c"], fn=torch.exp)(TensorDict(a=torch.zeros(1)))
    with pytest.raises(KeyNotFoundError, match="no key 'b'"):
        TransformedEnv(RowsEnv(), UnaryTransform(["b"], ["c"], fn=torch.exp)).output_spec  # noqa: B018
    no_tensor: Any = len
    with pytest.raises(ArgumentError, match="must return a tensor, got int"):
        Hash(["a"], ["b"], hash_fn=no_tensor)(TensorDict(a="text"))
