"""How the env of a pipeline is made: which class, with what; the builder and ``to_python`` ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tdx.errors import ArgumentError, CodeNotAllowedError, TdxError, did_you_mean
from tdx.pipeline.coercion import plain
from tdx.pipeline.model import EnvConfig
from tdx.pipeline.values import CodeReference
from tdx.untrusted import MAX_ENVS, MAX_WORKERS

NATIVE: Mapping[str, str] = {"tdx/Pendulum": "PendulumEnv", "tdx/CartPole": "CartPoleEnv"}
"""The envs of tdx itself by their id, with their class."""

GYM_ENV_NAMES = frozenset(
    {
        "env_kwargs",
        "env_name",
        "self",
        "num_envs",
        "from_pixels",
        "pixels_only",
        "frame_skip",
        "device",
        "seed",
    }
)
"""Parameters of ``GymEnv`` that a pipeline sets otherwise, so that kwargs mean the env's own."""


@dataclass(frozen=True, slots=True)
class EnvPlan:
    """One call that makes the env, or one that a batch of envs repeats.

    Args:
        factory: a class of ``tdx.envs``, or a Python object.
        args: its positional arguments.
        kwargs: its named ones.
        batch: the class that runs several of them; none where the call makes the whole env.
        num_envs: how many.
        device: where a batch of envs puts its data.
        worker_timeout: seconds after which a process of the batch counts as hung; none for the
            usual time.
    """

    factory: str | CodeReference
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    batch: Literal["SerialEnv", "ParallelEnv"] | None = None
    num_envs: int = 1
    device: str | None = None
    worker_timeout: float | None = None

    @property
    def batch_kwargs(self) -> dict[str, object]:
        """The named arguments of the batch that are set."""
        given = {"device": self.device, "worker_timeout": self.worker_timeout}
        return {name: value for name, value in given.items() if value is not None}


def env_plan(env: EnvConfig) -> EnvPlan:
    """The plan for an env.

    Raises:
        ArgumentError: its fields do not go together.

    Example:
        >>> env_plan(EnvConfig("Pendulum-v1", num_envs=4)).kwargs
        {'num_envs': 4}
    """
    batch = _batch(env)
    whole = env.num_envs if batch is None else None
    kwargs = {name: plain(value) for name, value in env.kwargs.items()}
    factory: str | CodeReference = "GymEnv"
    args: tuple[object, ...] = ()
    if env.code is not None:
        factory = env.code
    elif env.id in NATIVE:
        factory = NATIVE[env.id]
        kwargs |= {"batch_size": [whole]} if whole is not None else {}
    else:
        args = (env.id,)
        # These names mean something else to GymEnv than to the env.
        own = {name: value for name, value in kwargs.items() if name in GYM_ENV_NAMES}
        kwargs = {name: value for name, value in kwargs.items() if name not in own}
        kwargs |= _gym_arguments(env, whole)
        kwargs |= {"env_kwargs": own} if own else {}
    if env.device is not None and batch is None:
        kwargs["device"] = env.device
    patience = env.worker_timeout if batch == "ParallelEnv" else None
    return EnvPlan(factory, args, kwargs, batch, env.num_envs or 1, env.device, patience)


def env_errors(env: EnvConfig, allow_code: bool) -> list[TdxError]:
    """What is wrong with an env's config, as far as that shows without making it."""
    errors: list[TdxError] = []
    named = env.id.partition("/")[0] == "tdx"
    if named and env.id not in NATIVE:
        hint = did_you_mean(env.id, NATIVE, f"there are {', '.join(NATIVE)}")
        errors.append(ArgumentError("tdx has no env of this id", hint=hint))
    if ":" in env.id and not allow_code:
        message = "it names Python code, which is not imported unless you allow it"
        errors.append(CodeNotAllowedError(message, hint="add --allow-code if you trust it"))
    if not errors:
        try:
            env_plan(env)
        except TdxError as error:
            errors.append(error)
    return [error.at(env=env.id) for error in errors]


def _batch(env: EnvConfig) -> Literal["SerialEnv", "ParallelEnv"] | None:
    if env.num_envs is None:
        return None
    if env.num_envs < 1:
        hint = "leave it out for one env without a batch dimension"
        raise ArgumentError(f"num_envs must be at least 1, got {env.num_envs}", hint=hint)
    most = MAX_WORKERS if env.batching == "parallel" else MAX_ENVS
    if env.num_envs > most:
        what = "processes" if env.batching == "parallel" else "copies of an env"
        message = f"num_envs is {env.num_envs:,}, the limit is {most:,} {what}"
        raise ArgumentError(message, hint=f"use {most:,} or fewer")
    if env.batching == "vector":
        if env.code is not None:
            hint = "set batching to serial or parallel"
            raise ArgumentError("it makes one env, not a vector of them", hint=hint)
        return None
    return "SerialEnv" if env.batching == "serial" else "ParallelEnv"


def _gym_arguments(env: EnvConfig, num_envs: int | None) -> dict[str, object]:
    arguments: dict[str, object] = {}
    if num_envs is not None:
        arguments["num_envs"] = num_envs
    if env.from_pixels:
        arguments["from_pixels"] = True
        arguments["pixels_only"] = env.pixels_only
    return arguments
