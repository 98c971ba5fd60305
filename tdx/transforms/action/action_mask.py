"""Restrict a discrete action by a mask."""

from __future__ import annotations

from math import prod
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.core.transforms import TimeBehavior, Transform
from tdx.core.transforms.families import action_leaf, batch_dims_of
from tdx.core.transforms.scan import reset_rows
from tdx.core.transforms.spec_maps import map_leaves, require_keys
from tdx.foundation.errors import ChainError, Where
from tdx.foundation.keys import NestedKey, format_key
from tdx.foundation.tensordicts import read
from tdx.foundation.torch_internals import is_exporting
from tdx.specs import Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, TensorSpec

Maskable = Categorical | MultiCategorical | MultiOneHot | OneHot


class ActionMask(Transform):
    """Update the mask of the action spec from the observed mask, after each reset and step.

    ``rand_action`` then draws only actions that are allowed, and the spec contains only those.
    The mask is that of the last step of this env. Stored data is not changed.

    A mask of combinations, such as the cells of a board for an action (row, column), turns
    several actions into one: the index of a combination in the flattened mask, one-hot if the
    env's actions are. The env still gets one action per dim.

    Args:
        action_key: Discrete action of the env.
        mask_key: Observation with the allowed actions: bool, or integers of which nonzero is
            allowed. Shape ``[*B, n]`` for ``n`` categories; for several actions, ``[*B, n]`` with
            their sum, or ``[*B, n1, n2, ...]`` for their combinations. A shape that fits both, as
            for two actions with two categories, is that of a mask for each action.

    Raises:
        KeyNotFoundError: The env has no such action or mask (when its specs are computed).
        ChainError: The action is not discrete, or the mask has another shape than required (when
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

    time_behavior = TimeBehavior.CONTROL

    def __init__(
        self, action_key: NestedKey = "action", mask_key: NestedKey = "action_mask"
    ) -> None:
        super().__init__([mask_key], [mask_key])
        self._set_inverse_keys([action_key], [action_key])
        # Shared by all copies of the action spec, including those of later stages.
        self._mask: Tensor | None = None
        # Numbers of categories of the env's actions, if the mask is one of their combinations.
        self._sizes: tuple[int, ...] = ()
        self._kind: type[TensorSpec] = Categorical

    @property
    def action_key(self) -> NestedKey:
        """Discrete action of the env."""
        return self.in_keys_inv[0]

    @property
    def mask_key(self) -> NestedKey:
        """Observation with the allowed actions."""
        return self.in_keys[0]

    @property
    def written_keys(self) -> tuple[NestedKey, ...]:
        return ()

    @property
    def invertible(self) -> bool:
        """True if the policy selects a combination of actions; otherwise actions are unchanged."""
        return bool(self._sizes)

    # Data

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._update_mask(next_tensordict, None)
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        self._update_mask(tensordict_reset, tensordict)
        return tensordict_reset

    def _update_mask(self, source: TensorDictBase, reset_input: TensorDictBase | None) -> None:
        """Update the mask from the output of a step, or from the reset rows of a reset."""
        given, mask = read(source, self.mask_key), self._mask
        if given is None:
            raise self._missing_key(self.mask_key, source)
        # The mask restricts the spec of the action; an exported chain has no spec.
        if mask is None or is_exporting():
            return
        wanted = torch.Size((*mask.shape[:-1], *(self._sizes or mask.shape[-1:])))
        if given.shape != wanted:
            raise self._wrong_shape(given.shape, wanted)
        given = given.to(device=mask.device, dtype=torch.bool).reshape(mask.shape)
        rows = reset_rows(reset_input, self.mask_key, given)
        mask.copy_(given if rows is None else torch.where(rows.to(mask.device), given, mask))

    def _inv_apply_transform(self, action: Tensor) -> Tensor:
        """Return the env's actions for the index of a combination."""
        if not self._sizes:
            return action
        is_one_hot = issubclass(self._kind, OneHot)
        index = action.int().argmax(-1) if is_one_hot else action
        parts: list[Tensor] = []
        for size in reversed(self._sizes):
            parts.insert(0, index % size)
            index = index // size
        if not is_one_hot:
            return torch.stack(parts, -1)
        rows = [
            part.unsqueeze(-1).eq(torch.arange(size, device=part.device)).to(action.dtype)
            for part, size in zip(parts, self._sizes, strict=True)
        ]
        return torch.cat(rows, -1) if self._kind is MultiOneHot else torch.stack(rows, -2)

    def _wrong_shape(self, given: torch.Size, wanted: torch.Size) -> ChainError:
        return ChainError(
            f"the mask has shape {tuple(given)}, the action {format_key(self.action_key)!r} needs "
            f"{tuple(wanted)}",
            hint="a mask has one element for each category, after the batch dims",
            where=Where(key=self.mask_key),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return stored data unchanged, since it contains its masks."""
        return tensordict

    # Specs

    def _bind(self, input_spec: Composite, output_spec: Composite) -> None:
        spec = action_leaf(input_spec, self.action_key)
        wanted = self._mask_shape(spec)
        observed = output_spec["full_observation_spec"]
        observations: Any = {"full_observation_spec": observed}
        require_keys(
            Composite(observations, shape=observed.shape),
            [self.mask_key],
            "the observation spec at this stage",
        )
        given = observed[self.mask_key].shape
        self._kind, self._sizes = type(spec), ()
        if given != wanted:
            batch_dims = batch_dims_of(input_spec["full_action_spec"], self.action_key)
            sizes, lead = self._combination_sizes(spec, batch_dims), self._lead(spec)
            if not sizes or given != (*lead, *sizes):
                raise self._wrong_shape(given, wanted)
            self._sizes, wanted = sizes, torch.Size((*lead, prod(sizes)))
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
            hint="put ActionDiscretizer before ActionMask, or remove ActionMask",
            where=Where(key=self.action_key),
        )

    @staticmethod
    def _combination_sizes(spec: TensorSpec, batch_dims: int) -> tuple[int, ...]:
        """Return the numbers of categories of several actions; empty for a single one."""
        sizes: tuple[int, ...] = ()
        if isinstance(spec, MultiOneHot):
            sizes = tuple(spec.nvec)
        elif isinstance(spec, MultiCategorical):
            sizes = tuple(map(int, spec.nvec[(0,) * (spec.ndim - 1)]))
        elif isinstance(spec, OneHot) and spec.ndim == batch_dims + 2:
            sizes = (spec.shape[-1],) * spec.shape[-2]
        elif isinstance(spec, Categorical) and spec.ndim == batch_dims + 1:
            sizes = (spec.n,) * spec.shape[-1]
        return sizes if len(sizes) > 1 else ()

    @staticmethod
    def _lead(spec: TensorSpec) -> torch.Size:
        """Return the shape before the dims of several actions."""
        has_two = isinstance(spec, OneHot) and not isinstance(spec, MultiOneHot)
        return spec.shape[: -2 if has_two else -1]

    def transform_action_spec(self, action_spec: Any) -> Any:
        """Return the action spec with the mask, which is updated in each step."""

        def with_mask(spec: TensorSpec) -> TensorSpec:
            self._mask_shape(spec)  # raises for an action that is not discrete
            masked: TensorSpec = spec.clone()
            if self._sizes:
                assert spec.dtype is not None
                count, shape = prod(self._sizes), self._lead(spec)
                if isinstance(spec, OneHot):
                    masked = OneHot(count, (*shape, count), device=spec.device, dtype=spec.dtype)
                else:
                    masked = Categorical(count, shape, device=spec.device, dtype=spec.dtype)
            assert isinstance(masked, Maskable)
            if self._mask is not None:
                masked.update_mask(self._mask)
            return masked

        return map_leaves(action_spec, self._inverse_pairs, with_mask)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Return the state spec unchanged."""
        return state_spec

    def clone(self) -> Self:
        """Return a copy with its own mask."""
        copied = super().clone()
        copied._mask = None
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_mask": None}

    def __repr__(self) -> str:
        return f"ActionMask(action_key={self.action_key!r}, mask_key={self.mask_key!r})"
