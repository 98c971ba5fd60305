"""``Tracer``: steps an env and records everything that happens inside."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Event, get_ident
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from tdx.core.envs.done_flags import any_done
from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.policies import as_policy
from tdx.core.envs.rollout import Policy
from tdx.core.tracing.places import GIVEN, KEPT, TracedChain, policy_place
from tdx.core.tracing.recorder import Clock, Copies, Probe, Recorder, keep_value, to_located_error
from tdx.core.tracing.stop_parser import parse_stop
from tdx.core.tracing.stops import AnyOf, Cancelled, Steps, Stop, StopReason
from tdx.core.tracing.traces import DeferredTrace, Hook, Place, StepTrace, TraceHistory
from tdx.foundation.errors import ArgumentError, EnvError, TdxError
from tdx.foundation.tensordicts import new_tensordict, note_structure

OnStep = Callable[[StepTrace], Any]
_MIN_LIVING = 100


@dataclass(frozen=True, slots=True)
class TraceRun:
    """Result of a run.

    Args:
        steps: Number of steps.
        traces: Number of steps and resets.
        reason: Why it stopped.
        last: The last trace.
    """

    steps: int
    traces: int
    reason: StopReason
    last: StepTrace | None


class BaseTracer(ABC):
    """Resets and steps an env until a condition is met: what the tracers of all libraries share.

    Args:
        history: Where to keep the traces; they are not kept by default.
        clock: Returns nanoseconds.
    """

    def __init__(self, history: TraceHistory | None, clock: Clock) -> None:
        self.history, self.clock = history, clock
        self.last: StepTrace | None = None
        self.steps = self.traces = self.resets = 0
        self._cancel = Event()

    @property
    @abstractmethod
    def env(self) -> Any:
        """The env or stack, whose specs stop conditions read."""

    @abstractmethod
    def attached(self) -> AbstractContextManager[None]:
        """Stay attached in a block of several resets and steps."""

    @abstractmethod
    def next(self) -> StepTrace:
        """Make a reset if one is due, else a step; return its trace."""

    def run(
        self,
        steps: int | None = None,
        until: Stop | str | None = None,
        on_step: OnStep | None = None,
    ) -> TraceRun:
        """Step until a condition is met; reset the env first if necessary.

        Args:
            steps: Maximum number of steps; unlimited by default.
            until: Condition of :mod:`tdx.core.tracing.stops`, or its text, such as
                ``"done or reward > 0.5"``. Without ``steps`` and ``until``, only :meth:`cancel`
                or an error ends the run.
            on_step: Called with the trace of each step and reset.

        Raises:
            ArgumentError: ``until`` is not a condition, or ``steps`` is below 1.
            TdxError: The env, a stage or the policy raised; ``last`` and the history contain
                everything before the error.

        Example:
            >>> from tdx import PendulumEnv, StepCounter, Tracer, TransformedEnv
            >>> env = TransformedEnv(PendulumEnv(), StepCounter(5))
            >>> run = Tracer(env).run(100, until="done")
            >>> run.steps, run.reason.message
            (5, 'done is set')
        """
        stops: list[Stop] = [Cancelled(self._cancel)]
        if until is not None:
            stops.append(parse_stop(until) if isinstance(until, str) else until)
        stop = AnyOf(*stops, *([] if steps is None else [Steps(steps)]))
        first_step, first_trace = self.steps, self.traces
        stop.begin(self)
        reason = None if self.last is None else stops[0].check(self.last)
        with self.attached():
            while reason is None:
                trace = self.next()
                if on_step is not None:
                    on_step(trace)
                reason = stop.check(trace)
        self._cancel.clear()
        return TraceRun(self.steps - first_step, self.traces - first_trace, reason, self.last)

    def cancel(self) -> None:
        """Stop a run after its current step; may be called from another thread."""
        self._cancel.set()


class Tracer(BaseTracer):
    """Resets and steps an env as ``env.reset`` and ``env.step`` do, and records the stages.

    Values, randomness and state are the same, bit for bit, as without it. The env belongs to the
    caller: it may be stepped without the tracer in between, and is not closed.

    Args:
        env: The env, transformed or not; nested transformed envs count as one long chain.
        policy: Policy of ``env.rollout``; random actions by default.
        values: If False, record times only, at lower cost.
        history: Where to keep the traces; they are not kept by default.
        clock: Returns nanoseconds.
        probe: Called around each hook, for other measurements.

    Raises:
        ArgumentError: ``env`` is not an env.

    Example:
        >>> from tdx import GymEnv, RewardScaling, Tracer, TransformedEnv
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), RewardScaling(0.0, 0.1))
        >>> trace = Tracer(env).step()
        >>> [stage.place for stage in trace.stages]
        ['random', 'GymEnv', '0 RewardScaling']
        >>> trace.stages[-1].read, trace.stages[-1].written["reward"]
        ((reward@0,), reward@1)
    """

    def __init__(
        self,
        env: EnvBase,
        policy: Policy | None = None,
        *,
        values: bool = True,
        history: TraceHistory | None = None,
        clock: Clock = time.perf_counter_ns,
        probe: Probe | None = None,
    ) -> None:
        if not isinstance(env, EnvBase):
            raise ArgumentError(
                f"env must be an env, got {type(env).__name__}",
                hint="pass an env of tdx, such as GymEnv(...)",
            )
        super().__init__(history, clock)
        self._env, self.values, self.probe = env, values, probe
        self._chain = TracedChain(env)
        self.follow(policy)
        self._result: TensorDictBase | None = None
        self._current: TensorDictBase | None = None
        self._copies: Copies = {}
        # A list of references that is sometimes cleared is faster than a WeakSet.
        self._living: list[weakref.ref[StepTrace]] = []
        self._next_clearing = _MIN_LIVING

    @property
    def env(self) -> EnvBase:
        """The env."""
        return self._env

    def follow(self, policy: Policy | None) -> None:
        """Replace the policy. ``None``: random actions."""
        env = self.env
        self._policy: Policy = env.rand_action if policy is None else as_policy(policy, env)
        self._actor = policy_place(policy, name="random" if policy is None else None)

    @property
    def current(self) -> TensorDictBase | None:
        """Input of the next step, ``[*B]``, before a due reset. ``None``: not reset yet."""
        if self._current is None and self._result is not None:
            self._current = self.env.step_mdp(self._result)
        return self._current

    @property
    def reset_due(self) -> bool:
        """True if rows are done, so that the next step starts with their reset."""
        current = self.current
        return current is not None and any_done(current, self.env.env_specs.end_keys())

    def reset(
        self, tensordict: TensorDictBase | None = None, *, seed: int | None = None, **kwargs: Any
    ) -> StepTrace:
        """Start new episodes, as ``env.reset`` does.

        Args:
            tensordict: Argument of ``env.reset``, ``[*B]``.
            seed: Argument of ``env.set_seed``; random actions follow ``torch.manual_seed``.
            **kwargs: Passed to ``env.reset``.

        Raises:
            TdxError: The env or a stage raised; ``last`` is the trace up to the error.
        """
        if seed is not None:
            self.env.set_seed(seed)
        return self._reset(tensordict, lambda: self.env.reset(tensordict, **kwargs))

    def reset_done(self) -> StepTrace | None:
        """Reset the done rows, as ``env.maybe_reset`` does; return ``None`` if there are none.

        Raises:
            TdxError: The env or a stage raised.
        """
        current = self.current
        if current is None or not any_done(current, self.env.env_specs.end_keys()):
            return None
        return self._reset(current, lambda: self.env.maybe_reset(current))

    def _reset(self, given: TensorDictBase | None, call: Callable[[], TensorDictBase]) -> StepTrace:
        self.resets += 1
        doing = f"the reset before step {self.steps}"
        return self._trace("reset", doing, given, call)

    def step(self, action: Any = None) -> StepTrace:
        """Make one step, after a reset if one is due, which has its own trace.

        Args:
            action: A tensor, list or number that expands to the shape of the action spec, or a
                TensorDict with all action keys. ``None``: the policy's action.

        Raises:
            TdxError: The env, a stage or the policy raised; ``last`` is the trace up to the
                error.
        """
        if self.current is None:
            self.reset()
        self.reset_done()
        current = self.current
        assert current is not None
        policy, place = self._policy, self._actor
        if action is not None:
            place = GIVEN
            policy = self._policy_for(action)

        def run() -> TensorDictBase:
            assert self._chain.record is not None
            acted = self._chain.record.call(place, "inverse", policy, current)
            if not isinstance(acted, TensorDictBase):
                wrong = TypeError(f"it returned {type(acted).__name__} instead of a TensorDict")
                raise to_located_error(wrong, place, "inverse", f"step {self.steps}")
            return self.env.step(acted)

        return self._trace("step", f"step {self.steps}", current, run)

    def _policy_for(self, action: Any) -> Policy:
        def give(tensordict: TensorDictBase) -> TensorDictBase:
            if is_tensor_collection(action):
                return tensordict.update(action)
            spec = self.env.full_action_spec[self.env.action_key]
            value = torch.as_tensor(action, dtype=spec.dtype, device=spec.device)
            try:
                value = value.expand(spec.shape)
            except RuntimeError:
                given, wanted = tuple(value.shape), tuple(spec.shape)
                raise ArgumentError(
                    f"the action has shape {given}, the env takes {wanted}",
                    hint="pass an action of the shape of env.action_spec",
                ) from None
            return tensordict.set(self.env.action_key, value)

        return give

    def next(self) -> StepTrace:
        """Make a reset if one is due, else a step; return its trace."""
        if self.current is None:
            return self.reset()
        return self.reset_done() or self.step()

    def record(
        self, phase: Hook, given: TensorDictBase | None, call: Callable[[], TensorDictBase]
    ) -> TensorDictBase:
        """Record a reset or step that the caller makes, and return its result, ``[*B]``.

        Args:
            phase: ``reset`` or ``step``.
            given: Its input, ``[*B]``.
            call: Makes it.

        Raises:
            TdxError: The env or a stage raised; ``last`` is the trace up to the error.
        """
        self.resets += phase == "reset"
        self._trace(phase, f"a {phase}", given, call)
        result = self._result if phase == "step" else self._current
        assert result is not None
        return result

    def _trace(
        self,
        phase: Hook,
        doing: str,
        given: TensorDictBase | None,
        call: Callable[[], TensorDictBase],
    ) -> StepTrace:
        chain, clock = self._chain, self.clock
        on_overwrite, earlier = self._on_overwrite, self._copies
        record = Recorder(clock, phase, doing, self.values, self.probe, on_overwrite, earlier)
        record.begin(given)
        error: TdxError | None = None
        result = given
        start = clock()
        chain.thread = get_ident()
        chain.other_threads.clear()
        try:
            chain.refresh()
            with self.attached():
                chain.record = record
                result = call()
            if chain.other_threads - {chain.thread}:
                raise EnvError(
                    f"another thread stepped the env during {doing}",
                    hint="let one thread step the env, or create an env for each thread",
                )
        except TdxError as raised:
            error = raised
        except Exception as raised:
            error = to_located_error(raised, self._outside(), "forward", doing)
            error.__cause__ = raised
        finally:
            chain.record = None
        took = clock() - start - record.overhead_ns
        trace = self._finish(phase, record, result, took, error)
        if error is not None:
            raise error
        return trace

    def attached(self) -> AbstractContextManager[None]:
        """Stay attached to the hooks of the chain in a block of several resets and steps.

        Otherwise each of them attaches for itself, which takes longer.
        """
        return nullcontext() if self._chain.is_attached else self._chain.attached()

    def _outside(self) -> Place:
        return policy_place(None, "env", type(self.env).__name__)

    def _finish(
        self,
        phase: Hook,
        record: Recorder,
        result: TensorDictBase | None,
        took: int,
        error: TdxError | None,
    ) -> StepTrace:
        if result is None:
            result = new_tensordict({}, self.env.batch_size, self.env.device)
        if error is not None:
            record.log.result = note_structure(result)
        else:
            if not record.has_env:
                # A batch of different envs resets itself, which is not traced.
                after = result.get("next") if phase == "step" else result
                record.settle(self._chain.env_place, "forward", after)
            record.finish(KEPT, result)
        self._copies = record.copies
        trace = DeferredTrace.of(
            record.log.build,
            index=self.traces,
            step=self.steps,
            episode=max(self.resets - 1, 0),
            phase=phase,
            time_ns=took,
            error=error,
        )
        self.traces += 1
        self.last = trace
        if error is None:
            self._result, self._current = (result, None) if phase == "step" else (None, result)
            self.steps += phase == "step"
        # For later overwrites of its values.
        self._living.append(weakref.ref(trace))
        if len(self._living) > self._next_clearing:
            self._living = [reference for reference in self._living if reference() is not None]
            self._next_clearing = max(2 * len(self._living), _MIN_LIVING)
        if self.history is not None:
            self.history.append(trace)
        return trace

    def _on_overwrite(self, tensor: Tensor, copy: Tensor | None) -> None:
        """Keep the old value of an overwritten tensor in earlier traces."""
        for reference in self._living:
            trace = reference()
            if trace is None:
                continue
            for version in trace.versions():
                if version.value is tensor:
                    keep_value(version, copy)
            if copy is not None:
                held = trace.tensordict
                for key in list(held.keys(True, True)):
                    if held.get(key) is tensor:
                        held.set(key, copy)
