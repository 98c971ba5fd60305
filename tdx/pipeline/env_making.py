"""Make the env of a pipeline, without its chain."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tdx.errors import (
    ArgumentError,
    DeviceError,
    EnvError,
    TdxError,
    explain_call_error,
    summarize_error,
)
from tdx.pipeline.env_plan import EnvPlan, env_plan
from tdx.pipeline.model import EnvConfig
from tdx.pipeline.realise import Realiser
from tdx.pipeline.values import CodeReference

if TYPE_CHECKING:
    from tdx.envs import EnvBase


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
        made = _planned(env_plan(env), Realiser(allow_code))
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


def _planned(plan: EnvPlan, realiser: Realiser) -> EnvBase:
    import tdx.envs

    if isinstance(plan.factory, CodeReference):
        make: Any = partial(_from_code, plan.factory, realiser.imported(plan.factory))
    else:
        make = getattr(tdx.envs, plan.factory)
    kwargs = {name: realiser.value(value) for name, value in plan.kwargs.items()}
    if plan.batch is None:
        return _called(plan, make, plan.args, kwargs)
    factory = partial(make, *plan.args, **kwargs)
    batch = getattr(tdx.envs, plan.batch)
    return _called(plan, batch, (plan.num_envs, factory), plan.batch_kwargs)


def _called(plan: EnvPlan, make: Any, args: tuple[object, ...], kwargs: dict[str, Any]) -> EnvBase:
    try:
        made: EnvBase = make(*args, **kwargs)
    except TdxError:
        raise
    except TypeError as error:
        raise ArgumentError(
            f"the env does not take these arguments: {explain_call_error(error)}",
            hint="check env_kwargs; the documentation of the env lists its arguments",
        ) from error
    except Exception as error:
        raise EnvError(
            f"making the env failed: {summarize_error(error)}", hint="--debug shows where"
        ) from error
    return made


def _from_code(
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
