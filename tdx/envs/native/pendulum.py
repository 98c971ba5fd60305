"""``PendulumEnv``: swing up a pendulum, as Gymnasium's ``Pendulum-v1``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tdx.envs.native.native_env import NativeEnv
from tdx.specs import Bounded, Composite

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
TIME_STEP = 0.05


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
        high = torch.tensor([1.0, 1.0, MAX_SPEED], device=self.device).expand(*batch, 3)
        self.observation_spec = Composite(
            observation=Bounded(-high, high, device=self.device), shape=batch, device=self.device
        )
        self.action_spec = Bounded(-MAX_TORQUE, MAX_TORQUE, (*batch, 1), device=self.device)

    def _initial_state(self) -> Tensor:
        sample = self._uniform(1.0)
        angle, velocity = sample.unbind(-1)
        return torch.stack((angle * math.pi, velocity), -1)

    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        angle, velocity = state.unbind(-1)
        torque = action.squeeze(-1).clamp(-MAX_TORQUE, MAX_TORQUE)
        from_top = (angle + math.pi) % (2 * math.pi) - math.pi
        cost = from_top**2 + 0.1 * velocity**2 + 0.001 * torque**2
        acceleration = 3 * self.g / 2 * angle.sin() + 3.0 * torque
        velocity = (velocity + acceleration * TIME_STEP).clamp(-MAX_SPEED, MAX_SPEED)
        angle = angle + velocity * TIME_STEP
        return torch.stack((angle, velocity), -1), -cost, None

    def _observation(self, state: Tensor) -> Tensor:
        angle, velocity = state.unbind(-1)
        return torch.stack((angle.cos(), angle.sin(), velocity), -1).to(torch.float32)
