"""Convert the wrappers of a Gymnasium stack, and run parts of it to compare values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from gymnasium.vector import VectorEnv
from tensordict import TensorDict
from torch import Tensor

from tdx.core import TransformedEnv
from tdx.envs import EnvBase, GymWrapper
from tdx.envs.gym.numeric_spaces import CodecOptions
from tdx.envs.gym.registry import find_env
from tdx.envs.gym.single_env import reward_array
from tdx.envs.gym.spaces import codec_of
from tdx.foundation.errors import ArgumentError, EnvError, TdxError, summarize_error
from tdx.foundation.keys import format_key
from tdx.pipeline import EnvConfig
from tdx.pipeline.values import Value
from tdx.stacks.conversion import (
    ConvertedStack,
    ConvertedStage,
    Counterpart,
    NamedTensors,
    action_entries,
)
from tdx.stacks.counterparts import Place, convert_stages, root_key, write_value
from tdx.stacks.gymnasium.levels import Level, is_registered
from tdx.transforms import RenameTransform


def convert_levels(levels: Sequence[Level]) -> ConvertedStack:
    """Find the counterparts of the wrappers."""
    core = levels[0].owner
    if levels[0].num_envs is not None or isinstance(core, VectorEnv):
        raise ArgumentError(
            "a vector env cannot be converted",
            hint="return one of its envs; `num_envs` in the file makes a batch of it",
        )
    return convert_wrappers(core, levels[1:])[0]


def name_env(levels: Sequence[Level]) -> EnvConfig:
    """Return the config of an env that has only the wrappers of ``gymnasium.make``."""
    converted = convert_levels(levels)
    other = next((stage for stage in converted.stages if stage.stages or stage.missing), None)
    if other is not None:
        raise ArgumentError(
            f"the env inside has the Gymnasium wrapper {other.name}",
            hint="import the Gymnasium env with its wrappers, or use transforms instead",
        )
    return converted.env_up_to(len(converted.stages) - 1)


def convert_wrappers(core: Any, wrappers: Sequence[Level]) -> tuple[ConvertedStack, Place]:
    """Find the counterparts of wrappers around an env; return also the place after them."""
    # The id of an env also creates the env that it holds.
    count = next((n for n in range(len(wrappers), 0, -1) if is_registered(wrappers[n - 1])), 0)
    held, wrappers = wrappers[:count], wrappers[count:]
    if held:
        core = held[-1].owner
    spec = getattr(core, "spec", None)
    if spec is None:
        raise ArgumentError(
            f"the env inside, {type(core).__name__}, was not created by an id",
            hint="register it with gymnasium.register, and create it with gymnasium.make",
        )
    registered = find_env(spec.id)
    limit = registered.max_episode_steps
    kwargs = dict(_changed_kwargs(spec, registered))
    if limit is not None:
        kwargs["max_episode_steps"] = -1  # The wrapper TimeLimit removes it.
    key = root_key(core.observation_space)
    stages = []
    for level in held:
        info = level.info()
        result = Counterpart(comment="part of the env", observable=level is held[-1])
        stages.append(ConvertedStage(info.index, info.name, info.call, result, key))
    place = Place(key, limit, only_defaults=True)
    stages += convert_stages(
        ((level.info(), level.owner, None, level.owner.observation_space) for level in wrappers),
        place,
    )
    return ConvertedStack(EnvConfig(spec.id, kwargs=kwargs), tuple(stages), key), place


def _changed_kwargs(spec: Any, registered: Any) -> Iterator[tuple[str, Value]]:
    """Return the arguments of an env that are not those of its registration."""
    missing = object()
    for name, value in spec.kwargs.items():
        default = registered.kwargs.get(name, missing)
        try:
            is_same = bool(value == default)
        except ValueError:
            is_same = False
        if not is_same and not (name == "render_mode" and value is None):
            try:
                yield name, write_value(value)
            except TypeError:
                raise ArgumentError(
                    f"the argument {name} of the env is {type(value).__name__}, which a file "
                    "cannot contain",
                    hint="pass numbers, text, lists and dicts to gymnasium.make",
                ) from None


class GymnasiumReference:
    """A Gymnasium env whose values are entries, as those of tdx."""

    def __init__(self, env: Any, key: str | None, seed: int) -> None:
        self._env, self._key = env, key
        self._wrapped = GymWrapper(env)
        self._encode_action = codec_of(
            env.action_space, CodecOptions(None, categorical=False, remap_state=True)
        ).encode
        env.action_space.seed(seed)

    def reset(self, seed: int | None) -> NamedTensors:
        with stack_errors("reset"):
            observation, _ = self._env.reset(seed=seed)
        return self._observe(observation)

    def sample_action(self) -> tuple[Any, NamedTensors]:
        action = self._env.action_space.sample()
        return action, action_entries(self._encode_action(action))

    def step(self, action: Any) -> tuple[NamedTensors, Mapping[str, Any]]:
        with stack_errors("step"):
            observation, reward, terminated, truncated, info = self._env.step(action)
        entries = dict(self._observe(observation))
        entries["reward"] = torch.from_numpy(reward_array(reward))
        flags = {"terminated": terminated, "truncated": truncated, "done": terminated or truncated}
        entries.update({name: torch.tensor([bool(flag)]) for name, flag in flags.items()})
        return entries, info

    def _observe(self, observation: object) -> NamedTensors:
        entries = TensorDict(self._wrapped.read_obs(observation))
        flat = {format_key(key): value for key, value in entries.items(True, True)}
        values = {key: value for key, value in flat.items() if isinstance(value, Tensor)}
        if self._key is not None and len(values) == 1:
            return {self._key: next(iter(values.values()))}
        return values

    def close(self) -> None:
        self._wrapped.close()


@contextmanager
def stack_errors(method: str) -> Iterator[None]:
    """Name the method of the original stack in what it raises in a block."""
    try:
        yield
    except TdxError:
        raise
    except Exception as error:
        raise EnvError(
            f"{method} of the stack raised {summarize_error(error)}",
            hint="--debug shows the traceback",
        ) from error


def wrap_level(env: Any, key: str | None) -> EnvBase:
    """Return an env with some of its wrappers as one env of tdx."""
    return with_observation_key(GymWrapper(env), root_key(env.observation_space), key)


def with_observation_key(env: EnvBase, own: str | None, key: str | None) -> EnvBase:
    """Return an env whose observation is at another key."""
    if key is None or own is None or own == key:
        return env
    return cast(EnvBase, TransformedEnv(env, RenameTransform([own], [key])))
