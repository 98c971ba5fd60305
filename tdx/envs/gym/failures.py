"""Errors and warnings of Gymnasium and its envs, as tdx reports them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from tdx.core.envs.failures import ENV_ERROR_HINT
from tdx.envs.gym.providers import find_requirement, install_hint
from tdx.envs.gym.registry import find_replacement_hint
from tdx.envs.gym.values import WrongValueError
from tdx.errors import (
    ArgumentError,
    EnvError,
    MissingPackageError,
    TdxError,
    Where,
    did_you_mean,
    summarize_error,
)
from tdx.keys import normalize_key


def env_error(name: str, phase: str, error: Exception) -> TdxError:
    """Create the error to raise for an error in ``reset``, ``step`` or ``render``.

    Args:
        name: Name of the env, as the user gave it.
        phase: Method that raised.
        error: Error of the env.
    """
    if isinstance(error, TdxError):
        return error
    if isinstance(error, WrongValueError):
        key = normalize_key(error.path) if error.path else None
        row = "" if error.row is None else f" of env {error.row}"
        message = f"{phase}{row} returned {error.problem}"
        return EnvError(message, hint=error.hint, where=Where(env=name, key=key))
    return EnvError(
        f"{phase} raised {summarize_error(error)}", hint=ENV_ERROR_HINT, where=Where(env=name)
    )


def construction_error(name: str, entry_point: object, error: Exception) -> TdxError:
    """Create the error to raise if an env cannot be created.

    Args:
        name: Name of the env, as the user gave it.
        entry_point: Entry point of the env's class.
        error: Error of ``gymnasium.make``.
    """
    from gymnasium.error import DependencyNotInstalled

    if isinstance(error, TdxError):
        return error
    where = Where(env=name)
    if isinstance(error, (ImportError, DependencyNotInstalled)):
        hint = _loading_hint(name, entry_point)
        return MissingPackageError(
            f"cannot load the env: {summarize_error(error)}", hint=hint, where=where
        )
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


_PIPELINE_HINTS = {
    "num_envs": "in a pipeline num_envs is a field of env, next to kwargs",
    "device": "in a pipeline device is a field of env, next to kwargs",
    "seed": "in a pipeline seed is a field of env, next to kwargs",
    "from_pixels": "in a pipeline from_pixels is a field of env, next to kwargs",
    "pixels_only": "in a pipeline pixels_only is a field of env, next to kwargs",
    "frame_skip": "use FrameSkipTransform to repeat actions",
}


def _loading_hint(name: str, entry_point: object) -> str:
    moved_hint = find_replacement_hint(name)
    if moved_hint is not None:
        return moved_hint
    needed = find_requirement(entry_point)
    return install_hint(needed[1]) if needed else "install it, or see the documentation of the env"


def _list_arguments(entry_point: object) -> list[str]:
    import inspect

    from gymnasium.envs.registration import load_env_creator

    try:
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        parameters = inspect.signature(creator).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    return [name for name in parameters if name != "self"]


_LOG = logging.getLogger(__name__)
_logged_warnings: set[str] = set()


@contextmanager
def log_mujoco_warnings(entry_point: object) -> Iterator[None]:
    """Log each warning of MuJoCo in the block, once per process.

    By default MuJoCo writes warnings to stderr and to a file ``MUJOCO_LOG.TXT`` in the working
    directory, for every env of a batch.

    Args:
        entry_point: Entry point of the env that is created in the block.
    """
    mujoco = _find_mujoco("mujoco" in str(entry_point))
    if mujoco is None or mujoco.get_mju_user_warning() is not None:
        yield
        return
    mujoco.set_mju_user_warning(_log)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(None)


def _find_mujoco(needed: bool) -> Any:
    """Return MuJoCo if it is loaded or needed, and its version supports a warning callback."""
    if needed:
        with suppress(ImportError):
            import_module("mujoco")
    module = sys.modules.get("mujoco")
    return module if hasattr(module, "get_mju_user_warning") else None


def _log(text: str) -> None:
    if text not in _logged_warnings:
        _logged_warnings.add(text)
        _LOG.warning("warning: MuJoCo: %s", text)
