"""A transform maps a stored rollout of the bare env as it would have mapped its steps.

Exceptions raise an error or are listed here with the reason.
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
from tests.transforms.contract.examples import NAMES, made, rows_of
from tests.transforms.fixed_rollouts import ROUNDED, entries, fixed_rollout

REFUSED = {
    "EndOfLifeTransform": "stored data has none",
    "FrameSkipTransform": "stored data has none",
    "PixelRenderTransform": "stored data has none",
    "RandomTruncationTransform": "stored data has none",
    "StepCounter": "continues after max_steps=3",
    "Timer": "stored data has none",
    "TrajCounter": "stored data has none",
    "VecNormV2": "the statistics have shape",
}
"""Transforms that refuse this rollout, with their error message."""

DECLARED = {
    "ActionChunkTransform": "writes chunks of stored actions; in steps the later ones are unknown",
    "ActionDiscretizer": "stored actions stay: their bins are not known",
    "ActionScaling": "stored actions are mapped; in steps the policy gives others",
    "CatTensors": "joins the entries that it names, those in next only by name",
    "DTypeCastTransform": "stored actions are cast; in steps the policy gives others",
    "ExcludeTransform": "drops the keys that it names, those in next only by name",
    "NextObservationDelta": "restores next observations, which this rollout has",
    "NoopResetEnv": "stored steps contain the results of the no-ops; other steps need other ones",
    "R3MTransform": "maps the images that it names, those in next only by name",
    "RenameTransform": "stored actions keep their name",
    "SelectTransform": "keeps the keys that it names; in steps the action is the policy's",
    "TensorDictPrimer": "writes at the root; in steps values are carried into next",
    "TerminateTransform": "marks the data; in steps the env would be reset there",
    "UnsqueezeTransform": "stored actions stay; in steps the policy gives others",
    "VecNorm": "its statistics take in all of the data, in steps what came before",
}
"""Transforms whose offline form differs by definition, with the difference."""

ONE_OUT_KEY = {"CatTensors", "R3MTransform"}
"""Transforms with several in-keys and one out-key, which cannot name the keys in next too."""

MAPS_NEXT = {
    *("CatFrames", "InitTracker", "NextObservationDelta", "RewardSum", "SelectTransform"),
    *("TargetReturn", "TimeMaxPool"),
}
"""Transforms that map entries under ``next`` by default."""


def prepared(name: str, batch_size: tuple[int, ...]) -> Transform:
    """Return a transform that knows the specs of its env and maps the keys in ``next`` too."""
    transform = made(name)
    base = rows_of(name, batch_size)
    TransformedEnv(base, transform).output_spec  # noqa: B018
    transform.reset_parent()
    if name not in {*MAPS_NEXT, *ONE_OUT_KEY} and transform.in_keys:
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


def test_stored_rollout_equals_single_steps(name: str) -> None:
    batch_size = (4,)
    stored = fixed_rollout(rows_of(name, batch_size))
    transform = prepared(name, batch_size)
    if name in REFUSED:
        with pytest.raises(TdxError, match=REFUSED[name]) as caught:
            transform(stored)
        assert caught.value.hint
        return
    found = transform(stored.clone())
    wanted = fixed_rollout(TransformedEnv(rows_of(name, batch_size), made(name)))
    assert bool(differing(found, wanted)) == (name in DECLARED), DECLARED.get(name)


def test_tables_name_existing_transforms() -> None:
    assert {*REFUSED, *DECLARED, *MAPS_NEXT} <= set(NAMES)
    assert not {*REFUSED} & {*DECLARED}
