"""Step an env and keep all that happens inside."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from tdx.core.envs import EnvBase
from tdx.core.envs.done_flags import any_done
from tdx.core.envs.policies import Policy, as_policy
from tdx.core.tracing.blame import blamed
from tdx.core.tracing.history import TraceHistory
from tdx.core.tracing.places import GIVEN, KEPT, Place, policy_place
from tdx.core.tracing.recorder import Clock, Probe, Recorder, save
from tdx.core.tracing.stop_text import parse_stop
from tdx.core.tracing.stops import AnyOf, Cancelled, Steps, Stop, StopReason
from tdx.core.tracing.traces import Hook, StepTrace, Versions
from tdx.core.tracing.walk import TracedWalk
from tdx.errors import ArgumentError, TdxError
from tdx.tensordicts import new_tensordict

OnStep = Callable[[StepTrace], Any]


@dataclass(frozen=True, slots=True)
class TraceRun:
    """How a run ended.

    Args:
        steps: how many steps it made.
        traces: how many steps and resets.
        reason: why it stopped.
        last: the last trace.
    """

    steps: int
    traces: int
    reason: StopReason
    last: StepTrace | None


class Tracer:
    """Resets and steps an env as ``env.reset`` and ``env.step`` do, and shows what happens inside.

    Values, randomness and all state are the same, bit for bit, as without it. The env is the
    caller's: it may be stepped without the tracer in between, and is not closed.

    Args:
        env: the env, transformed or not; nested transformed envs count as one long chain.
        policy: gives the actions, as in ``env.rollout``; random by default.
        values: whether versions are kept; off, there are times only, at less cost.
        history: where every trace is kept; nowhere by default.
        clock: gives nanoseconds.
        probe: called around each hook, for measurements of another kind.

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
        self.env, self.values, self.history = env, values, history
        self.clock, self.probe = clock, probe
        self.last: StepTrace | None = None
        self.steps = self.traces = self.resets = 0
        self._walk = TracedWalk(env)
        self.follow(policy)
        self._result: TensorDictBase | None = None
        self._current: TensorDictBase | None = None
        self._cancel = Event()
        self._living: weakref.WeakSet[StepTrace] = weakref.WeakSet()

    def follow(self, policy: Policy | None) -> None:
        """Take the actions from this policy from now on; random ones where it is ``None``."""
        env = self.env
        self._policy: Policy = env.rand_action if policy is None else as_policy(policy, env)
        self._actor = policy_place(policy, name="random" if policy is None else None)

    @property
    def current(self) -> TensorDictBase | None:
        """The input of the next step, ``[*B]``, before any due reset; ``None`` before a reset."""
        if self._current is None and self._result is not None:
            self._current = self.env.step_mdp(self._result)
        return self._current

    @property
    def reset_due(self) -> bool:
        """Whether some rows are done, so that the next step begins with their reset."""
        current = self.current
        return current is not None and any_done(current, self.env.done_keys)

    def reset(
        self, tensordict: TensorDictBase | None = None, *, seed: int | None = None, **kwargs: Any
    ) -> StepTrace:
        """Begin new episodes, as ``env.reset`` does.

        Args:
            tensordict: what ``env.reset`` is called with, ``[*B]``.
            seed: for ``env.set_seed``; random actions follow ``torch.manual_seed``.
            **kwargs: passed on.

        Raises:
            TdxError: the env or a stage raised; ``last`` holds what was traced until then.
        """
        if seed is not None:
            self.env.set_seed(seed)
        return self._reset(tensordict, lambda: self.env.reset(tensordict, **kwargs))

    def reset_done(self) -> StepTrace | None:
        """Reset the rows that are done, as ``env.maybe_reset`` does; ``None`` where none is.

        Raises:
            TdxError: the env or a stage raised.
        """
        current = self.current
        if current is None or not any_done(current, self.env.done_keys):
            return None
        return self._reset(current, lambda: self.env.maybe_reset(current))

    def _reset(self, given: TensorDictBase | None, call: Callable[[], TensorDictBase]) -> StepTrace:
        self.resets += 1
        doing = f"the reset before step {self.steps}"
        return self._traced("reset", doing, given, lambda record: call())

    def step(self, action: Any = None) -> StepTrace:
        """Make one step; before it a reset where one is due, which is a trace of its own.

        Args:
            action: for the env's one action key, a tensor, list or number that expands to the
                shape of its spec; or a TensorDict with the action keys. The policy gives it by
                default.

        Raises:
            TdxError: the env, a stage or the policy raised; ``last`` holds what was traced until
                then.
        """
        if self.current is None:
            self.reset()
        self.reset_done()
        current = self.current
        assert current is not None
        policy, place = self._policy, self._actor
        if action is not None:
            place = GIVEN
            policy = self._giving(action)

        def run(record: Recorder) -> TensorDictBase:
            acted = record.call(place, "inverse", policy, current)
            if not isinstance(acted, TensorDictBase):
                wrong = TypeError(f"it returned {type(acted).__name__} instead of a TensorDict")
                raise blamed(wrong, place, "inverse", f"step {self.steps}")
            return self.env.step(acted)

        return self._traced("step", f"step {self.steps}", current, run)

    def _giving(self, action: Any) -> Policy:
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
                    f"an action of shape {given} was given, the env takes {wanted}",
                    hint="give the action the shape of env.action_spec",
                ) from None
            return tensordict.set(self.env.action_key, value)

        return give

    def run(
        self,
        steps: int | None = None,
        until: Stop | str | None = None,
        on_step: OnStep | None = None,
    ) -> TraceRun:
        """Step until something says stop; the first reset is made where there was none.

        Args:
            steps: how many steps to make; any number by default.
            until: when to stop: a condition of :mod:`tdx.core.tracing.stops`, or the text of
                one, such as ``"done or reward > 0.5"``. Without ``steps`` and ``until`` only
                :meth:`cancel` or an error ends the run.
            on_step: called with the trace of each step and reset.

        Raises:
            ArgumentError: ``until`` is no condition, or ``steps`` below 1.
            TdxError: the env, a stage or the policy raised; ``last`` and the history hold what
                was traced until then.

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
        begun, traces = self.steps, 0
        stop.begin(self)
        reason = None if self.last is None else stops[0].check(self.last)
        if reason is None:
            for trace in self._going_on():
                traces += 1
                if on_step is not None:
                    on_step(trace)
                reason = stop.check(trace)
                if reason is not None:
                    break
        assert reason is not None
        self._cancel.clear()
        return TraceRun(self.steps - begun, traces, reason, self.last)

    def _going_on(self) -> Iterator[StepTrace]:
        if self.current is None:
            yield self.reset()
        while True:
            reset = self.reset_done()
            if reset is not None:
                yield reset
            yield self.step()

    def cancel(self) -> None:
        """Make a run stop after the step it is in; to be called from another thread."""
        self._cancel.set()

    # The trace

    def _traced(
        self,
        phase: Hook,
        doing: str,
        given: TensorDictBase | None,
        call: Callable[[Recorder], TensorDictBase],
    ) -> StepTrace:
        walk, clock = self._walk, self.clock
        record = Recorder(clock, phase, doing, self.values, self.probe, self._written_over)
        began = record.begin(given)
        error: TdxError | None = None
        result = given
        start = clock()
        hooks = self.env.__dict__
        try:
            walk.refresh()
            walk.record = record
            hooks["_completed_step"], hooks["_completed_reset"] = self._hooks()
            result = call(record)
        except TdxError as raised:
            error = raised
        except Exception as raised:
            error = blamed(raised, self._outside(), "forward", doing)
            error.__cause__ = raised
        finally:
            hooks.pop("_completed_step", None)
            hooks.pop("_completed_reset", None)
        took = clock() - start - record.overhead_ns
        trace = self._finished(phase, record, result, began, took, error)
        if error is not None:
            raise error
        return trace

    def _hooks(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """What stands in the place of the env's own two while a trace is made."""
        env, walk = self.env, self._walk

        def step(tensordict: TensorDictBase, preset: TensorDictBase | None = None) -> Any:
            return walk.step(env, tensordict, preset)

        def reset(tensordict: TensorDictBase | None = None, **kwargs: Any) -> Any:
            return walk.reset(env, tensordict, **kwargs)

        return step, reset

    def _outside(self) -> Place:
        return policy_place(None, "env", type(self.env).__name__)

    def _finished(
        self,
        phase: Hook,
        record: Recorder,
        result: TensorDictBase | None,
        given: Versions,
        took: int,
        error: TdxError | None,
    ) -> StepTrace:
        if result is None:
            result = new_tensordict({}, self.env.batch_size, self.env.device)
        if error is None:
            after = result.get("next") if phase == "step" else result
            if all(stage.kind != "env" for stage in record.stages):
                # A batch of unlike envs has a reset of its own, which is not seen from here.
                record.settle(self._walk.env_place, "forward", after)
            record.settle(KEPT, "forward", after, known_only=True)
        trace = StepTrace(
            index=self.traces,
            step=self.steps,
            episode=max(self.resets - 1, 0),
            phase=phase,
            tensordict=result.clone(recurse=False),
            stages=tuple(record.stages),
            given=given,
            time_ns=took,
            error=error,
        )
        self.traces += 1
        self.last = trace
        if error is None:
            self._result, self._current = (result, None) if phase == "step" else (None, result)
            self.steps += phase == "step"
        self._living.add(trace)
        if self.history is not None:
            self.history.append(trace)
        return trace

    def _written_over(self, tensor: Tensor, copy: Tensor | None) -> None:
        """Save what earlier traces hold of a tensor that was written in place just now."""
        for trace in self._living:
            for version in trace.versions():
                if version.value is tensor:
                    save(version, copy)
            if copy is not None:
                held = trace.tensordict
                for key in list(held.keys(True, True)):
                    if held.get(key) is tensor:
                        held.set(key, copy)
