"""Envs whose steps change their keys, shapes or dtypes: the steps before are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tdx import Composite, ParallelEnv, RewardSum, SerialEnv, TransformedEnv, Unbounded
from tdx.core.envs import EnvBase
from tdx.foundation.errors import EnvError
from tdx.rollouts.recording.raw_envs import RecordingEnv

CHANGES: dict[str, tuple[str, str]] = {
    "shape": ("b", "its shape is"),
    "dtype": ("b", "its dtype is torch.float64, in the steps before torch.float32"),
    "missing": ("b", "it is missing; the steps before have it"),
    "extra": ("c", "the steps before lack it"),
}


class ChangingEnv(EnvBase):
    """Env whose entries differ in one step; planned rollouts are possible."""

    step_reads: Any = ()

    def __init__(self, change: str, at: int) -> None:
        super().__init__()
        self.change, self.at, self.count = change, at, 0
        self.observation_spec = Composite(a=Unbounded((3,)), b=Unbounded((3,)))
        self.action_spec = Unbounded((1,))

    def _observed(self, is_changed: bool) -> dict[str, Any]:
        entries = {"a": torch.full((3,), float(self.count)), "b": torch.zeros(3)}
        if is_changed:
            entries |= {
                "shape": {"b": torch.zeros(4)},
                "dtype": {"b": torch.zeros(3, dtype=torch.float64)},
                "missing": {},
                "extra": {"c": torch.zeros(3)},
            }[self.change]
            if self.change == "missing":
                del entries["b"]
        return entries

    def _reset(self, tensordict: Any = None, **kwargs: Any) -> TensorDict:
        return TensorDict(self._observed(self.at == -1 and self.count > 0))

    def _step(self, tensordict: Any) -> TensorDict:
        is_changed = self.count == self.at
        self.count += 1
        done = torch.tensor([self.count % 3 == 0])
        return TensorDict(**self._observed(is_changed), reward=torch.ones(1), done=done)

    def _set_seed(self, seed: int | None) -> None:
        return None


class EagerEnv(ChangingEnv):
    """Env whose entries differ in one step; only eager rollouts are possible."""

    step_reads = None


MAKERS: dict[str, Callable[[str, int], EnvBase]] = {
    "planned": ChangingEnv,
    "eager": EagerEnv,
    "chain": lambda change, at: TransformedEnv(ChangingEnv(change, at), RewardSum()),
    "serial": lambda change, at: SerialEnv(2, partial(ChangingEnv, change, at)),
    "recorded": lambda change, at: RecordingEnv(ChangingEnv(change, at)),
}


def stopped_at(env: EnvBase) -> tuple[int, EnvError]:
    kept = 0
    try:
        for chunk in env.iter_rollout(12, chunk_steps=4):
            kept += chunk.shape[-1]
    except EnvError as error:
        return kept, error
    finally:
        env.close()
    raise AssertionError("no error")


@pytest.mark.parametrize("at", [1, 4, 5], ids=["in a chunk", "begins a chunk", "in the second"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_step_that_differs_stops_the_rollout(kind: str, change: str, at: int) -> None:
    env = MAKERS[kind](change, at)
    kept, error = stopped_at(env)
    key, message = CHANGES[change]
    assert kept == at
    assert (error.where.key, error.where.step) == (key, at)
    assert message in error.message
    assert error.hint
    if isinstance(env, RecordingEnv):
        recorded = env.pop_steps()
        assert recorded is not None
        assert recorded.shape[-1] == at


def test_a_step_that_differs_in_a_worker() -> None:
    kept, error = stopped_at(ParallelEnv(2, partial(ChangingEnv, "missing", 5)))
    assert (kept, error.where.key, error.where.step) == (5, "b", 5)


@pytest.mark.parametrize("change", ["shape", "dtype"])
def test_a_reset_that_differs_keeps_the_steps_before(change: str) -> None:
    kept, error = stopped_at(ChangingEnv(change, -1))
    assert (kept, error.where.key, error.where.step) == (3, "b", 3)
    assert "reset returned" in error.message
