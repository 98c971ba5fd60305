"""Steps single Gymnasium envs without TensorDicts, for planned rollouts."""

from tdx.envs.gym.rows.collector import GymRows

__all__ = ["GymRows"]
