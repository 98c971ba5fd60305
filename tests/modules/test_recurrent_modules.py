"""Recurrent modules: one step at a time, whole sequences, and episodes inside a sequence."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from tdx import GRUModule, LSTMModule, recurrent_mode, set_recurrent_mode
from tdx.foundation.errors import ArgumentError, KeyNotFoundError, TdxError, UnknownNameError
from tdx.foundation.keys import join_keys

Make = Callable[..., Any]
BOTH = pytest.mark.parametrize("make", [GRUModule, LSTMModule], ids=["gru", "lstm"])


def data(*shape: int, size: int = 3, starts: tuple[tuple[int, ...], ...] = ()) -> TensorDict:
    """Inputs of size 3, with an episode that begins at each of these places."""
    is_init = torch.zeros(*shape, 1, dtype=torch.bool)
    for place in starts:
        is_init[place] = True
    return TensorDict(x=torch.randn(*shape, size), is_init=is_init, batch_size=shape)


def step_by_step(module: Any, sequences: TensorDictBase) -> tuple[torch.Tensor, list[Any]]:
    """The outputs ``[N, T, G]`` of single steps, and the states after each step."""
    states: dict[Any, torch.Tensor] = {
        key: sequences[key][:, 0] for key in module.state_keys if key in sequences.keys()
    }
    outputs, after = [], []
    with set_recurrent_mode(False):
        for step in sequences.select("x", "is_init").unbind(1):
            for key, value in states.items():
                step[key] = value
            result = module(step)
            states = {key: result[join_keys("next", key)] for key in module.state_keys}
            outputs.append(result["y"])
            after.append(states)
    return torch.stack(outputs, 1), after


@BOTH
@pytest.mark.parametrize("shape", [(), (4,), (2, 5)], ids=str)
def test_single_steps(make: Make, shape: tuple[int, ...]) -> None:
    module = make(3, 6, num_layers=2, in_key="x", out_key="y")
    result = module(data(*shape))
    assert result["y"].shape == (*shape, 6)
    for key in module.state_keys:
        assert result["next", key].shape == (*shape, 2, 6)
    assert not module.recurrent_mode


@BOTH
@pytest.mark.parametrize(
    "starts",
    [(), ((0, 0),), ((0, 3),), ((0, 0), (0, 2), (1, 1), (1, 5)), ((2, 6),)],
    ids=["none", "first", "inside", "several", "last"],
)
def test_a_sequence_equals_its_steps(make: Make, starts: tuple[tuple[int, ...], ...]) -> None:
    module = make(3, 4, num_layers=2, in_key="x", out_key="y")
    sequences = data(3, 7, starts=starts)
    for key in module.state_keys:
        states = torch.randn(3, 7, 2, 4)
        sequences[key] = states.masked_fill(sequences["is_init"].unsqueeze(-1), 0.0)
    expected, after = step_by_step(module, sequences)
    with set_recurrent_mode(True):
        result = module(sequences.clone())
    torch.testing.assert_close(result["y"], expected)
    ends = torch.ones(3, 7, dtype=torch.bool)
    ends[:, :-1] = sequences["is_init"][:, 1:, 0]
    for key in module.state_keys:
        states = torch.stack([each[key] for each in after], 1)
        torch.testing.assert_close(result["next", key][ends], states[ends])
        assert not result["next", key][~ends].any()


@BOTH
def test_an_episode_in_a_sequence_starts_with_its_stored_state(make: Make) -> None:
    module = make(3, 4, in_key="x", out_key="y", default_recurrent_mode=True)
    sequences = data(1, 6, starts=((0, 0), (0, 4)))
    for key in module.state_keys:
        sequences[key] = torch.randn(1, 6, 1, 4)
    whole = module(sequences.clone())["y"]
    parts = [module(sequences[:, part].clone())["y"] for part in (slice(4), slice(4, None))]
    torch.testing.assert_close(whole, torch.cat(parts, 1))
    other = sequences.clone()
    other[module.state_keys[0]][:, 4] += 1.0
    changed = (module(other)["y"] != whole).any(-1)
    assert changed[0].tolist() == [False] * 4 + [True] * 2


@BOTH
def test_leading_dims_of_sequences(make: Make) -> None:
    module = make(3, 4, in_key="x", out_key="y", default_recurrent_mode=True)
    block = data(2, 3, 5, starts=((0, 1, 2), (1, 2, 4)))
    whole = module(block.clone())
    rows = torch.stack([module(row.clone()) for row in block.flatten(0, 1)]).unflatten(0, (2, 3))
    torch.testing.assert_close(whole["y"], rows["y"])
    single = module(block[0, 1].clone())
    torch.testing.assert_close(single["y"], whole["y"][0, 1])


@BOTH
def test_episodes_are_independent(make: Make) -> None:
    module = make(3, 4, in_key="x", out_key="y", default_recurrent_mode=True)
    sequences = data(2, 6, starts=((0, 2), (1, 2)))
    first = module(sequences.clone())["y"]
    sequences["x"][:, :2] += 1.0
    second = module(sequences.clone())["y"]
    assert torch.equal(first[:, 2:], second[:, 2:])
    assert not torch.equal(first[:, :2], second[:, :2])


@BOTH
def test_gradients_flow_through_episodes(make: Make) -> None:
    module = make(3, 4, in_key="x", out_key="y", default_recurrent_mode=True)
    sequences = data(2, 5, starts=((0, 2),))
    sequences["x"].requires_grad_()
    module(sequences)["y"].sum().backward()
    assert sequences["x"].grad.abs().sum(-1).all()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_bidirectional_network_does_not_cross_episodes() -> None:
    module = GRUModule(3, 4, bidirectional=True, in_key="x", out_key="y")
    sequences = data(1, 6, starts=((0, 4),))
    with set_recurrent_mode(True):
        whole = module(sequences.clone())
        parts = [module(sequences[:, part].clone()) for part in (slice(4), slice(4, None))]
    torch.testing.assert_close(whole["y"], torch.cat([part["y"] for part in parts], 1))
    assert whole["next", "recurrent_state"].shape == (1, 6, 2, 4)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_a_projection_makes_the_hidden_state_smaller() -> None:
    module = LSTMModule(3, 4, proj_size=2, in_key="x", out_key="y")
    result = module(data(5))
    assert result["y"].shape == (5, 2)
    assert result["next", "recurrent_state_h"].shape == (5, 1, 2)
    assert result["next", "recurrent_state_c"].shape == (5, 1, 4)


def test_keys_are_chosen_freely() -> None:
    module = LSTMModule(
        3,
        4,
        in_keys=[("agents", "x"), "h", ("s", "c"), "first"],
        out_keys=["y", ("next", "h"), ("next", "s", "c")],
    )
    entries = {("agents", "x"): torch.ones(2, 3), "first": torch.zeros(2, 1, dtype=torch.bool)}
    result = module(TensorDict(entries, batch_size=[2]))
    assert result["next", "s", "c"].shape == (2, 1, 4)
    short = GRUModule(3, 4, in_keys=["x", "h"], out_keys=["y", ("next", "h")])
    assert short.in_keys == ["x", "h", "is_init"]


def test_a_given_network_is_used() -> None:
    network = nn.GRU(3, 4, num_layers=2, batch_first=True)
    module = GRUModule(gru=network, in_key="x", out_key="y")
    assert module.gru is network
    assert module(data())["next", "recurrent_state"].shape == (2, 4)


def test_inside_a_sequence_of_modules_and_with_keywords() -> None:
    gru = GRUModule(3, 4, in_key="x", out_key="y")
    head = TensorDictModule(nn.Linear(4, 2), in_keys=["y"], out_keys=["action"])
    assert TensorDictSequential(gru, head)(data(5))["action"].shape == (5, 2)
    x, h, starts = torch.ones(1, 3), torch.zeros(1, 1, 4), torch.ones(1, 1, dtype=torch.bool)
    y, following = gru(x=x, recurrent_state=h, is_init=starts)
    assert (y.shape, following.shape) == ((1, 4), (1, 1, 4))


@BOTH
def test_copies_and_state_dict(make: Make) -> None:
    module, other = (make(3, 4, in_key="x", out_key="y") for _ in range(2))
    other.load_state_dict(module.state_dict())
    given = data(5)
    expected = module(given.clone())["y"]
    for copy in (other, deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copy(given.clone())["y"], expected)


# Mode


def test_the_mode_is_set_for_a_while() -> None:
    module = GRUModule(3, 4, in_key="x", out_key="y", default_recurrent_mode=True)
    assert recurrent_mode() is None
    with set_recurrent_mode("sequential"):
        assert not module.recurrent_mode
        with set_recurrent_mode():
            assert recurrent_mode() is True
        assert recurrent_mode() is False
        with set_recurrent_mode(None):
            assert module.recurrent_mode
    assert recurrent_mode() is None


def test_the_mode_decorates_a_function() -> None:
    @set_recurrent_mode("recurrent")
    def mode() -> bool | None:
        return recurrent_mode()

    assert mode() is True
    assert recurrent_mode() is None
    with pytest.raises(ZeroDivisionError), set_recurrent_mode(True):
        _ = 1 / 0
    assert recurrent_mode() is None


# Bad input


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: GRUModule(3, 4, out_key="y"), ArgumentError, "pass in_key or in_keys"),
        (
            lambda: GRUModule(3, 4, in_key="x", in_keys=["x", "h"], out_key="y"),
            ArgumentError,
            "not both",
        ),
        (lambda: GRUModule(3, 4, in_key="x"), ArgumentError, "pass out_key or out_keys"),
        (
            lambda: GRUModule(3, 4, in_keys=["x"], out_key="y"),
            ArgumentError,
            "in_keys of GRUModule must name the input, one state, and is_init, got x",
        ),
        (
            lambda: LSTMModule(3, 4, in_key="x", out_keys=["y", "h"]),
            ArgumentError,
            "out_keys of LSTMModule must name the output and two states, got y, h",
        ),
        (
            lambda: GRUModule(3, in_key="x", out_key="y"),
            ArgumentError,
            "input_size and hidden_size",
        ),
        (
            lambda: GRUModule(3, 4, batch_first=False, in_key="x", out_key="y"),
            ArgumentError,
            "batch_first must be true",
        ),
        (
            lambda: LSTMModule(lstm=cast(Any, nn.GRU(3, 4)), in_key="x", out_key="y"),
            ArgumentError,
            "lstm must be an nn.LSTM, got GRU",
        ),
        (
            lambda: GRUModule(3, 4, gru=nn.GRU(3, 4, batch_first=True), in_key="x", out_key="y"),
            ArgumentError,
            "remove one of them",
        ),
        (lambda: set_recurrent_mode(cast(Any, "recurent")), UnknownNameError, "mean recurrent"),
    ],
)
def test_invalid_arguments(make: Callable[[], Any], error: type[TdxError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (data(2).exclude("is_init"), KeyNotFoundError, "append InitTracker"),
        (data(2).exclude("x"), KeyNotFoundError, "GRUModule reads 'x'"),
        (data(2, size=5), ArgumentError, r"input_size=3, its input has shape \(2, 5\)"),
        (
            data(2).set("recurrent_state", torch.zeros(2, 2, 4)),
            ArgumentError,
            r"must have shape \(2, 1, 4\), got \(2, 2, 4\)",
        ),
        (
            TensorDict(x=torch.zeros(2, 3), is_init=torch.zeros(1, dtype=torch.bool)),
            ArgumentError,
            r"is_init must have shape \(2, 1\)",
        ),
    ],
)
def test_incompatible_data(given: TensorDict, error: type[TdxError], message: str) -> None:
    with pytest.raises(error, match=message):
        GRUModule(3, 4, in_key="x", out_key="y")(given)


def test_a_sequence_needs_a_time_dim() -> None:
    module = GRUModule(3, 4, in_key="x", out_key="y")
    with set_recurrent_mode(True), pytest.raises(ArgumentError, match="no time dim"):
        module(data())
