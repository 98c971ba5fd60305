"""A stack of another library in a live session: what the session reads of an env and a tracer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.tracing import StepTrace, TraceHistory
from tdx.errors import ArgumentError, Where
from tdx.keys import NestedKey, split_key
from tdx.specs import Composite
from tdx.stacks import Stack, StackTracer


class StackEnv:
    """A stack with the attributes of an env that a live session reads.

    Args:
        stack: Stack of another library.

    Example:
        >>> import gymnasium
        >>> from tdx.stacks import open_stack
        >>> env = StackEnv(open_stack(gymnasium.make("CartPole-v1")))
        >>> env.batch_size, env.reward_keys
        (torch.Size([]), ['reward'])
    """

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
        self.reward_keys: list[NestedKey] = list(self.full_reward_spec.keys(True, True))

    @property
    def free_keys(self) -> tuple[str, ...]:
        """See :class:`~tdx.stacks.Stack`."""
        return self.stack.free_keys

    @property
    def batch_locked(self) -> bool:
        """See :class:`~tdx.stacks.Stack`."""
        return self.stack.batch_locked

    def specs(self) -> list[Any]:
        """See :class:`~tdx.stacks.Stack`."""
        return self._specs


class LiveStackTracer(StackTracer):
    """Records the steps of a stack for a live session.

    Args:
        env: The stack.
        policy: Takes an observation and returns an action. ``None``: random actions.
        history: Where to keep the traces.
        clock: Returns nanoseconds.
    """

    def __init__(
        self,
        env: StackEnv,
        policy: Callable[[Any], Any] | None,
        history: TraceHistory,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(env.stack, env.stack.driver(policy), history)
        self.clock = clock
        self._env, self._followed = env, policy

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
            self._driver, self._followed = self._env.stack.driver(policy), policy

    def reset_done(self) -> StepTrace:
        """Start the episodes that are due."""
        return self.reset()

    def step(self, action: Any = None) -> StepTrace:
        """Make one step.

        Args:
            action: Action keys as tensors, which become the action of the env: arrays, numbers,
                and a dict of them. ``None``: the action of the policy.
        """
        return super().step(None if action is None else _native_action(action))


def stack_rollout(env: StackEnv, traces: Iterable[StepTrace]) -> TensorDictBase:
    """Return the values of the outermost stage in consecutive steps, ``[*B, T]``.

    The observation before a step is the one that the policy received, also if a vector env has
    reset itself. Entries that are not tensors are left out.

    Args:
        env: The stack.
        traces: Consecutive traces. Steps before the first reset or step are unknown, so that a
            first trace of a step is left out.

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
            values = before | {key: given.get(key, None) for key in actions}
            values |= {("next", *split_key(key)): after.get(key, None) for key in results}
            for key, value in values.items():
                columns.setdefault(key, []).append(value)
            steps += 1
        outermost = trace.after(len(env.specs()))
        returned = {key: outermost.get(key) for key in observations}
        before = {key: each and each.value for key, each in returned.items()}
    if not steps:
        raise ArgumentError("no steps since the reset", hint="make a step first")
    return _stack_columns(columns, env.batch_size, steps)


def _stack_columns(
    columns: Mapping[NestedKey, list[Any]], size: torch.Size, steps: int
) -> TensorDictBase:
    rollout = TensorDict({}, (*size, steps))
    for key, values in columns.items():
        found = {
            (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else None
            for value in values
        }
        if len(found) > 1:
            raise ArgumentError(
                "its shape or dtype differs between steps, which a dump cannot store",
                hint="add a wrapper that pads it to a fixed shape",
                where=Where(key=key),
            )
        if None not in found:
            rollout.set(key, torch.stack(values, len(size)))
    return rollout


def _native_action(action: TensorDictBase) -> Any:
    """Return the action that a TensorDict with the key ``action`` holds."""
    return _to_numpy(action["action"])


def _to_numpy(value: Any) -> Any:
    if isinstance(value, TensorDictBase):
        return {key: _to_numpy(each) for key, each in value.items()}
    assert isinstance(value, Tensor)
    array = value.detach().cpu().numpy()
    return array if array.ndim else array[()]
