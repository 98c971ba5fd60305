"""Small envs for tests."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from tensordict import NonTensorData, TensorClass, TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.envs import EnvBase
from tdx.specs import Bounded, Categorical, Composite, NonTensor, Unbounded


class CountingEnv(EnvBase):
    """Env that counts its steps and terminates at ``stop``; the reward is the sum of the action.

    Args:
        stop: Count at which an episode ends.
        batch_size: Batch size of the env, ``[*B]``.
        start: Count after a reset.
    """

    def __init__(
        self,
        stop: int = 3,
        batch_size: tuple[int, ...] = (),
        start: int = 0,
        device: str | None = None,
    ) -> None:
        super().__init__(device=device, batch_size=batch_size)
        self.stop, self.start = stop, start
        self.observation_spec = Composite(
            observation=Unbounded((*batch_size, 1), dtype=torch.int64), shape=batch_size
        )
        self.action_spec = Bounded(-1.0, 1.0, shape=(*batch_size, 2))
        self.count = torch.full((*batch_size, 1), start, device=self.device)
        self.steps: torch.Tensor
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.resets = 0
        self.noise = torch.Generator(device=self.device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.resets += 1
        start = torch.full_like(self.count, kwargs.get("start", self.start))
        mask = None if tensordict is None else tensordict.get("_reset", None)
        self.count = start if mask is None else torch.where(mask, start, self.count)
        return TensorDict(
            {"observation": self.count.clone()}, batch_size=self.batch_size, device=self.device
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count = self.count + 1
        self.steps += 1
        return TensorDict(
            {
                "observation": self.count.clone(),
                "reward": tensordict["action"].sum(-1, keepdim=True),
                "done": self.count >= self.stop,
            },
            batch_size=self.batch_size,
            device=self.device,
        )

    def _set_seed(self, seed: int | None) -> None:
        self.noise.manual_seed(seed or 0)

    def envs_device(self) -> str:
        """Device of the env itself."""
        return str(self.device)

    def variable(self, name: str) -> str | None:
        """Return an environment variable of the process of the env."""
        return os.environ.get(name)

    def is_training(self) -> bool:
        """Return True if the env is in training mode."""
        return self.training

    def twice(self, value: int, *, plus: int = 0) -> int:
        """Public method for calls through a batch."""
        return 2 * value + plus

    def fail(self) -> None:
        """Public method that raises."""
        raise ValueError("failed on purpose")


class NoisyEnv(CountingEnv):
    """Env that observes random numbers of its own generator."""

    def __init__(self, stop: int = 5) -> None:
        super().__init__(stop)
        self.observation_spec = Composite(observation=Unbounded((2,)))

    def _observed(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("observation", torch.rand(2, generator=self.noise))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._observed(super()._reset(tensordict, **kwargs))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._observed(super()._step(tensordict))


class TwoGroupsEnv(EnvBase):
    """Env with two groups that have their own rewards and done flags.

    Group ``a`` ends every 2 steps, ``b`` every 3; ``b`` holds two agents.
    """

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(
            a=Composite(observation=Unbounded((1,))),
            b=Composite(observation=Unbounded((2, 1)), shape=(2,)),
            state=Unbounded((3,)),
        )
        self.action_spec = Composite(
            a=Composite(action=Categorical(4)),
            b=Composite(action=Unbounded((2, 1)), shape=(2,)),
        )
        self.reward_spec = Composite(
            a=Composite(reward=Unbounded((1,))),
            b=Composite(reward=Unbounded((2, 1)), shape=(2,)),
        )
        flag = Categorical(2, shape=(1,), dtype=torch.bool)
        self.done_spec = Composite(
            a=Composite(done=flag, terminated=flag.clone()),
            b=Composite(
                done=flag.expand(2, 1).clone(), terminated=flag.expand(2, 1).clone(), shape=(2,)
            ),
        )
        self.counts = {"a": 0, "b": 0}

    def _observed(self) -> TensorDictBase:
        a, b = self.counts["a"], self.counts["b"]
        return TensorDict(
            a=TensorDict(observation=torch.full((1,), float(a))),
            b=TensorDict(observation=torch.full((2, 1), float(b)), batch_size=[2]),
            state=torch.tensor([float(a), float(b), 0.0]),
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        for name in self.counts:
            mask = None if tensordict is None else tensordict.get((name, "_reset"), None)
            if mask is None or bool(mask.any()):
                self.counts[name] = 0
        return self._observed()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        for name in self.counts:
            self.counts[name] += 1
        result = self._observed()
        result["a", "reward"] = tensordict["a", "action"].reshape(1).float()
        result["b", "reward"] = tensordict["b", "action"]
        result["a", "terminated"] = torch.tensor([self.counts["a"] >= 2])
        result["b", "terminated"] = torch.full((2, 1), self.counts["b"] >= 3)
        return result

    def _set_seed(self, seed: int | None) -> None:
        return None


class WordsEnv(CountingEnv):
    """Env that observes a word and its count."""

    def __init__(self, stop: int = 3) -> None:
        super().__init__(stop)
        self.observation_spec = Composite(
            observation=Unbounded((1,), dtype=torch.int64), word=NonTensor(shape=())
        )

    def _worded(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("word", NonTensorData(f"count {int(self.count)}"))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._worded(super()._reset(tensordict, **kwargs))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._worded(super()._step(tensordict))


class WideEnv(CountingEnv):
    """Env that observes ``width`` numbers; envs of different width do not stack."""

    def __init__(self, width: int, stop: int = 3, extra: bool = False) -> None:
        super().__init__(stop)
        spec = Composite(observation=Unbounded((width,)))
        if extra:
            spec["extra"] = Unbounded((1,))
        self.observation_spec = spec
        self.width, self.extra = width, extra

    def _widened(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.extra:
            tensordict.set("extra", torch.ones(1))
        return tensordict.set("observation", self.count.expand(self.width).float())

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return self._widened(super()._reset(tensordict, **kwargs))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._widened(super()._step(tensordict))


class FaultyEnv(CountingEnv):
    """Env that fails in step ``at`` in one of several ways.

    Args:
        fault: ``raise``, ``exit``, ``kill``, ``hang`` or ``none``; with the prefix ``make-``
            during construction, with ``reset-`` in its reset.
        at: Number of the step, from 1.
    """

    def __init__(self, fault: str, at: int = 2) -> None:
        super().__init__(stop=1000)
        self.fault, self.at = fault, at
        self._go_wrong("make-")

    def _go_wrong(self, prefix: str) -> None:
        if self.fault == f"{prefix}raise":
            raise ValueError("raised on purpose\nsecond line")
        if self.fault == f"{prefix}exit":
            os._exit(7)
        if self.fault == f"{prefix}kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == f"{prefix}hang":
            time.sleep(3600)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self._go_wrong("reset-")
        return super()._reset(tensordict, **kwargs)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        result = super()._step(tensordict)
        if int(self.steps) == self.at:
            self._go_wrong("")
        return result


class Noted(TensorClass):  # type: ignore[misc]
    """Observation with a text and a number."""

    word: str
    value: Tensor


class TensorClassEnv(EnvBase):
    """Env that observes a tensorclass, which each step reads."""

    def __init__(self) -> None:
        super().__init__()
        entries = {"word": NonTensor(shape=(), example_data="0"), "value": Unbounded(())}
        self.observation_spec = Composite(seen=Composite(entries, data_cls=Noted))
        self.action_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict(seen=Noted("0", torch.zeros(())))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        before: Noted = tensordict["seen"]
        seen = Noted(str(int(before.word) + 1), before.value + 1)
        return TensorDict(seen=seen, reward=torch.zeros(1), done=before.value.reshape(1) > 9)

    def _set_seed(self, seed: int | None) -> None:
        return None
