"""Steps on an accelerator do not synchronize with the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tdx import (
    CartPoleEnv,
    CatFrames,
    Compose,
    EnvBase,
    InitTracker,
    ObservationNorm,
    PendulumEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    VecNorm,
)
from tdx.core.envs import env_base
from tdx.core.plan import plan_of
from tdx.core.planned.collectors import TensorDictCollector
from tests.core.planned.test_law import compared

SYNCS = (
    "_local_scalar_dense",
    "nonzero",
    "is_nonzero",
    "item",
    "equal",
    "_unique2",
    "masked_select",
)


class NoHost(TorchDispatchMode):
    """Mode that raises if a value is read on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in SYNCS:
            raise AssertionError(f"{func} makes the host wait")
        if func.overloadpacket.__name__ == "index" and any(
            isinstance(part, Tensor) and part.dtype == torch.bool for part in args[1]
        ):
            raise AssertionError("indexing with a mask makes the host wait")
        return func(*args, **(kwargs or {}))


@contextmanager
def as_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Step as on an accelerator; refuse operations that would wait for it."""
    made = TensorDictCollector.__init__
    collect = TensorDictCollector.collect

    def init(self: TensorDictCollector, *args: Any) -> None:
        made(self, *args)
        self.reads_flags = False

    def watched(self: TensorDictCollector, *args: Any) -> Any:
        with NoHost():  # type: ignore[no-untyped-call]
            return collect(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(TensorDictCollector, "__init__", init)
        patch.setattr(TensorDictCollector, "collect", watched)
        yield


BASES: dict[str, Callable[..., EnvBase]] = {
    "CartPole": lambda **how: CartPoleEnv(batch_size=[4], **how),
    "Pendulum": lambda **how: PendulumEnv(batch_size=[2, 3], max_episode_steps=4, **how),
    "short": lambda **how: PendulumEnv(batch_size=[3], max_episode_steps=1, **how),
    "single": lambda **how: CartPoleEnv(max_episode_steps=3, **how),
}


class Acts(nn.Module):
    """Policy that returns the sign of the observation."""

    def __init__(self, env: EnvBase) -> None:
        super().__init__()
        self._spec = env.full_action_spec[env.action_key]

    def forward(self, seen: Tensor) -> Tensor:
        first = seen[..., :1]
        if self._spec.dtype.is_floating_point:
            return first.sin().expand(self._spec.shape).clone()
        right = (first > 0).to(self._spec.dtype)
        if self._spec.shape[-1:] == (2,):
            return torch.cat((1 - right, right), -1)
        return right.reshape(self._spec.shape)


def make(name: str, planned: bool, **how: Any) -> TransformedEnv:
    chain = Compose(
        ObservationNorm(0.1, 2.0),
        InitTracker(),
        RewardSum(),
        StepCounter(3),
        CatFrames(2, -1, ["observation"], ["stack"]),
        VecNorm(["reward"]),
    )
    env = TransformedEnv(BASES[name](**how), chain, planned=planned)
    env.set_seed(0)
    # The first draw reads the bounds once.
    env.full_action_spec.rand()
    torch.manual_seed(0)
    return env


def rolled_out(env: TransformedEnv, reads: str | None, chunk: int | None) -> list[TensorDictBase]:
    policy = None if reads is None else TensorDictModule(Acts(env), [reads], ["action"])
    if chunk is None:
        return [env.rollout(13, policy, break_when_any_done=False)]
    return list(env.iter_rollout(13, policy, chunk_steps=chunk, break_when_any_done=False))


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("reads", [None, "observation", "stack"])
@pytest.mark.parametrize("name", sorted(BASES))
def test_the_host_does_not_wait(
    name: str, reads: str | None, chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(name, True)
    assert plan_of(env, reads and [reads]).executor == "planned"
    with as_on_an_accelerator(monkeypatch), monkeypatch.context() as patch:
        # Every step is followed by a reset, also of no rows.
        patch.setattr(env_base, "any_done", lambda tensordict, keys: True)
        mine = rolled_out(env, reads, chunk)
    expected = rolled_out(make(name, False), reads, chunk)
    for ours, theirs in zip(mine, expected, strict=True):
        compared(ours, theirs)


def test_break_when_any_done_reads_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        as_on_an_accelerator(monkeypatch),
        pytest.raises(AssertionError, match="makes the host wait"),
    ):
        make("CartPole", True).rollout(5)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("reads", [None, "observation", "stack"])
@pytest.mark.parametrize("name", sorted(BASES))
def test_planned_equals_eager_on_an_accelerator(
    name: str, reads: str | None, chunk: int | None
) -> None:
    mine = rolled_out(make(name, True, device="cuda"), reads, chunk)
    expected = rolled_out(make(name, False, device="cuda"), reads, chunk)
    for ours, theirs in zip(mine, expected, strict=True):
        assert ours.device is not None
        assert ours.device.type == "cuda"
        compared(ours, theirs, rtol=1e-5)


@pytest.mark.gpu
def test_envs_on_the_host_for_a_batch_on_an_accelerator() -> None:
    results = []
    for planned in (True, False):
        base = SerialEnv(2, CartPoleEnv, device="cuda")
        env = TransformedEnv(base, Compose(RewardSum(), StepCounter(5)), planned=planned)
        env.set_seed(0)
        torch.manual_seed(0)
        results.append(env.rollout(12, break_when_any_done=False))
    compared(results[0], results[1], 1e-5)
