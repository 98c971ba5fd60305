"""Base class of envs implemented in torch: state, time limit, seeding and resets."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.chain import declares
from tdx.core.counter_based import row_keys, uniform_at
from tdx.core.envs import EnvBase
from tdx.foundation.errors import ArgumentError, EnvError
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import new_tensordict, read

_EPISODES_AHEAD = 16
"""Episodes of each row that are drawn at once.

Every reset on an accelerator, where each step is one, would have 19 more launches otherwise; and
with few rows on the host, a single draw takes five times as long as its share of 16.
"""


@dataclass(frozen=True, slots=True)
class _Upcoming:
    """Random numbers of the next episodes of each row."""

    sample: Tensor  # numbers from [-1, 1), [_EPISODES_AHEAD, *B, state_size]
    first: Tensor  # index of the first of these episodes, [*B, 1]
    current: Tensor  # the env's counter of episodes after the last draw
    draws: int = 0  # number of draws, of which each used at most one episode of a row


class NativeEnv(EnvBase):
    """A batch of envs whose dynamics are tensor operations over all rows.

    A subclass sets its specs and implements :meth:`_initial_state`, :meth:`_advance` and
    :meth:`_observation`. Steps and resets never copy a value to the host, so on an accelerator they
    only launch kernels. The start of an episode follows from the seed of its row and the number of
    episodes before it, so it is the same on every device and whatever other rows do.

    Args:
        max_episode_steps: Step at which an episode is truncated. ``None``: no limit.
        batch_size: Batch size, ``[*B]``. ``None``: a single env.
        device: Device of the env; the CPU by default.
        state_dtype: Dtype of the dynamics. Gymnasium uses float64. Observations and rewards are
            float32 in either case.

    Raises:
        ArgumentError: ``max_episode_steps`` is below 1, or ``state_dtype`` is not a
            floating-point dtype.
    """

    writes_all_outputs = True
    steps_some_rows = True

    state_size: ClassVar[int]
    """Number of elements of the physical state of one env."""

    def __init__(
        self,
        *,
        max_episode_steps: int | None,
        batch_size: torch.Size | tuple[int, ...] | list[int] | None,
        device: torch.device | str | int | None,
        state_dtype: torch.dtype,
    ) -> None:
        super().__init__(device=device, batch_size=batch_size)
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ArgumentError(
                f"max_episode_steps must be at least 1, got {max_episode_steps}",
                hint="pass None for episodes without a limit",
            )
        if not state_dtype.is_floating_point:
            raise ArgumentError(
                f"state_dtype must be a floating type, got {state_dtype}",
                hint="use torch.float64, as Gymnasium does",
            )
        self.max_episode_steps = max_episode_steps
        self.state_dtype = state_dtype
        self._state: Tensor | None = None
        self._elapsed: Tensor | None = None
        self._upcoming: _Upcoming | None = None
        self._set_seed(None)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if {"_step", "_reset", "step", "reset"} & set(cls.__dict__):
            setattr(cls, "step_reads", None)  # noqa: B010

    def shares_torch_rng(self) -> bool | None:
        return False if declares(type(self), "_is_verified") else None

    @property
    def resets_by_mask(self) -> bool:
        return self.step_reads is not None

    @property
    def step_reads(self) -> tuple[NestedKey, ...] | None:
        return ()

    @abstractmethod
    def _initial_state(self, sample: Tensor) -> Tensor:
        """Return states of new episodes, ``[*B, state_size]``.

        Args:
            sample: Uniform random numbers from ``[-1, 1)``, ``[*B, state_size]``.
        """

    @abstractmethod
    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute one step of the dynamics.

        Args:
            state: Current state, ``[*B, state_size]``.
            action: Action in the action spec.

        Returns:
            Next state ``[*B, state_size]``, reward ``[*B]``, and whether the episode terminated
            ``[*B]``, or ``None`` if it never does.
        """

    @abstractmethod
    def _observation(self, state: Tensor) -> Tensor:
        """Return the observation of a state, ``[*B, ...]``, float32."""

    def _begin_episode(self, rows: Tensor | None) -> None:
        """Reset variables of an episode that are not part of the state.

        Args:
            rows: Mask of the rows that start an episode, ``[*B, 1]``. ``None``: all rows.
        """

    # State

    @property
    def state(self) -> Tensor:
        """Physical state, ``[*B, state_size]``, in Gymnasium's order.

        A step replaces the tensor, so a reference to it does not change.

        Raises:
            EnvError: The env was never reset.
        """
        if self._state is None:
            raise EnvError(
                f"{type(self).__name__} has no state yet",
                hint="call env.reset() or env.set_state(...) first",
            )
        return self._state

    @property
    def elapsed_steps(self) -> Tensor:
        """Number of steps since each episode started, int64, ``[*B, 1]``."""
        if self._elapsed is None:
            shape = (*self.batch_size, 1)
            self._elapsed = torch.zeros(shape, dtype=torch.int64, device=self.device)
        return self._elapsed

    def set_state(self, state: Tensor, elapsed_steps: Tensor | int = 0) -> None:
        """Set the state of every env.

        Args:
            state: ``[*B, state_size]`` or broadcastable to it, in Gymnasium's order.
            elapsed_steps: Number of steps since the episode started, ``[*B, 1]`` or an integer.

        Raises:
            ArgumentError: A shape does not broadcast.
        """
        rows = torch.as_tensor(state, dtype=self.state_dtype, device=self.device)
        steps = torch.as_tensor(elapsed_steps, dtype=torch.int64, device=self.device)
        self._state = _broadcast(rows, (*self.batch_size, self.state_size), "state")
        self._elapsed = _broadcast(steps, (*self.batch_size, 1), "elapsed_steps")
        self._begin_episode(None)

    def _set_seed(self, seed: int | None) -> None:
        shape = (*self.batch_size, 1)
        seed = secrets.randbits(64) if seed is None else seed
        self._row_keys = row_keys(seed, self.batch_size, self.device)
        self._episodes = torch.zeros(shape, dtype=torch.int64, device=self.device)

    def _sample_next(self, rows: Tensor | None) -> Tensor:
        """Return the random numbers of the next episode of each row, ``[*B, state_size]``.

        Args:
            rows: Mask of the rows that start it, ``[*B, 1]``. ``None``: all rows.
        """
        episodes, upcoming = self._episodes, self._upcoming
        if (
            upcoming is None
            or upcoming.draws == _EPISODES_AHEAD
            # A seed, a move to another device or a restored state has assigned another tensor.
            or upcoming.current is not episodes
        ):
            size = self.state_size
            sample = uniform_at(
                self._row_keys,
                episodes.squeeze(-1) * size,
                _EPISODES_AHEAD * size,
                self.state_dtype,
            )
            sample = sample.reshape(_EPISODES_AHEAD, size, *self.batch_size).movedim(1, -1)
            upcoming = _Upcoming(sample, episodes, episodes)
        index = (episodes - upcoming.first).expand(1, *self.batch_size, self.state_size)
        self._episodes = episodes + (1 if rows is None else rows)
        self._upcoming = replace(upcoming, current=self._episodes, draws=upcoming.draws + 1)
        return upcoming.sample.gather(0, index).squeeze(0)

    def _move(self, device: torch.device) -> None:
        super()._move(device)
        for name, value in self.__dict__.items():
            if isinstance(value, Tensor):
                self.__dict__[name] = value.to(self.device)

    def __getstate__(self) -> dict[str, Any]:
        # Detached, because torch cannot copy tensors inside an autograd graph.
        state = {
            name: value.detach() if isinstance(value, Tensor) else value
            for name, value in self.__dict__.items()
        }
        return {**state, "_upcoming": None}

    # Steps

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None
        if tensordict is not None and self._state is not None:
            mask = read(tensordict, "_reset")
        fresh = self._initial_state(self._sample_next(mask))
        if mask is None or self._state is None:
            self._state, self._elapsed = fresh, None
            self._begin_episode(None)
        else:
            self._state = fresh.where(mask, self._state)
            self._elapsed = self.elapsed_steps.masked_fill(mask, 0)
            self._begin_episode(mask)
        flags = {name: self._no_flag() for name in ("done", "terminated", "truncated")}
        fields = {"observation": self._observation(self._state), **flags}
        return new_tensordict(fields, self.env_specs.batch_size, self.env_specs.device)

    def _no_flag(self) -> Tensor:
        specs = self.env_specs
        return torch.zeros((*specs.batch_size, 1), dtype=torch.bool, device=specs.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows = read(tensordict, "_step")
        if rows is not None:
            return self._step_some(tensordict.exclude("_step"), rows)
        action = read(tensordict, "action")
        if action is None:
            raise EnvError(
                f"the TensorDict has no {self.action_key!r}",
                hint="write one first: env.rand_action(tensordict)",
            )
        state, reward, terminated = self._advance(self.state, action)
        self._state = state
        ended = self._no_flag() if terminated is None else terminated.unsqueeze(-1)
        if self.max_episode_steps is None:
            truncated, done = self._no_flag(), ended.clone()
        else:
            self._elapsed = self.elapsed_steps + 1
            truncated = self._elapsed >= self.max_episode_steps
            done = ended | truncated
        fields = {
            "observation": self._observation(state),
            "reward": reward.unsqueeze(-1).to(torch.float32),
            "done": done,
            "terminated": ended,
            "truncated": truncated,
        }
        return new_tensordict(fields, self.env_specs.batch_size, self.env_specs.device)

    def _tensors(self) -> dict[str, Tensor]:
        """Return the attributes that have a value for each row."""
        tensors = {
            name: value for name, value in self.__dict__.items() if isinstance(value, Tensor)
        }
        count = len(self.batch_size)
        return {
            name: value for name, value in tensors.items() if value.shape[:count] == self.batch_size
        }

    def _step_some(self, tensordict: TensorDictBase, rows: Tensor) -> TensorDictBase:
        """Step the rows in a mask ``[*B]``. The others keep their state."""
        before = self._tensors()
        result = self._step(tensordict)
        for name, value in self._tensors().items():
            previous = before.get(name)
            if value is previous:
                continue
            mask = rows.reshape(*rows.shape, *[1] * (value.ndim - rows.ndim))
            self.__dict__[name] = value.where(
                mask, torch.zeros_like(value) if previous is None else previous
            )
        return result


def _broadcast(value: Tensor, shape: tuple[int, ...], argument: str) -> Tensor:
    try:
        return value.expand(shape).clone()
    except RuntimeError:
        raise ArgumentError(
            f"{argument} of shape {tuple(value.shape)} does not broadcast to {shape}",
            hint="pass a number, or a tensor of the env's batch size",
        ) from None
