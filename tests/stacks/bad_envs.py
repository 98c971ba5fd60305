"""Envs, wrappers and factories that do what tdx does not expect."""

from __future__ import annotations

import sys
import threading
from typing import Any

import gymnasium as gym
import numpy as np


def pendulum() -> Any:
    return gym.make("Pendulum-v1", disable_env_checker=True, max_episode_steps=20)


class Slotted(gym.Wrapper):
    """Keeps its state in slots."""

    __slots__ = ("count",)

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.count = 0

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.env.step(action)


class Forwarding(gym.Wrapper):
    """Forwards every attribute to the env inside."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["env"], name)


class Raising(gym.Wrapper):
    """Raises another error than AttributeError for unknown attributes."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no attribute {name}")


class AnyAttribute(gym.Wrapper):
    """Has every attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class Guarded(gym.Wrapper):
    """Refuses new attributes."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("step", "reset"):
            raise AttributeError(f"{name} is read-only")
        super().__setattr__(name, value)


class SoftReset(gym.Wrapper):
    """Swallows every reset but the first."""

    last: Any = None

    def reset(self, **kwargs: Any) -> Any:
        if self.last is None:
            self.last = self.env.reset(**kwargs)
        return self.last


class NoReset(gym.Wrapper):
    """Swallows every reset."""

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros(3, np.float32), {}


class Failing(gym.Wrapper):
    def step(self, action: Any) -> Any:
        self.env.step(action)
        raise ValueError("out of fuel")


class Shared(gym.Wrapper):
    """Has a second thread that steps it during each of its own steps."""

    def step(self, action: Any) -> Any:
        if threading.current_thread().name != "other":
            other = threading.Thread(target=self.step, args=(action,), name="other")
            other.start()
            other.join()
        return self.env.step(action)


def make_closed_vector() -> Any:
    env = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    env.close()
    return env


def make_stepped() -> Any:
    env = pendulum()
    env.reset()
    env.step(env.action_space.sample())
    return env


def make_ended() -> Any:
    """Return an env whose episode has ended."""
    env = gym.make("Pendulum-v1", disable_env_checker=True, max_episode_steps=1)
    env.reset()
    env.step(env.action_space.sample())
    return env


def make_printing() -> Any:
    print("creating")

    class Printing(gym.Wrapper):
        def step(self, action: Any) -> Any:
            print("stepping")
            sys.stdout.flush()
            return self.env.step(action)

        def close(self) -> None:
            print("closing")
            self.env.close()

    return Printing(pendulum())


class Simulator(gym.Wrapper):
    """Needs a process of its own, which ends with the env."""

    def __init__(self, env: Any, process: Any) -> None:
        super().__init__(env)
        self.process = process

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        super().close()


STARTED: list[Any] = []
"""Processes that :func:`make_simulator` started."""


def make_simulator() -> Any:
    import subprocess

    command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    STARTED.append(process)
    return Simulator(pendulum(), process)


def make(kind: str) -> Any:
    """Return an env in the wrapper that has this name."""
    wrapper: type[Any] = globals()[kind]
    return wrapper(pendulum())


def raises() -> Any:
    raise ValueError("no simulator")


def exits() -> Any:
    sys.exit(3)


def returns_nothing() -> None:
    pass


def needs_arguments(size: int, name: str) -> None:
    pass
