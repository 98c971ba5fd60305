"""What a user reads where Gymnasium or one of its envs raises."""

from __future__ import annotations

from tdx.core.envs.failures import ENV_ERROR_HINT
from tdx.envs.gym.providers import install_hint, requirement
from tdx.envs.gym.registry import elsewhere
from tdx.envs.gym.values import WrongValueError
from tdx.errors import (
    ArgumentError,
    EnvError,
    MissingPackageError,
    TdxError,
    Where,
    did_you_mean,
    one_line,
)
from tdx.keys import normal_key


def env_failed(name: str, phase: str, error: Exception) -> TdxError:
    """The error to raise where an env raised in ``reset``, ``step`` or ``render``.

    Args:
        name: the env, as the user named it.
        phase: the method that raised.
        error: what it raised.
    """
    if isinstance(error, TdxError):
        return error
    if isinstance(error, WrongValueError):
        key = normal_key(error.path) if error.path else None
        row = "" if error.row is None else f" of env {error.row}"
        message = f"{phase}{row} returned {error.problem}"
        return EnvError(message, hint=error.hint, where=Where(env=name, key=key))
    return EnvError(f"{phase} raised {one_line(error)}", hint=ENV_ERROR_HINT, where=Where(env=name))


def making_failed(name: str, entry_point: object, error: Exception) -> TdxError:
    """The error to raise where an env could not be made.

    Args:
        name: the env, as the user named it.
        entry_point: where its class lives.
        error: what ``gymnasium.make`` raised.
    """
    from gymnasium.error import DependencyNotInstalled

    if isinstance(error, TdxError):
        return error
    where = Where(env=name)
    if isinstance(error, (ImportError, DependencyNotInstalled)):
        hint = _loading_hint(name, entry_point)
        return MissingPackageError(
            f"it cannot be loaded: {one_line(error)}", hint=hint, where=where
        )
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
        keyword = str(error).partition("unexpected keyword argument")[2].split("'")[1]
        return ArgumentError(
            f"the env takes no argument {keyword!r}",
            hint=_PIPELINE_HINTS.get(keyword)
            or did_you_mean(keyword, _arguments_of(entry_point), "see the env's own docs"),
            where=where,
        )
    return EnvError(f"it cannot be made: {one_line(error)}", hint=ENV_ERROR_HINT, where=where)


_PIPELINE_HINTS = {
    "num_envs": "kwargs are the env's own; in a pipeline num_envs is a field beside kwargs",
    "device": "kwargs are the env's own; in a pipeline device is a field beside kwargs",
    "seed": "kwargs are the env's own; in a pipeline seed is a field beside kwargs",
    "from_pixels": "kwargs are the env's own; in a pipeline from_pixels is a field beside kwargs",
    "pixels_only": "kwargs are the env's own; in a pipeline pixels_only is a field beside kwargs",
    "frame_skip": "kwargs are the env's own; FrameSkipTransform repeats actions",
}


def _loading_hint(name: str, entry_point: object) -> str:
    there = elsewhere(name)
    if there is not None:
        return there
    needed = requirement(entry_point)
    return install_hint(needed[1]) if needed else "install it, or see the env's own docs"


def _arguments_of(entry_point: object) -> list[str]:
    import inspect

    from gymnasium.envs.registration import load_env_creator

    try:
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        parameters = inspect.signature(creator).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    return [name for name in parameters if name != "self"]
