"""A clock that advances with operations of torch, an image env, and transforms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tdx.core.envs import EnvBase
from tdx.core.transforms import Transform
from tdx.foundation.keys import NestedKey
from tdx.specs import Bounded, Composite, Unbounded
from tests.profiling.fake_clock import FakeClock

SMALL, LARGE = 20, 64


class _Counting(TorchDispatchMode):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        size = result.numel() * result.itemsize if isinstance(result, Tensor) else 0
        self._clock.now += 1000 + size
        return result


@contextmanager
def simulated_work(clock: FakeClock) -> Iterator[FakeClock]:
    """Make each torch operation take 1 µs plus 1 ns per byte of its result."""
    with _Counting(clock):
        yield clock


class PixelEnv(EnvBase):
    """Env with a channels-last byte image."""

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        whole = Bounded(0, 255, (LARGE, LARGE, 3), dtype=torch.uint8)
        self.observation_spec = Composite(pixels=whole, observation=Unbounded((3,)))
        self.action_spec = Bounded(-1.0, 1.0, (1,))
        self._pixels = torch.arange(LARGE * LARGE * 3).reshape(LARGE, LARGE, 3).div(64)
        self._pixels = self._pixels.to(torch.uint8)

    @property
    def step_reads(self) -> tuple[NestedKey, ...] | None:
        return ()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        reward = tensordict["action"].reshape(1).clone()
        over = torch.zeros(1, dtype=torch.bool)
        return self._reset().update({"reward": reward, "terminated": over})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        pixels = self._pixels.clone()
        return TensorDict({"pixels": pixels, "observation": torch.ones(3)}, [])

    def _set_seed(self, seed: int | None) -> None:
        return None


class Idle(Transform):
    """Transform that does nothing but may read any entry."""

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict


class Doubled(Transform):
    """Transform that changes the reward and may read any entry."""

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.set("reward", next_tensordict["reward"] * 2 + 1)
