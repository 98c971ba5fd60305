"""Networks in tensor operations against those of ``torch.nn``."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from tdx import (
    GRU,
    LSTM,
    GRUCell,
    GRUModule,
    LSTMCell,
    LSTMModule,
    get_env_transforms_from_module,
    get_primers_from_module,
    set_recurrent_mode,
)
from tdx.foundation.errors import ArgumentError
from tdx.transforms import Compose, InitTracker, TensorDictPrimer

PAIRS = [
    (GRU, nn.GRU, {}),
    (LSTM, nn.LSTM, {}),
    (GRU, nn.GRU, {"bias": False, "num_layers": 2}),
    (LSTM, nn.LSTM, {"bias": False, "num_layers": 3}),
    (LSTM, nn.LSTM, {"proj_size": 2, "num_layers": 2}),
]
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
pairs = pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS)
MODULES = pytest.mark.parametrize("make", [GRUModule, LSTMModule])


def flat(result: Any) -> list[Tensor]:
    output, last = result
    return [output, *(last if isinstance(last, tuple) else (last,))]


@pairs
@pytest.mark.parametrize("batch_first", [True, False])
def test_outputs_and_states(
    ours: Any, theirs: Any, options: dict[str, Any], batch_first: bool
) -> None:
    mine, reference = (kind(3, 4, batch_first=batch_first, **options) for kind in (ours, theirs))
    reference.load_state_dict(mine.state_dict())
    for value in (torch.randn(2, 5, 3), torch.randn(5, 3)):
        first = flat(reference(value))
        torch.testing.assert_close(flat(mine(value)), first)
        states = [torch.randn_like(each) for each in first[1:]]
        given = tuple(states) if len(states) > 1 else states[0]
        torch.testing.assert_close(flat(mine(value, given)), flat(reference(value, given)))


@pairs
def test_sequences_of_different_lengths(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    mine, reference = (kind(3, 4, batch_first=True, **options) for kind in (ours, theirs))
    reference.load_state_dict(mine.state_dict())
    lengths = torch.tensor([2, 5, 3])
    packed = pack_padded_sequence(
        torch.randn(3, 5, 3), lengths, batch_first=True, enforce_sorted=False
    )
    found, wanted = flat(mine(packed)), flat(reference(packed))
    torch.testing.assert_close(found[0].data, wanted[0].data)
    torch.testing.assert_close(found[1:], wanted[1:])


@pytest.mark.parametrize(("ours", "theirs"), [(GRUCell, nn.GRUCell), (LSTMCell, nn.LSTMCell)])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_equal_those_of_torch(ours: Any, theirs: Any, bias: bool) -> None:
    mine, reference = ours(3, 4, bias=bias), theirs(3, 4, bias=bias)
    mine.load_state_dict(reference.state_dict())
    for shape in ((5, 3), (3,)):
        value, state, expected = torch.randn(shape), None, None
        for _ in range(3):
            state, expected = mine(value, state), reference(value, expected)
            torch.testing.assert_close(state, expected)


def test_vmap_over_networks() -> None:
    networks = [GRU(3, 4, batch_first=True) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(networks)

    def run(weights: Any, state: Any, value: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(networks[0], (weights, state), value)[0]
        return output

    value = torch.randn(2, 5, 3)
    found = torch.vmap(run, (0, 0, None))(parameters, buffers, value)
    torch.testing.assert_close(found, torch.stack([each(value)[0] for each in networks]))


def test_dropout_between_layers() -> None:
    network = GRU(3, 4, num_layers=2, dropout=0.9, batch_first=True)
    value = torch.randn(2, 5, 3)
    assert not torch.equal(network(value)[0], network(value)[0])
    network.eval()
    assert torch.equal(network(value)[0], network(value)[0])


def test_both_directions_are_refused() -> None:
    with pytest.raises(ArgumentError, match="not bidirectional"):
        GRU(3, 4, bidirectional=True)(torch.zeros(2, 3))


@MODULES
def test_modules_change_their_network(make: Any) -> None:
    module = make(3, 4, num_layers=2, in_key="x", out_key="y")
    starts = torch.rand(3, 6, 1) < 0.3
    data = TensorDict(x=torch.randn(3, 6, 3), is_init=starts, batch_size=[3, 6])
    names = {name: id(each) for name, each in module.named_parameters()}
    with set_recurrent_mode(True):
        expected = module(data.clone())
        for change in (module.make_python_based, module.make_cudnn_based):
            assert change() is module
            assert {name: id(each) for name, each in module.named_parameters()} == names
            found = module(data.clone())
            for key in module.out_keys:
                torch.testing.assert_close(found[key], expected[key])
    python_based = make(3, 4, python_based=True, in_key="x", out_key="y")
    assert isinstance(python_based.network, (GRU, LSTM))
    copy = pickle.loads(pickle.dumps(python_based))
    assert torch.equal(copy(data.clone())["y"], python_based(data.clone())["y"])


@MODULES
def test_backends(make: Any) -> None:
    data = TensorDict(x=torch.randn(2, 6, 3), is_init=torch.zeros(2, 6, 1, dtype=torch.bool))
    data["is_init"][:, 3] = True
    pad = make(3, 4, in_key="x", out_key="y")
    for backend in ("auto", "scan"):
        other = make(3, 4, recurrent_backend=backend, in_key="x", out_key="y")
        other.load_state_dict(pad.state_dict())
        with set_recurrent_mode(True):
            assert torch.equal(other(data.clone())["y"], pad(data.clone())["y"])
    with pytest.raises(ArgumentError, match="recurrent_backend 'triton' is not available"):
        make(3, 4, recurrent_backend="triton", in_key="x", out_key="y")
    with pytest.raises(ArgumentError, match="in_keys must be a list of keys, got 'abc'"):
        make(3, 4, in_keys="abc", out_key="y")


def test_a_submodule_without_a_primer_can_be_left_out() -> None:
    class Broken(nn.Module):
        def make_tensordict_primer(self) -> TensorDictPrimer:
            raise RuntimeError("no shape")

    policy = nn.Sequential(GRUModule(3, 4, in_key="x", out_key="y"), Broken())
    with pytest.raises(RuntimeError, match="no shape"):
        get_primers_from_module(policy)
    with pytest.warns(UserWarning, match="Broken has no primer: no shape"):
        assert isinstance(get_primers_from_module(policy, strict=False), TensorDictPrimer)


def test_transforms_that_a_policy_needs() -> None:
    chain = get_env_transforms_from_module(GRUModule(3, 4, in_key="x", out_key="y"))
    assert isinstance(chain, Compose)
    assert [type(each) for each in chain] == [InitTracker, TensorDictPrimer]
    alone = get_env_transforms_from_module(nn.Linear(2, 2), init_key="first")
    assert isinstance(alone, InitTracker)
    assert alone.init_key == "first"
