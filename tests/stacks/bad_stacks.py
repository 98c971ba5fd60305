"""Envs with stages that do what tdx does not expect, for the libraries other than Gymnasium."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torchrl.envs as rl
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

import tdx
from tests.stacks.bad_envs import pendulum

ZERO = np.zeros((2, 1), np.float32)


class Passing(VecEnvWrapper):
    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


class Slotted(Passing):
    __slots__ = ("count",)


class Forwarding(Passing):
    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["venv"], name)


class Raising(Passing):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no attribute {name}")


class NoReset(Passing):
    def reset(self) -> Any:
        return np.zeros((2, 3), np.float32)


class Failing(Passing):
    def step_wait(self) -> Any:
        self.venv.step_wait()
        raise ValueError("out of fuel")


class Shared(Passing):
    """Has a second thread that steps it during each of its own steps."""

    def step_wait(self) -> Any:
        result = self.venv.step_wait()
        if threading.current_thread().name != "other":
            other = threading.Thread(target=self.step, args=(ZERO,), name="other")
            other.start()
            other.join()
        return result


def wrap(kind: type[VecEnvWrapper]) -> Any:
    return kind(DummyVecEnv([pendulum] * 2))


def sb3_slotted() -> Any:
    return wrap(Slotted)


def sb3_forwarding() -> Any:
    return wrap(Forwarding)


def sb3_raising() -> Any:
    return wrap(Raising)


def sb3_without_reset() -> Any:
    return wrap(NoReset)


def sb3_failing() -> Any:
    return wrap(Failing)


def sb3_shared() -> Any:
    return wrap(Shared)


def sb3_stepped() -> Any:
    env = wrap(Passing)
    env.reset()
    env.step(ZERO)
    return env


class SlottedTransform(rl.Transform):  # type: ignore[misc]
    __slots__ = ("count",)

    def _call(self, next_tensordict: Any) -> Any:
        return next_tensordict


class ForwardingTransform(SlottedTransform):
    """Has every attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return lambda *args, **kwargs: None


class FailingTransform(rl.Transform):  # type: ignore[misc]
    def _call(self, next_tensordict: Any) -> Any:
        raise ValueError("out of fuel")

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return tensordict_reset


class EmptyReset(SlottedTransform):
    """Swallows what a reset returns."""

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return tensordict_reset.empty()


def transformed(stage: Any) -> Any:
    return rl.TransformedEnv(rl.GymEnv("Pendulum-v1"), stage)


def torchrl_slotted() -> Any:
    return transformed(SlottedTransform())


def torchrl_forwarding() -> Any:
    return transformed(ForwardingTransform())


def torchrl_without_reset() -> Any:
    return transformed(EmptyReset())


def torchrl_failing() -> Any:
    return transformed(FailingTransform())


class SharedTransform(SlottedTransform):
    """Has a second thread that steps the env during each of its own steps."""

    def _step(self, tensordict: Any, next_tensordict: Any) -> Any:
        if threading.current_thread().name != "other":
            env = self.parent.base_env
            action = env.rand_action(tensordict.exclude("next"))
            other = threading.Thread(target=env.step, args=(action,), name="other")
            other.start()
            other.join()
        return next_tensordict


def torchrl_shared() -> Any:
    return transformed(SharedTransform())


def torchrl_stepped() -> Any:
    env = transformed(rl.StepCounter())
    env.rollout(3)
    return env


def torchrl_closed() -> Any:
    env = transformed(rl.StepCounter())
    env.close()
    return env


class NativeSlotted(tdx.Transform):
    __slots__ = ("count",)

    def _call(self, next_tensordict: Any) -> Any:
        return next_tensordict


class NativeForwarding(NativeSlotted):
    """Has every attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return lambda *args, **kwargs: None


class NativeFailing(tdx.Transform):
    def _call(self, next_tensordict: Any) -> Any:
        raise ValueError("out of fuel")

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return tensordict_reset


class NativeEmptyReset(NativeSlotted):
    """Swallows what a reset returns."""

    def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
        return tensordict_reset.empty()


def chained(stage: Any) -> Any:
    return tdx.TransformedEnv(tdx.GymEnv("Pendulum-v1"), stage)


def tdx_slotted() -> Any:
    return chained(NativeSlotted())


def tdx_forwarding() -> Any:
    return chained(NativeForwarding())


def tdx_without_reset() -> Any:
    return chained(NativeEmptyReset())


def tdx_failing() -> Any:
    return chained(NativeFailing())


class NativeShared(tdx.Transform):
    """Has a second thread that steps the env during each of its own steps."""

    def _step(self, tensordict: Any, next_tensordict: Any) -> Any:
        if threading.current_thread().name != "other":
            env: Any = self.container
            action = env.rand_action(tensordict.exclude("next"))
            other = threading.Thread(target=env.step, args=(action,), name="other")
            other.start()
            other.join()
        return next_tensordict


def tdx_shared() -> Any:
    return chained(NativeShared())


def tdx_stepped() -> Any:
    env = chained(tdx.StepCounter())
    env.rollout(3)
    return env


def tdx_closed() -> Any:
    env = chained(tdx.StepCounter())
    env.close()
    return env
