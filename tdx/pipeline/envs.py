"""Create the env of a pipeline, without its chain.

:func:`plan_env` decides which class is called with which arguments. :func:`make_env` follows that
plan, and ``to_python`` writes it as code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from tdx.foundation.errors import (
    ArgumentError,
    DeviceError,
    EnvError,
    TdxError,
    describe_object,
    did_you_mean,
    explain_call_error,
    find_similar_names,
    summarize_error,
)
from tdx.foundation.untrusted import MAX_ENVS, MAX_WORKERS
from tdx.pipeline.arguments import ValueResolver, allow_current_folder
from tdx.pipeline.coercion import coerce_untyped
from tdx.pipeline.factories import call_factory, returned_message
from tdx.pipeline.limits import find_env_excess
from tdx.pipeline.model import EnvConfig
from tdx.pipeline.references import find_env_references
from tdx.pipeline.values import CodeReference, code_not_allowed_error

if TYPE_CHECKING:
    from tdx.envs import EnvBase


Convert = Callable[[Any], "EnvBase"]
"""Converts an env of another library to an env of tdx; raises a TdxError if it cannot."""
NATIVE_ENVS: Mapping[str, str] = {"tdx/Pendulum": "PendulumEnv", "tdx/CartPole": "CartPoleEnv"}
"""Class of each native env by its id."""

_DEVICES = ("cpu", "cuda", "mps", "xpu")

RESERVED_NAMES = frozenset(
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
"""Parameters of ``GymEnv`` that a pipeline sets elsewhere; ``kwargs`` pass them to the env."""


@dataclass(frozen=True, slots=True)
class EnvPlan:
    """The call that creates the env, or that a batch of envs repeats."""

    factory: str | CodeReference  # Class of tdx.envs, or a Python object.
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    # Class that batches several envs. None: the call creates the whole env.
    batch: Literal["SerialEnv", "ParallelEnv"] | None = None
    num_envs: int = 1
    device: str | None = None
    # Seconds after which a worker counts as hung. None: the default.
    worker_timeout: float | None = None

    @property
    def batch_kwargs(self) -> dict[str, object]:
        """Named arguments of the batch class that are set."""
        given = {"device": self.device, "worker_timeout": self.worker_timeout}
        return {name: value for name, value in given.items() if value is not None}


def plan_env(env: EnvConfig) -> EnvPlan:
    """Decide how to create an env."""
    batch = _choose_batch_class(env)
    whole = env.num_envs if batch is None else None
    kwargs = {name: coerce_untyped(value) for name, value in env.kwargs.items()}
    factory: str | CodeReference = "GymEnv"
    args: tuple[object, ...] = ()
    if env.code is not None:
        factory = env.code
    elif env.id in NATIVE_ENVS:
        factory = NATIVE_ENVS[env.id]
        kwargs |= {"batch_size": [whole]} if whole is not None else {}
    else:
        args = (env.id,)
        # GymEnv gives these names another meaning than the env.
        env_kwargs = {name: value for name, value in kwargs.items() if name in RESERVED_NAMES}
        kwargs = {name: value for name, value in kwargs.items() if name not in env_kwargs}
        kwargs |= {"num_envs": whole} if whole is not None else {}
        if env.from_pixels:
            kwargs |= {"from_pixels": True, "pixels_only": env.pixels_only}
        kwargs |= {"env_kwargs": env_kwargs} if env_kwargs else {}
    if env.device is not None and batch is None:
        kwargs["device"] = env.device
    timeout = env.worker_timeout if batch == "ParallelEnv" else None
    return EnvPlan(factory, args, kwargs, batch, env.num_envs or 1, env.device, timeout)


def find_env_errors(env: EnvConfig, allow_code: bool) -> list[TdxError]:
    """Return the problems of an env's config that can be found without creating the env."""
    errors: list[TdxError] = []
    named = env.id.partition("/")[0] == "tdx"
    if named and env.id not in NATIVE_ENVS:
        hint = did_you_mean(env.id, NATIVE_ENVS, f"native envs: {', '.join(NATIVE_ENVS)}")
        errors.append(ArgumentError("unknown tdx env", hint=hint))
    if ":" in env.id and not allow_code:
        errors.append(code_not_allowed_error("the env"))
    if not allow_code:
        errors += find_env_references(env.kwargs)
    errors += find_env_excess(env.kwargs)
    if not errors:
        try:
            plan_env(env)
        except TdxError as error:
            errors.append(error)
    return [error.at(env=env.id) for error in errors]


def _choose_batch_class(env: EnvConfig) -> Literal["SerialEnv", "ParallelEnv"] | None:
    if env.num_envs is None:
        return None
    if env.num_envs < 1:
        hint = "leave it out for one env without a batch dimension"
        raise ArgumentError(f"num_envs must be at least 1, got {env.num_envs}", hint=hint)
    # An "async" vector env of Gymnasium has a process for each env, too.
    mode = env.kwargs.get("vectorization_mode") if env.batching == "vector" else None
    starts_processes = env.batching == "parallel" or mode == "async"
    most = MAX_WORKERS if starts_processes else MAX_ENVS
    if env.num_envs > most:
        what = "processes" if starts_processes else "copies of an env"
        message = f"num_envs is {env.num_envs:,}, the limit is {most:,} {what}"
        raise ArgumentError(message, hint=f"use {most:,} or fewer")
    if env.batching == "vector":
        if env.code is not None:
            hint = "set batching to serial or parallel"
            raise ArgumentError("the factory creates one env, not a vector of envs", hint=hint)
        return None
    return "SerialEnv" if env.batching == "serial" else "ParallelEnv"


