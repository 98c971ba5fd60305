"""Specs, batch size and device of an env, and the keys that follow from the specs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.core.envs.done_flags import (
    complete_done_spec,
    default_input_spec,
    default_output_spec,
    end_masks,
    episode_end_flags,
    inherit_masks,
)
from tdx.foundation.errors import DeviceError, KeyNotFoundError, SpecError
from tdx.foundation.keys import (
    NestedKey,
    format_key,
    normalize_key,
    sibling_key,
    split_key,
    unique_keys,
)
from tdx.foundation.tensordicts import new_tensordict
from tdx.specs import Categorical, Composite, TensorSpec
from tdx.specs.arguments import as_device

_SIDES = {
    "full_observation_spec": ("output_spec", "observation"),
    "full_reward_spec": ("output_spec", "reward"),
    "full_done_spec": ("output_spec", "done"),
    "full_action_spec": ("input_spec", "action"),
    "full_state_spec": ("input_spec", None),
}
"""For each part, the composite that holds it, and the key of a lone leaf."""


class _NoCache(dict[str, Any]):
    """Cache of specs that may change at any time: it keeps nothing."""

    def __setitem__(self, name: str, value: Any) -> None:
        """Drop the value."""


class EnvSpecs:
    """Specs, batch size and device of an env. Every part of the specs is a composite.

    Unlocked specs may be changed in place, so nothing is derived from them in advance.

    Example:
        >>> from tdx import Unbounded
        >>> specs = EnvSpecs(None, torch.Size([2]))
        >>> specs.set_part("full_action_spec", Unbounded((2, 3)))
        >>> specs.keys("full_action_spec"), specs.part("full_done_spec")["done"].shape
        (['action'], torch.Size([2, 1]))
    """

    completes_done = True
    """If True, :meth:`lock` adds ``terminated`` to groups of flags with only ``done``, and back."""

    def __init__(self, device: torch.device | str | int | None, batch_size: torch.Size) -> None:
        self.main_device = available_device(device)
        self.device: torch.device | None = self.main_device
        self.batch_size = batch_size
        self.version: float = 0
        self.cache: dict[str, Any] = {}
        self.is_locked = True
        self.lone_flag: NestedKey | None = None
        self._input_spec: Composite | None = None
        self._output_spec: Composite | None = None

    @property
    def output_spec(self) -> Composite:
        """What the env returns."""
        if self._output_spec is None:
            self._output_spec = default_output_spec(self.batch_size, self.main_device)
            self._apply_lock()
        return self._output_spec

    @property
    def input_spec(self) -> Composite:
        """What the env takes."""
        if self._input_spec is None:
            self._input_spec = default_input_spec(self.batch_size, self.main_device)
            self._apply_lock()
        return self._input_spec

    def placed(self) -> Self:
        """Update batch size and device if they follow from another env; return the specs."""
        return self

    # Reading

    def part(self, name: str) -> Composite:
        """Return one part, such as ``full_reward_spec``."""
        whole = self.output_spec if _SIDES[name][0] == "output_spec" else self.input_spec
        part = whole[name]
        assert isinstance(part, Composite)
        return part

    def leaf(self, name: str) -> TensorSpec:
        """Return the only leaf of a part; the composite if there is more than one leaf.

        A flag that was added to the only done flag does not count.
        """
        full = self.part(name)
        leaves = dict(full.items(True, True))
        if len(leaves) == 2 and name == "full_done_spec" and self.lone_flag in leaves:
            return leaves[self.lone_flag]
        return next(iter(leaves.values())) if len(leaves) == 1 else full

    def keys(self, name: str) -> list[NestedKey]:
        """Return the keys of the leaves of a part."""
        cache = self.cache
        keys = cache.get(name)
        if keys is None:
            full = self.part(name)
            keys = cache[name] = [normalize_key(key) for key in full.keys(True, True)]
        return list(keys)

    def whole(self) -> Composite:
        """Return all specs in one composite."""
        return Composite(
            output_spec=self.output_spec,
            input_spec=self.input_spec,
            shape=self.batch_size,
            device=self.device,
        )

    def done_groups(self) -> list[list[NestedKey]]:
        """Return the done keys by group: keys with the same parent are one group."""
        groups: dict[NestedKey, list[NestedKey]] = {}
        for key in self.keys("full_done_spec"):
            groups.setdefault(sibling_key(key, "_reset"), []).append(key)
        return list(groups.values())

    def reset_keys(self) -> list[NestedKey]:
        """Return the keys of the partial-reset masks: ``_reset`` in each group of done keys."""
        cache = self.cache
        keys = cache.get("reset")
        if keys is None:
            done_keys = self.keys("full_done_spec")
            keys = cache["reset"] = unique_keys(sibling_key(key, "_reset") for key in done_keys)
        return list(keys)

    def end_keys(self) -> list[NestedKey]:
        """Return the flags that end an episode and cause a reset, the same list for each call."""
        cache = self.cache
        keys: list[NestedKey] | None = cache.get("ends")
        if keys is None:
            keys = cache["ends"] = episode_end_flags(self.keys("full_done_spec"))
        return keys

    def output_keys(self) -> tuple[NestedKey, ...]:
        """Return the keys of all leaves that a step or a reset writes."""
        cache = self.cache
        keys: tuple[NestedKey, ...] | None = cache.get("outputs")
        if keys is None:
            parts = ("full_observation_spec", "full_reward_spec", "full_done_spec")
            keys = cache["outputs"] = tuple(key for part in parts for key in self.keys(part))
        return keys

    def dropped_keys(self) -> list[NestedKey]:
        """Return the keys that ``step_mdp`` leaves out, the same list for each call.

        These are the rewards that are not also a state, and groups of rewards without entries.
        """
        cache = self.cache
        keys: list[NestedKey] | None = cache.get("dropped")
        if keys is None:
            states = self.keys("full_state_spec")
            rewards = self.keys("full_reward_spec")
            groups = {normalize_key(key) for key in self.part("full_reward_spec").keys(True)}
            for key in rewards:
                parts = split_key(key)
                groups -= {normalize_key(parts[:depth]) for depth in range(1, len(parts) + 1)}
            for name in ("full_observation_spec", "full_done_spec", "full_state_spec"):
                groups -= {normalize_key(key) for key in self.part(name).keys(True)}
            keys = cache["dropped"] = [*(key for key in rewards if key not in states), *groups]
        return keys

    def has_dynamic_shapes(self) -> bool:
        """Return True if a shape varies: it is declared with a dim of -1."""
        cache = self.cache
        dynamic: bool | None = cache.get("dynamic")
        if dynamic is None:
            leaves = (*self.output_spec.values(True, True), *self.input_spec.values(True, True))
            dynamic = cache["dynamic"] = any(-1 in leaf.shape for leaf in leaves)
        return dynamic

    def fake_tensordict(self) -> TensorDict:
        """Return zeros for every key of a step, in the declared shapes, dtypes and device."""
        observation = self.part("full_observation_spec").zero()
        reward, done = self.part("full_reward_spec").zero(), self.part("full_done_spec").zero()
        state, action = self.part("full_state_spec").zero(), self.part("full_action_spec").zero()
        following = new_tensordict({}, self.batch_size, self.device)
        for part in (observation.clone(), reward, done.clone()):
            following.update(part)
        root = new_tensordict({}, self.batch_size, self.device)
        # The parts merge into each other where they share a nested key, so ``next`` comes first.
        for part in (observation, done, state, action):
            root.update(part)
        root.set("next", following)
        return root

    # Writing

    def lock(self) -> None:
        """Forbid changes in place."""
        if not self.is_locked:
            self.is_locked = True
            if self._output_spec is not None:
                self._complete_done(self.part("full_done_spec"))
            self.version, self.cache = self._locked_version + 1, {}
        self._apply_lock()

    def unlock(self) -> None:
        """Allow changes in place."""
        if self.is_locked:
            self.is_locked = False
            # NaN equals no version, so that whatever depends on the specs reads them each time.
            self._locked_version, self.version = self.version, math.nan
            self.cache = _NoCache()
        self._apply_lock()

    def _apply_lock(self) -> None:
        for spec in (self._input_spec, self._output_spec):
            if spec is not None:
                spec.lock_() if self.is_locked else spec.unlock_()

    def invalidate(self) -> None:
        """Drop everything derived from the specs, as after each change of one of them."""
        if self.is_locked:
            self.cache = {}
            self.version += 1

    def set_part(self, name: str, value: TensorSpec) -> None:
        """Replace one part."""
        side, leaf_name = _SIDES[name]
        value = self._as_part(name, leaf_name, value).to(self.main_device)
        if name == "full_done_spec":
            self.lone_flag = None
            if not self.is_locked:
                # Only while the env is constructed: a spec that is assigned later is kept.
                value = value.clone()
                self._complete_done(value)
        whole: Composite = getattr(self, side)
        if self.is_locked:
            whole = whole.clone()
            whole.unlock_()
        whole[name] = value
        setattr(self, f"_{side}", whole)
        self._apply_lock()
        self.invalidate()

    def _complete_done(self, flags: Composite) -> None:
        """Add missing done flags in place, and remember the given one if it is the only one."""
        given = list(flags.keys(True, True))
        if len(given) == 1:
            self.lone_flag = given[0]
        if self.completes_done:
            flags.unlock_()
            complete_done_spec(flags)

    def _as_part(self, name: str, leaf_name: str | None, value: Any) -> Composite:
        if not isinstance(value, TensorSpec):
            raise SpecError(
                f"{name} takes a spec, got {type(value).__name__}", hint="for example Unbounded(1)"
            )
        if not isinstance(value, Composite):
            if leaf_name is None:
                raise SpecError(
                    f"{name} takes a Composite, got {type(value).__name__}",
                    hint="name its entries: Composite(observation=...)",
                )
            value = Composite({leaf_name: value}, shape=self.batch_size, device=self.device)
        if value.shape[: len(self.batch_size)] != self.batch_size:
            raise SpecError(
                f"{name} has shape {tuple(value.shape)}, which does not start with the env's "
                f"batch size {tuple(self.batch_size)}",
                hint="expand the spec first: spec.expand(*env.batch_size, *spec.shape)",
            )
        return value

    def set_specs(self, input_spec: Composite, output_spec: Composite) -> None:
        """Replace all parts by specs of the same batch size and device."""
        if not self.is_locked:
            # Another env may use them, or they may be part of a locked composite.
            input_spec, output_spec = input_spec.clone(), output_spec.clone()
        self._input_spec, self._output_spec = input_spec, output_spec
        self._apply_lock()
        self.invalidate()

    def declare(self, input_spec: Composite | None, output_spec: Composite | None) -> None:
        """Adopt specs that the class of an env declares; missing parts get their defaults."""
        given = output_spec if output_spec is not None else input_spec
        if given is None:
            return
        self.batch_size = given.shape
        sides = (self.input_spec, input_spec), (self.output_spec, output_spec)
        for side, declared in sides:
            for name, spec in () if declared is None else declared.items():
                value = spec.clone()
                side[name] = self._as_part(name, _SIDES[name][1], value).to(self.main_device)
        self.invalidate()

    def place(
        self,
        device: torch.device | str | int | None,
        batch_size: tuple[int, ...] | list[int] | None,
    ) -> None:
        """Set device and batch size, also those of specs that are set already; ``None``: keep."""
        if batch_size is not None and torch.Size(batch_size) != self.batch_size:
            self.batch_size = torch.Size(batch_size)
            for spec in (self._input_spec, self._output_spec):
                if spec is not None:
                    spec.shape = self.batch_size
        if device is not None and available_device(device) != self.device:
            self.move(available_device(device))

    def set_batch_size(self, batch_size: torch.Size) -> None:
        """Change the batch size of an env whose specs are not set yet."""
        self.batch_size = batch_size
        self.invalidate()

    def move(self, device: torch.device) -> None:
        """Move all specs to a device."""
        input_spec, output_spec = self.input_spec, self.output_spec
        self.device = self.main_device = device
        self.set_specs(spec_on(input_spec, device), spec_on(output_spec, device))


def spec_on(spec: Composite, device: torch.device) -> Composite:
    """Return a locked copy of a spec on a device."""
    moved = spec.clone()
    moved.unlock_()
    return moved.to(device).lock_()


def only_key(keys: list[NestedKey], kind: str) -> NestedKey:
    """Return the only key of its kind."""
    if len(keys) != 1:
        listed = ", ".join(map(format_key, keys)) or "none"
        raise KeyNotFoundError(
            f"the env has {len(keys)} {kind} keys ({listed})",
            hint=f"use {kind}_keys if there is not exactly one",
        )
    return keys[0]


# Groups of done flags


def batched_shape(tensordict: TensorDictBase, shape: torch.Size, batch_dims: int) -> torch.Size:
    """Return the shape of an entry ``[*B, ...]`` in a TensorDict ``[*A, *B]``."""
    return torch.Size((*tensordict.batch_size[: tensordict.ndim - batch_dims], *shape))


@dataclass(frozen=True, slots=True)
class DoneGroup:
    """Done flags that are siblings and are reset together."""

    reset_key: NestedKey
    keys: tuple[NestedKey, ...]
    shape: torch.Size  # [*B, *G, 1]
    device: torch.device
    batch_dims: int

    def sibling(self, name: str) -> NestedKey:
        """Return the key with that name in this group."""
        return sibling_key(self.reset_key, name)

    def has(self, name: str) -> bool:
        """Return True if the group has a flag with that name."""
        return any(split_key(key)[-1] == name for key in self.keys)

    def new_entry(self, value: float, dtype: torch.dtype, like: TensorDictBase) -> Tensor:
        """Return an entry of the shape of the flags for a TensorDict ``[*A, *B]``."""
        shape = batched_shape(like, self.shape, self.batch_dims)
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def flag_spec(self) -> Categorical:
        """Return the spec of a flag of the group."""
        return Categorical(2, shape=self.shape, dtype=torch.bool, device=self.device)


def done_groups(full_done_spec: Composite) -> tuple[DoneGroup, ...]:
    """Return the groups of done flags in a done spec, in order."""
    groups: dict[NestedKey, DoneGroup] = {}
    for raw_key, spec in full_done_spec.items(True, True):
        key = normalize_key(raw_key)
        reset_key = sibling_key(key, "_reset")
        earlier = groups[reset_key].keys if reset_key in groups else ()
        device = torch.device("cpu") if spec.device is None else spec.device
        dims = full_done_spec.ndim
        groups[reset_key] = DoneGroup(reset_key, (*earlier, key), spec.shape, device, dims)
    return tuple(groups.values())


def ended_rows(
    tensordict: TensorDictBase, groups: Sequence[DoneGroup], end_keys: Iterable[NestedKey]
) -> dict[NestedKey, Tensor]:
    """Return the masks of the reset that is due after a step ``[*A, *B]``, for all groups.

    ``end_keys``: :func:`episode_end_flags` of the groups. A mask may be a flag itself.
    """
    masks = end_masks(tensordict, end_keys)
    if len(masks) < len(groups):
        shapes = {g.reset_key: batched_shape(tensordict, g.shape, g.batch_dims) for g in groups}
        inherit_masks(masks, shapes, tensordict.ndim)
    return masks


# Devices


def available_device(device: torch.device | str | int | None) -> torch.device:
    """Return the device, the CPU by default; ``"cuda"`` gets the index of the current one.

    Example:
        >>> available_device(None)
        device(type='cpu')
    """
    try:
        known = torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise DeviceError(
            f"unknown device {device!r}", hint="for example 'cpu' or 'cuda:0'"
        ) from None
    if known.type in ("cpu", "meta"):
        return known
    module = getattr(torch, known.type, None)
    count = 0 if module is None or not module.is_available() else int(module.device_count())
    if (known.index or 0) >= count:
        raise DeviceError(f"device {known} is not available", hint="use 'cpu'")
    return as_device(known)
