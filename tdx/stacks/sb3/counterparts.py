"""Transforms of tdx that compute what a wrapper of Stable-Baselines3 computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from stable_baselines3.common import atari_wrappers, vec_env
from stable_baselines3.common.monitor import Monitor

from tdx.envs.gym.numeric_spaces import Layout
from tdx.envs.gym.spaces import entry_key
from tdx.pipeline import StageConfig
from tdx.pipeline.values import Dtype
from tdx.stacks.conversion import Counterpart, Missing
from tdx.stacks.gymnasium import counterparts as of_gymnasium
from tdx.stacks.gymnasium.counterparts import ROUNDING, Place, make_pair, make_stage

Find = Callable[[Any, Place, Space[Any]], Counterpart | Missing]


def find_row_counterpart(wrapper: Any, place: Place) -> Counterpart | Missing:
    """Return the counterpart of a wrapper in a sub-env, or why it has none.

    Args:
        wrapper: A ``gymnasium.Wrapper``; those of Stable-Baselines3 come first.
        place: Where it is in the chain.
    """
    kind = type(wrapper)
    if kind is Monitor:
        return of_gymnasium.find_statistics(place, "episode")
    if kind is atari_wrappers.AtariWrapper:
        return Counterpart(comment="passes everything on: left out", observable=False)
    if kind is atari_wrappers.ClipRewardEnv:
        return Missing(
            "it returns the sign of the reward, RewardClipping a value between",
            "use RewardClipping if the rewards are whole numbers",
            make_stage("RewardClipping", clamp_min=-1.0, clamp_max=1.0),
        )
    reason = _ROW_REASONS.get(kind)
    if reason is not None:
        return Missing(reason, "write it as a transform of tdx, or do without it")
    return of_gymnasium.find_counterpart(wrapper, place)


_ROW_REASONS: dict[type, str] = {
    atari_wrappers.EpisodicLifeEnv: "it ends an episode when a life is lost",
    atari_wrappers.FireResetEnv: "it presses fire after each reset",
    atari_wrappers.MaxAndSkipEnv: "FrameSkipTransform returns the last frame, not the maximum",
    atari_wrappers.NoopResetEnv: "it takes a random number of steps, which tdx draws otherwise",
    atari_wrappers.StickyActionEnv: "it repeats actions at random",
    atari_wrappers.WarpFrame: "OpenCV averages areas, Resize interpolates",
}


def find_counterpart(wrapper: Any, place: Place, inside: Space[Any]) -> Counterpart | Missing:
    """Return the counterpart of a VecEnv wrapper, or why it has none.

    Args:
        wrapper: The ``VecEnvWrapper``.
        place: Where it is in the chain.
        inside: Space of the observations that it gets.
    """
    find = COUNTERPARTS.get(type(wrapper))
    if find is not None:
        return find(wrapper, place, inside)
    return Missing("no counterpart of this class is known", "write it as a transform of tdx")


def _list_entries(place: Place, space: Space[Any]) -> Iterator[tuple[str | None, str, Space[Any]]]:
    """Yield the name, the key and the space of each entry of the observation."""
    if not isinstance(space, spaces.Dict):
        yield None, str(place.key), space
        return
    names = list(space.spaces)
    layout = Layout(None, categorical=False, remap_state=True)
    for name in names:
        yield name, entry_key(name, names, layout), space[name]


def _normalize(wrapper: Any, place: Place, inside: Space[Any]) -> Counterpart | Missing:
    """Return normalization by fixed statistics; running statistics differ from tdx."""
    entries = list(_list_entries(place, inside))
    keys = wrapper.norm_obs_keys
    entries = [each for each in entries if keys is None or each[0] in keys]
    if wrapper.training and wrapper.norm_obs:
        epsilon = float(wrapper.epsilon)
        names = tuple(key for _, key, _ in entries)
        return Missing(
            "its statistics start with mean 0, variance 1 and a weight of 1e-4; VecNorm counts "
            "observations only"
            + (" and knows no discounted returns, by whose deviation the rewards are divided")
            * bool(wrapper.norm_reward),
            "set training = False: its statistics are then written as numbers",
            make_stage("VecNorm", in_keys=names, decay=1.0, eps=epsilon),
        )
    if wrapper.training and wrapper.norm_reward:
        return Missing(
            "it divides by the deviation of discounted returns, VecNorm by that of rewards",
            "set training = False, or use RewardScaling with a fixed factor",
        )
    stages: list[StageConfig] = []
    for name, key, space in entries if wrapper.norm_obs else ():
        statistics = wrapper.obs_rms if name is None else wrapper.obs_rms[name]
        stages += _standardize(statistics, key, space, wrapper.epsilon, wrapper.clip_obs)
    if wrapper.norm_reward:
        scale = _round(1 / np.sqrt(wrapper.ret_rms.var + wrapper.epsilon)).item()
        bound = float(wrapper.clip_reward)
        stages.append(make_stage("RewardScaling", loc=0.0, scale=scale))
        stages.append(make_stage("RewardClipping", clamp_min=-bound, clamp_max=bound))
    if not stages:
        return Counterpart(comment="normalizes nothing", observable=False)
    return Counterpart(tuple(stages), "its statistics, which it does not update", ROUNDING)


def _standardize(
    statistics: Any, key: str, space: Space[Any], epsilon: float, clip: float
) -> list[StageConfig]:
    pair = make_pair(_round(statistics.mean), _round(np.sqrt(statistics.var + epsilon)))
    keys, bound = (key,), float(clip)
    stages = [
        make_stage(
            "ObservationNorm",
            loc=pair[0],
            scale=pair[1],
            in_keys=keys,
            standard_normal=True,
            eps=1e-12,
        )
    ]
    if space.dtype == np.float64:
        dtypes = {"dtype_in": Dtype("float64"), "dtype_out": Dtype("float32")}
        stages.append(make_stage("DTypeCastTransform", **dtypes, in_keys=keys))
    stages.append(make_stage("RewardClipping", clamp_min=-bound, clamp_max=bound, in_keys=keys))
    return stages


def _round(values: Any) -> np.ndarray[Any, Any]:
    """Return numbers with as many digits as float32 needs."""
    return np.asarray(values, np.float32).astype(str).astype(np.float64)


def _stack_frames(wrapper: Any, place: Place, inside: Space[Any]) -> Counterpart | Missing:
    stacked = wrapper.stacked_obs
    groups: dict[int, list[str]] = {}
    for name, key, space in _list_entries(place, inside):
        part = stacked if name is None else stacked.sub_stacked_observations[name]
        dim = -1 if part.repeat_axis == -1 else -len(space.shape or ())
        groups.setdefault(dim, []).append(key)
    stages = [
        make_stage(
            "CatFrames",
            N=int(stacked.n_stack),
            dim=dim,
            in_keys=tuple(keys),
            padding="constant",
        )
        for dim, keys in groups.items()
    ]
    return Counterpart(tuple(stages), "stacks along an existing dim, with zeros at the start")


def _transpose_images(wrapper: Any, place: Place, inside: Space[Any]) -> Counterpart | Missing:
    if wrapper.skip:
        return Counterpart(comment="skip=True: changes no value", observable=False)
    images = getattr(wrapper, "image_space_keys", ())
    keys = [key for name, key, _ in _list_entries(place, inside) if name is None or name in images]
    stage = make_stage("PermuteTransform", dims=(-1, -3, -2), in_keys=tuple(keys))
    return Counterpart((stage,), "channels first")


def _monitor(wrapper: Any, place: Place, inside: Space[Any]) -> Counterpart | Missing:
    return of_gymnasium.find_statistics(place, "episode")


def _extract(wrapper: Any, place: Place, inside: Space[Any]) -> Counterpart | Missing:
    keys = {name: key for name, key, _ in _list_entries(place, inside)}
    key = keys[wrapper.key]
    stage = make_stage("SelectTransform", key, *place.taken)
    return Counterpart((stage,), "keeps one entry", key=key)


def _invisible(wrapper: Any, place: Place, inside: Space[Any]) -> Counterpart | Missing:
    return Counterpart(comment="changes no value: left out", observable=False)


COUNTERPARTS: dict[type, Find] = {
    vec_env.VecNormalize: _normalize,
    vec_env.VecFrameStack: _stack_frames,
    vec_env.VecTransposeImage: _transpose_images,
    vec_env.VecMonitor: _monitor,
    vec_env.VecExtractDictObs: _extract,
    vec_env.VecCheckNan: _invisible,
    vec_env.VecVideoRecorder: _invisible,
}
"""Functions that find the counterpart of a VecEnv wrapper."""
