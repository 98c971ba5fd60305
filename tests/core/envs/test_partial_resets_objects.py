"""Partial resets of entries that are not tensors."""

from __future__ import annotations

import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase

from tdx.core.envs.done_flags import keep_unmasked_rows


def merged(mask: list[bool]) -> TensorDictBase:
    fresh = TensorDict(text=NonTensorStack("a", "b"), group=TensorDict(n=torch.ones(2, 1)))
    before = TensorDict(text=NonTensorStack("x", "y"), group=TensorDict(n=torch.zeros(2, 1)))
    fresh.batch_size = before.batch_size = torch.Size([2])
    keep_unmasked_rows(fresh, before, {"_reset": torch.tensor(mask).unsqueeze(-1)}, 1)
    return fresh


def test_objects_keep_their_rows() -> None:
    assert merged([True, False])["text"] == ["a", "y"]


def test_nested_entries_follow_the_root_mask() -> None:
    assert merged([False, True])["group", "n"].flatten().tolist() == [0.0, 1.0]
