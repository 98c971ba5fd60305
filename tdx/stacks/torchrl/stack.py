"""The stack of a TorchRL env, and its transforms as the stages of a chain of tdx."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from inspect import getmodule
from typing import Any

from gymnasium.vector import VectorEnv
from tensordict import is_tensor_collection
from torch import Tensor
from torch.nn.parameter import is_lazy
from torchrl import envs as rl

from tdx.core.chain import chain_stages, flatten_chain
from tdx.envs import EnvBase
from tdx.foundation.errors import ArgumentError, EnvError, Where
from tdx.foundation.keys import format_key
from tdx.pipeline import EnvConfig
from tdx.pipeline.model import Batching
from tdx.stacks.conversion import ConvertedStack
from tdx.stacks.counterparts import Place, convert_stages
from tdx.stacks.gymnasium.converted import name_env
from tdx.stacks.gymnasium.levels import list_levels
from tdx.stacks.native import NativeStack, stage_arguments
from tdx.stacks.native_conversion import TensorDictReference
from tdx.stacks.native_levels import ChainLevels
from tdx.stacks.refusals import Missing
from tdx.stacks.sources import attributes_of, class_location
from tdx.stacks.stack import StackState, StageInfo
from tdx.stacks.torchrl import from_torchrl
from tdx.stacks.torchrl.chain import convert_env, list_transforms

_BATCHED: dict[type, Batching] = {rl.SerialEnv: "serial", rl.ParallelEnv: "parallel"}


def convert_chain(env: object, infos: Sequence[StageInfo]) -> ConvertedStack:
    """Find the counterparts of the transforms."""
    base, transforms = list_transforms(env)
    stages = convert_stages(
        ((info, transform, None, None) for info, transform in zip(infos, transforms, strict=True)),
        Place(),
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


def _name_single_env(base: object) -> tuple[EnvConfig, Missing | None]:
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
    config = name_env(levels)
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

    The next rows of a batch get the following seeds.
    """
    if type(base) in _BATCHED:
        return {"list_of_kwargs": [{"seed": seed + row} for row in range(base.num_workers)]}
    return {"seed": seed} if isinstance(base, rl.GymWrapper) else None


def cut_chain(env: object, count: int) -> object:
    """Return an env with its first transforms only."""
    base, transforms = list_transforms(env)
    if count == len(transforms):
        return env
    return rl.TransformedEnv(
        base, rl.Compose(*(transform.clone() for transform in transforms[:count]))
    )


class TorchRLReference(TensorDictReference):
    """A TorchRL env that runs as TorchRL steps it."""

    def _seed(self, seed: int) -> None:
        """Leave the seed to the first reset."""

    def _first_reset(self, seed: int | None) -> Any:
        base, _ = list_transforms(self._env)
        options = None if seed is None else seed_options(base, seed)
        if options is None and seed is not None:
            self._env.set_seed(seed)
        return self._env.reset(**(options or {}))


def base_env(env: object, count: int) -> EnvBase:
    """Return an env with its first transforms as one env of tdx, seeded as by the reference."""
    return convert_env(cut_chain(env, count), seed_options)


class TorchRLStack(NativeStack):
    """A TorchRL env with its transforms."""

    kind = "torchrl"

    def __init__(self, env: Any) -> None:
        converted = from_torchrl(env)
        _check_open(env)
        super().__init__(converted)

    @property
    def stages(self) -> Sequence[StageInfo]:
        """See :class:`~tdx.stacks.Stack`; location and arguments are those of the originals."""
        originals = self._stateful_stages()
        return tuple(
            replace(
                stage,
                location=class_location(type(original)),
                arguments=stage_arguments(original),
                text=None,
            )
            for stage, original in zip(super().stages, originals, strict=True)
        )

    @property
    def calls(self) -> Sequence[str]:
        """See :class:`~tdx.stacks.Stack`; arguments are those of the originals."""
        return tuple(stage.call for stage in self.stages)

    def convert(self) -> ConvertedStack:
        return convert_chain(self.target.original, self.stages)

    def reference(self, last: int, key: str | None, seed: int) -> TorchRLReference:
        return TorchRLReference(cut_chain(self.target.original, last + 1), seed)

    def base_env(self, last: int, key: str | None) -> EnvBase:
        return base_env(self.target.original, last + 1)

    @property
    def has_pipeline_rules(self) -> bool:
        return False

    def observed_levels(self) -> ChainLevels:
        """See :class:`~tdx.stacks.Stack`; inside is the original env, which frame skips step."""
        return ChainLevels(self.target, flatten_chain(self.target)[0].original)

    def state_owners(self) -> Sequence[object]:
        """See :class:`~tdx.stacks.Stack`; the transforms of TorchRL."""
        return self._stateful_stages()

    def state(self) -> StackState:
        """See :class:`~tdx.stacks.Stack`; the buffers and the running statistics."""
        states = {
            index: dict(_state(original)) for index, original in enumerate(self._stateful_stages())
        }
        return {index: state for index, state in states.items() if state}

    def _stateful_stages(self) -> Sequence[Any]:
        return [getattr(stage, "original", stage) for stage in chain_stages(self.target)]


def _check_open(env: object) -> None:
    base, _ = list_transforms(env)
    # Other envs of TorchRL count as closed before their first reset.
    if isinstance(base, rl.GymWrapper) and base.is_closed:
        raise EnvError(
            "the env is closed",
            hint="create a new one",
            where=Where(env=type(base).__name__),
        )


def _state(transform: Any) -> Iterator[tuple[str, Tensor]]:
    for name, value in transform.named_buffers(recurse=False):
        if not is_lazy(value):
            yield name, value.detach().clone()
    for name, value in attributes_of(transform).items():
        if is_tensor_collection(value):
            for key, leaf in value.items(True, True):
                yield f"{name}.{format_key(key)}", leaf.detach().clone()
        elif isinstance(value, Tensor):
            yield name, value.detach().clone()