def make_env(
    env: EnvConfig,
    allow_code: bool = False,
    convert: Convert | None = None,
    processes: int | None = None,
) -> EnvBase:
    """Create the env that a config describes, and seed it if the config has a seed.

    Args:
        env: The config.
        allow_code: Allow importing Python objects that it names.
        convert: Converts what a factory returns, if it belongs to another library than Gymnasium.
            It is sent to worker processes.
        processes: Number of worker processes of a ``parallel`` batch, which changes no value.
            ``None``: as many as cores.

    Raises:
        DeviceError: Its device does not exist.
        EnvError: It cannot be created.
        CodeNotAllowedError: It is Python code, and code is not allowed.
    """
    try:
        if env.device is not None:
            check_device(env.device)
        for error in () if allow_code else find_env_references(env.kwargs):
            raise error
        created = _create_env(plan_env(env), ValueResolver(allow_code), convert, processes)
    except TdxError as error:
        raise error.at(env=env.id) from error.__cause__
    if env.seed is not None:
        created.set_seed(env.seed)
    return created


def check_device(device: str) -> None:
    """Check that a device exists."""
    import torch

    from tdx.foundation.accelerators import list_devices

    devices = ["cpu", *map(str, list_devices())]
    try:
        parsed = torch.device(device)
    except RuntimeError:
        parsed = None
    names = [str(parsed), f"{parsed.type}:{parsed.index or 0}"] if parsed is not None else []
    if not any(name in devices for name in names) and (parsed is None or parsed.type != "cpu"):
        hint = f"available devices: {', '.join(devices)}"
        if parsed is None:
            # Other libraries say "gpu", which torch calls by the kind of the accelerator.
            kind, colon, index = device.casefold().partition(":")
            gpu = next((name.partition(":")[0] for name in devices[1:]), "cuda")
            known = (*_DEVICES, "simulated")
            near = gpu if kind == "gpu" else next(iter(find_similar_names(kind, known)), None)
            if near == "simulated":
                near = "`tdx profile --device simulated` or `tdx check --accelerator`"
                colon = index = ""
            hint = hint if near is None else f"did you mean {near}{colon}{index}? {hint}"
        raise DeviceError(f"device {device} is not available", hint=hint)


def _create_env(
    plan: EnvPlan, resolver: ValueResolver, convert: Convert | None, processes: int | None
) -> EnvBase:
    import tdx.envs

    if isinstance(plan.factory, CodeReference):
        imported = resolver.import_object(plan.factory)
        make: Any = partial(_create_from_code, plan.factory, imported, convert)
    else:
        if resolver.allow_code and ":" in str(plan.args):
            # `module:Id-v0`: the module registers the env.
            allow_current_folder()
        make = getattr(tdx.envs, plan.factory)
    kwargs = {name: resolver.resolve(value) for name, value in plan.kwargs.items()}
    if plan.batch is None:
        return _construct(make, plan.args, kwargs)
    factory = partial(make, *plan.args, **kwargs)
    batch = getattr(tdx.envs, plan.batch)
    options = {**plan.batch_kwargs, "processes": processes}
    return _construct(batch, (plan.num_envs, factory), options)


def _construct(make: Any, args: tuple[object, ...], kwargs: dict[str, Any]) -> EnvBase:
    try:
        created: EnvBase = make(*args, **kwargs)
    except TdxError:
        raise
    except TypeError as error:
        raise ArgumentError(
            f"the env does not take these arguments: {explain_call_error(error)}",
            hint="check env_kwargs; the documentation of the env lists its arguments",
        ) from error
    except Exception as error:
        raise EnvError(
            f"creating the env failed: {summarize_error(error)}", hint="--debug shows where"
        ) from error
    return created


def _create_from_code(
    reference: CodeReference,
    factory: Any,
    convert: Convert | None,
    /,
    device: str | None = None,
    **kwargs: Any,
) -> EnvBase:
    """Call a factory of Python code and wrap its result as a tdx env."""
    import gymnasium

    from tdx.envs import EnvBase, GymWrapper

    created: Any = call_factory(reference, factory, kwargs)
    if isinstance(created, gymnasium.Env | gymnasium.vector.VectorEnv):
        created = GymWrapper(created)
    elif not isinstance(created, EnvBase):
        if convert is None:
            raise EnvError(
                f"{reference.name}() returned {describe_object(created)}, which cannot be the env "
                "of a chain or a rollout",
                hint="return an EnvBase or a Gymnasium env; without -t, `tdx inspect`, `check`, "
                "`profile` and `tui` also take the envs of other libraries",
            )
        try:
            created = convert(created)
        except ArgumentError as error:
            error.message = returned_message(reference.name, created, error.message)
            raise
    return created if device is None else created.to(device)
