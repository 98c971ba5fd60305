"""A stack of another library in a live session: what the session reads of an env and a tracer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.tracing import Place, Probe, StepTrace, TraceHistory
from tdx.core.tracing.traces import Hook
from tdx.foundation.errors import ArgumentError, Where
from tdx.foundation.keys import NestedKey, split_key
from tdx.specs import Composite
from tdx.stacks import Stack, StackTracer
from tdx.stacks.samples import SampleStack
from tdx.stacks.tracer import Driver


class StackEnv:
    """A stack with the attributes of an env that a live session reads."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._specs = list(stack.specs())
        outermost = self._specs[-1]
        outputs, inputs = outermost.output_spec, outermost.input_spec
        self.output_spec: Composite = outputs
        self.batch_size = outputs.shape
        self.full_observation_spec: Composite = outputs["full_observation_spec"]
        self.full_reward_spec: Composite = outputs["full_reward_spec"]
        self.full_done_spec: Composite = outputs["full_done_spec"]
        self.full_action_spec: Composite = inputs["full_action_spec"]
        self.full_state_spec: Composite = inputs["full_state_spec"]
        self.done_keys: list[NestedKey] = list(stack.done_keys)
        self.ends_with_last_agent = stack.ends_with_last_agent
        self.reward_keys: list[NestedKey] = list(self.full_reward_spec.keys(True, True))

    @property
    def free_keys(self) -> tuple[str, ...]:
        return self.stack.free_keys

    @property
    def batch_locked(self) -> bool:
        return self.stack.batch_locked

    def specs(self) -> list[Any]:
        return self._specs


_NO_KEYS: dict[Any, Any] = {"forward": (), "inverse": ()}
_ENV = Place("env", -1, "env", None, _NO_KEYS, _NO_KEYS, True)
# The stack calls the policy inside its step.
_POLICY_AND_ENV = replace(_ENV, kind="given", name="policy or env.step")


class _ProbedDriver:
    """Calls a probe around each reset and step of a driver, which calls a policy if it has one."""

    def __init__(self, driver: Driver, has_policy: bool, probe: Probe) -> None:
        self._driver, self._has_policy, self._probe = driver, has_policy, probe

    @property
    def reset_due(self) -> bool:
        return self._driver.reset_due

    def reset(self, seed: int | None) -> None:
        with self._probed(_ENV, "reset"):
            self._driver.reset(seed)

    def step(self, action: Any = None) -> None:
        calls_policy = self._has_policy and action is None
        with self._probed(_POLICY_AND_ENV if calls_policy else _ENV, "step"):
            self._driver.step(action)

    @contextmanager
    def _probed(self, place: Place, hook: Hook) -> Iterator[None]:
        self._probe.before(place, "forward", hook)
        try:
            yield
        finally:
            self._probe.after(place, "forward", hook)


class LiveStackTracer(StackTracer):
    """Records the steps of a stack for a live session; the probe sees each step as a whole."""

    def __init__(
        self,
        env: StackEnv,
        history: TraceHistory,
        clock: Callable[[], int],
        probe: Probe | None = None,
    ) -> None:
        self._env, self._probe = env, probe
        self._followed: Callable[[Any], Any] | None = None
        super().__init__(env.stack, self._make_driver(None), history)
        self.clock = clock

    @property
    def env(self) -> Any:
        """The stack, whose specs stop conditions read."""
        return self._env

    @property
    def current(self) -> TensorDictBase | None:
        """Result of the last trace. ``None``: not reset yet."""
        return None if self.last is None or not self.resets else self.last.tensordict

    def follow(self, policy: Callable[[Any], Any] | None) -> None:
        """Replace the policy; another one starts new episodes. ``None``: random actions."""
        if policy is not self._followed:
            self._driver, self._followed = self._make_driver(policy), policy

    def _make_driver(self, policy: Callable[[Any], Any] | None) -> Driver:
        driver = self._env.stack.driver(policy)
        if self._probe is None:
            return driver
        return _ProbedDriver(driver, policy is not None, self._probe)

    def reset_done(self) -> StepTrace:
        """Start the episodes that are due."""
        return self.reset()

    def step(self, action: Any = None) -> StepTrace:
        """Make one step.

        The keys of the action become the action of the env: arrays, numbers, and a dict of them.
        ``None``: the action of the policy.
        """
        if action is None:
            return super().step(None)
        # The action of a data pipeline is a sample: arrays by key.
        is_sample = isinstance(self._env.stack, SampleStack)
        return super().step(_to_numpy(action if is_sample else action["action"]))


def stack_rollout(env: StackEnv, traces: Iterable[StepTrace]) -> TensorDictBase:
    """Return the values of the outermost stage in consecutive steps, ``[*B, T]``.

    The observation before a step is the one that the policy received, also if a vector env has
    reset itself. Entries that are not tensors are left out.

    What a first step followed is unknown, so that it is left out.

    Raises:
        ArgumentError: There are no steps, or an entry differs in shape or dtype between steps.
    """
    observations = list(env.full_observation_spec.keys(True, True))
    results = [*observations, *env.reward_keys, *env.done_keys]
    actions = list(env.full_action_spec.keys(True, True))
    before: dict[NestedKey, Any] | None = None
    columns: dict[NestedKey, list[Any]] = {}
    steps = 0
    for trace in traces:
        if trace.error is not None:
            continue
        if trace.phase == "step" and before is not None:
            given, after = trace.tensordict, trace.env_tensordict
            row = before | {key: given.get(key, None) for key in actions}
            row |= {("next", *split_key(key)): after.get(key, None) for key in results}
            for key, value in row.items():
                columns.setdefault(key, []).append(value)
            steps += 1
        outermost = trace.after(len(env.specs()))
        returned = {key: outermost.get(key) for key in observations}
        before = {key: each and each.value for key, each in returned.items()}
    if not steps:
        raise ArgumentError("no steps since the reset", hint="make a step first")
    size = env.batch_size
    rollout = TensorDict({}, (*size, steps))
    for key, values in columns.items():
        forms = {
            (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else None
            for value in values
        }
        if len(forms) > 1:
            raise ArgumentError(
                "its shape or dtype differs between steps, which a dump cannot store",
                hint="add a wrapper that pads it to a fixed shape",
                where=Where(key=key),
            )
        if None not in forms:
            rollout.set(key, torch.stack(values, len(size)))
    return rollout


def _to_numpy(value: Any) -> Any:
    if isinstance(value, TensorDictBase):
        return {key: _to_numpy(each) for key, each in value.items()}
    assert isinstance(value, Tensor)
    array = value.detach().cpu().numpy()
    return array if array.ndim else array[()]
