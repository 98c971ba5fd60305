"""The protocol of a stack, and the kinds of stacks that tdx can open."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from tdx.errors import ArgumentError, EnvError, summarize_error
from tdx.keys import NestedKey

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.core import StageSpecs, StepTrace
    from tdx.core.meter import Meter
    from tdx.stacks.tracer import AnyTracer, Driver

GROUP = "tdx.stacks"
"""Entry-point group of the kinds of stacks."""
Direction = Literal["forward", "inverse", "both"]
OnTrace = Callable[["StepTrace"], Any]


@dataclass(frozen=True, slots=True)
class StageInfo:
    """One stage of a stack.

    Args:
        index: Index of the stage, from 0 for the innermost one.
        name: Class name.
        arguments: Arguments of its constructor, as far as they are known.
        location: ``file:line`` of its class; ``None`` if it has no Python source.
        direction: ``forward`` from the env to the policy, ``inverse`` from the policy to the env.
        rows: Number of sub-envs that have this stage each; ``None`` outside of a vector env.
    """

    index: int
    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    location: str | None = None
    direction: Direction = "both"
    rows: int | None = None

    @property
    def call(self) -> str:
        """The stage as a call, such as ``TimeLimit(max_episode_steps=200)``."""
        arguments = ", ".join(
            f"{name}={format_argument(each)}" for name, each in self.arguments.items()
        )
        return f"{self.name}({arguments})" if arguments else self.name


_MAX_LENGTH = 40


def format_argument(value: object) -> str:
    """Return an argument as a short text.

    Example:
        >>> format_argument(print), format_argument(0.5)
        ('print', '0.5')
    """
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    text = " ".join(repr(value).split())
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


@runtime_checkable
class Stack(Protocol):
    """An env with an ordered sequence of stages.

    Args:
        kind: Name of the kind, such as ``"gymnasium"``.
        target: The object that the user passed.
    """

    kind: str
    target: Any

    @property
    def name(self) -> str:
        """Name of the env."""
        ...

    @property
    def stages(self) -> Sequence[StageInfo]:
        """The stages, innermost first."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What the stack does not show, each a sentence."""
        ...

    @property
    def free_keys(self) -> tuple[str, ...]:
        """First parts of keys that need no spec."""
        ...

    @property
    def done_keys(self) -> Sequence[NestedKey]:
        """Keys of the flags in a trace that end an episode."""
        ...

    @property
    def batch_locked(self) -> bool:
        """True if the env takes one batch size only."""
        ...

    def specs(self) -> Sequence[StageSpecs]:
        """Return the specs before the chain and those after each stage."""
        ...

    def tracer(self, policy: Any = None) -> AnyTracer:
        """Return an object that resets and steps the env and records every stage.

        Args:
            policy: Chooses the actions. ``None``: random actions.
        """
        ...

    def driver(self, policy: Any = None) -> Driver:
        """Return an object that resets and steps the env as a training loop does.

        Args:
            policy: Chooses the actions. ``None``: random actions.
        """
        ...

    def attach(self, on_trace: OnTrace) -> AbstractContextManager[None]:
        """Record the resets and steps that the caller makes in a block.

        Values, randomness and behavior do not change; nothing remains attached after the block.

        Args:
            on_trace: Called with the trace of each reset and step.
        """
        ...

    def measure(self, meter: Meter, *, all_stages: bool = False) -> AbstractContextManager[None]:
        """Measure the time of every call in a block.

        Args:
            meter: Measures the calls.
            all_stages: Include stages that take less time than reading the clock.
        """
        ...

    def state(self) -> Mapping[int, Mapping[str, Tensor]]:
        """Return copies of the state of each stage: running statistics, counters, queues."""
        ...

    def seeded(self, seed: int | None) -> AbstractContextManager[None]:
        """Seed the env and the random actions of a block; global generators are restored after it.

        Args:
            seed: The seed. ``None``: do not seed.
        """
        ...

    def close(self) -> None:
        """Close the env."""
        ...


class StackKind(Protocol):
    """A kind of stack, registered in the entry-point group ``tdx.stacks``.

    Args:
        title: What it opens, for messages.
    """

    title: str

    def accepts(self, target: Any) -> bool:
        """Return True if it can open an object."""
        ...

    def open(self, target: Any) -> Stack:
        """Open an object that it accepts."""
        ...


