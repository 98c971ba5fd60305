"""Gymnasium's wrappers around an env: a row for each, beside that of the env itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium import wrappers

from tdx.core.chain_specs import flatten_chain
from tdx.core.envs import EnvBase
from tdx.core.meter import Meter, Part
from tdx.envs.batched.serial import SerialEnv
from tdx.envs.gym.wrapper import GymWrapper
from tdx.profiling.patches import Patches

_THIN = (wrappers.OrderEnforcing, wrappers.TimeLimit, wrappers.PassiveEnvChecker)
"""Those that ``gymnasium.make`` adds: to read the clock around them costs more than they do."""
UNWRAPPED = " unwrapped"
"""Told apart by this, the env itself has a row beside that of what tdx makes of it."""
_KINDS = (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)


def wrappers_of(env: Any) -> list[Any]:
    """The wrappers around a Gymnasium env, the outermost first."""
    found = []
    while isinstance(env, _KINDS):
        found.append(env)
        env = env.env
    return found


def measure_wrappers(env: EnvBase, meter: Meter, patches: Patches, *, thin: bool = False) -> None:
    """Have the calls of the Gymnasium wrappers inside an env measured.

    Args:
        env: the env, with its chain.
        meter: what measures.
        patches: what takes everything back in the end.
        thin: whether to count those that ``gymnasium.make`` adds where there are no others.
    """
    for each in _gym_envs(flatten_chain(env)[0]):
        stacks = list(_stacks(each._env))
        if not thin and all(_is_thin(wrappers_of(stack)) for stack in stacks):
            continue
        for stack in stacks:
            if wrappers_of(stack):
                _measure_stack(stack, meter, patches, UNWRAPPED)
        # What holds the step of before is put together anew.
        patches.keep(each._program)
        each._program.use(each._conversion)


def measure_gym(env: gymnasium.Env[Any, Any], meter: Meter, patches: Patches, thin: bool) -> None:
    """Have the calls of a bare Gymnasium env and its wrappers measured; see above."""
    if thin or not _is_thin(wrappers_of(env)):
        _measure_stack(env, meter, patches, "")
    else:
        _measure_calls(env, Part("env", -1, gym_name(env), "step"), meter, patches)


def gym_name(env: Any) -> str:
    """The id of a Gymnasium env, or its class name."""
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec is not None else type(env.unwrapped).__name__


def _gym_envs(base: EnvBase) -> Iterator[GymWrapper]:
    if isinstance(base, GymWrapper):
        yield base
    elif isinstance(base, SerialEnv):
        for each in base._envs:
            yield from _gym_envs(flatten_chain(each)[0])


def _stacks(env: Any) -> Iterator[Any]:
    """The env, and each of those that a vector env in this process steps."""
    yield env
    while isinstance(env, _KINDS):
        env = env.env
    if isinstance(env, gymnasium.vector.SyncVectorEnv):
        yield from env.envs


def _is_thin(stack: list[Any]) -> bool:
    return all(type(each) in _THIN for each in stack)


def _measure_stack(env: Any, meter: Meter, patches: Patches, itself: str) -> None:
    """Measure the wrappers around an env, and the env itself.

    Args:
        env: with its wrappers.
        meter: what measures.
        patches: what takes everything back.
        itself: what the row of the env itself is called after its name.
    """
    stack = wrappers_of(env)
    seen: Counter[str] = Counter()
    for depth, each in enumerate(stack):
        name = type(each).__name__
        seen[name] += 1
        name = name if seen[name] == 1 else f"{name} ({seen[name]})"
        _measure_calls(each, Part("wrapper", depth, name, "step"), meter, patches)
    core = stack[-1].env if stack else env
    _measure_calls(core, Part("env", -1, gym_name(core) + itself, "step"), meter, patches)


def _measure_calls(owner: Any, part: Part, meter: Meter, patches: Patches) -> None:
    for lane in ("step", "reset"):
        timed = meter.timed(replace(part, lane=lane), getattr(owner, lane))
        # The outermost is measured again, as a part of the env around it.
        patches.put(owner, lane, timed if part.index > 0 else _passed_on(timed))


def _passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is measured, so that it can be measured again as part of the env."""
    return lambda *args, **kwargs: function(*args, **kwargs)
