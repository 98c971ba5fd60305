"""``StackTracer``: resets and steps a stack of any library, and records every stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from threading import get_ident
from typing import Any, Protocol

from tdx.core.tracing import BaseTracer, DeferredTrace, StepTrace, TraceHistory
from tdx.foundation.errors import EnvError, TdxError

OnTrace = Callable[[StepTrace], object]


class Attachable(Protocol):
    """What records the resets and steps of an env: a :class:`~tdx.stacks.Stack`."""

    @property
    def attaches_to_runs(self) -> bool:
        """True if a block may contain many steps, and gets each trace when its step ends."""
        ...

    def attach(self, on_trace: OnTrace) -> AbstractContextManager[None]:
        """Record the resets and steps that the caller makes in a block."""
        ...


class Driver(Protocol):
    """Resets and steps the env of a stack, as its own library does."""

    def reset(self, seed: int | None) -> None:
        """Start new episodes."""
        ...

    def step(self, action: object = None) -> None:
        """Make one step with an action; ``None``: of the policy, or a random one."""
        ...

    @property
    def reset_due(self) -> bool:
        """True before the first reset and after the end of an episode."""
        ...


class _UnrecordedError(Exception):
    """Nothing was recorded in a call."""

    def __init__(self, error: EnvError) -> None:
        super().__init__()
        self.error = error


class StackTracer(BaseTracer):
    """Resets and steps a stack, and records what every stage reads and writes.

    Values, randomness and behavior are the same as without it. The env belongs to the caller and is
    not closed.

    Args:
        stack: The stack.
        driver: Resets and steps its env.
        history: Where to keep the traces; they are not kept by default.

    Example:
        >>> import gymnasium, tdx
        >>> env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))
        >>> trace = tdx.trace(env).step()
        >>> [stage.place for stage in trace.stages if stage.written]
        ['random', 'Pendulum-v1', '3 NormalizeObservation']
    """

    def __init__(
        self,
        stack: Attachable,
        driver: Driver,
        history: TraceHistory | None = None,
    ) -> None:
        super().__init__(history, time.perf_counter_ns)
        self.stack = stack
        self._blocking_stage: str | None = None
        self._driver = driver
        self._is_attached = False
        self._received: list[tuple[int, StepTrace]] = []

    @property
    def env(self) -> Any:
        """The stack, whose specs stop conditions read."""
        return self.stack

    @property
    def reset_due(self) -> bool:
        """True if the next step starts with a reset."""
        return self._driver.reset_due

    def reset(self, *, seed: int | None = None) -> StepTrace:
        """Start new episodes.

        Args:
            seed: Seed of the env. ``None``: do not seed.

        Raises:
            TdxError: The env or a stage raised; ``last`` is the trace up to the error.
        """
        return self._record(lambda: self._driver.reset(seed), f"the reset before step {self.steps}")

    def step(self, action: object = None) -> StepTrace:
        """Make one step, after a reset if one is due, which has its own trace.

        Args:
            action: Action of the env. ``None``: the action of the policy.

        Raises:
            TdxError: The env, a stage or the policy raised; ``last`` is the trace up to the error.
        """
        if self._driver.reset_due:
            self.reset()
        return self._record(lambda: self._driver.step(action), f"step {self.steps}")

    def next(self) -> StepTrace:
        """Make a reset if one is due, else a step; return its trace."""
        return self.reset() if self._driver.reset_due else self.step()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Stay attached to the stack in a block of several resets and steps, if it allows that.

        Otherwise each of them attaches for itself.
        """
        if self._is_attached or not self.stack.attaches_to_runs:
            yield
            return
        with self._attached():
            yield

    @contextmanager
    def _attached(self) -> Iterator[None]:
        unrecorded = None
        self._is_attached = True
        try:
            with self.stack.attach(lambda trace: self._received.append((get_ident(), trace))):
                try:
                    yield
                except _UnrecordedError as error:
                    # The end of the block may tell why.
                    unrecorded = error
        finally:
            self._is_attached = False
        if unrecorded is not None:
            raise unrecorded.error

    def _record(self, call: Callable[[], None], doing: str) -> StepTrace:
        self._received.clear()
        try:
            with nullcontext() if self._is_attached else self._attached():
                call()
        except TdxError:
            raise
        except Exception as error:
            own = [trace for thread, trace in self._received if thread == get_ident()]
            if own and own[-1].error is not None:
                located = own[-1].error
                self._add(own[-1])
                if self._blocking_stage is not None:
                    located.hint = (
                        f"{self._blocking_stage} did not pass the reset on to the env: correct it"
                    )
                raise located from error
            raise EnvError(
                f"{doing} raised {type(error).__name__}: {error}",
                hint="--debug shows the traceback",
            ) from error
        own = [trace for thread, trace in self._received if thread == get_ident()]
        if len(own) < len(self._received):
            raise EnvError(
                f"another thread stepped the env during {doing}",
                hint="let one thread step the env, or create an env for each thread",
            )
        if not own:
            unrecorded = EnvError(
                f"{doing} did not reach the env of the stack",
                hint="pass the outermost wrapper, whose step and reset are called",
            )
            raise _UnrecordedError(unrecorded) if self._is_attached else unrecorded
        return self._add(own[-1])

    def _add(self, trace: StepTrace) -> StepTrace:
        is_first = self.resets == 0 or self._blocking_stage is not None
        if is_first and trace.phase == "reset" and trace.error is None:
            reached = any(stage.kind == "env" for stage in trace.stages)
            self._blocking_stage = None if reached else trace.stages[0].place
        self.resets += trace.phase == "reset"
        place = self.traces, self.steps, max(self.resets - 1, 0)
        if isinstance(trace, DeferredTrace):
            trace.number(*place)
        else:
            index, step, episode = place
            trace = replace(trace, index=index, step=step, episode=episode)
        self.traces += 1
        self.steps += trace.phase == "step" and trace.error is None
        self.last = trace
        if self.history is not None:
            self.history.append(trace)
        return trace
