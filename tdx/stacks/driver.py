"""The protocols of what resets and steps the env of a stack, and of what records it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tdx.core import StepTrace
    from tdx.core.tracing import Stop, TraceRun

OnTrace = Callable[["StepTrace"], Any]


class Attachable(Protocol):
    """What records the resets and steps of an env: a :class:`~tdx.stacks.Stack`."""

    @property
    def attaches_to_runs(self) -> bool:
        """True if a block may contain many steps, and gets each trace when its step ends."""
        ...

    def attach(self, on_trace: OnTrace) -> AbstractContextManager[None]:
        """Record the resets and steps that the caller makes in a block."""
        ...


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
