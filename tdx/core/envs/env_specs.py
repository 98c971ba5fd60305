"""Specs, batch size and device of an env, and the keys that follow from the specs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, overload

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from tdx.errors import DeviceError, KeyNotFoundError, SpecError
from tdx.keys import NestedKey, format_key, normalize_key, sibling_key, split_key, unique_keys
from tdx.specs import Categorical, Composite, TensorSpec, Unbounded
from tdx.specs.arguments import as_device
from tdx.tensordicts import new_tensordict

_SIDES = {
    "full_observation_spec": ("output_spec", None),
    "full_reward_spec": ("output_spec", "reward"),
    "full_done_spec": ("output_spec", "done"),
    "full_action_spec": ("input_spec", "action"),
    "full_state_spec": ("input_spec", None),
}
"""For each part, the composite that holds it, and the key of a lone leaf."""


class EnvSpecs:
    """Specs, batch size and device of an env. Every part of the specs is a composite.

    Args:
        device: Device of the tensors. ``None``: the CPU.
        batch_size: Leading dims of everything that the env takes and returns, ``[*B]``.

    Example:
        >>> specs = EnvSpecs(None, torch.Size([2]))
        >>> specs.set_part("full_action_spec", Unbounded((2, 3)))
        >>> specs.keys("full_action_spec"), specs.part("full_done_spec")["done"].shape
        (['action'], torch.Size([2, 1]))
    """

    def __init__(self, device: torch.device | str | int | None, batch_size: torch.Size) -> None:
        self.device = available_device(device)
        self.batch_size = batch_size
        self.version = 0
        self.cache: dict[str, Any] = {}
        self._input_spec: Composite | None = None
        self._output_spec: Composite | None = None

    @property
    def output_spec(self) -> Composite:
        """What the env returns; locked."""
        if self._output_spec is None:
            self._output_spec = default_output_spec(self.batch_size, self.device).lock_()
        return self._output_spec

    @property
    def input_spec(self) -> Composite:
        """What the env takes; locked."""
        if self._input_spec is None:
            self._input_spec = default_input_spec(self.batch_size, self.device).lock_()
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
        """Return the only leaf of a part; the composite if there is more than one leaf."""
        full = self.part(name)
        leaves = list(full.values(True, True))
        return leaves[0] if len(leaves) == 1 else full

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

    def done_key(self) -> NestedKey:
        """Return the key that ends in ``done``, or the only done key."""
        keys = self.keys("full_done_spec")
        ends = [key for key in keys if key == "done" or key[-1] == "done"]
        return ends[0] if len(ends) == 1 else only_key(keys, "done")

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

    def dropped_keys(self) -> list[NestedKey]:
        """Return the keys that ``step_mdp`` leaves out, the same list for each call.

        These are the rewards that are not also a state.
        """
        cache = self.cache
        keys: list[NestedKey] | None = cache.get("dropped")
        if keys is None:
            states = self.keys("full_state_spec")
            rewards = self.keys("full_reward_spec")
            keys = cache["dropped"] = [key for key in rewards if key not in states]
        return keys

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

    def invalidate(self) -> None:
        """Drop everything derived from the specs, as after each change of one of them."""
        self.cache = {}
        self.version += 1

    def set_part(self, name: str, value: TensorSpec) -> None:
        """Replace one part.

        Raises:
            SpecError: ``value`` is not a spec, or its shape does not start with the batch size.
        """
        side, leaf_name = _SIDES[name]
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
        whole = getattr(self, side).clone()
        whole.unlock_()
        whole[name] = value.to(self.device)
        setattr(self, f"_{side}", whole.lock_())
        self.invalidate()

    def set_specs(self, input_spec: Composite, output_spec: Composite) -> None:
        """Replace all parts by specs of the same batch size and device."""
        self._input_spec, self._output_spec = input_spec, output_spec
        self.invalidate()

    def set_batch_size(self, batch_size: torch.Size) -> None:
        """Change the batch size of an env whose specs are not set yet."""
        self.batch_size = batch_size
        self.invalidate()

    def move(self, device: torch.device) -> None:
        """Move all specs to a device."""
        input_spec, output_spec = self.input_spec, self.output_spec
        self.device = device
        self.set_specs(spec_on(input_spec, device), spec_on(output_spec, device))


def spec_on(spec: Composite, device: torch.device) -> Composite:
    """Return a locked copy of a spec on a device."""
    moved = spec.clone()
    moved.unlock_()
    return moved.to(device).lock_()


class _SpecOwner(Protocol):
    """An env, as far as the attributes below are concerned."""

    @property
    def _specs(self) -> EnvSpecs: ...


_T = TypeVar("_T")


class SpecsAttribute(Generic[_T]):
    """Read-only attribute of an env that its :class:`EnvSpecs` computes.

    Args:
        read: Returns the value.
        doc: Docstring of the attribute.
    """

    def __init__(self, read: Callable[[EnvSpecs], _T], doc: str) -> None:
        self.read, self.__doc__ = read, doc

    @overload
    def __get__(self, env: None, kind: type) -> Self: ...

    @overload
    def __get__(self, env: _SpecOwner, kind: type) -> _T: ...

    def __get__(self, env: _SpecOwner | None, kind: type) -> Self | _T:
        return self if env is None else self.read(env._specs)

    def __set__(self, env: _SpecOwner, value: Any) -> None:
        raise AttributeError("this attribute follows from the specs and cannot be set")


class BatchSize(SpecsAttribute[torch.Size]):
    """Attribute for the batch size; set before the specs."""

    def __init__(self) -> None:
        doc = "Number of envs that run at once, ``[*B]``; empty for a single env."
        super().__init__(lambda specs: specs.placed().batch_size, doc)

    def __set__(self, env: _SpecOwner, value: torch.Size | tuple[int, ...] | list[int]) -> None:
        env._specs.set_batch_size(torch.Size(value))


class FullSpec(SpecsAttribute[Composite]):
    """Attribute for a part of the specs as a composite.

    Args:
        part: Name of the part, such as ``full_reward_spec``.
        doc: Docstring of the attribute.
    """

    def __init__(self, part: str, doc: str) -> None:
        super().__init__(lambda specs: specs.part(part), doc)
        self.part = part

    def __set__(self, env: _SpecOwner, value: TensorSpec) -> None:
        env._specs.set_part(self.part, value)


class LeafSpec(SpecsAttribute[TensorSpec]):
    """Attribute for the only leaf of a part; for the composite if there is more than one leaf.

    Args:
        part: Name of the part, such as ``full_reward_spec``.
        doc: Docstring of the attribute.
    """

    def __init__(self, part: str, doc: str) -> None:
        super().__init__(lambda specs: specs.leaf(part), doc)
        self.part = part

    def __set__(self, env: _SpecOwner, value: TensorSpec) -> None:
        env._specs.set_part(self.part, value)


class LeafKeys(SpecsAttribute[list[NestedKey]]):
    """Attribute for the keys of the leaves of a part.

    Args:
        part: Name of the part, such as ``full_reward_spec``.
        doc: Docstring of the attribute.
    """

    def __init__(self, part: str, doc: str) -> None:
        super().__init__(lambda specs: specs.keys(part), doc)


class OnlyKey(SpecsAttribute[NestedKey]):
    """Attribute for the only key of a part; raises a ``KeyNotFoundError`` if there are others.

    Args:
        part: Name of the part, such as ``full_reward_spec``.
        kind: Kind of key, for messages, such as ``reward``.
    """

    def __init__(self, part: str, kind: str) -> None:
        doc = f"Key of the {kind}; a ``KeyNotFoundError`` if there is not exactly one."
        super().__init__(lambda specs: only_key(specs.keys(part), kind), doc)


def only_key(keys: list[NestedKey], kind: str) -> NestedKey:
    """Return the only key of its kind.

    Raises:
        KeyNotFoundError: There is not exactly one.
    """
    if len(keys) != 1:
        listed = ", ".join(map(format_key, keys)) or "none"
        raise KeyNotFoundError(
            f"the env has {len(keys)} {kind} keys ({listed})",
            hint=f"use {kind}_keys if there is not exactly one",
        )
    return keys[0]


# Groups of done flags


def batched_shape(tensordict: TensorDictBase, shape: torch.Size, batch_dims: int) -> torch.Size:
    """Return the shape of an entry ``[*B, ...]`` in a TensorDict ``[*A, *B]``.

    Args:
        tensordict: TensorDict with the env's batch size, or with leading dims before it.
        shape: Shape in the spec, ``[*B, ...]``.
        batch_dims: Number of dims in ``B``.
    """
    return torch.Size((*tensordict.batch_size[: tensordict.ndim - batch_dims], *shape))


@dataclass(frozen=True, slots=True)
class DoneGroup:
    """Done flags that are siblings and are reset together.

    Args:
        reset_key: Key of their reset mask.
        keys: Keys of the flags.
        shape: Shape of the flags, ``[*B, *G, 1]``.
        device: Device of the flags.
        batch_dims: Number of dims in ``B``.
    """

    reset_key: NestedKey
    keys: tuple[NestedKey, ...]
    shape: torch.Size
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


# Defaults


def default_done_spec(batch_size: torch.Size, device: torch.device) -> Composite:
    """Return ``done``, ``terminated`` and ``truncated`` as bool specs of shape ``[*B, 1]``."""
    flag = Categorical(2, shape=(*batch_size, 1), dtype=torch.bool, device=device)
    return Composite(
        {name: flag.clone() for name in ("done", "terminated", "truncated")},
        shape=batch_size,
        device=device,
    )


def default_output_spec(batch_size: torch.Size, device: torch.device) -> Composite:
    """Return the output spec of an env that declares none: a reward and the done flags."""
    reward = Unbounded(shape=(*batch_size, 1), device=device)
    return Composite(
        full_observation_spec=Composite(shape=batch_size, device=device),
        full_reward_spec=Composite({"reward": reward}, shape=batch_size, device=device),
        full_done_spec=default_done_spec(batch_size, device),
        shape=batch_size,
        device=device,
    )


def default_input_spec(batch_size: torch.Size, device: torch.device) -> Composite:
    """Return the input spec of an env that declares none: no state and no action."""
    return Composite(
        full_state_spec=Composite(shape=batch_size, device=device),
        full_action_spec=Composite(shape=batch_size, device=device),
        shape=batch_size,
        device=device,
    )


def available_device(device: torch.device | str | int | None) -> torch.device:
    """Return the device, the CPU by default; ``"cuda"`` gets the index of the current one.

    Raises:
        DeviceError: The name is not a device, or this machine does not have it.

    Example:
        >>> available_device(None)
        device(type='cpu')
    """
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise DeviceError(
            f"unknown device {device!r}", hint="for example 'cpu' or 'cuda:0'"
        ) from None
    if found.type in ("cpu", "meta"):
        return found
    if (found.index or 0) >= _device_count(found.type):
        raise DeviceError(f"device {found} is not available", hint="use 'cpu'")
    return as_device(found)


def _device_count(kind: str) -> int:
    module = getattr(torch, kind, None)
    if module is None or not module.is_available():
        return 0
    return int(module.device_count())
