"""Let another policy act in some steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import all_reset_masks
from tdx.core.envs.step_mdp import advance
from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import EnvOnlyTransform
from tdx.core.transforms.inner_steps import (
    end_keys,
    require_upstream,
    rows_where,
    running_rows,
    step_rows,
)
from tdx.core.transforms.scan import reset_rows
from tdx.core.transforms.spec_maps import output_keys
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, normalize_key
from tdx.specs import Composite


class ConditionalPolicySwitch(EnvOnlyTransform):
    """Step the env with another policy where a condition holds, such as the opponent's turn.

    After each step and reset, the condition is evaluated on the output. Rows in which it holds and
    that are not done are stepped once more, with the action of this policy; their output,
    rewards included, is that of the second step. Upstream stages see both steps, later ones the
    second only, so the transform comes after the stages that its policy needs.

    Args:
        policy: Writes the actions: a function of a TensorDict ``[*B]`` that returns one.
        condition: Function of the output of a step, ``[*B]``, which it must not change. Returns a
            bool, or a tensor of shape ``[*B]`` or ``[*B, 1]``.

    Raises:
        ArgumentError: ``policy`` or ``condition`` is not a function; or, in a step, the condition
            has another shape.
        ChainError: The env cannot step some rows of its batch (in a step).

    Example:
        >>> from tdx import ConditionalPolicySwitch, GymEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
        >>> def left(tensordict):
        ...     return tensordict.set("action", env.action_spec.zero())
        >>> def odd(tensordict):
        ...     return tensordict["step_count"] % 2 == 1
        >>> turns = env.append_transform(ConditionalPolicySwitch(left, odd))
        >>> turns.rollout(3)["next", "step_count"].flatten()
        tensor([2, 4, 6])
    """

    why_not_exported = "it steps the env"
    _is_verified = True
    steps_env = True

    time_behavior = TimeBehavior.CONTROL

    def __init__(
        self,
        policy: Callable[[TensorDictBase], TensorDictBase],
        condition: Callable[[TensorDictBase], Any],
    ) -> None:
        for name, function in (("policy", policy), ("condition", condition)):
            if not callable(function):
                raise ArgumentError(
                    f"{name} must be a function of a TensorDict, got {function!r}",
                    hint='for example lambda td: td["observation"][..., 0] > 1',
                )
        super().__init__()
        self.policy, self.condition = policy, condition
        self._done_keys: list[NestedKey] = []
        self._reward_keys: list[NestedKey] = []
        self._outputs: tuple[NestedKey, ...] = ()

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        self._done_keys = end_keys(output_spec["full_done_spec"])
        self._outputs = tuple(output_keys(output_spec))
        rewards = output_spec["full_reward_spec"]
        self._reward_keys = [normalize_key(key) for key in rewards.keys(True, True)]

    @property
    def written_keys(self) -> tuple[NestedKey, ...]:
        return self._outputs

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        rows = self._switched(next_tensordict)
        if not bool(rows.any()):
            return next_tensordict
        held = tensordict.exclude("next", "_step").set("next", next_tensordict)
        return self._play(advance(held, self._reward_keys), rows, next_tensordict)

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        rows = self._switched(tensordict_reset)
        before = tensordict_reset.clone(recurse=False)
        if tensordict is not None:
            # The reset of a single agent starts no episode.
            reset = reset_rows(tensordict, "_reset", rows)
            rows = rows if reset is None else rows & reset.to(rows.device)
            before = tensordict.exclude("next", *all_reset_masks(tensordict)).update(before)
        if not bool(rows.any()):
            return tensordict_reset
        return self._play(before, rows, tensordict_reset).exclude(*self._reward_keys)

    def _switched(self, output: TensorDictBase) -> Tensor:
        """Return in which rows of an output this policy acts, bool ``[*B]``."""
        rows = rows_where(self.condition, output, "condition")
        return rows & running_rows(output, self._done_keys)

    def _play(self, before: TensorDictBase, rows: Tensor, kept: TensorDictBase) -> TensorDictBase:
        acted = self.policy(before.clone(recurse=False))
        if not isinstance(acted, TensorDictBase):
            raise ArgumentError(
                f"the policy of ConditionalPolicySwitch returned {type(acted).__name__}, it must "
                "return a TensorDict",
                hint="end the policy with `return tensordict`",
            )
        env, stages = require_upstream(self)
        return step_rows(env, stages, before.update(acted), rows, kept)

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """Return the output spec unchanged."""
        return output_spec

    def __repr__(self) -> str:
        names = (getattr(f, "__name__", type(f).__name__) for f in (self.policy, self.condition))
        return "ConditionalPolicySwitch(policy={}, condition={})".format(*names)
