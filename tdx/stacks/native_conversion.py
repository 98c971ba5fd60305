"""Envs of tdx as pipelines: their stages with the arguments that they were created with."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv, VectorEnv
from torch import Tensor
from torch.nn.parameter import is_lazy

import tdx.envs
from tdx.core import Compose, TransformedEnv
from tdx.core.chain import chain_stages, flatten_chain, flatten_stages
from tdx.core.transforms import Transform
from tdx.core.transforms.callable_transform import CallableTransform
from tdx.core.transforms.statistics import RunningStatistics
from tdx.envs import EnvBase, GymEnv, GymWrapper, ParallelEnv, SerialEnv
from tdx.envs.gym.wrappers import CheckedValues, FrameSkip, RenderedPixels
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import format_key, normalize_key
from tdx.pipeline import EnvConfig, StageConfig
from tdx.pipeline.catalog import load_catalog
from tdx.pipeline.envs import NATIVE_ENVS
from tdx.pipeline.model import Batching
from tdx.pipeline.values import Call, Value
from tdx.specs import TensorSpec
from tdx.stacks.conversion import (
    ConvertedStack,
    ConvertedStage,
    Counterpart,
    NamedTensors,
    RandomStream,
)
from tdx.stacks.counterparts import write_spec, write_value
from tdx.stacks.gymnasium.converted import name_env, stack_errors
from tdx.stacks.gymnasium.levels import list_levels
from tdx.stacks.refusals import Missing
from tdx.stacks.sources import constructor_arguments
from tdx.stacks.stack import StageInfo

_BATCHED: dict[type, Batching] = {SerialEnv: "serial", ParallelEnv: "parallel"}
_DEFAULT_TIMEOUT = inspect.signature(ParallelEnv.__init__).parameters["worker_timeout"].default
_OWN_WRAPPERS = (CheckedValues, FrameSkip, RenderedPixels)
"""Wrappers that a ``GymEnv`` puts around its env."""


def convert_chain(env: EnvBase, infos: Sequence[StageInfo]) -> ConvertedStack:
    """Write the env and its stages as a pipeline."""
    stages = tuple(
        ConvertedStage(info.index, info.name, info.call, _convert_stage(stage))
        for info, stage in zip(infos, chain_stages(env), strict=True)
    )
    config, missing = _name_env(flatten_chain(env)[0])
    return ConvertedStack(config, stages, None, missing)


# Stages


class _NotWritableError(Exception):
    """A pipeline file cannot contain a stage or an env."""

    def __init__(self, reason: str, advice: str) -> None:
        self.missing = Missing(reason, advice)


def _convert_stage(stage: Transform) -> Counterpart | Missing:
    try:
        parts = tuple(map(_write_stage, flatten_stages((stage,))))
        if type(stage) is Compose and not any(part.code for part in parts):
            parts = (_write_stage(stage),)
        return Counterpart(parts, "the same transform")
    except _NotWritableError as error:
        return error.missing


def _write_stage(stage: Transform) -> StageConfig:
    """Return a stage with the arguments that it was created with."""
    kind = type(stage)
    if kind is Compose:
        return StageConfig("Compose", tuple(_write(inner) for inner in cast(Compose, stage)))
    if kind is CallableTransform:
        return StageConfig(_refer_to(stage.function))
    if stage.constructor_arguments is None:
        raise _NotWritableError(
            "its arguments are unknown, because it was unpickled or deep-copied",
            f"create the {kind.__name__} in the function",
        )
    if isinstance(stage, RunningStatistics) and any(
        statistics is not None and bool(statistics[2].any()) for statistics in stage.buffers()
    ):
        raise _NotWritableError(
            "a file cannot contain its running statistics",
            "use to_observation_norm(), which has them as arguments, or a new transform",
        )
    args, kwargs = stage.constructor_arguments
    names = [*_parameters_of(kind)][: len(args)]
    names += [f"*{names[-1]}" if names else "*args"] * (len(args) - len(names))
    given = {**dict(zip(names, args, strict=True)), **kwargs}
    learned = _learned_arguments(stage, given)
    info = load_catalog().find(kind.__name__)
    module = None if info is None else sys.modules.get(info.module)
    is_known = getattr(module, kind.__name__, None) is kind
    for name, value in given.items():
        if not is_known and (inspect.isroutine(value) or isinstance(value, type)):
            raise _NotWritableError(
                f"its argument {name} is Python code, which only transforms of the catalog declare",
                f"create it inside {kind.__name__}",
            )
    return StageConfig(
        kind.__name__ if is_known else _refer_to(kind),
        tuple(
            _write_argument(name, learned.get(name, value))
            for name, value in zip(names, args, strict=True)
        ),
        {
            name: _write_argument(name, value)
            for name, value in {**kwargs, **learned}.items()
            if name in kwargs or name not in names
        },
    )


def _parameters_of(kind: Any) -> dict[str, inspect.Parameter]:
    _, *parameters = inspect.signature(kind.__init__).parameters.items()
    return dict(parameters)


def _learned_arguments(stage: Transform, given: Mapping[str, object]) -> dict[str, Tensor]:
    """Return the arguments whose buffers have other values now, such as after ``init_stats``."""
    parameters = _parameters_of(type(stage))
    learned = {}
    for name, buffer in stage._buffers.items():
        if name not in parameters or buffer is None or is_lazy(buffer):
            continue
        before = given.get(name, parameters[name].default)
        is_number = isinstance(before, Tensor | np.ndarray | float | int | list | tuple)
        if not is_number or not np.array_equal(
            np.asarray(before, np.float32), buffer.detach().cpu().numpy().astype(np.float32)
        ):
            learned[name] = buffer
    return learned


def _write_argument(name: str, value: object) -> Value:
    try:
        return _write(value)
    except TypeError as error:
        raise _NotWritableError(f"its argument {name}: {error}", _WRITABLE) from None


_WRITABLE = "pass numbers, text, dtypes, specs, or functions of a module"


def _write(value: object) -> Value:
    """Return an argument as a value of a pipeline.

    Raises:
        TypeError: A pipeline file cannot contain it.
    """
    if isinstance(value, Transform):
        stage = _write_stage(value)
        if stage.code is not None:
            raise TypeError(f"a file cannot contain the {type(value).__name__} inside a stage")
        return Call(stage.name, stage.args, stage.kwargs)
    if isinstance(value, TensorSpec):
        if hasattr(value, "items"):
            return {normalize_key(key): _write(spec) for key, spec in value.items(True, True)}
        written = write_spec(value)
        if written is None:
            raise TypeError(f"a file cannot contain this {type(value).__name__} spec")
        return written
    if isinstance(value, list | tuple):
        return tuple(map(_write, value))
    if isinstance(value, Mapping):
        return {normalize_key(key): _write(inner) for key, inner in value.items()}
    if inspect.isroutine(value) or isinstance(value, type):
        return _refer_to(value)
    return write_value(value)


def _refer_to(value: Any) -> str:
    """Return ``module:name`` of a class or a function."""
    name, module = getattr(value, "__qualname__", type(value).__name__), inspect.getmodule(value)
    last = name.rpartition(".")[2]
    if inspect.isbuiltin(value) and value is getattr(torch, last, None):
        name, module = last, torch  # Its own class is private.
    inner: Any = module
    for part in name.split("."):
        inner = getattr(inner, part, None)
    if module is None or inner is not value or module.__name__ == "__main__":
        raise _NotWritableError(
            f"{name} cannot be imported by name", "define it at the top level of a module"
        )
    file, here = Path(module.__file__ or ""), Path.cwd()
    # A program that was opened by its path. An environment may be inside of the folder, too.
    is_program = "." not in module.__name__ and file.name != "__init__.py"
    if is_program and file.is_relative_to(here) and "site-packages" not in file.parts:
        return f"{file.relative_to(here).as_posix()}:{name}"
    return f"{module.__name__}:{name}"


# The env inside


def _name_env(base: Any) -> tuple[EnvConfig, Missing | None]:
    """Return the config of the env inside, and why it is only a proposal."""
    batching = _BATCHED.get(type(base))
    if batching is not None:
        config, missing = _name_row(base)
        config = replace(config, num_envs=base.num_workers, batching=batching)
        if batching == "parallel" and base._options.timeout != _DEFAULT_TIMEOUT:
            config = replace(config, worker_timeout=base._options.timeout)
        return config, missing
    if isinstance(base, GymWrapper):
        if base.info_dict_reader:
            reason = "it reads entries of the infos, which is a setting of Python code"
            return EnvConfig("module:function"), Missing(reason, _env_advice(base))
        return _name_gym_env(base), None
    return _name_other_env(base)


def _env_advice(base: EnvBase) -> str:
    return f"name a function as `env`, module:function, that returns the {type(base).__name__}"


def _name_row(batch: Any) -> tuple[EnvConfig, Missing | None]:
    name = type(batch).__name__
    first, *others = batch._factories
    if any(one.create is not first.create or one.kwargs != first.kwargs for one in others):
        raise ArgumentError(
            f"the envs of the {name} have functions of their own",
            hint="create all of them with one function, or return one of them",
        )
    row = first()
    # The batch may hold the env itself instead of a function.
    with nullcontext() if row is first.create else closing(row):
        inner, stages = flatten_chain(row)
        if stages:
            raise ArgumentError(
                f"the envs of the {name} have transforms of their own",
                hint=f"put the transforms around the {name}, or return one of its envs",
            )
        return _name_env(inner)


def _name_gym_env(base: Any) -> EnvConfig:
    env: Any = base._env
    rows = None
    if isinstance(env, VectorEnv):
        if not isinstance(env, SyncVectorEnv):
            raise ArgumentError(
                "the envs of an asynchronous vector env are in other processes",
                hint="create the GymEnv with vectorization_mode='sync' in this function",
            )
        env, rows = env.envs[0], env.num_envs
    while isinstance(env, _OWN_WRAPPERS):
        if isinstance(env, FrameSkip):
            raise ArgumentError(
                f"the env repeats each action {base.frame_skip} times",
                hint=f"use FrameSkipTransform({base.frame_skip}) instead of frame_skip",
            )
        env = env.env
    config = name_env(list_levels(env))
    kwargs = dict(config.kwargs)
    if base._codec_options.categorical:
        kwargs["categorical_action_encoding"] = True
    if base.from_pixels:
        kwargs.pop("render_mode", None)
        config = replace(config, from_pixels=True, pixels_only=bool(base.pixels_only))
    if isinstance(base, GymEnv) and ":" in base.env_name:
        config = replace(config, id=base.env_name)  # The module registers the env.
    return replace(config, kwargs=kwargs, num_envs=rows, device=_device_of(base))


def _name_other_env(base: EnvBase) -> tuple[EnvConfig, Missing | None]:
    """Name a native env, or an env class whose attributes are named like its parameters."""
    kind = type(base)
    parameters = _parameters_of(kind)
    advice = _env_advice(base)
    rows, reference = None, None
    for native, name in NATIVE_ENVS.items():
        if getattr(tdx.envs, name) is kind:
            reference = native
    try:
        if reference is not None:
            rows = tuple(base.batch_size)
            if len(rows) > 1:
                raise ArgumentError(
                    f"a file cannot contain the batch size {list(rows)} of the env",
                    hint="use a batch size of one dim",
                )
            del parameters["batch_size"], parameters["device"]
        known = constructor_arguments(base, None)
        kwargs: dict[str, Value] = {}
        for name, parameter in parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if name not in known:
                raise _NotWritableError(f"it has no attribute {name} with this argument", advice)
            if known[name] is not parameter.default:
                written = _write_argument(name, known[name])
                if written != parameter.default:
                    kwargs[name] = written
        config = EnvConfig(reference or _refer_to(kind), kwargs, device=_device_of(base))
    except _NotWritableError as error:
        reason = f"{kind.__name__}: {error.missing.reason}"
        return EnvConfig("module:function"), Missing(reason, advice)
    return replace(config, num_envs=rows[0] if rows else None), None


def _device_of(base: EnvBase) -> str | None:
    device = base.env_specs.main_device
    return None if device.type == "cpu" else str(device)


# Comparison


class TensorDictReference:
    """An env over TensorDicts, stepped by its own methods; batches reset the rows that are done.

    Random numbers of the env and of the actions have generators of their own.
    """

    def __init__(self, env: Any, seed: int) -> None:
        self._env = env
        self._current: Any = None
        self._of_env, self._of_actions = RandomStream(seed), RandomStream(seed)

    def reset(self, seed: int | None) -> NamedTensors:
        if self._current is None and seed is not None:
            self._seed(seed)
        with self._of_env.active(), stack_errors("reset"):
            if self._current is not None:
                self._current = self._env.maybe_reset(self._current)
            else:
                self._current = self._first_reset(seed)
        return _entries(self._current, self._env.action_keys)

    def _seed(self, seed: int) -> None:
        _ = self._env.output_spec  # A stage may reset the env to derive it, which uses up the seed.
        self._env.set_seed(seed)

    def _first_reset(self, seed: int | None) -> Any:
        return self._env.reset()

    def sample_action(self) -> tuple[Any, NamedTensors]:
        with self._of_actions.active(), stack_errors("rand_action"):
            drawn = self._env.rand_action(self._current.clone(False))
        action = drawn.select(*self._env.action_keys)
        return action, {format_key(key): action[key].clone() for key in self._env.action_keys}

    def step(self, action: Any) -> tuple[NamedTensors, Mapping[str, Any]]:
        with self._of_env.active(), stack_errors("step"):
            result = self._env.step(self._current.update(action))
            self._current = self._env.step_mdp(result)
        return _entries(result["next"], self._env.action_keys), {}

    def close(self) -> None:
        if not self._env.is_closed:
            self._env.close()


def _entries(tensordict: Any, actions: Sequence[Any]) -> NamedTensors:
    leaves = tensordict.exclude(*actions).items(True, True)
    return {format_key(key): value.clone() for key, value in leaves if isinstance(value, Tensor)}


def cut_chain(env: EnvBase, count: int) -> EnvBase:
    """Return an env with its first stages only."""
    stages = chain_stages(env)
    if count == len(stages):
        return env
    base = flatten_chain(env)[0]
    if not count:
        return base
    return TransformedEnv(base, Compose(*(stage.clone() for stage in stages[:count])))
