"""The envs of classic control that are implemented in torch: a pendulum and a pole on a cart."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tdx.envs.native.native_env import NativeEnv
from tdx.specs import Bounded, Categorical, Composite, OneHot

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
PENDULUM_TIME_STEP = 0.05


class PendulumEnv(NativeEnv):
    """Gymnasium's ``Pendulum-v1``, for a batch of pendulums.

    The ``state`` is the angle in radians (0 is upright) and the angular velocity, ``[*B, 2]``. Like
    in Gymnasium, envs start in different states unless :meth:`set_seed` is called.

    Args:
        g: Gravity, in m/s².
        max_episode_steps: Step at which an episode is truncated. ``None``: no limit.
        batch_size: Batch size, ``[*B]``. ``None``: a single env.
        device: Device of the env; the CPU by default.
        state_dtype: Dtype of the dynamics. Gymnasium uses float64.

    Raises:
        ArgumentError: ``max_episode_steps`` is below 1, or ``state_dtype`` is not a
            floating-point dtype.

    Example:
        >>> env = PendulumEnv(batch_size=[4])
        >>> env.rollout(10)["next", "observation"].shape
        torch.Size([4, 10, 3])
        >>> env.set_state(torch.tensor([0.0, 0.0]))
        >>> env.rand_step()["next", "observation"].shape
        torch.Size([4, 3])
    """

    _is_verified = True

    state_size = 2

    def __init__(
        self,
        g: float = 10.0,
        *,
        max_episode_steps: int | None = 200,
        batch_size: torch.Size | tuple[int, ...] | list[int] | None = None,
        device: torch.device | str | int | None = None,
        state_dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(
            max_episode_steps=max_episode_steps,
            batch_size=batch_size,
            device=device,
            state_dtype=state_dtype,
        )
        self.g = g
        batch = self.batch_size
        high = torch.tensor([1.0, 1.0, MAX_SPEED]).expand(*batch, 3)
        self.observation_spec = Composite(
            observation=Bounded(-high, high, device=self.device), shape=batch, device=self.device
        )
        self.action_spec = Bounded(-MAX_TORQUE, MAX_TORQUE, (*batch, 1), device=self.device)

    def _initial_state(self, sample: Tensor) -> Tensor:
        angle, velocity = sample.unbind(-1)
        return torch.stack((angle * math.pi, velocity), -1)

    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        angle, velocity = state.unbind(-1)
        torque = action.squeeze(-1).clamp(-MAX_TORQUE, MAX_TORQUE)
        from_top = (angle + math.pi) % (2 * math.pi) - math.pi
        cost = from_top**2 + 0.1 * velocity**2 + 0.001 * torque**2
        acceleration = 3 * self.g / 2 * angle.sin() + 3.0 * torque
        velocity = (velocity + acceleration * PENDULUM_TIME_STEP).clamp(-MAX_SPEED, MAX_SPEED)
        angle = angle + velocity * PENDULUM_TIME_STEP
        return torch.stack((angle, velocity), -1), -cost, None

    def _observation(self, state: Tensor) -> Tensor:
        angle, velocity = state.unbind(-1)
        return torch.stack((angle.cos(), angle.sin(), velocity), -1).to(torch.float32)


GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
TOTAL_MASS = POLE_MASS + CART_MASS
HALF_LENGTH = 0.5
POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH
FORCE = 10.0
CART_POLE_TIME_STEP = 0.02
MAX_POSITION = 2.4
MAX_ANGLE = 12 * 2 * math.pi / 360


class CartPoleEnv(NativeEnv):
    """Gymnasium's ``CartPole-v1``, for a batch of carts.

    The ``state`` is the cart's position and velocity, and the pole's angle and angular velocity,
    ``[*B, 4]``. Like in Gymnasium, envs start in different states unless :meth:`set_seed` is
    called.

    Args:
        sutton_barto_reward: True for a reward of 0 in each step and -1 for the fall, instead of 1
            in each step.
        categorical_action_encoding: True for actions as indices ``[*B]`` instead of one-hot vectors
            ``[*B, 2]``.
        max_episode_steps: Step at which an episode is truncated. ``None``: no limit.
        batch_size: Batch size, ``[*B]``. ``None``: a single env.
        device: Device of the env; the CPU by default.
        state_dtype: Dtype of the dynamics. Gymnasium uses float64.

    Raises:
        ArgumentError: ``max_episode_steps`` is below 1, or ``state_dtype`` is not a
            floating-point dtype.

    Example:
        >>> env = CartPoleEnv(batch_size=[4], categorical_action_encoding=True)
        >>> env.set_state(torch.zeros(4))
        >>> push = env.rand_action().fill_("action", 1)
        >>> env.step(push)["next", "observation"][0]
        tensor([ 0.0000,  0.1951,  0.0000, -0.2927])
    """

    _is_verified = True

    state_size = 4

    def __init__(
        self,
        sutton_barto_reward: bool = False,
        *,
        categorical_action_encoding: bool = False,
        max_episode_steps: int | None = 500,
        batch_size: torch.Size | tuple[int, ...] | list[int] | None = None,
        device: torch.device | str | int | None = None,
        state_dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(
            max_episode_steps=max_episode_steps,
            batch_size=batch_size,
            device=device,
            state_dtype=state_dtype,
        )
        self.sutton_barto_reward = sutton_barto_reward
        self.categorical_action_encoding = categorical_action_encoding
        self._fallen: Tensor | None = None
        batch = self.batch_size
        ends = [2 * MAX_POSITION, math.inf, 2 * MAX_ANGLE, math.inf]
        high = torch.tensor(ends).expand(*batch, 4)
        self.observation_spec = Composite(
            observation=Bounded(-high, high, device=self.device), shape=batch, device=self.device
        )
        if self.categorical_action_encoding:
            self.action_spec = Categorical(2, batch, device=self.device, dtype=torch.int64)
        else:
            self.action_spec = OneHot(2, (*batch, 2), device=self.device, dtype=torch.int64)

    def _begin_episode(self, rows: Tensor | None) -> None:
        if rows is None or self._fallen is None:
            self._fallen = None
        else:
            self._fallen = self._fallen & ~rows.squeeze(-1)

    def _initial_state(self, sample: Tensor) -> Tensor:
        return sample * 0.05

    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        right = action if self.categorical_action_encoding else action[..., 1]
        force = right.to(state.dtype) * (2 * FORCE) - FORCE
        position, velocity, angle, angular_velocity = state.unbind(-1)
        cos, sin = angle.cos(), angle.sin()
        push = (force + POLE_MASS_LENGTH * angular_velocity.square() * sin) / TOTAL_MASS
        angular_acceleration = (GRAVITY * sin - cos * push) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos.square() / TOTAL_MASS)
        )
        acceleration = push - POLE_MASS_LENGTH * angular_acceleration * cos / TOTAL_MASS
        position = position + CART_POLE_TIME_STEP * velocity
        angle = angle + CART_POLE_TIME_STEP * angular_velocity
        state = torch.stack(
            (
                position,
                velocity + CART_POLE_TIME_STEP * acceleration,
                angle,
                angular_velocity + CART_POLE_TIME_STEP * angular_acceleration,
            ),
            -1,
        )
        terminated = (position.abs() > MAX_POSITION) | (angle.abs() > MAX_ANGLE)
        return state, self._reward(terminated), terminated

    def _reward(self, terminated: Tensor) -> Tensor:
        """Return the reward ``[*B]``, which is 0 in steps after the fall."""
        if self.sutton_barto_reward:
            return -terminated.to(torch.float32)
        fallen = self._fallen
        self._fallen = terminated if fallen is None else fallen | terminated
        if fallen is None:
            return torch.ones_like(terminated, dtype=torch.float32)
        return 1.0 - (fallen & terminated).to(torch.float32)

    def _observation(self, state: Tensor) -> Tensor:
        return state.to(torch.float32, copy=True)
