"""Envs with stages that do what tdx does not expect, for the libraries other than Gymnasium."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torchrl.envs
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


WRAPPERS = (Passing, Slotted, Forwarding, Raising, NoReset, Failing, Shared)


def transforms(base: type[Any]) -> tuple[type[Any], ...]:
    """Return the stages as transforms of a library.

    Args:
        base: ``Transform`` of the library.
    """

    class Slotted(base):  # type: ignore[misc]
        __slots__ = ("count",)

        def _call(self, next_tensordict: Any) -> Any:
            return next_tensordict

    class Forwarding(Slotted):
        """Has every attribute."""

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return lambda *args, **kwargs: None

    class Failing(base):  # type: ignore[misc]
        def _call(self, next_tensordict: Any) -> Any:
            raise ValueError("out of fuel")

        def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
            return tensordict_reset

    class EmptyReset(Slotted):
        """Swallows what a reset returns."""

        def _reset(self, tensordict: Any, tensordict_reset: Any) -> Any:
            return tensordict_reset.empty()

    class Shared(Slotted):
        """Has a second thread that steps the env during each of its own steps."""

        def _step(self, tensordict: Any, next_tensordict: Any) -> Any:
            if threading.current_thread().name != "other":
                env: Any = self.container
                action = env.rand_action(tensordict.exclude("next"))
                other = threading.Thread(target=env.step, args=(action,), name="other")
                other.start()
                other.join()
            return next_tensordict

    return Slotted, Forwarding, Failing, EmptyReset, Shared


LIBRARIES: dict[str, Any] = {"torchrl": torchrl.envs, "tdx": tdx}


def make(library: str, kind: str) -> Any:
    """Return an env of ``sb3``, ``torchrl`` or ``tdx`` with the stage that has this name."""
    if library == "sb3":
        wrappers = {each.__name__: each for each in WRAPPERS}
        return wrappers[kind](DummyVecEnv([pendulum] * 2))
    module = LIBRARIES[library]
    stages = {each.__name__: each for each in (*transforms(module.Transform), module.StepCounter)}
    return module.TransformedEnv(module.GymEnv("Pendulum-v1"), stages[kind]())


def make_stepped(library: str) -> Any:
    if library == "sb3":
        env = make(library, "Passing")
        env.reset()
        env.step(ZERO)
        return env
    env = make(library, "StepCounter")
    env.rollout(3)
    return env


def make_closed(library: str) -> Any:
    env = make(library, "StepCounter")
    env.close()
    return env
