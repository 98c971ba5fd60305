"""``GymEnv``: a Gymnasium env by its id, and the construction of single and vector envs."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import torch
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.error import DependencyNotInstalled

from tdx.core.envs.failures import ENV_ERROR_HINT
from tdx.core.transforms.validation import check_integer
from tdx.envs.gym.gym_wrapper import GymWrapper, check_frame_skip, wrap_env
from tdx.envs.gym.interface import AnyEnv, AnyVectorEnv
from tdx.envs.gym.providers import find_requirement, install_hint, is_installed
from tdx.envs.gym.registry import find_env, find_replacement_hint
from tdx.envs.gym.vector import make_vector_env
from tdx.envs.gym.wrappers import CheckedValues
from tdx.foundation.errors import (
    ArgumentError,
    EnvError,
    MissingPackageError,
    TdxError,
    Where,
    did_you_mean,
    summarize_error,
)

_LOG = logging.getLogger(__name__)
_MODES = ("sync", "async")
_PIPELINE_HINTS = {
    "num_envs": "in a pipeline num_envs is a field of env, next to kwargs",
    "device": "in a pipeline device is a field of env, next to kwargs",
    "seed": "in a pipeline seed is a field of env, next to kwargs",
    "from_pixels": "in a pipeline from_pixels is a field of env, next to kwargs",
    "pixels_only": "in a pipeline pixels_only is a field of env, next to kwargs",
    "frame_skip": "use FrameSkipTransform to repeat actions",
}


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
        own = env_kwargs or {}
        if duplicates := sorted(kwargs.keys() & own.keys()):
            raise ArgumentError(
                f"{duplicates[0]} is given twice, by keyword and in env_kwargs",
                hint=f"remove {duplicates[0]} from env_kwargs",
                where=Where(env=env_name),
            )
        env = make_env(
            env_name,
            num_envs=0 if num_envs is None else num_envs,
            vectorization_mode=vectorization_mode,
            from_pixels=from_pixels,
            pixels_only=pixels_only,
            frame_skip=frame_skip,
            kwargs={**kwargs, **own},
            disable_env_checker=disable_env_checker,
        )
        self._initialize(env, env_name, categorical_action_encoding, device, seed)
        self.from_pixels, self.pixels_only, self.frame_skip = from_pixels, pixels_only, frame_skip

    @property
    def env_name(self) -> str:
        """Id of the env, as given."""
        return self._name


def make_env(
    env_id: str,
    *,
    num_envs: int,
    vectorization_mode: str,
    from_pixels: bool,
    pixels_only: bool,
    frame_skip: int | None,
    kwargs: dict[str, Any],
    disable_env_checker: bool = True,
) -> AnyEnv | AnyVectorEnv:
    """Create a registered env, or a vector env of it that never resets by itself.

    Args:
        env_id: Id of the env, see :func:`~tdx.envs.gym.registry.find_env`.
        num_envs: Number of envs in a vector env. 0: a single env.
        vectorization_mode: ``"sync"`` or ``"async"``.
        from_pixels: True to add ``pixels``.
        pixels_only: True to leave out the env's own observation.
        frame_skip: Number of times that an action is applied. ``None``: the env's default.
        kwargs: Arguments for the env, whatever their names.
        disable_env_checker: True to disable Gymnasium's checks of the env.
    """
    _check_arguments(num_envs, vectorization_mode)
    check_frame_skip(frame_skip)
    spec = find_env(env_id)
    own = sorted(kwargs.keys() & {"max_episode_steps", "disable_env_checker"})
    options = {"disable_env_checker": disable_env_checker, **{name: kwargs[name] for name in own}}
    kwargs = {name: value for name, value in kwargs.items() if name not in own}
    if from_pixels:
        kwargs = {"render_mode": "rgb_array", **kwargs}
    if frame_skip is not None and "frameskip" in spec.kwargs and "frameskip" not in kwargs:
        # Atari envs skip 4 frames by default, which would be multiplied by frame_skip.
        kwargs, frame_skip = {**kwargs, "frameskip": frame_skip}, None
    # Set in the spec, since names could collide with parameters of gymnasium.make.
    spec = replace(spec, kwargs={**spec.kwargs, **kwargs})
    build = partial(_make_single, spec, from_pixels, pixels_only, frame_skip, options)
    try:
        if not num_envs:
            return build()
        return make_vector_env([partial(build, row) for row in range(num_envs)], vectorization_mode)
    except Exception as error:
        raise _construction_error(env_id, spec.entry_point, error) from error


def _check_arguments(num_envs: object, vectorization_mode: str) -> None:
    check_integer(num_envs, "num_envs", 0, "use 0 for a single env without a batch dim")
    if vectorization_mode not in _MODES:
        raise ArgumentError(
            f"vectorization_mode must be one of {', '.join(_MODES)}, got {vectorization_mode!r}",
            hint=did_you_mean(str(vectorization_mode), _MODES, f"use {next(iter(_MODES))!r}"),
        )


def _make_single(
    spec: EnvSpec,
    from_pixels: bool,
    pixels_only: bool,
    frame_skip: int | None,
    options: dict[str, Any],
    row: int | None = None,
) -> AnyEnv:
    with log_mujoco_warnings(spec.entry_point):
        env = gymnasium.make(spec, **options)
    try:
        env = wrap_env(env, from_pixels=from_pixels, pixels_only=pixels_only, frame_skip=frame_skip)
        if row is None:
            return env
        return CheckedValues(env, row)
    except Exception:
        env.close()
        raise


def _construction_error(name: str, entry_point: object, error: Exception) -> TdxError:
    """Create the error to raise if an env cannot be created."""
    if isinstance(error, TdxError):
        return error
    where = Where(env=name)
    if isinstance(error, (ImportError, DependencyNotInstalled)):
        message = f"cannot load the env: {summarize_error(error)}"
        hint = find_replacement_hint(name)
        needed = find_requirement(entry_point)
        if hint is None and needed is None:
            hint = "install it, or see the documentation of the env"
        elif hint is None and needed is not None:
            module, package = needed
            if not is_installed(module):
                message = f"the env needs the package {module}, which is not installed"
            hint = install_hint(package)
        return MissingPackageError(message, hint=hint, where=where)
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
        keyword = str(error).partition("unexpected keyword argument")[2].split("'")[1]
        return ArgumentError(
            f"the env has no argument {keyword!r}",
            hint=_PIPELINE_HINTS.get(keyword)
            or did_you_mean(
                keyword, _list_arguments(entry_point), "see the documentation of the env"
            ),
            where=where,
        )
    return EnvError(
        f"cannot create the env: {summarize_error(error)}", hint=ENV_ERROR_HINT, where=where
    )


def _list_arguments(entry_point: object) -> list[str]:
    try:
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        parameters = inspect.signature(creator).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    return [name for name in parameters if name != "self"]


_logged_warnings: set[str] = set()


@contextmanager
def log_mujoco_warnings(entry_point: object = "") -> Iterator[None]:
    """Log each warning of MuJoCo in the block, once per process.

    By default MuJoCo writes warnings to stderr and to a file ``MUJOCO_LOG.TXT`` in the working
    directory, for every env of a batch. ``entry_point`` is that of the env that the block creates.
    """
    if "mujoco" in str(entry_point):
        with suppress(ImportError):
            import_module("mujoco")
    mujoco = sys.modules.get("mujoco")
    # Older versions have no callback for warnings.
    if (
        mujoco is None
        or not hasattr(mujoco, "get_mju_user_warning")
        or mujoco.get_mju_user_warning() is not None
    ):
        yield
        return
    mujoco.set_mju_user_warning(log_mujoco_warning)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)


def log_mujoco_warning(text: str) -> None:
    """Log a warning of MuJoCo once per process; a deprecation concerns the model, not its user."""
    if text not in _logged_warnings:
        _logged_warnings.add(text)
        level = logging.DEBUG if "deprecated" in text else logging.WARNING
        _LOG.log(level, "warning: MuJoCo: %s", text.strip())
