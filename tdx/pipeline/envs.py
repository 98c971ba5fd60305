"""Create the env of a pipeline, without its chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from tdx.errors import (
    ArgumentError,
    CodeNotAllowedError,
    DeviceError,
    EnvError,
    TdxError,
    call_problem,
    did_you_mean,
    one_line,
)
from tdx.pipeline.coercion import coerce_untyped
from tdx.pipeline.model import EnvConfig
from tdx.pipeline.resolver import ValueResolver
from tdx.pipeline.values import CodeReference
from tdx.untrusted import MAX_ENVS, MAX_WORKERS

if TYPE_CHECKING:
    from tdx.envs import EnvBase


NATIVE_ENVS: Mapping[str, str] = {"tdx/Pendulum": "PendulumEnv", "tdx/CartPole": "CartPoleEnv"}
"""The envs of tdx itself by their id, with their class."""

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


def plan_env(env: EnvConfig) -> EnvPlan:
    """The plan for an env.

    Raises:
        ArgumentError: its fields do not go together.

    Example:
        >>> plan_env(EnvConfig("Pendulum-v1", num_envs=4)).kwargs
        {'num_envs': 4}
    """
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
        # These names mean something else to GymEnv than to the env.
        own = {name: value for name, value in kwargs.items() if name in RESERVED_NAMES}
        kwargs = {name: value for name, value in kwargs.items() if name not in own}
        kwargs |= _gym_arguments(env, whole)
        kwargs |= {"env_kwargs": own} if own else {}
    if env.device is not None and batch is None:
        kwargs["device"] = env.device
    patience = env.worker_timeout if batch == "ParallelEnv" else None
    return EnvPlan(factory, args, kwargs, batch, env.num_envs or 1, env.device, patience)


def find_env_errors(env: EnvConfig, allow_code: bool) -> list[TdxError]:
    """What is wrong with an env's config, as far as that shows without making it."""
    errors: list[TdxError] = []
    named = env.id.partition("/")[0] == "tdx"
    if named and env.id not in NATIVE_ENVS:
        hint = did_you_mean(env.id, NATIVE_ENVS, f"there are {', '.join(NATIVE_ENVS)}")
        errors.append(ArgumentError("tdx has no env of this id", hint=hint))
    if ":" in env.id and not allow_code:
        message = "it names Python code, which is not imported unless you allow it"
        errors.append(CodeNotAllowedError(message, hint="add --allow-code if you trust it"))
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


def make_env(env: EnvConfig, allow_code: bool = False) -> EnvBase:
    """The env that a config describes, seeded if it says so.

    Raises:
        DeviceError: its device is not there.
        EnvError: it cannot be made.
        CodeNotAllowedError: it is Python code and that is not allowed.
    """
    try:
        if env.device is not None:
            check_device(env.device)
        made = _create_env(plan_env(env), ValueResolver(allow_code))
    except TdxError as error:
        raise error.at(env=env.id) from error.__cause__
    if env.seed is not None:
        made.set_seed(env.seed)
    return made


def check_device(device: str) -> None:
    """See whether a device is there.

    Raises:
        DeviceError: it is not, or the name is no device; the hint has those that are.

    Example:
        >>> check_device("cpu")
    """
    import torch

    there = available_devices()
    try:
        wanted = torch.device(device)
    except RuntimeError:
        wanted = None
    spelt = [str(wanted), f"{wanted.type}:{wanted.index or 0}"] if wanted is not None else []
    if not any(name in there for name in spelt) and (wanted is None or wanted.type != "cpu"):
        raise DeviceError(f"there is no device {device}", hint=f"there is {', '.join(there)}")


def available_devices() -> list[str]:
    """The names of the devices that this machine has, the CPU first."""
    import torch

    found = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        assert kind is not None
        found += [f"{kind.type}:{index}" for index in range(torch.accelerator.device_count())]
    return found


def _create_env(plan: EnvPlan, realiser: ValueResolver) -> EnvBase:
    import tdx.envs

    if isinstance(plan.factory, CodeReference):
        make: Any = partial(_create_from_code, plan.factory, realiser.imported(plan.factory))
    else:
        make = getattr(tdx.envs, plan.factory)
    kwargs = {name: realiser.value(value) for name, value in plan.kwargs.items()}
    if plan.batch is None:
        return _call_factory(plan, make, plan.args, kwargs)
    factory = partial(make, *plan.args, **kwargs)
    batch = getattr(tdx.envs, plan.batch)
    return _call_factory(plan, batch, (plan.num_envs, factory), plan.batch_kwargs)


def _call_factory(
    plan: EnvPlan, make: Any, args: tuple[object, ...], kwargs: dict[str, Any]
) -> EnvBase:
    try:
        made: EnvBase = make(*args, **kwargs)
    except TdxError:
        raise
    except TypeError as error:
        raise ArgumentError(
            f"the env does not take these arguments: {call_problem(error)}",
            hint="check env_kwargs; the documentation of the env lists its arguments",
        ) from error
    except Exception as error:
        raise EnvError(
            f"making the env failed: {one_line(error)}", hint="--debug shows where"
        ) from error
    return made


def _create_from_code(
    reference: CodeReference, factory: Any, /, device: str | None = None, **kwargs: Any
) -> EnvBase:
    """What a factory in Python code returns, as an env of tdx."""
    from tdx.envs import EnvBase, GymWrapper

    if not callable(factory):
        raise ArgumentError(f"{reference} is no factory", hint="name a function or a class")
    made = factory(**kwargs)
    if not isinstance(made, EnvBase):
        if not (hasattr(made, "reset") and hasattr(made, "action_space")):
            message = f"{reference} returned {type(made).__name__}, not an env"
            raise EnvError(message, hint="return an EnvBase or a Gymnasium env")
        made = GymWrapper(made)
    return made if device is None else made.to(device)
