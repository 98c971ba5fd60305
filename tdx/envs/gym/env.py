"""A Gymnasium env by its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tdx.envs.gym.making import make_env
from tdx.envs.gym.wrapper import GymWrapper
from tdx.errors import ArgumentError, Where


class GymEnv(GymWrapper):
    """A Gymnasium env made from its id; see :class:`GymWrapper` for keys and spaces.

    An id of ``ale_py``, ``minigrid`` and other known packages is found without an import; any
    other package can be named before it: ``"module:EnvId-v0"``.

    Args:
        env_name: the id, with or without its version.
        categorical_action_encoding: whether discrete values are indices; one-hot otherwise.
        num_envs: 0 for a single env, batch size ``[]``; else a vector env of that many,
            batch size ``[num_envs]``, whose rows start over only when tdx resets them.
        vectorization_mode: ``"sync"``, all envs in this process, or ``"async"``, a process each.
        from_pixels: whether what the env renders is added at ``pixels``, uint8 ``[*B, H, W, C]``.
        pixels_only: whether ``pixels`` then replace the env's own observation.
        frame_skip: how often each action is applied; rewards are summed. Atari envs, which skip 4
            frames by default, skip this many instead.
        device: where the results live; the CPU by default.
        seed: as by ``set_seed``.
        disable_env_checker: whether Gymnasium's own checks of the env are left out.
        env_kwargs: Arguments for the env, whatever their names. An env may take a ``frame_skip``
            or ``device`` of its own.
        **kwargs: Arguments for the env whose names are none of the above.

    Raises:
        EnvNotFoundError: no env of this id is registered.
        MissingPackageError: a package that it needs is not installed.
        ArgumentError: an argument is wrong, or the env takes none of that name.
        EnvError: the env raised when it was made.

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
            kwargs=_merged(kwargs, env_kwargs or {}, env_name),
            disable_env_checker=disable_env_checker,
        )
        self._begin(env, env_name, categorical_action_encoding, device, seed)

    @property
    def env_name(self) -> str:
        """The id, as it was given."""
        return self._name


def _merged(kwargs: Mapping[str, Any], more: Mapping[str, Any], env_name: str) -> dict[str, Any]:
    twice = sorted(kwargs.keys() & more.keys())
    if twice:
        raise ArgumentError(
            f"{twice[0]} is given twice",
            hint=f"keep {twice[0]} out of env_kwargs",
            where=Where(env=env_name),
        )
    return {**kwargs, **more}
