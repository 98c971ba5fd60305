"""Convert the transforms of a TorchRL env, and run parts of it to compare values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from inspect import getmodule
from typing import Any

from gymnasium.vector import VectorEnv
from torch import Tensor
from torchrl import envs as rl

from tdx.envs import EnvBase
from tdx.errors import ArgumentError, TdxError
from tdx.keys import format_key
from tdx.pipeline import EnvConfig
from tdx.pipeline.model import Batching
from tdx.stacks.conversion import ConvertedStack, ConvertedStage, Entries, Missing, RandomStream
from tdx.stacks.gymnasium.converted import convert_levels, stack_error
from tdx.stacks.gymnasium.levels import list_levels
from tdx.stacks.stack import StageInfo
from tdx.stacks.torchrl.chain import convert_env, list_transforms
from tdx.stacks.torchrl.counterparts import find_counterpart

_BATCHED: dict[type, Batching] = {rl.SerialEnv: "serial", rl.ParallelEnv: "parallel"}


def convert_chain(env: Any, infos: Sequence[StageInfo]) -> ConvertedStack:
    """Find the counterparts of the transforms.

    Args:
        env: A ``torchrl.envs.EnvBase``.
        infos: Descriptions of its transforms.

    Raises:
        ArgumentError: A pipeline cannot name the env inside.

    Example:
        >>> env = rl.TransformedEnv(rl.GymEnv("Pendulum-v1", g=9.0), rl.StepCounter(5))
        >>> convert_chain(env, [StageInfo(0, "StepCounter")]).env.kwargs
        {'g': 9.0}
    """
    base, transforms = list_transforms(env)
    stages = tuple(
        ConvertedStage(info.index, info.name, info.call, find_counterpart(transform))
        for info, transform in zip(infos, transforms, strict=True)
    )
    config, missing = _name_env(base)
    return ConvertedStack(config, stages, None, missing)


# The env inside


def _name_env(base: Any) -> tuple[EnvConfig, Missing | None]:
    """Return the config of the env inside, and why it is only a proposal."""
    batching = _BATCHED.get(type(base))
    if batching is None:
        return _name_single_env(base)
    if not base._single_task:
        raise ArgumentError(
            f"the envs of the {type(base).__name__} differ",
            hint="create all of them with one function, or import one of them",
        )
    with closing(base.create_env_fn[0](**base.create_env_kwargs[0])) as one:
        inner, transforms = list_transforms(one)
        if transforms:
            raise ArgumentError(
                f"the envs of the {type(base).__name__} have transforms of their own",
                hint=f"import one of them, or put the transforms around the {type(base).__name__}",
            )
        config, missing = _name_single_env(inner)
    return replace(config, num_envs=base.num_workers, batching=batching), missing


def _name_single_env(base: Any) -> tuple[EnvConfig, Missing | None]:
    if isinstance(base, rl.GymWrapper):
        return _name_gym_env(base), None
    kind = type(base)
    module, reference = getmodule(kind), "module:function"
    if module is not None and getattr(module, kind.__qualname__, None) is kind:
        reference = f"{module.__name__}:{kind.__qualname__}"
    reason = f"{kind.__name__} is not a GymEnv: its class and its arguments are Python code"
    advice = f"name a function as `env`, module:function, that returns the {kind.__name__}"
    return EnvConfig(reference), Missing(reason, advice)


def _name_gym_env(base: Any) -> EnvConfig:
    if isinstance(base._env, VectorEnv):
        raise ArgumentError(
            "a GymEnv with num_envs cannot be converted",
            hint="leave num_envs out; `num_envs` in the file makes a batch of it",
        )
    if base.wrapper_frame_skip > 1:
        raise ArgumentError(
            f"the GymEnv repeats each action {base.wrapper_frame_skip} times",
            hint=f"use FrameSkipTransform({base.wrapper_frame_skip}) instead of frame_skip",
        )
    levels = list_levels(base._env)
    if base.from_pixels:
        levels = levels[:-1]  # the wrapper that renders
    converted = convert_levels(levels)
    other = next((each for each in converted.stages if each.stages or each.is_missing), None)
    if other is not None:
        raise ArgumentError(
            f"the env inside has the Gymnasium wrapper {other.name}",
            hint="import the Gymnasium env with its wrappers, or use transforms instead",
        )
    config = converted.env_up_to(len(converted.stages) - 1)
    kwargs = dict(config.kwargs)
    if base._categorical_action_encoding:
        kwargs["categorical_action_encoding"] = True
    if base.from_pixels:
        kwargs.pop("render_mode", None)
        config = replace(config, from_pixels=True, pixels_only=bool(base.pixels_only))
    return replace(config, kwargs=kwargs)


def seed_options(base: Any, seed: int) -> Mapping[str, Any] | None:
    """Return arguments of ``reset`` that seed an env as tdx does; ``None`` if it takes none.

    ``set_seed`` of TorchRL resets the env, so that its first episode is lost.

    Args:
        base: The env inside.
        seed: The seed; the next rows of a batch get the following ones.
    """
    if type(base) in _BATCHED:
        return {"list_of_kwargs": [{"seed": seed + row} for row in range(base.num_workers)]}
    return {"seed": seed} if isinstance(base, rl.GymWrapper) else None


def cut_chain(env: Any, count: int) -> Any:
    """Return an env with its first transforms only.

    Args:
        env: The env.
        count: Number of transforms to keep.
    """
    base, transforms = list_transforms(env)
    if count == len(transforms):
        return env
    return rl.TransformedEnv(base, rl.Compose(*(each.clone() for each in transforms[:count])))


class TorchRLReference:
    """A TorchRL env that runs as TorchRL steps it; batches reset the rows that are done.

    Random numbers of the env and of the actions have generators of their own.

    Args:
        env: The env with some of its transforms.
        seed: Seed of the random actions.
    """

    def __init__(self, env: Any, seed: int) -> None:
        self._env = env
        self._current: Any = None
        self._of_env, self._of_actions = RandomStream(seed), RandomStream(seed)

    def reset(self, seed: int | None) -> Entries:
        """See :class:`~tdx.stacks.conversion.Reference`."""
        with self._of_env.active(), _reported("reset"):
            if self._current is None:
                self._current = self._reset_first(seed)
            else:
                self._current = self._env.maybe_reset(self._current)
        return _entries(self._current, self._env.action_keys)

    def _reset_first(self, seed: int | None) -> Any:
        base, _ = list_transforms(self._env)
        options = None if seed is None else seed_options(base, seed)
        if options is None and seed is not None:
            self._env.set_seed(seed)
        return self._env.reset(**(options or {}))

    def sample_action(self) -> tuple[Any, Entries]:
        """See :class:`~tdx.stacks.conversion.Reference`."""
        with self._of_actions.active(), _reported("rand_action"):
            drawn = self._env.rand_action(self._current.clone(False))
        action = drawn.select(*self._env.action_keys)
        return action, {format_key(key): action[key].clone() for key in self._env.action_keys}

    def step(self, action: Any) -> tuple[Entries, Mapping[str, Any]]:
        """See :class:`~tdx.stacks.conversion.Reference`."""
        with self._of_env.active(), _reported("step"):
            result = self._env.step(self._current.update(action))
            self._current = self._env.step_mdp(result)
        return _entries(result["next"], self._env.action_keys), {}

    def close(self) -> None:
        """See :class:`~tdx.stacks.conversion.Reference`."""
        if not self._env.is_closed:
            self._env.close()


def _entries(tensordict: Any, actions: Sequence[Any]) -> Entries:
    leaves = tensordict.exclude(*actions).items(True, True)
    return {format_key(key): each.clone() for key, each in leaves if isinstance(each, Tensor)}


@contextmanager
def _reported(method: str) -> Iterator[None]:
    try:
        yield
    except TdxError:
        raise
    except Exception as error:
        raise stack_error(method, error) from error


def base_env(env: Any, count: int) -> EnvBase:
    """Return an env with its first transforms as one env of tdx, seeded as by the reference.

    Args:
        env: The env.
        count: Number of transforms to keep.
    """
    return convert_env(cut_chain(env, count), seed_options)
