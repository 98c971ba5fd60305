"""A transform in a replay buffer gives the same results as on stored data."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDictBase

from tdx import (
    LazyTensorStorage,
    ReplayBuffer,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    TransformedEnv,
)
from tdx.foundation.errors import ArgumentError, ChainError, TdxError
from tdx.transforms import Transform
from tests.programs import sampled
from tests.transforms.contract.examples import example_of, made, rows_of
from tests.transforms.contract.test_places import stored_data
from tests.transforms.fixed_rollouts import assert_same

STEPS = 8


def bound(name: str) -> Transform:
    """Return a transform that has completed its arguments from the specs of an env."""
    transform = made(name)
    # In an env, its forward accepts only the batch size of the env.
    if not example_of(name).offline and name != "BatchSizeTransform":
        TransformedEnv(rows_of(name), transform).output_spec  # noqa: B018
        transform.reset_parent()
    return transform


def written(name: str) -> TensorDictBase:
    """Return data for :meth:`ReplayBuffer.extend`, with the entries of a policy, ``[T]``."""
    return stored_data(rows_of(name))


def buffer_of(name: str, data: TensorDictBase, sampler: Sampler) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=STEPS)
    buffer.extend(data)
    return buffer.append_transform(bound(name))


def called(transform: Transform, data: TensorDictBase) -> TensorDictBase | type[TdxError]:
    try:
        return transform(data)
    except TdxError as error:
        return type(error)


@sampled(4)
def test_in_a_replay_buffer(any_name: str) -> None:
    """A batch of one whole episode equals ``forward`` of that episode."""
    if any_name == "RandomCropTensorDict":
        pytest.skip("it draws steps at random, as the sampler does")
    data = written(any_name)[:2]
    assert data["next", "done"].flatten().tolist() == [False, True]
    torch.manual_seed(1)
    expected = called(bound(any_name), data.clone())
    buffer = buffer_of(any_name, data, SliceSampler(slice_len=2))
    torch.manual_seed(1)
    if isinstance(expected, type):
        with pytest.raises(expected, match=any_name):
            buffer.sample(2)
        return
    batch = buffer.sample(2)
    assert batch.batch_size == expected.batch_size
    marked = [("next", "truncated")]
    if "Primer" not in any_name:  # it draws new entries
        assert_same(batch.exclude(*marked), expected.exclude(*marked))
    assert_same(buffer.storage[:], data)


@sampled(4)
def test_episodes_in_a_replay_buffer_are_independent(any_name: str) -> None:
    """Another episode in the batch does not change this one."""
    data = written(any_name)
    buffer = buffer_of(any_name, data, SliceSampler(slice_len=2))
    try:
        batch, info = buffer.sample(STEPS * 2, return_info=True)
    except TdxError:
        pytest.skip("it refuses this data")
    if batch.batch_size != (STEPS * 2,) or "Primer" in any_name or example_of(any_name).lasting:
        pytest.skip("the batch does not hold the steps one by one, or not the same ones")
    alone = buffer_of(any_name, data[:2], SliceSampler(slice_len=2)).sample(2)
    starts = (info["index"][::2] == 0).nonzero().flatten() * 2
    assert len(starts)
    for start in starts:
        assert_same(batch[start : start + 2], alone)


@sampled(4)
def test_unrelated_steps_in_a_replay_buffer(any_name: str) -> None:
    """Steps are mapped separately or refused, never combined."""
    data = written(any_name)
    sampler = SamplerWithoutReplacement(shuffle=False)
    buffer = buffer_of(any_name, data, sampler)
    try:
        batch = buffer.sample()
    except (ArgumentError, ChainError) as error:
        assert any_name in str(error) or any_name in str(error.where)  # noqa: PT017
        return
    if batch.batch_size != (STEPS,) or "Primer" in any_name or example_of(any_name).lasting:
        pytest.skip("it maps batches as a whole")
    # Both steps of the first episode, and the last one.
    for i in (0, 1, STEPS - 1):
        single = buffer_of(any_name, data[i : i + 1], SamplerWithoutReplacement()).sample(1)
        assert_same(batch[i : i + 1], single)


def test_inverse_is_applied_when_writing(any_name: str) -> None:
    transform = bound(any_name)
    if not transform.invertible:
        pytest.skip("it has no inverse")
    data = written(any_name)
    if not example_of(any_name).offline:
        env = TransformedEnv(rows_of(any_name), made(any_name))
        for key, spec in env.full_action_spec.items(True, True):
            if data.get(key, None) is None or data[key].shape[1:] != spec.shape:
                data[key] = spec.rand((STEPS,))
    expected = transform.inv(data.clone())
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    buffer.append_transform(bound(any_name))
    buffer.extend(data)
    assert_same(buffer.storage[:], expected)


def test_nothing_is_lost_when_writing(any_name: str) -> None:
    """What the inverse does not replace is stored as it is."""
    data = written(any_name)
    for transform in (made(any_name), bound(any_name)):
        buffer = ReplayBuffer(storage=LazyTensorStorage(100), transform=transform)
        try:
            buffer.extend(data.clone())
        except (TdxError, RuntimeError):
            continue  # it refuses these actions, and nothing is stored
        replaced = [*transform.in_keys_inv, *transform.out_keys_inv]
        kept = data.exclude(*replaced)
        held = buffer.storage[:]
        if len(held) == len(data):
            assert_same(held.select(*kept.keys(True, True), strict=False), kept)
        else:
            assert set(kept.keys(True, True)) <= set(held.keys(True, True))
