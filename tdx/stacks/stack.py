"""The protocols of a stack, its tracer and the driver of its env."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard

from tdx.keys import NestedKey

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.core import StageSpecs, StepTrace
    from tdx.core.meter import Meter
    from tdx.core.tracing import Stop, TraceRun

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
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        # A number of NumPy.
        value = value.item()
    try:
        text = " ".join(repr(value).split())
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


class AnyTracer(Protocol):
    """What every tracer has: :class:`~tdx.Tracer` and :class:`StackTracer`."""

    last: StepTrace | None
    steps: int
    resets: int

    def run(
        self,
        steps: int | None = None,
        until: Stop | str | None = None,
        on_step: OnTrace | None = None,
    ) -> TraceRun:
        """Step until a condition is met; reset the env first if necessary."""
        ...

    def cancel(self) -> None:
        """Stop a run after its current step."""
        ...


class Driver(Protocol):
    """Resets and steps the env of a stack, as its own library does."""

    def reset(self, seed: int | None) -> None:
        """Start new episodes."""
        ...

    def step(self, action: Any = None) -> None:
        """Make one step with an action; ``None``: of the policy, or a random one."""
        ...

    @property
    def reset_due(self) -> bool:
        """True before the first reset and after the end of an episode."""
        ...


class Stack(Protocol):
    """An env with an ordered sequence of stages.

    A subclass gets the defaults of what it does not define; any object with these methods is a
    stack.

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
        """What the stack does not show, each a sentence. Default: nothing."""
        return ()

    @property
    def free_keys(self) -> tuple[str, ...]:
        """First parts of keys that need no spec. Default: every key needs one."""
        return ()

    @property
    def timing_notes(self) -> Sequence[str]:
        """What to know about the times of :meth:`measure`, each a sentence. Default: nothing."""
        return ()

    @property
    def done_keys(self) -> Sequence[NestedKey]:
        """Keys of the flags in a trace that end an episode."""
        ...

    @property
    def batch_locked(self) -> bool:
        """True if the env takes one batch size only, which is the default."""
        return True

    def specs(self) -> Sequence[StageSpecs]:
        """Return the specs before the chain and those after each stage.

        The input spec has ``full_action_spec`` and ``full_state_spec``, the output spec
        ``full_observation_spec``, ``full_reward_spec`` and ``full_done_spec``.
        """
        ...

    def tracer(self, policy: Any = None) -> AnyTracer:
        """Return an object that resets and steps the env and records every stage.

        The default records what :meth:`driver` does with :meth:`attach`.

        Args:
            policy: Chooses the actions. ``None``: random actions.
        """
        from tdx.stacks.tracer import StackTracer

        return StackTracer(self, self.driver(policy))

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
        """Return copies of the state of each stage: running statistics, counters, queues.

        Default: no stage has a state.
        """
        return {}

    def seeded(self, seed: int | None) -> AbstractContextManager[None]:
        """Seed the env and the random actions of a block; global generators are restored after it.

        Args:
            seed: The seed. ``None``: do not seed.
        """
        ...

    def close(self) -> None:
        """Close the env."""
        ...


def is_stack(target: object) -> TypeGuard[Stack]:
    """Return True if an object has the methods of a stack; none of them is called.

    Example:
        >>> is_stack(3)
        False
    """
    kind = type(target)
    return all(callable(getattr(kind, name, None)) for name in ("specs", "attach", "measure"))