@dataclass(frozen=True, slots=True)
class BuiltinKind:
    """A kind of stack that belongs to tdx, imported when an object of its library is opened.

    Args:
        title: What it opens, for messages.
        bases: Classes of the objects, as ``module:name``. A module that is not imported has no
            objects.
        factory: Its stack, as ``module:name``.
    """

    title: str
    bases: tuple[str, ...]
    factory: str

    def accepts(self, target: Any) -> bool:
        """Return True if an object is an instance of one of the classes."""
        return isinstance(target, tuple(_imported(self.bases)))

    def open(self, target: Any) -> Stack:
        """Open an object."""
        module, _, name = self.factory.partition(":")
        opened: Stack = getattr(import_module(module), name)(target)
        return opened


def _imported(names: Iterable[str]) -> Iterable[type]:
    for each in names:
        module, _, name = each.partition(":")
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type):
            yield found


KINDS: tuple[BuiltinKind, ...] = (
    BuiltinKind("a tdx env", ("tdx.core.envs.env_base:EnvBase",), "tdx.stacks.native:NativeStack"),
    BuiltinKind(
        "a gymnasium.Env or VectorEnv with its wrappers",
        ("gymnasium:Env", "gymnasium.vector:VectorEnv"),
        "tdx.stacks.gymnasium.stack:GymnasiumStack",
    ),
)


def open_stack(target: Any) -> Stack:
    """Open an env with its stages.

    Args:
        target: An env of tdx or Gymnasium, of a library with an entry point in ``tdx.stacks``, or a
            stack, which is returned unchanged.

    Raises:
        ArgumentError: No kind of stack accepts the object.

    Example:
        >>> import gymnasium
        >>> stack = open_stack(gymnasium.make("Pendulum-v1"))
        >>> [stage.name for stage in stack.stages]
        ['PassiveEnvChecker', 'OrderEnforcing', 'TimeLimit']
    """
    for kind in KINDS:
        if kind.accepts(target):
            return kind.open(target)
    if isinstance(target, Stack):
        return target
    for entry in _entry_points():
        loaded = _load_kind(entry)
        if loaded.accepts(target):
            return loaded.open(target)
    raise unsupported_error(target)


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=GROUP), key=lambda each: each.name))


def _load_kind(entry: EntryPoint) -> StackKind:
    try:
        kind: StackKind = entry.load()
    except Exception as error:
        raise EnvError(
            f"the entry point {entry.name!r} of {GROUP} cannot be loaded: {summarize_error(error)}",
            hint=f"update or remove the package that provides {entry.value}",
        ) from error
    return kind


_NEXT_STEPS: tuple[tuple[str, str], ...] = (
    ("gym.core:Env", "convert it: shimmy.GymV21CompatibilityV0(env=env)"),
    ("pettingzoo.utils.env:AECEnv", "wrap one agent in a gymnasium.Env"),
    ("pettingzoo.utils.env:ParallelEnv", "wrap one agent in a gymnasium.Env"),
    (
        "stable_baselines3.common.vec_env.base_vec_env:VecEnv",
        "pass the Gymnasium env inside it: vec_env.envs[0]",
    ),
    (
        "torchrl.envs.common:EnvBase",
        "build the same chain of tdx transforms: `tdx list transforms`",
    ),
    ("torch.nn.modules.module:Module", "pass the env that it acts in"),
)
"""Classes of other libraries and what to do with their objects."""


def unsupported_error(target: Any) -> ArgumentError:
    """Return the error for an object that is no stack; it lists what is supported."""
    hint = next((text for base, text in _NEXT_STEPS if _is_instance(target, base)), None)
    kinds = [*(each.title for each in KINDS), *(each.name for each in _entry_points())]
    return ArgumentError(
        f"{describe_object(target)} is not supported: pass {', '.join(kinds)}",
        hint=_next_step(target) if hint is None else hint,
    )


def describe_object(target: Any) -> str:
    """Return the type of an object, for messages.

    Example:
        >>> describe_object(3), describe_object(int)
        ('an object of type int', 'the class int')
    """
    if isinstance(target, type):
        return f"the class {target.__name__}"
    return f"an object of type {type(target).__name__}"


def _is_instance(target: Any, base: str) -> bool:
    return isinstance(target, tuple(_imported((base,))))


def _next_step(target: Any) -> str:
    if isinstance(target, str):
        return f"create the env: tdx.GymEnv({target!r}) or gymnasium.make({target!r})"
    if isinstance(target, type):
        return f"create an instance: {target.__name__}()"
    if callable(target) and not hasattr(target, "step"):
        return f"call it: {getattr(target, '__name__', 'function')}()"
    if hasattr(target, "step") and hasattr(target, "reset"):
        return "make its class a subclass of gymnasium.Env"
    return f"other libraries register a kind in the entry-point group {GROUP}"
