"""List the available envs, describe one before it is used, and suggest stages for it."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdx.envs.gym.registry import RegisteredEnv
from tdx.foundation.errors import TdxError
from tdx.foundation.keys import NestedKey, format_key
from tdx.foundation.serialization import Result
from tdx.pipeline import EnvConfig, Pipeline, StageConfig
from tdx.specs.leaf import LeafSpec

if TYPE_CHECKING:
    from tdx.envs.gym.registry import EnvSurvey

_IMAGE_SIZE = 84
_FRAMES = 4
_MAX_EPISODE_STEPS = 1000
_MIN_IMAGE_SIZE = 32


@dataclass(frozen=True, slots=True)
class EnvList(Result):
    """The envs that match a search."""

    search: str
    envs: tuple[RegisteredEnv, ...]


def list_envs(search: str = "", *, missing: bool = False) -> tuple[RegisteredEnv, ...]:
    """List the envs.

    Args:
        search: Words that must all occur in the id or the package; case-insensitive.
        missing: Include envs whose package is not installed.
    """
    return find_envs(search, missing=missing).envs


def find_envs(search: str = "", *, missing: bool = False) -> EnvSurvey:
    """Like :func:`list_envs`, but also return the env packages that cannot be imported.

    Names that equal or start with a word of the search come before the others. A search without a
    result names similar ids instead.
    """
    from tdx.envs.gym.registry import EnvSurvey, find_similar_ids, survey_envs
    from tdx.pipeline.envs import NATIVE_ENVS

    words = search.casefold().split()
    survey = survey_envs()
    native = (RegisteredEnv(env_id, "tdx", True) for env_id in sorted(NATIVE_ENVS))
    every = (*survey.envs, *native)
    envs = (
        env
        for env in every
        if (missing or env.installed)
        and all(word in f"{env.id} {env.package}".casefold() for word in words)
    )

    def rank(env: RegisteredEnv) -> int:
        whole = env.id.casefold()
        name = re.sub(r"-v\d+$", "", whole.rpartition("/")[2])
        if any(word in (whole, name) for word in words):
            return 0
        return 1 if any(name.startswith(word) for word in words) else 2

    matching = tuple(sorted(envs, key=rank))
    similar: list[str] = []
    if not matching:
        similar = find_similar_ids(search.strip(), (env.id for env in every if env.installed))
    return EnvSurvey(matching, survey.broken, tuple(similar))


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggested stage."""

    stage: StageConfig
    reason: str


def suggest_stages(env: EnvConfig, allow_code: bool = False) -> tuple[Suggestion, ...]:
    """Suggest stages for an env, in an order that works; the env is made but not stepped.

    Images become small, gray, stacked floats; double precision becomes single; episode starts,
    returns and steps are tracked, and an env without a declared limit gets one.

    Example:
        >>> [suggestion.stage.name for suggestion in suggest_stages(EnvConfig("Pendulum-v1"))]
        ['InitTracker', 'RewardSum', 'StepCounter']
    """
    leaves = get_env_leaves(env, allow_code)
    candidates = [*_image_stages(leaves)]
    double = [format_key(leaf.key) for leaf in leaves if leaf.dtype == "float64"]
    if double:
        listed = ", ".join(dict.fromkeys(double))
        reason = f"single precision for {listed}"
        candidates.append(Suggestion(StageConfig("DoubleToFloat"), reason))
    candidates += _episode_stages(env, leaves)
    if _can_build(env, candidates, allow_code):
        return tuple(candidates)
    kept: list[Suggestion] = []
    for suggestion in candidates:
        if _can_build(env, [*kept, suggestion], allow_code):
            kept.append(suggestion)
    return tuple(kept)


def get_env_leaves(env: EnvConfig, allow_code: bool = False) -> tuple[LeafSpec, ...]:
    """Return the specs of an env without a chain."""
    from tdx.specs.leaf import composite_leaves
    from tdx.stacks.building import build_env

    built = build_env(Pipeline(env), allow_code)
    try:
        return composite_leaves(built.input_spec, built.output_spec)
    finally:
        built.close()


def _can_build(env: EnvConfig, suggestions: Sequence[Suggestion], allow_code: bool) -> bool:
    from tdx.stacks.building import build_env

    try:
        build_env(
            Pipeline(env, tuple(suggestion.stage for suggestion in suggestions)), allow_code
        ).close()
    except TdxError:
        return False
    return True


def _image_stages(leaves: Sequence[LeafSpec]) -> Iterator[Suggestion]:
    images = [leaf for leaf in leaves if _is_image(leaf)]
    if not images:
        return
    keys = tuple(leaf.key for leaf in images)
    yield _suggest_on(
        keys, "ToTensorImage", "uint8 with channels last → float in 0 … 1, channels first"
    )
    color_keys = tuple(leaf.key for leaf in images if leaf.shape[-1] == 3)
    if color_keys:
        yield _suggest_on(color_keys, "GrayScale", "one channel instead of three")
    if any(max(leaf.shape[-3:-1]) > _IMAGE_SIZE for leaf in images):
        size = {"w": _IMAGE_SIZE, "h": _IMAGE_SIZE}
        yield _suggest_on(keys, "Resize", "image size that most networks expect", **size)
    stack = {"N": _FRAMES, "dim": -3}
    yield _suggest_on(keys, "CatFrames", "stacked frames show motion", **stack)


def _is_image(leaf: LeafSpec) -> bool:
    """Return True if the spec looks like uint8 images ``[*B, H, W, C]``."""
    return (
        leaf.part == "observation"
        and leaf.dtype == "uint8"
        and len(leaf.shape) >= 3
        and leaf.shape[-1] in (1, 3)
        and min(leaf.shape[-3:-1]) >= _MIN_IMAGE_SIZE
    )


