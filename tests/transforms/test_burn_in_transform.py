"""``BurnInTransform``: recurrent states updated on stored sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict

from tdx import BurnInTransform, Compose, GRUModule, TransformedEnv, set_recurrent_mode
from tdx.data import LazyTensorStorage, ReplayBuffer
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError, TdxError
from tests.transforms.envs import Adding, RowsEnv, sequences
from tests.transforms.fixed_rollouts import assert_same


def test_remaining_steps_start_with_the_state_of_the_burn_in() -> None:
    stored = sequences()
    whole = Adding()(stored.clone())
    sample = BurnInTransform([Adding()], burn_in=4)(stored)
    assert sample.batch_size == (2, 2)
    assert sample["number"].tolist() == [[4, 5], [4, 5]]
    assert sample["hidden"][:, 0].equal(whole["next", "hidden"][:, 3])
    assert sample["hidden"][:, 1].equal(stored["hidden"][:, 5])
    torch.testing.assert_close(Adding()(sample.clone())["out"], whole["out"][:, 4:])


def test_recurrent_modules_take_sequences() -> None:
    gru = GRUModule(
        3, 4, in_keys=["observation", "h"], out_keys=["features", ("next", "h")], num_layers=2
    )
    stored = TensorDict(
        {
            "observation": torch.randn(2, 6, 3),
            "h": torch.zeros(2, 6, 2, 4),
            "is_init": torch.zeros(2, 6, 1, dtype=torch.bool),
        },
        batch_size=[2, 6],
    )
    with set_recurrent_mode(True):
        whole, first = gru(stored.clone()), gru(stored[:, :4].clone())
        sample = gru(BurnInTransform([gru], burn_in=4)(stored))
    torch.testing.assert_close(sample["features"], whole["features"][:, 4:])
    again = BurnInTransform([gru], burn_in=4)(stored)
    torch.testing.assert_close(again["h"][:, 0], first["next", "h"][:, -1])


def test_an_episode_after_the_burn_in_keeps_its_own_state() -> None:
    gru = GRUModule(3, 4, in_keys=["observation", "h", "begins"], out_keys=["f", ("next", "h")])
    begins = torch.zeros(2, 6, 1, dtype=torch.bool)
    begins[0, 4] = True
    stored = TensorDict(observation=torch.randn(2, 6, 3), begins=begins, batch_size=[2, 6])
    stored["h"] = torch.zeros(2, 6, 1, 4)
    with set_recurrent_mode(True):
        whole = gru(stored.clone())
        sample = gru(BurnInTransform([gru], burn_in=4)(stored))
    torch.testing.assert_close(sample["f"], whole["f"][:, 4:])


def test_stored_data_is_not_changed() -> None:
    stored = sequences()
    BurnInTransform([Adding()], burn_in=4)(stored)
    assert_same(stored, sequences())


def test_no_gradient_reaches_the_burn_in() -> None:
    module = Adding()
    sample = BurnInTransform([module], burn_in=2)(sequences())
    assert not sample["hidden"].requires_grad
    assert module(sample)["out"].requires_grad


def test_modules_run_one_after_another() -> None:
    first, second = Adding("hidden"), Adding("other")
    second.in_keys[0] = "out"
    stored = sequences().set("other", torch.zeros(2, 6, 1))
    burn_in = BurnInTransform([first, second], burn_in=3)
    assert burn_in.in_keys == ["observation", "hidden", "other"]
    assert burn_in.out_keys == ["hidden", "other"]
    whole = second(first(stored.clone()))
    sample = burn_in(stored)
    for key in ("hidden", "other"):
        assert sample[key][:, 0].equal(whole["next", key][:, 2])
    only = BurnInTransform([first, second], burn_in=3, out_keys=["other"])(stored)
    assert only["hidden"][:, 0].equal(stored["hidden"][:, 3])


def test_modules_are_not_registered() -> None:
    assert list(BurnInTransform([Adding()], burn_in=1).parameters()) == []


def test_a_burn_in_of_no_steps_changes_nothing() -> None:
    assert_same(BurnInTransform([Adding()], burn_in=0)(sequences()), sequences())


def test_in_a_replay_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=3)
    buffer.append_transform(Compose(BurnInTransform([Adding()], burn_in=4)))
    buffer.extend(sequences(4))
    sample = buffer.sample()
    assert sample.batch_size == (3, 2)
    assert (sample["hidden"][:, 0] != 0).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: BurnInTransform([], 1), ArgumentError, "modules must be a list of modules"),
        (
            lambda: BurnInTransform([torch.nn.Linear(1, 1)], 1),
            ArgumentError,
            "Linear has no in_keys",
        ),
        (lambda: BurnInTransform([Adding()], -1), ArgumentError, "burn_in must be an integer"),
        (
            lambda: BurnInTransform([Adding()], cast(Any, 1.0)),
            ArgumentError,
            "burn_in must be an integer",
        ),
        (
            lambda: BurnInTransform([Adding()], 1, out_keys=["hiden"]),
            ArgumentError,
            "write no state hiden",
        ),
        (
            lambda: BurnInTransform([Adding()], 6)(sequences()),
            ArgumentError,
            "have 6 steps, but burn_in=6",
        ),
        (
            lambda: BurnInTransform([Adding()], 1)(TensorDict(observation=torch.ones(1))),
            ArgumentError,
            "have 0 steps",
        ),
        (
            lambda: BurnInTransform([Adding()], 1)(sequences().exclude("hidden")),
            KeyNotFoundError,
            "has no key 'hidden'",
        ),
        (
            lambda: TransformedEnv(RowsEnv(), BurnInTransform([Adding()], 1)),
            ChainError,
            "cannot be part of an env",
        ),
    ],
)
def test_invalid_use(make: Callable[[], object], error: type[TdxError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
