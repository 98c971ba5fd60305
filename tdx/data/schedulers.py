"""Change a parameter of a sampler during training, such as the ``beta`` of priorities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tdx.data.buffer import ReplayBuffer
from tdx.data.samplers import Sampler
from tdx.foundation.errors import ArgumentError

Number = float | Tensor


class ParameterScheduler(ABC):
    """Sets a number of a sampler once per :meth:`step`.

    A subclass implements :meth:`_step`, which returns the next value.

    Args:
        obj: The sampler, or the buffer with the sampler.
        param_name: Name of its attribute: a number, or a tensor with one.
        min_value: Lower bound of the values.
        max_value: Upper bound of the values.

    Raises:
        ArgumentError: ``obj`` is neither, or its sampler has no such attribute.

    Example:
        >>> from tdx import LinearScheduler, PrioritizedSampler
        >>> sampler = PrioritizedSampler(max_capacity=9, alpha=0.7, beta=0.5)
        >>> scheduler = LinearScheduler(sampler, "beta", final_value=1.0, num_steps=2)
        >>> for _ in range(3):
        ...     scheduler.step()
        ...     print(sampler.beta)
        0.75
        1.0
        1.0
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        if not isinstance(obj, (ReplayBuffer, Sampler)):
            raise ArgumentError(
                f"a scheduler takes a replay buffer or a sampler, got {type(obj).__name__}"
            )
        self.sampler: Any = obj.sampler if isinstance(obj, ReplayBuffer) else obj
        if not hasattr(self.sampler, param_name):
            raise ArgumentError(f"{type(self.sampler).__name__} has no attribute {param_name!r}")
        self.param_name = param_name
        self.min_value, self.max_value = min_value, max_value
        initial = getattr(self.sampler, param_name)
        self.initial_val: Number = initial.clone() if isinstance(initial, Tensor) else initial
        self._step_cnt = 0

    @abstractmethod
    def _step(self) -> Number:
        """Return the value after ``self._step_cnt`` steps, before it is clipped."""

    def step(self) -> None:
        """Set the next value."""
        self._step_cnt += 1
        value = self._step()
        if isinstance(value, Tensor):
            if self.min_value is not None or self.max_value is not None:
                value = value.clamp(self.min_value, self.max_value)
        else:
            value = value if self.min_value is None else max(value, self.min_value)
            value = value if self.max_value is None else min(value, self.max_value)
        setattr(self.sampler, self.param_name, value)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the sampler; the value itself is in the state of the buffer."""
        return {name: value for name, value in vars(self).items() if name != "sampler"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`."""
        vars(self).update(state_dict)


class LambdaScheduler(ParameterScheduler):
    """Multiplies the initial value by a function of the number of steps.

    Args:
        obj: See :class:`ParameterScheduler`.
        param_name: See :class:`ParameterScheduler`.
        lambda_fn: Function of the number of steps, from 1.
        min_value: Lower bound of the values.
        max_value: Upper bound of the values.

    Example:
        >>> from tdx import LambdaScheduler, PrioritizedSampler
        >>> sampler = PrioritizedSampler(max_capacity=9, alpha=0.8, beta=0.5)
        >>> LambdaScheduler(sampler, "alpha", lambda count: 0.5**count).step()
        >>> sampler.alpha
        0.4
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        lambda_fn: Callable[[int], float],
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        self.lambda_fn = lambda_fn

    def _step(self) -> Number:
        return self.initial_val * self.lambda_fn(self._step_cnt)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the sampler and the function, which may not be serializable."""
        return {name: v for name, v in super().state_dict().items() if name != "lambda_fn"}


class LinearScheduler(ParameterScheduler):
    """Moves a value linearly from the initial to the final one, and keeps the final one.

    Args:
        obj: See :class:`ParameterScheduler`.
        param_name: See :class:`ParameterScheduler`.
        final_value: Value after ``num_steps`` steps.
        num_steps: Number of steps.

    Raises:
        ArgumentError: ``num_steps`` is less than 1.

    Example:
        >>> from tdx import LinearScheduler, PrioritizedSampler
        >>> sampler = PrioritizedSampler(max_capacity=9, alpha=0.7, beta=0.5)
        >>> LinearScheduler(sampler, "beta", final_value=1.0, num_steps=4).step()
        >>> sampler.beta
        0.625
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        final_value: float,
        num_steps: int,
    ) -> None:
        super().__init__(obj, param_name)
        if num_steps < 1:
            raise ArgumentError(f"num_steps must be at least 1, got {num_steps}")
        self.final_val: Number = final_value
        if isinstance(self.initial_val, Tensor):
            self.final_val = torch.as_tensor(final_value).to(self.initial_val)
        self.num_steps = num_steps

    def _step(self) -> Number:
        if self._step_cnt >= self.num_steps:
            return self.final_val
        return self.initial_val + (self.final_val - self.initial_val) * (
            self._step_cnt / self.num_steps
        )


class StepScheduler(ParameterScheduler):
    """Multiplies a value by a factor, or adds a number to it, once in several steps.

    Args:
        obj: See :class:`ParameterScheduler`.
        param_name: See :class:`ParameterScheduler`.
        gamma: The factor, or the number to add.
        n_steps: Number of steps from one change to the next.
        mode: "multiplicative" or "additive".
        min_value: Lower bound of the values.
        max_value: Upper bound of the values.

    Raises:
        ArgumentError: ``mode`` is neither, or ``n_steps`` is less than 1.

    Example:
        >>> from tdx import PrioritizedSampler, StepScheduler
        >>> sampler = PrioritizedSampler(max_capacity=9, alpha=0.7, beta=0.5)
        >>> scheduler = StepScheduler(sampler, "beta", 0.25, mode="additive", max_value=1.0)
        >>> for _ in range(3):
        ...     scheduler.step()
        >>> sampler.beta
        1.0
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        gamma: float = 0.9,
        n_steps: int = 1,
        mode: str = "multiplicative",
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        if mode not in ("additive", "multiplicative"):
            raise ArgumentError(
                f"unknown mode {mode!r}", hint="use one of additive, multiplicative"
            )
        if n_steps < 1:
            raise ArgumentError(f"n_steps must be at least 1, got {n_steps}")
        self.gamma, self.n_steps, self.mode = gamma, n_steps, mode

    def _step(self) -> Number:
        current: Number = getattr(self.sampler, self.param_name)
        if self._step_cnt % self.n_steps:
            return current
        return current + self.gamma if self.mode == "additive" else current * self.gamma


class SchedulerList:
    """Several schedulers that step together.

    Args:
        schedulers: One scheduler, or several.

    Example:
        >>> from tdx import LinearScheduler, PrioritizedSampler, SchedulerList
        >>> sampler = PrioritizedSampler(max_capacity=9, alpha=0.7, beta=0.5)
        >>> schedulers = SchedulerList(LinearScheduler(sampler, "alpha", 0.0, 1))
        >>> schedulers.append(LinearScheduler(sampler, "beta", 1.0, 1))
        >>> schedulers.step()
        >>> sampler.alpha, sampler.beta
        (0.0, 1.0)
    """

    def __init__(self, schedulers: ParameterScheduler | Iterable[ParameterScheduler]) -> None:
        if isinstance(schedulers, ParameterScheduler):
            schedulers = [schedulers]
        self.schedulers = list(schedulers)

    def append(self, scheduler: ParameterScheduler) -> None:
        """Add a scheduler."""
        self.schedulers.append(scheduler)

    def step(self) -> None:
        """Set the next value of every scheduler."""
        for scheduler in self.schedulers:
            scheduler.step()
