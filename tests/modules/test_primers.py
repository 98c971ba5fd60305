"""Primers made from modules: the documented example, and policies in an env."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from tdx import (
    Compose,
    GRUModule,
    GymEnv,
    InitTracker,
    LSTMModule,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    TransformedEnv,
    Unbounded,
    check_env_specs,
    get_primers_from_module,
    set_recurrent_mode,
)
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ArgumentError

PENDULUM = partial(GymEnv, "Pendulum-v1")

DOCUMENTED_PRIMER = """\
    recurrent_state: UnboundedContinuous(
        shape=torch.Size([1, 2]),
        space=ContinuousBox(
            low=Tensor(shape=torch.Size([1, 2]), device=cpu, dtype=torch.float32, contiguous=True),
            high=Tensor(shape=torch.Size([1, 2]), device=cpu, dtype=torch.float32, contiguous=True)),
        device=cpu,
        dtype=torch.float32,
        domain=continuous)"""  # noqa: E501
DOCUMENTED_RESET = {
    "done": ([2, 1], torch.bool),
    "observation": ([2, 3], torch.float32),
    "recurrent_state": ([2, 1, 2], torch.float32),
    "terminated": ([2, 1], torch.bool),
    "truncated": ([2, 1], torch.bool),
}


def test_the_documented_example() -> None:
    base_env = SerialEnv(2, lambda: GymEnv("Pendulum-v1"))
    env = TransformedEnv(base_env)
    model = GRUModule(input_size=2, hidden_size=2, in_key="observation", out_key="action")
    primers = get_primers_from_module(model)
    assert isinstance(primers, TensorDictPrimer)
    printed = str(primers)
    assert printed.startswith("TensorDictPrimer(primers=Composite(\n" + DOCUMENTED_PRIMER)
    assert printed.endswith(
        "shape=torch.Size([])), default_value={'recurrent_state': 0.0}, random=None)"
    )
    env.append_transform(primers)
    entries = {key: (list(value.shape), value.dtype) for key, value in env.reset().items()}
    assert entries == DOCUMENTED_RESET


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_batch_whose_size_is_the_number_of_layers(workers: int, layers: int) -> None:
    model = LSTMModule(3, 4, num_layers=layers, in_key="observation", out_key="features")
    env = TransformedEnv(SerialEnv(workers, PENDULUM), InitTracker())
    env.append_transform(primers_of(model))
    check_env_specs(env)
    for key in ("recurrent_state_h", "recurrent_state_c"):
        assert env.reset()[key].shape == (workers, layers, 4)


def primers_of(module: nn.Module) -> TensorDictPrimer | Compose:
    primers = get_primers_from_module(module)
    assert primers is not None
    return primers


def policy() -> TensorDictSequential:
    torch.manual_seed(1)
    gru = GRUModule(3, 4, num_layers=2, in_key="observation", out_key="features")
    head = TensorDictModule(nn.Linear(4, 1), in_keys=["features"], out_keys=["action"])
    return TensorDictSequential(gru, head)


def primed(base: EnvBase, max_steps: int = 4) -> TransformedEnv:
    return TransformedEnv(
        base, Compose(StepCounter(max_steps), InitTracker(), primers_of(policy()))
    )


def primed_pendulum() -> EnvBase:
    return primed(PENDULUM())


@pytest.mark.parametrize("workers", [None, 1, 2])
def test_rollout_states_equal_those_of_a_sequence(workers: int | None) -> None:
    actor = policy()
    env = primed(PENDULUM() if workers is None else SerialEnv(workers, PENDULUM))
    env.set_seed(0)
    with torch.no_grad():
        rollout = env.rollout(10, actor, break_when_any_done=False)
        states = rollout["recurrent_state"]
        starts = rollout["is_init"].squeeze(-1)
        assert starts[..., [0, 4, 8]].all()
        assert not states[starts].any()
        assert states[~starts].flatten(-2).any(-1).all()
        carried = ~starts[..., 1:]
        following = rollout["next", "recurrent_state"][..., :-1, :, :]
        assert torch.equal(states[..., 1:, :, :][carried], following[carried])
        with set_recurrent_mode(True):
            again = actor(rollout.clone())
    torch.testing.assert_close(again["action"], rollout["action"])


@pytest.mark.timeout(120)
def test_primers_inside_workers() -> None:
    actor = policy()
    outside = primed(SerialEnv(2, PENDULUM))
    outside.set_seed(0)
    expected = outside.rollout(6, actor, break_when_any_done=False)
    parallel = ParallelEnv(2, primed_pendulum)
    try:
        parallel.set_seed(0)
        found = parallel.rollout(6, actor, break_when_any_done=False)
        for key in ("action", "recurrent_state", "is_init"):
            assert torch.equal(found[key], expected[key]), key
    finally:
        parallel.close()


def test_several_modules() -> None:
    modules = nn.ModuleDict(
        {
            "a": GRUModule(3, 4, in_keys=["x", "one"], out_keys=["y", ("next", "one")]),
            "b": LSTMModule(3, 5, in_key="x", out_key="z"),
        }
    )
    modules["again"] = modules["a"]
    primers = get_primers_from_module(modules)
    assert isinstance(primers, Compose)
    assert len(primers) == 2
    env = TransformedEnv(PENDULUM(), primers)
    first = env.reset()
    assert first["one"].shape == (1, 4)
    assert first["recurrent_state_c"].shape == (1, 5)


def test_custom_module() -> None:
    class Counter(nn.Module):
        def make_tensordict_primer(self) -> TensorDictPrimer:
            return TensorDictPrimer(count=Unbounded(1))

    primers = get_primers_from_module(nn.Sequential(Counter(), nn.Linear(1, 1)))
    assert isinstance(primers, TensorDictPrimer)
    assert list(primers.primers.keys()) == ["count"]


def test_two_modules_with_one_state_are_refused() -> None:
    both = nn.ModuleList([GRUModule(3, 4, in_key="x", out_key=out) for out in ("y", "z")])
    with pytest.raises(ArgumentError, match="two modules use 'recurrent_state'"):
        get_primers_from_module(both)


def test_no_module_with_a_primer() -> None:
    with pytest.warns(UserWarning, match="no module in Linear has a primer"):
        assert get_primers_from_module(nn.Linear(1, 1)) is None
    assert get_primers_from_module(nn.Linear(1, 1), warn=False) is None


def test_float64_module_has_float64_primers() -> None:
    model = GRUModule(3, 4, in_key="x", out_key="y").to(torch.float64)
    primers = get_primers_from_module(model)
    assert isinstance(primers, TensorDictPrimer)
    assert primers.primers["recurrent_state"].dtype is torch.float64
