"""Restrict a discrete action to what a mask allows."""

from __future__ import annotations

from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehaviour, Transform
from tdx.core.transforms.action import action_leaf
from tdx.core.transforms.key_pairs import require_keys
from tdx.core.transforms.scan import reset_rows
from tdx.errors import ChainError, Where
from tdx.keys import NestedKey, format_key
from tdx.specs import Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, TensorSpec
from tdx.tensordicts import read

Maskable = Categorical | MultiCategorical | MultiOneHot | OneHot


class ActionMask(Transform):
    """Give the action spec the mask that the env observes, after each reset and step.

    ``rand_action`` then draws, and the spec then holds, only what is allowed right now. The mask
    is that of the last step which this env made. Stored data stays as it is.

    Args:
        action_key: the env's discrete action.
        mask_key: which actions are allowed, in the env's observations: bool, or integers that
            are not zero; ``[*B, n]`` for ``n`` categories, or their sum for several.

    Raises:
        KeyNotFoundError: the env has no such action or mask (when its specs are computed).
        ChainError: the action is not discrete, or the mask has another shape than it needs (when
            its specs are computed, or in a step).

    Example:
        >>> from tdx import ActionMask, GymEnv, TransformedEnv, default_info_dict_reader
        >>> taxi = GymEnv("Taxi-v4", categorical_action_encoding=True)
        >>> reader = default_info_dict_reader(["action_mask"])
        >>> env = TransformedEnv(taxi.set_info_dict_reader(reader), ActionMask())
        >>> start = env.reset()
        >>> chosen = env.rand_action(start)["action"]
        >>> start["action_mask"][chosen].item()
        1
    """

    _is_verified = True

    time_behaviour = TimeBehaviour.CONTROL

    def __init__(
        self, action_key: NestedKey = "action", mask_key: NestedKey = "action_mask"
    ) -> None:
        super().__init__([mask_key], [mask_key])
        self._set_inverse_keys([action_key], [action_key])
        # Shared by every copy of the action spec, wherever later stages put it.
        self._mask: Tensor | None = None

    @property
    def action_key(self) -> NestedKey:
        """The env's discrete action."""
        return self.in_keys_inv[0]

    @property
    def mask_key(self) -> NestedKey:
        """The observation that says what is allowed."""
        return self.in_keys[0]

    @property
    def _written_keys(self) -> tuple[NestedKey, ...]:
        return ()

    @property
    def invertible(self) -> bool:
        """Nothing happens to an action on the way in."""
        return False

    # Data

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._take(next_tensordict, None)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        self._take(tensordict_reset, tensordict)
        return tensordict_reset

    def _take(self, source: TensorDictBase, reset_input: TensorDictBase | None) -> None:
        """Take over the mask of a step or a reset; the rows that are not reset keep theirs."""
        found, mask = read(source, self.mask_key), self._mask
        if found is None:
            raise self._missing(self.mask_key, source)
        if mask is None:
            return
        if found.shape != mask.shape:
            raise self._wrong_shape(found.shape, mask.shape)
        found = found.to(device=mask.device, dtype=torch.bool)
        rows = reset_rows(reset_input, self.mask_key, found)
        mask.copy_(found if rows is None else torch.where(rows.to(mask.device), found, mask))

    def _wrong_shape(self, found: torch.Size, wanted: torch.Size) -> ChainError:
        return ChainError(
            f"the mask has shape {tuple(found)}, the action {format_key(self.action_key)!r} needs "
            f"{tuple(wanted)}",
            hint="a mask has one entry for each category, after the batch",
            where=Where(key=self.mask_key),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data as it is: it holds its masks already."""
        return tensordict

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        spec = action_leaf(input_spec, self.action_key)
        observed = output_spec["full_observation_spec"]
        observations: Any = {"full_observation_spec": observed}
        require_keys(
            Composite(observations, shape=observed.shape),
            [self.mask_key],
            "the observation spec at this stage",
        )
        wanted = self._mask_shape(spec)
        found = observed[self.mask_key]
        if found.shape != wanted:
            raise self._wrong_shape(found.shape, wanted)
        old = self._mask
        if old is None or old.shape != wanted or old.device != spec.device:
            self._mask = torch.ones(wanted, dtype=torch.bool, device=spec.device)

    def _mask_shape(self, spec: TensorSpec) -> torch.Size:
        if isinstance(spec, (OneHot, MultiOneHot)):
            return spec.shape
        if isinstance(spec, MultiCategorical):
            row = spec.nvec[(0,) * (spec.ndim - 1)]
            return torch.Size((*spec.shape[:-1], int(row.sum())))
        if isinstance(spec, Categorical):
            return torch.Size((*spec.shape, spec.n))
        raise ChainError(
            f"the action is {type(spec).__name__}, a mask needs a discrete one",
            hint="put ActionDiscretizer before ActionMask, or leave ActionMask out",
            where=Where(key=self.action_key),
        )

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The action spec with the mask, which changes with each step."""
        result = action_spec.clone()
        result.unlock_()
        leaf = result[self.action_key].clone()
        assert isinstance(leaf, Maskable)
        leaf.update_mask(self._mask)
        result[self.action_key] = leaf
        return result

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec, which stays as it is."""
        return state_spec

    def clone(self) -> Self:
        """A transform of its own, with a mask of its own."""
        copied = super().clone()
        copied._mask = None
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_mask": None}

    def __repr__(self) -> str:
        return f"ActionMask(action_key={self.action_key!r}, mask_key={self.mask_key!r})"
