"""``GymEnv``: a Gymnasium env by its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tdx.envs.gym.making import make_env
from tdx.envs.gym.wrapper import GymWrapper
from tdx.errors import ArgumentError, Where


class GymEnv(GymWrapper):
    """A Gymnasium env created from its id; see :class:`GymWrapper` for keys and spaces.

    Envs of ``ale_py``, ``minigrid`` and other known packages are found without importing the
    package first. For other packages add the module: ``"module:EnvId-v0"``.

    Args:
        env_name: Id of the env, with or without version.
        categorical_action_encoding: True to encode discrete values as indices, False as one-hot
            vectors.
        num_envs: Number of envs in a vector env with batch size ``[num_envs]``, whose rows are
            reset only by tdx. 0: a single env with batch size ``[]``.
        vectorization_mode: ``"sync"``: all envs in this process; ``"async"``: one process for each.
        from_pixels: True to add the rendered frame at ``pixels``, uint8 ``[*B, H, W, C]``.
        pixels_only: True to leave out the env's own observation with ``from_pixels``.
        frame_skip: Number of times that each action is applied, with rewards summed. Atari envs,
            which skip 4 frames by default, skip this many instead.
        device: Device of the results; the CPU by default.
        seed: Seed, as for ``set_seed``.
        disable_env_checker: True to disable Gymnasium's checks of the env.
        env_kwargs: Arguments for the env, whatever their names. An env may take a ``frame_skip``
            or ``device`` of its own.
        **kwargs: Arguments for the env whose names are none of the above.

    Raises:
        EnvNotFoundError: No env with this id is registered.
        MissingPackageError: A required package is not installed.
        ArgumentError: An argument is invalid, or unknown to the env.
        EnvError: The env raised an error during construction.

    Example:
        >>> env = GymEnv("Pendulum-v1")
        >>> env
        GymEnv(env=Pendulum-v1, batch_size=torch.Size([]), device=cpu)
        >>> GymEnv("CartPole-v1", num_envs=2).rollout(3)["observation"].shape
        torch.Size([2, 3, 4])
    """

    _is_verified = True

    def __init__(
        self,
        env_name: str,
        categorical_action_encoding: bool = False,
        *,
        num_envs: int | None = 0,
        vectorization_mode: str = "sync",
        from_pixels: bool = False,
        pixels_only: bool = True,
        frame_skip: int | None = None,
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        disable_env_checker: bool = True,
        env_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        env = make_env(
            env_name,
            num_envs=0 if num_envs is None else num_envs,
            vectorization_mode=vectorization_mode,
            from_pixels=from_pixels,
            pixels_only=pixels_only,
            frame_skip=frame_skip,
            kwargs=_merge_kwargs(kwargs, env_kwargs or {}, env_name),
            disable_env_checker=disable_env_checker,
        )
        self._initialize(env, env_name, categorical_action_encoding, device, seed)

    @property
    def env_name(self) -> str:
        """Id of the env, as given."""
        return self._name


def _merge_kwargs(
    kwargs: Mapping[str, Any], more: Mapping[str, Any], env_name: str
) -> dict[str, Any]:
    duplicates = sorted(kwargs.keys() & more.keys())
    if duplicates:
        raise ArgumentError(
            f"{duplicates[0]} is given twice, by keyword and in env_kwargs",
            hint=f"remove {duplicates[0]} from env_kwargs",
            where=Where(env=env_name),
        )
    return {**kwargs, **more}
