"""Recurrent modules with copied weights against the oracle's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

import tdx
from tests.parity.twins import ORACLE

oracle_modules = pytest.importorskip("torchrl.modules")
pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = ["GRUModule", "LSTMModule"]
CASES = [
    *((name, {"num_layers": layers}) for name in NAMES for layers in (1, 2)),
    *((name, {"bias": False}) for name in NAMES),
    *((name, {"bidirectional": True}) for name in NAMES),
    ("LSTMModule", {"proj_size": 2}),
    *((name, {"python_based": True, "num_layers": 2}) for name in NAMES),
]
PAIR = pytest.mark.parametrize(("name", "options"), CASES)


def pair(name: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """The two modules, with the same weights."""
    arguments = {"in_key": "x", "out_key": "y", **options}
    ours, theirs = (getattr(m, name)(3, 4, **arguments) for m in (tdx, oracle_modules))
    theirs.load_state_dict(ours.state_dict())
    assert (ours.in_keys, ours.out_keys) == (theirs.in_keys, theirs.out_keys)
    return ours, theirs


def given(ours: Any, *shape: int) -> TensorDict:
    """Inputs, and states as an env with the primer has them: zero where an episode begins."""
    starts = torch.rand(*shape, 1) < 0.3
    data = TensorDict(x=torch.randn(*shape, 3), is_init=starts, batch_size=shape)
    for key, size in zip(ours.state_keys, ours._state_sizes(), strict=True):
        data[key] = torch.randn(*shape, *size).masked_fill(starts.unsqueeze(-1), 0.0)
    return data


@PAIR
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)], ids=str)
def test_single_steps(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    ours, theirs = pair(name, options)
    data = given(ours, *shape)
    if options.get("proj_size"):
        pytest.skip("the oracle takes the hidden state to be as large as the cell state")
    found, wanted = ours(data.clone()), theirs(data.clone())
    for key in ours.out_keys:
        torch.testing.assert_close(found[key], wanted[key])


@PAIR
@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 2, 6)], ids=str)
def test_sequences(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    ours, theirs = pair(name, options)
    data = given(ours, *shape)
    with tdx.set_recurrent_mode(True), oracle_modules.set_recurrent_mode(True):
        found, wanted = ours(data.clone()), theirs(data.clone())
    for key in ours.out_keys:
        torch.testing.assert_close(found[key], wanted[key])


@pytest.mark.parametrize("name", NAMES)
def test_slices_that_start_with_their_stored_state(name: str) -> None:
    ours, theirs = pair(name, {})
    data = given(ours, 3, 6)
    for key, size in zip(ours.state_keys, ours._state_sizes(), strict=True):
        data[key] = torch.randn(3, 6, *size)
    with tdx.set_recurrent_mode(True), oracle_modules.set_recurrent_mode(True):
        found, wanted = ours(data.clone()), theirs(data.clone())
    for key in ours.out_keys:
        torch.testing.assert_close(found[key], wanted[key])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [None, 1, 2])
def test_primers_in_an_env(name: str, workers: int | None) -> None:
    def primed(m: Any, get: Callable[[nn.Module], Any], model: nn.Module) -> Any:
        make = partial(m.GymEnv, "Pendulum-v1")
        base = make() if workers is None else m.SerialEnv(workers, make)
        return m.TransformedEnv(base).append_transform(get(model))

    utils = pytest.importorskip("torchrl.modules.utils")
    ours, theirs = pair(name, {"num_layers": 2})
    mine = primed(tdx, tdx.get_primers_from_module, ours).reset()
    wanted = primed(ORACLE, utils.get_primers_from_module, theirs).reset()
    for key in ours.state_keys:
        assert mine[key].dtype == wanted[key].dtype
        assert torch.equal(mine[key], wanted[key]), key


LEFT_OUT = {"recurrent_compute_dtype", "recurrent_recompute", "recurrent_matmul_precision"}


@pytest.mark.parametrize("name", NAMES)
def test_signatures(name: str) -> None:
    """Their parameters in their order and with their defaults, but for the choice of kernels."""
    ours, theirs = (inspect.signature(getattr(m, name)).parameters for m in (tdx, oracle_modules))
    left_out = {each for each in theirs if each not in ours}
    assert left_out == LEFT_OUT
    assert [each for each in theirs if each in ours] == list(ours)
    for each, parameter in ours.items():
        assert (parameter.kind, parameter.default) == (theirs[each].kind, theirs[each].default)
