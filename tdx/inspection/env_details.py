"""What there is to know about an env before it is used: specs, limits, arguments, versions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tdx.inspection.envs import find_time_limit, get_env_leaves
from tdx.inspection.leaf import LeafSpec
from tdx.pipeline import EnvConfig
from tdx.serialization import Entries, Result

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

_LIMIT_NAMES = ("max_steps", "max_episode_steps", "_max_episode_steps", "max_time_steps")
"""Attributes in which envs keep a limit of their own, as those of MiniGrid do."""
_HIDDEN = {"self", "render_mode"}


@dataclass(frozen=True, slots=True)
class EnvArgument(Result):
    """A named argument that the env accepts.

    Args:
        name: Name.
        type: Annotation as text. ``None``: not annotated.
        default: Default as text, with the value that the registered id passes. ``None``: required.
        registered: True if the registered id passes the default.
    """

    json_entries: ClassVar[Entries] = ("name", "type", "default", "registered")

    name: str
    type: str | None
    default: str | None
    registered: bool


@dataclass(frozen=True, slots=True)
class EnvDetails(Result):
    """Description of an env.

    Args:
        id: Full id.
        package: Package that registers it.
        entry_point: Class or function that makes it.
        versions: Ids of all versions, newest first.
        replaced_by: Id of the newest version, if it is another one.
        time_limit: Number of steps after which the registered id truncates an episode.
        own_limit: Number of steps after which the env itself ends an episode.
        reward_threshold: Return at which the env counts as solved.
        reward_range: Smallest and largest reward that the env declares.
        nondeterministic: True if two runs with one seed may differ.
        render_modes: Valid values of ``render_mode``.
        render_fps: Frames per second of a video.
        arguments: Named arguments.
        specs: Specs of its entries.
    """

    json_entries: ClassVar[Entries] = (
        *("id", "package", "entry_point", "versions", "replaced_by", "time_limit", "own_limit"),
        *("reward_threshold", "reward_range", "nondeterministic", "render_modes", "render_fps"),
        *("arguments", "specs"),
    )

    id: str
    package: str
    entry_point: str
    versions: tuple[str, ...]
    replaced_by: str | None
    time_limit: int | None
    own_limit: int | None
    reward_threshold: float | None
    reward_range: tuple[float, float] | None
    nondeterministic: bool
    render_modes: tuple[str, ...]
    render_fps: float | None
    arguments: tuple[EnvArgument, ...]
    specs: tuple[LeafSpec, ...]


def describe_env(env: EnvConfig) -> EnvDetails:
    """Describe a registered env; it is made, but not stepped.

    Args:
        env: Id and arguments of the env.

    Raises:
        EnvNotFoundError: No env with that id is registered.
        MissingPackageError: The package of the env is not installed.
        EnvError: The env cannot be made.

    Example:
        >>> describe_env(EnvConfig("Pendulum-v1")).time_limit
        200
    """
    from tdx.pipeline.envs import NATIVE_ENVS

    if env.id in NATIVE_ENVS:
        return _describe_native(env, NATIVE_ENVS[env.id])
    from tdx.envs.gym.registry import find_env, list_versions, newer_version, package_of

    spec = find_env(env.id)
    versions = list_versions(spec.id)
    specs = get_env_leaves(env)
    made = _make(spec, env.kwargs)
    try:
        return EnvDetails(
            spec.id,
            package_of(spec),
            _entry_point(spec),
            versions,
            newer_version(spec.id),
            find_time_limit(env),
            _find_own_limit(made),
            spec.reward_threshold,
            _find_reward_range(made, specs),
            spec.nondeterministic,
            tuple(made.metadata.get("render_modes") or ()),
            made.metadata.get("render_fps"),
            tuple(_list_arguments(type(made.unwrapped), spec.kwargs)),
            specs,
        )
    finally:
        made.close()


def _describe_native(env: EnvConfig, class_name: str) -> EnvDetails:
    import tdx.envs

    kind = getattr(tdx.envs, class_name)
    specs = get_env_leaves(env)
    return EnvDetails(
        env.id,
        "tdx",
        f"tdx.envs:{class_name}",
        (env.id,),
        None,
        None,
        None,
        None,
        _find_reward_range(None, specs),
        False,
        (),
        None,
        tuple(_list_arguments(kind, {})),
        specs,
    )


def _make(spec: EnvSpec, kwargs: Mapping[str, Any]) -> Any:
    import gymnasium

    from tdx.pipeline.coercion import coerce_untyped

    given: dict[str, Any] = {name: coerce_untyped(value) for name, value in kwargs.items()}
    return gymnasium.make(spec.id, disable_env_checker=True, **given)


def _entry_point(spec: EnvSpec) -> str:
    entry = spec.entry_point or spec.vector_entry_point
    if isinstance(entry, str):
        return entry
    return str(getattr(entry, "__qualname__", entry))


def _find_own_limit(env: Any) -> int | None:
    found = (getattr(env.unwrapped, name, None) for name in _LIMIT_NAMES)
    return next((limit for limit in found if type(limit) is int and limit > 0), None)


def _find_reward_range(env: Any, specs: tuple[LeafSpec, ...]) -> tuple[float, float] | None:
    """Return the range that the env, or the spec of its reward, declares."""
    declared = getattr(getattr(env, "unwrapped", None), "reward_range", None)
    if isinstance(declared, tuple) and len(declared) == 2 and all(map(math.isfinite, declared)):
        return float(declared[0]), float(declared[1])
    for leaf in specs:
        bounds = [
            each for each in (leaf.domain.low, leaf.domain.high) if type(each) in (int, float)
        ]
        if leaf.part == "reward" and len(bounds) == 2:
            return float(bounds[0]), float(bounds[1])
    return None


def _list_arguments(kind: Any, registered: Mapping[str, Any]) -> Iterator[EnvArgument]:
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return
    for parameter in parameters:
        if parameter.name in _HIDDEN or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        is_registered = parameter.name in registered
        default = registered.get(parameter.name, parameter.default)
        yield EnvArgument(
            parameter.name,
            _annotation(parameter.annotation),
            None if default is inspect.Parameter.empty else repr(default),
            is_registered,
        )


def _annotation(annotation: object) -> str | None:
    if annotation is inspect.Parameter.empty:
        return None
    if isinstance(annotation, str):
        return annotation
    text = str(annotation)
    return annotation.__name__ if isinstance(annotation, type) else text.replace("typing.", "")
