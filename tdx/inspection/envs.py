"""List the available envs, and suggest stages for one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdx.errors import TdxError
from tdx.keys import NestedKey, format_key
from tdx.pipeline import EnvConfig, Pipeline, StageConfig

if TYPE_CHECKING:
    from tdx.envs.gym.providers import BrokenProvider
    from tdx.envs.gym.registry import RegisteredEnv
    from tdx.inspection.leaf import LeafSpec

_IMAGE_SIZE = 84
_FRAMES = 4
_MAX_EPISODE_STEPS = 1000
_MIN_IMAGE_SIZE = 32


def list_envs(search: str = "", *, missing: bool = False) -> tuple[RegisteredEnv, ...]:
    """List the envs that ``--env`` accepts.

    Args:
        search: Words that must all occur in the id or the package; case-insensitive.
        missing: Include envs whose package is not installed.
    """
    return find_envs(search, missing=missing).envs


@dataclass(frozen=True, slots=True)
class EnvList:
    """Result of a search for envs.

    Args:
        envs: Envs, sorted by name; of several versions the newest comes first. Names that equal or
            start with a word of the search come before the others.
        broken: Env packages that are installed but cannot be imported; their envs are missing.
    """

    envs: tuple[RegisteredEnv, ...]
    broken: tuple[BrokenProvider, ...]


def find_envs(search: str = "", *, missing: bool = False) -> EnvList:
    """Like :func:`list_envs`, but also return the env packages that cannot be imported."""
    from tdx.envs.gym.registry import RegisteredEnv, survey_envs
    from tdx.pipeline.envs import NATIVE_ENVS

    words = search.casefold().split()
    survey = survey_envs()
    native = (RegisteredEnv(env_id, "tdx", True) for env_id in sorted(NATIVE_ENVS))
    envs = (
        env
        for env in (*survey.envs, *native)
        if (missing or env.installed)
        and all(word in f"{env.id} {env.package}".casefold() for word in words)
    )
    return EnvList(tuple(sorted(envs, key=lambda env: _search_rank(env.id, words))), survey.broken)


def _search_rank(env_id: str, words: Sequence[str]) -> int:
    """Return 0 if a word is the name of an env, 1 if its name starts with a word, else 2."""
    whole = env_id.casefold()
    name = re.sub(r"-v\d+$", "", whole.rpartition("/")[2])
    if any(word in (whole, name) for word in words):
        return 0
    return 1 if any(name.startswith(word) for word in words) else 2


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggested stage.

    Args:
        stage: The stage.
        reason: Why it fits, on one line.
    """

    stage: StageConfig
    reason: str


def suggest_stages(env: EnvConfig, allow_code: bool = False) -> tuple[Suggestion, ...]:
    """Suggest stages for an env, in an order that works; the env is made but not stepped.

    Images become small, gray, stacked floats; double precision becomes single; episode starts,
    returns and steps are tracked, and an env without a declared limit gets one.

    Args:
        env: The env.
        allow_code: Allow importing the Python objects that it names.

    Raises:
        EnvError: The env cannot be made.

    Example:
        >>> [each.stage.name for each in suggest_stages(EnvConfig("Pendulum-v1"))]
        ['InitTracker', 'RewardSum', 'StepCounter']
    """
    leaves = get_env_leaves(env, allow_code)
    candidates = [*_image_stages(leaves), *_number_stages(leaves), *_episode_stages(env, leaves)]
    if _can_build(env, candidates, allow_code):
        return tuple(candidates)
    kept: list[Suggestion] = []
    for each in candidates:
        if _can_build(env, [*kept, each], allow_code):
            kept.append(each)
    return tuple(kept)


def get_env_leaves(env: EnvConfig, allow_code: bool = False) -> tuple[LeafSpec, ...]:
    """Return the specs of an env without a chain."""
    from tdx.inspection.leaf import composite_leaves
    from tdx.stacks.building import build_env

    built = build_env(Pipeline(env), allow_code)
    try:
        return composite_leaves(built.input_spec, built.output_spec)
    finally:
        built.close()


def _can_build(env: EnvConfig, suggestions: Sequence[Suggestion], allow_code: bool) -> bool:
    from tdx.stacks.building import build_env

    try:
        build_env(Pipeline(env, tuple(each.stage for each in suggestions)), allow_code).close()
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


def _number_stages(leaves: Sequence[LeafSpec]) -> Iterator[Suggestion]:
    double = [format_key(leaf.key) for leaf in leaves if leaf.dtype == "float64"]
    if double:
        listed = ", ".join(dict.fromkeys(double))
        yield Suggestion(StageConfig("DoubleToFloat"), f"single precision for {listed}")


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
