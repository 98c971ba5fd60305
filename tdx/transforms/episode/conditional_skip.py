"""Skip steps of the env."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import EnvOnlyTransform
from tdx.core.transforms.inner_steps import rows_where
from tdx.foundation.errors import ArgumentError
from tdx.foundation.tensordicts import read
from tdx.specs import Composite


class ConditionalSkip(EnvOnlyTransform):
    """Leave the env as it is in the steps where a condition holds.

    The output of a skipped step is its input, with a reward of zero. No stage of the same
    ``TransformedEnv`` sees that step; stages that have to, such as a counter of all steps, belong
    into a ``TransformedEnv`` around it. In a batch, rows are skipped one by one.

    Args:
        cond: Function of the input of a step, ``[*B]``, which it must not change. Returns a bool,
            or a tensor of shape ``[*B]`` or ``[*B, 1]``: true to skip the step.

    Raises:
        ArgumentError: ``cond`` is not a function; or, in a step, its result has another shape.
        ChainError: The env cannot step some rows of its batch (in a step).

    Example:
        >>> from tdx import ConditionalSkip, GymEnv, StepCounter, TransformedEnv
        >>> def odd(tensordict):
        ...     return tensordict["steps"] % 2 == 1
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(step_count_key="played"))
        >>> env.append_transform(ConditionalSkip(odd))  # doctest: +ELLIPSIS
        TransformedEnv(...
        >>> env = TransformedEnv(env, StepCounter(step_count_key="steps"))
        >>> env.rollout(6)["played"].flatten()
        tensor([0, 1, 1, 2, 2, 3])
    """

    why_not_exported = "it decides on steps of the env"
    _is_verified = True
    skips_steps = True

    time_behavior = TimeBehavior.CONTROL

    def __init__(self, cond: Callable[[TensorDictBase], Any]) -> None:
        if not callable(cond):
            raise ArgumentError(
                f"cond must be a function of a TensorDict, got {cond!r}",
                hint='for example lambda td: td["observation"][..., 0] > 1',
            )
        super().__init__()
        self.cond = cond

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows = ~rows_where(self.cond, tensordict, "cond")
        given = read(tensordict, "_step")
        return tensordict.set("_step", rows if given is None else rows & given)

    def _reset_env_preprocess(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict  # A reset is never skipped.

    def inv_present(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return tensordict_reset

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Return the output spec unchanged."""
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """Return the input spec unchanged."""
        return input_spec

    def __repr__(self) -> str:
        return f"ConditionalSkip({getattr(self.cond, '__name__', type(self.cond).__name__)})"
