"""A stack of another library in a live session: what the session reads of an env and a tracer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.tracing import StepTrace, TraceHistory
from tdx.keys import NestedKey
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


def _native_action(action: TensorDictBase) -> Any:
    """Return the action that a TensorDict with the key ``action`` holds."""
    return _to_numpy(action["action"])


def _to_numpy(value: Any) -> Any:
    if isinstance(value, TensorDictBase):
        return {key: _to_numpy(each) for key, each in value.items()}
    assert isinstance(value, Tensor)
    array = value.detach().cpu().numpy()
    return array if array.ndim else array[()]
