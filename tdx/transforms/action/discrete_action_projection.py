"""Take actions from a larger set than the env's."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from tdx.core.transforms import TimeBehavior
from tdx.core.transforms.families import ActionTransform, action_leaf
from tdx.core.transforms.spec_maps import map_leaves
from tdx.core.transforms.validation import check_integer
from tdx.foundation.errors import ArgumentError, ChainError, Where
from tdx.foundation.keys import NestedKey, format_key
from tdx.specs import Composite, OneHot, TensorSpec


class DiscreteActionProjection(ActionTransform):
    """Take one-hot actions with more categories than the env has.

    One policy then acts in several envs with different numbers of actions. A category that the
    env lacks is replaced by the remainder of its index, which the env has. Stored actions are
    mapped the other way, to one-hot vectors with the policy's number of categories.

    Args:
        num_actions_effective: Number of actions of the env.
        max_actions: Number of actions of the policy.
        action_key: One-hot action of the env.
        include_forward: Map stored actions; otherwise they stay as they are.

    Raises:
        ArgumentError: The policy has fewer actions than the env, or an action has another number
            of categories.
        KeyNotFoundError: The env has no such action (when its specs are computed).
        ChainError: The action is not one-hot with ``num_actions_effective`` categories (when its
            specs are computed).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tdx import DiscreteActionProjection
        >>> project = DiscreteActionProjection(2, 3)
        >>> project.inv(TensorDict(action=torch.tensor([0, 1, 0])))["action"]
        tensor([0, 1])
        >>> project(TensorDict(action=torch.tensor([0, 1])))["action"]
        tensor([0, 1, 0])
    """

    _is_verified = True

    time_behavior = TimeBehavior.POINTWISE

    def __init__(
        self,
        num_actions_effective: int,
        max_actions: int,
        action_key: NestedKey = "action",
        include_forward: bool = True,
    ) -> None:
        super().__init__([action_key])
        hint = "for example DiscreteActionProjection(4, 18)"
        self.num_actions_effective = check_integer(
            num_actions_effective, "num_actions_effective", 1, hint
        )
        self.max_actions = check_integer(max_actions, "max_actions", 1, hint)
        if max_actions < num_actions_effective:
            raise ArgumentError(
                f"max_actions ({max_actions}) is below num_actions_effective "
                f"({num_actions_effective})",
                hint="max_actions is the number of actions of the policy",
            )
        self.include_forward = include_forward

    @property
    def action_key(self) -> NestedKey:
        """One-hot action of the env."""
        return self.in_keys_inv[0]

    # Data

    def _inv_apply_transform(self, action: Tensor) -> Tensor:
        """Map the policy's action ``[*B, max_actions]`` to the env's."""
        self._check_categories(action, self.max_actions)
        count = self.num_actions_effective
        blocks = -(-self.max_actions // count)
        padded = pad(action, (0, blocks * count - self.max_actions))
        # The sum over the blocks moves each category to its remainder.
        return padded.unflatten(-1, (blocks, count)).sum(-2).to(action.dtype)

    def _apply_transform(self, action: Tensor) -> Tensor:
        """Map the env's action ``[*B, num_actions_effective]`` to the policy's."""
        if not self.include_forward:
            return action
        self._check_categories(action, self.num_actions_effective)
        return pad(action, (0, self.max_actions - self.num_actions_effective))

    def _check_categories(self, action: Tensor, count: int) -> None:
        if not action.ndim or action.shape[-1] != count:
            raise ArgumentError(
                f"an action of shape {tuple(action.shape)} is not one-hot with {count} categories",
                where=Where(key=self.action_key),
            )

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        spec = action_leaf(input_spec, self.action_key)
        if not isinstance(spec, OneHot) or spec.n != self.num_actions_effective:
            found = f"OneHot({spec.n})" if isinstance(spec, OneHot) else type(spec).__name__
            raise ChainError(
                f"the action {format_key(self.action_key)!r} is {found}, not "
                f"OneHot({self.num_actions_effective})",
                hint="num_actions_effective is the number of actions of the env",
                where=Where(key=self.action_key),
            )

    def transform_action_spec(self, action_spec: Any) -> Any:
        """Return the action spec with the policy's number of categories."""
        return map_leaves(action_spec, self._inverse_pairs, self._inv_transform_spec)

    def _inv_transform_spec(self, spec: Any) -> TensorSpec:
        shape = (*spec.shape[:-1], self.max_actions)
        return OneHot(self.max_actions, shape=shape, device=spec.device, dtype=spec.dtype)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec unchanged."""
        return state_spec

    def __repr__(self) -> str:
        return (
            f"DiscreteActionProjection({self.num_actions_effective}, {self.max_actions}, "
            f"action_key={self.action_key!r})"
        )
