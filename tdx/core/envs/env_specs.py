"""The specs of an env and the keys that follow from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tdx.core.envs.devices import present_device
from tdx.errors import KeyNotFoundError, SpecError
from tdx.keys import NestedKey, format_key, normalize_key, sibling_key, unique_keys
from tdx.specs import Categorical, Composite, TensorSpec, Unbounded


def default_done_spec(batch_size: torch.Size, device: torch.device) -> Composite:
    """``done``, ``terminated`` and ``truncated``, bool, of shape ``[*B, 1]``."""
    flag = Categorical(2, shape=(*batch_size, 1), dtype=torch.bool, device=device)
    return Composite(
        {name: flag.clone() for name in ("done", "terminated", "truncated")},
        shape=batch_size,
        device=device,
    )


class EnvSpecs(nn.Module):
    """Holds ``input_spec`` and ``output_spec``, and answers what can be read off them.

    Every spec is kept as a composite. The properties named after one thing (``action_spec``,
    ``reward_spec``, ``done_spec``) return the leaf itself where there is only one.

    Args:
        device: where the env's tensors live.
        batch_size: the leading dims of all that the env takes and returns.
    """

    def __init__(
        self,
        *,
        device: torch.device | str | int | None = None,
        batch_size: torch.Size | tuple[int, ...] | list[int] | None = None,
    ) -> None:
        super().__init__()
        self._device = present_device(device)
        self._batch_size = torch.Size(batch_size or ())
        self._input_spec: Composite | None = None
        self._output_spec: Composite | None = None
        self._key_cache: dict[str, Any] = {}
        self._own_spec_version = 0

    @property
    def _spec_version(self) -> int:
        """Grows whenever a spec changes, here or in an env inside."""
        return self._own_spec_version

    @property
    def device(self) -> torch.device:
        """Where the env's tensors live."""
        return self._device

    @property
    def batch_size(self) -> torch.Size:
        """How many envs are run at once; empty for a single one."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: torch.Size | tuple[int, ...] | list[int]) -> None:
        self._batch_size = torch.Size(value)
        self._forget_specs()

    @property
    def shape(self) -> torch.Size:
        """The same as :attr:`batch_size`."""
        return self.batch_size

    @property
    def ndim(self) -> int:
        """The number of batch dims."""
        return len(self.batch_size)

    @property
    def batch_dims(self) -> int:
        """The number of batch dims."""
        return len(self.batch_size)

    def ndimension(self) -> int:
        """The number of batch dims."""
        return len(self.batch_size)

    def numel(self) -> int:
        """How many single envs this one holds."""
        return self.batch_size.numel()

    def _forget_specs(self) -> None:
        """Drop what was derived from the specs; called whenever one of them changes."""
        self._key_cache = {}
        self._own_spec_version += 1

    def _composite(self, **children: Any) -> Composite:
        return Composite(children, shape=self.batch_size, device=self.device)

    def _default_output_spec(self) -> Composite:
        reward = Unbounded(shape=(*self.batch_size, 1), device=self.device)
        return self._composite(
            full_observation_spec=self._composite(),
            full_reward_spec=self._composite(reward=reward),
            full_done_spec=default_done_spec(self.batch_size, self.device),
        )

    def _default_input_spec(self) -> Composite:
        return self._composite(
            full_state_spec=self._composite(), full_action_spec=self._composite()
        )

    @property
    def output_spec(self) -> Composite:
        """What the env returns: ``full_observation_spec``, ``full_reward_spec`` and so on.

        It is locked; set its parts through their own properties.
        """
        if self._output_spec is None:
            self._output_spec = self._default_output_spec().lock_()
        return self._output_spec

    @property
    def input_spec(self) -> Composite:
        """What the env takes: ``full_state_spec`` and ``full_action_spec``; locked."""
        if self._input_spec is None:
            self._input_spec = self._default_input_spec().lock_()
        return self._input_spec

    @property
    def specs(self) -> Composite:
        """Every spec of the env in one composite."""
        return self._composite(output_spec=self.output_spec, input_spec=self.input_spec)

    def _set_part(self, side: str, part: str, leaf_name: str | None, value: TensorSpec) -> None:
        if not isinstance(value, TensorSpec):
            raise SpecError(
                f"{part} takes a spec, got {type(value).__name__}", hint="for example Unbounded(1)"
            )
        if not isinstance(value, Composite):
            if leaf_name is None:
                raise SpecError(
                    f"{part} takes a Composite, got {type(value).__name__}",
                    hint="name its entries: Composite(observation=...)",
                )
            value = Composite({leaf_name: value}, shape=self.batch_size, device=self.device)
        if value.shape[: self.ndim] != self.batch_size:
            raise SpecError(
                f"{part} has shape {tuple(value.shape)}, which does not start with the env's "
                f"batch size {tuple(self.batch_size)}",
                hint="expand the spec first: spec.expand(*env.batch_size, *spec.shape)",
            )
        whole = getattr(self, side).clone()
        whole.unlock_()
        whole[part] = value.to(self.device)
        setattr(self, f"_{side}", whole.lock_())
        self._forget_specs()

    @property
    def full_observation_spec(self) -> Composite:
        """All that is neither reward nor done, as a composite."""
        return self._part("output_spec", "full_observation_spec")

    @full_observation_spec.setter
    def full_observation_spec(self, value: Composite) -> None:
        self._set_part("output_spec", "full_observation_spec", None, value)

    @property
    def full_reward_spec(self) -> Composite:
        """The reward spec, always as a composite."""
        return self._part("output_spec", "full_reward_spec")

    @full_reward_spec.setter
    def full_reward_spec(self, value: TensorSpec) -> None:
        self._set_part("output_spec", "full_reward_spec", "reward", value)

    @property
    def full_done_spec(self) -> Composite:
        """The done flags' spec, always as a composite."""
        return self._part("output_spec", "full_done_spec")

    @full_done_spec.setter
    def full_done_spec(self, value: TensorSpec) -> None:
        self._set_part("output_spec", "full_done_spec", "done", value)

    @property
    def full_action_spec(self) -> Composite:
        """The action spec, always as a composite."""
        return self._part("input_spec", "full_action_spec")

    @full_action_spec.setter
    def full_action_spec(self, value: TensorSpec) -> None:
        self._set_part("input_spec", "full_action_spec", "action", value)

    @property
    def full_state_spec(self) -> Composite:
        """Every input that is not an action, as a composite."""
        return self._part("input_spec", "full_state_spec")

    @full_state_spec.setter
    def full_state_spec(self, value: Composite) -> None:
        self._set_part("input_spec", "full_state_spec", None, value)

    @property
    def observation_spec(self) -> Composite:
        """All that ``reset`` and ``step`` write besides reward and done: observations, info."""
        return self.full_observation_spec

    @observation_spec.setter
    def observation_spec(self, value: Composite) -> None:
        self.full_observation_spec = value

    @property
    def state_spec(self) -> Composite:
        """Every input that is not an action."""
        return self.full_state_spec

    @state_spec.setter
    def state_spec(self, value: Composite) -> None:
        self.full_state_spec = value

    @property
    def action_spec(self) -> TensorSpec:
        """The action's spec; the whole composite where there is more than one action."""
        return self._leaf_or_all("full_action_spec")

    @action_spec.setter
    def action_spec(self, value: TensorSpec) -> None:
        self.full_action_spec = value

    @property
    def reward_spec(self) -> TensorSpec:
        """The reward's spec; the whole composite where there is more than one reward."""
        return self._leaf_or_all("full_reward_spec")

    @reward_spec.setter
    def reward_spec(self, value: TensorSpec) -> None:
        self.full_reward_spec = value

    @property
    def done_spec(self) -> TensorSpec:
        """The done flag's spec; the whole composite where there is more than one flag."""
        return self._leaf_or_all("full_done_spec")

    @done_spec.setter
    def done_spec(self, value: TensorSpec) -> None:
        self.full_done_spec = value

    def _part(self, side: str, part: str) -> Composite:
        found = getattr(self, side)[part]
        assert isinstance(found, Composite)
        return found

    def _leaf_or_all(self, part: str) -> TensorSpec:
        full: Composite = getattr(self, part)
        leaves = list(full.values(True, True))
        return leaves[0] if len(leaves) == 1 else full

    def _keys_of(self, part: str) -> list[NestedKey]:
        keys = self._key_cache.get(part)
        if keys is None:
            full: Composite = getattr(self, part)
            keys = self._key_cache[part] = [normalize_key(key) for key in full.keys(True, True)]
        return list(keys)

    def _only_key(self, part: str, kind: str) -> NestedKey:
        keys = self._keys_of(part)
        if len(keys) != 1:
            listed = ", ".join(map(format_key, keys)) or "none"
            raise KeyNotFoundError(
                f"the env has {len(keys)} {kind} keys ({listed})",
                hint=f"use {kind}_keys where there is not exactly one",
            )
        return keys[0]

    @property
    def observation_keys(self) -> list[NestedKey]:
        """The keys of the observation spec's leaves."""
        return self._keys_of("full_observation_spec")

    @property
    def state_keys(self) -> list[NestedKey]:
        """The keys of the state spec's leaves."""
        return self._keys_of("full_state_spec")

    @property
    def action_keys(self) -> list[NestedKey]:
        """The keys of the action spec's leaves."""
        return self._keys_of("full_action_spec")

    @property
    def action_key(self) -> NestedKey:
        """The action's key.

        Raises:
            KeyNotFoundError: there is not exactly one.
        """
        return self._only_key("full_action_spec", "action")

    @property
    def reward_keys(self) -> list[NestedKey]:
        """The keys of the reward spec's leaves."""
        return self._keys_of("full_reward_spec")

    @property
    def reward_key(self) -> NestedKey:
        """The reward's key.

        Raises:
            KeyNotFoundError: there is not exactly one.
        """
        return self._only_key("full_reward_spec", "reward")

    @property
    def done_keys(self) -> list[NestedKey]:
        """The keys of the done spec's leaves: ``done``, ``terminated``, ``truncated``."""
        return self._keys_of("full_done_spec")

    @property
    def done_key(self) -> NestedKey:
        """The done flag's key: the one that ends in ``done``, or the only one there is.

        Raises:
            KeyNotFoundError: there is not exactly one.
        """
        ends = [key for key in self.done_keys if key == "done" or key[-1] == "done"]
        return ends[0] if len(ends) == 1 else self._only_key("full_done_spec", "done")

    @property
    def done_keys_groups(self) -> list[list[NestedKey]]:
        """The done keys, those that sit side by side in one group."""
        groups: dict[NestedKey, list[NestedKey]] = {}
        for key in self.done_keys:
            groups.setdefault(sibling_key(key, "_reset"), []).append(key)
        return list(groups.values())

    @property
    def reset_keys(self) -> list[NestedKey]:
        """The keys of the partial-reset masks: ``_reset`` beside each group of done keys."""
        keys = self._key_cache.get("reset")
        if keys is None:
            keys = unique_keys(sibling_key(key, "_reset") for key in self.done_keys)
            self._key_cache["reset"] = keys
        return list(keys)
