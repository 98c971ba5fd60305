"""The stages that fit an env, with the reason for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tdx.errors import TdxError
from tdx.inspection.leaf import LeafSpec, composite_leaves
from tdx.keys import NestedKey, format_key
from tdx.pipeline import EnvConfig, Pipeline, StageConfig, build_env

_SIDE = 84
_FRAMES = 4
_LONGEST = 1000
_SMALLEST_IMAGE = 32


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A stage, and why it fits.

    Args:
        stage: the stage.
        reason: what it is good for here, on one line.
    """

    stage: StageConfig
    reason: str


def suggest_stages(env: EnvConfig, allow_code: bool = False) -> tuple[Suggestion, ...]:
    """The stages that fit an env, in an order that works; the env is made and never stepped.

    Images become small, grey, stacked floats; numbers in double precision become single; episode
    starts, returns and steps are tracked, and an env that declares no limit gets one.

    Args:
        env: the env.
        allow_code: whether Python objects that it names may be imported.

    Raises:
        EnvError: the env cannot be made.

    Example:
        >>> [each.stage.name for each in suggest_stages(EnvConfig("Pendulum-v1"))]
        ['InitTracker', 'RewardSum', 'StepCounter']
    """
    leaves = env_leaves(env, allow_code)
    wanted = [*_image_stages(leaves), *_number_stages(leaves), *_episode_stages(env, leaves)]
    if _builds(env, wanted, allow_code):
        return tuple(wanted)
    kept: list[Suggestion] = []
    for each in wanted:
        if _builds(env, [*kept, each], allow_code):
            kept.append(each)
    return tuple(kept)


def env_leaves(env: EnvConfig, allow_code: bool = False) -> tuple[LeafSpec, ...]:
    """The specs of an env without a chain."""
    made = build_env(Pipeline(env), allow_code)
    try:
        return composite_leaves(made.input_spec, made.output_spec)
    finally:
        made.close()


def _builds(env: EnvConfig, wanted: Sequence[Suggestion], allow_code: bool) -> bool:
    try:
        build_env(Pipeline(env, tuple(each.stage for each in wanted)), allow_code).close()
    except TdxError:
        return False
    return True


def _image_stages(leaves: Sequence[LeafSpec]) -> Iterator[Suggestion]:
    images = [leaf for leaf in leaves if _is_image(leaf)]
    if not images:
        return
    keys = tuple(leaf.key for leaf in images)
    yield _on(keys, "ToTensorImage", "bytes with channels last → floats in 0 … 1, channels first")
    colourful = tuple(leaf.key for leaf in images if leaf.shape[-1] == 3)
    if colourful:
        yield _on(colourful, "GrayScale", "one channel in the place of three")
    if any(max(leaf.shape[-3:-1]) > _SIDE for leaf in images):
        size = {"w": _SIDE, "h": _SIDE}
        yield _on(keys, "Resize", "no more pixels than most networks look at", **size)
    stack = {"N": _FRAMES, "dim": -3}
    yield _on(keys, "CatFrames", "the last frames together show what moves", **stack)


def _is_image(leaf: LeafSpec) -> bool:
    """Whether it looks like bytes ``[*B, H, W, C]``."""
    return (
        leaf.part == "observation"
        and leaf.dtype == "uint8"
        and len(leaf.shape) >= 3
        and leaf.shape[-1] in (1, 3)
        and min(leaf.shape[-3:-1]) >= _SMALLEST_IMAGE
    )


def _on(keys: tuple[NestedKey, ...], name: str, reason: str, **kwargs: int) -> Suggestion:
    """A stage on these keys, which are named where they are not the default."""
    named = {} if keys == ("pixels",) else {"in_keys": keys}
    return Suggestion(StageConfig(name, (), {**kwargs, **named}), reason)


def _number_stages(leaves: Sequence[LeafSpec]) -> Iterator[Suggestion]:
    double = [format_key(leaf.key) for leaf in leaves if leaf.dtype == "float64"]
    if double:
        listed = ", ".join(dict.fromkeys(double))
        yield Suggestion(StageConfig("DoubleToFloat"), f"single precision for {listed}")


def _episode_stages(env: EnvConfig, leaves: Sequence[LeafSpec]) -> Iterator[Suggestion]:
    taken = {leaf.key for leaf in leaves}
    if "is_init" not in taken:
        yield Suggestion(StageConfig("InitTracker"), "marks the first step of every episode")
    if "episode_reward" not in taken and any(leaf.part == "reward" for leaf in leaves):
        yield Suggestion(StageConfig("RewardSum"), "the return of the episode so far")
    if "step_count" in taken:
        return
    limit = time_limit(env)
    if limit is None:
        counter = StageConfig("StepCounter", (), {"max_steps": _LONGEST})
        reason = f"truncates an episode after {_LONGEST}; the env declares no limit of its own"
        yield Suggestion(counter, reason)
    else:
        reason = f"counts steps; the env itself truncates an episode after {limit}"
        yield Suggestion(StageConfig("StepCounter"), reason)


def time_limit(env: EnvConfig) -> int | None:
    """The steps after which an env truncates an episode, if it declares that.

    ``None``: nothing is known. Envs such as those of MiniGrid truncate by a counter of their own.
    """
    given = env.kwargs.get("max_episode_steps")
    if isinstance(given, int):
        return given if given > 0 else None
    if env.code is not None:
        return None
    from tdx.envs.gym.registry import find_env

    try:
        registered = find_env(env.id)
    except TdxError:
        return None
    if registered.max_episode_steps is not None:
        return registered.max_episode_steps
    # Atari counts frames, of which a step takes several.
    known = {**registered.kwargs, **env.kwargs}
    frames, skip = known.get("max_num_frames_per_episode"), known.get("frameskip")
    return frames // skip if isinstance(frames, int) and isinstance(skip, int) else None