def _suggest_on(keys: tuple[NestedKey, ...], name: str, reason: str, **kwargs: int) -> Suggestion:
    """Suggest a stage for these keys; ``in_keys`` is set if they are not the default."""
    in_keys = {} if keys == ("pixels",) else {"in_keys": keys}
    return Suggestion(StageConfig(name, (), {**kwargs, **in_keys}), reason)


def _episode_stages(env: EnvConfig, leaves: Sequence[LeafSpec]) -> Iterator[Suggestion]:
    keys = {leaf.key for leaf in leaves}
    if "is_init" not in keys:
        yield Suggestion(StageConfig("InitTracker"), "marks the first step of each episode")
    if "episode_reward" not in keys and any(leaf.part == "reward" for leaf in leaves):
        yield Suggestion(StageConfig("RewardSum"), "sums the rewards of the episode")
    if "step_count" in keys:
        return
    limit = find_time_limit(env)
    if limit is None:
        counter = StageConfig("StepCounter", (), {"max_steps": _MAX_EPISODE_STEPS})
        reason = f"truncates episodes after {_MAX_EPISODE_STEPS} steps; the env has no limit"
        yield Suggestion(counter, reason)
    else:
        reason = f"counts steps; the env truncates episodes after {limit} steps"
        yield Suggestion(StageConfig("StepCounter"), reason)


def find_time_limit(env: EnvConfig) -> int | None:
    """Return the number of steps after which an env truncates an episode.

    ``None``: unknown. Some envs, such as those of MiniGrid, truncate by a counter of their own.
    """
    limit = env.kwargs.get("max_episode_steps")
    if isinstance(limit, int):
        return limit if limit > 0 else None
    if env.code is not None:
        return None
    from tdx.envs.gym.registry import find_env

    try:
        registered = find_env(env.id)
    except TdxError:
        return None
    if registered.max_episode_steps is not None:
        return registered.max_episode_steps
    # Atari counts frames, several per step.
    kwargs = {**registered.kwargs, **env.kwargs}
    frames, skip = kwargs.get("max_num_frames_per_episode"), kwargs.get("frameskip")
    return frames // skip if isinstance(frames, int) and isinstance(skip, int) else None


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

    id: str
    package: str
    entry_point: str
    versions: tuple[str, ...]
    replaced_by: str | None = None
    time_limit: int | None = None
    own_limit: int | None = None
    reward_threshold: float | None = None
    reward_range: tuple[float, float] | None = None
    nondeterministic: bool = False
    render_modes: tuple[str, ...] = ()
    render_fps: float | None = None
    arguments: tuple[EnvArgument, ...] = ()
    specs: tuple[LeafSpec, ...] = ()


def describe_env(env: EnvConfig) -> EnvDetails:
    """Describe a registered env; it is made, but not stepped.

    Example:
        >>> describe_env(EnvConfig("Pendulum-v1")).time_limit
        200
    """
    from tdx.pipeline.coercion import coerce_untyped
    from tdx.pipeline.envs import NATIVE_ENVS

    if env.id in NATIVE_ENVS:
        import tdx.envs

        specs = get_env_leaves(env)
        return EnvDetails(
            id=env.id,
            package="tdx",
            entry_point=f"tdx.envs:{NATIVE_ENVS[env.id]}",
            versions=(env.id,),
            reward_range=_find_reward_range(None, specs),
            arguments=tuple(_list_arguments(getattr(tdx.envs, NATIVE_ENVS[env.id]), {})),
            specs=specs,
        )
    import gymnasium

    from tdx.envs.gym.registry import find_env, list_versions, newer_version, package_of
    from tdx.stacks.kinds import CHECKPOINT

    if CHECKPOINT.accepts(env.id):
        raise CHECKPOINT.refusal(env.id)
    spec = find_env(env.id)
    versions = list_versions(spec.id)
    specs = get_env_leaves(env)
    entry = spec.entry_point or spec.vector_entry_point
    given: dict[str, Any] = {name: coerce_untyped(value) for name, value in env.kwargs.items()}
    made: Any = gymnasium.make(spec.id, disable_env_checker=True, **given)
    try:
        own_limits = (getattr(made.unwrapped, name, None) for name in _LIMIT_NAMES)
        return EnvDetails(
            spec.id,
            package_of(spec),
            entry if isinstance(entry, str) else str(getattr(entry, "__qualname__", entry)),
            versions,
            newer_version(spec.id),
            find_time_limit(env),
            next((limit for limit in own_limits if type(limit) is int and limit > 0), None),
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


def _find_reward_range(env: Any, specs: tuple[LeafSpec, ...]) -> tuple[float, float] | None:
    """Return the range that the env, or the spec of its reward, declares."""
    declared = getattr(getattr(env, "unwrapped", None), "reward_range", None)
    if isinstance(declared, tuple) and len(declared) == 2 and all(map(math.isfinite, declared)):
        return float(declared[0]), float(declared[1])
    for leaf in specs:
        bounds = [
            bound for bound in (leaf.domain.low, leaf.domain.high) if type(bound) in (int, float)
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
        default = registered.get(parameter.name, parameter.default)
        annotation: str | None = None
        if isinstance(parameter.annotation, str):
            annotation = parameter.annotation
        elif parameter.annotation is not parameter.empty:
            is_class = isinstance(parameter.annotation, type)
            text = str(parameter.annotation).replace("typing.", "")
            annotation = parameter.annotation.__name__ if is_class else text
        yield EnvArgument(
            parameter.name,
            annotation,
            None if default is parameter.empty else repr(default),
            parameter.name in registered,
        )
