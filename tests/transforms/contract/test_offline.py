"""A transform maps a stored rollout of the bare env as it would have mapped its steps.

Exceptions raise an error (``Example.refuses_stored``) or have their reason in
``Example.stored_differs``.
"""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDictBase

from tdx import TransformedEnv
from tdx.foundation.errors import TdxError
from tdx.foundation.keys import NestedKey, join_keys, split_key
from tdx.foundation.tensordicts import read
from tdx.transforms import Transform
from tests.programs import sampled
from tests.transforms.contract.examples import example_of, made, rows_of
from tests.transforms.fixed_rollouts import ROUNDED, entries, fixed_rollout

ONE_OUT_KEY = {"CatTensors", "R3MTransform"}
"""Transforms with several in-keys and one out-key, which cannot name the keys in next too."""


def prepared(name: str, batch_size: tuple[int, ...]) -> Transform:
    """Return a transform that knows the specs of its env and maps the keys in ``next`` too."""
    transform = made(name)
    base = rows_of(name, batch_size)
    TransformedEnv(base, transform).output_spec  # noqa: B018
    transform.reset_parent()
    if name not in ONE_OUT_KEY and not example_of(name).maps_next and transform.in_keys:
        stored = fixed_rollout(base, 1)
        pairs = zip(transform.in_keys, transform.out_keys, strict=True)
        doubled: list[tuple[NestedKey, NestedKey]] = []
        for pair in pairs:
            levels = (pair, (join_keys("next", pair[0]), join_keys("next", pair[1])))
            doubled += [each for each in levels if read(stored, each[0]) is not None]
        transform._set_keys([key for key, _ in doubled], [key for _, key in doubled])
    return transform


def differing(found: TensorDictBase, wanted: TensorDictBase) -> list[NestedKey]:
    """Return the keys that differ or are missing on one side."""
    mine, other = entries(found), entries(wanted)
    different = [key for key in mine if key not in other] + [
        key for key in other if key not in mine
    ]
    return different + [
        key for key in mine if key in other and not _same(key, mine[key], other[key])
    ]


def _same(key: NestedKey, one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype is not other.dtype or one.shape != other.shape:
        return False
    if split_key(key)[-1] in ROUNDED:
        return torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    return torch.equal(one, other)


@sampled(4)
def test_stored_rollout_equals_single_steps(name: str) -> None:
    batch_size = (4,)
    stored = fixed_rollout(rows_of(name, batch_size))
    transform = prepared(name, batch_size)
    example = example_of(name)
    refusal = "the statistics have shape" if name == "VecNormV2" else example.refuses_stored
    if refusal is not None:
        with pytest.raises(TdxError, match=refusal) as caught:
            transform(stored)
        assert caught.value.hint
        return
    found = transform(stored.clone())
    wanted = fixed_rollout(TransformedEnv(rows_of(name, batch_size), made(name)))
    reason = example.stored_differs
    assert bool(differing(found, wanted)) == (reason is not None), reason
