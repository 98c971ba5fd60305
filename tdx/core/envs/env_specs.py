"""Specs, batch size and device of an env, and the keys that follow from the specs."""

from __future__ import annotations

from typing import Any, Protocol, Self, overload

import torch
from tensordict import TensorDictBase
from torch import nn

from tdx.errors import DeviceError, KeyNotFoundError, SpecError
from tdx.keys import NestedKey, format_key, normalize_key, sibling_key, unique_keys
from tdx.specs import Categorical, Composite, TensorSpec, Unbounded
from tdx.specs.arguments import as_device
from tdx.tensordicts import new_tensordict


class SpecOwner(Protocol):
    """An env, as far as its specs are concerned."""

    @property
    def output_spec(self) -> Composite: ...

    @property
    def input_spec(self) -> Composite: ...

    @property
    def _key_cache(self) -> dict[str, Any]: ...

    def _set_part(self, side: str, part: str, leaf_name: str | None, value: TensorSpec) -> None: ...


_SIDES = {
    "full_observation_spec": ("output_spec", None),
    "full_reward_spec": ("output_spec", "reward"),
    "full_done_spec": ("output_spec", "done"),
    "full_action_spec": ("input_spec", "action"),
    "full_state_spec": ("input_spec", None),
}
"""For each part, the composite that holds it, and the key of a lone leaf."""


class _SpecPart:
    """One part of an env's specs.

    Args:
        part: Name of the part, such as ``full_reward_spec``.
        doc: Docstring of the attribute.
    """

    def __init__(self, part: str, doc: str) -> None:
        self.part, self.__doc__ = part, doc
        self.side, self.leaf_name = _SIDES[part]

    def __set__(self, env: SpecOwner, value: TensorSpec) -> None:
        env._set_part(self.side, self.part, self.leaf_name, value)

    def _read(self, env: SpecOwner) -> Composite:
        whole = env.output_spec if self.side == "output_spec" else env.input_spec
        part = whole[self.part]
        assert isinstance(part, Composite)
        return part


class FullSpec(_SpecPart):
    """Descriptor of a part as a composite."""

    @overload
    def __get__(self, env: None, kind: type) -> Self: ...

    @overload
    def __get__(self, env: SpecOwner, kind: type) -> Composite: ...

    def __get__(self, env: SpecOwner | None, kind: type) -> Self | Composite:
        return self if env is None else self._read(env)


class LeafSpec(_SpecPart):
    """Descriptor of the only leaf of a part; of the composite if there is more than one leaf."""

    @overload
    def __get__(self, env: None, kind: type) -> Self: ...

    @overload
    def __get__(self, env: SpecOwner, kind: type) -> TensorSpec: ...

    def __get__(self, env: SpecOwner | None, kind: type) -> Self | TensorSpec:
        if env is None:
            return self
        full = self._read(env)
        leaves = list(full.values(True, True))
        return leaves[0] if len(leaves) == 1 else full


class LeafKeys:
    """Keys of the leaves of one part.

    Args:
        part: Name of the part, such as ``full_reward_spec``.
        doc: Docstring of the attribute.
    """

    def __init__(self, part: str, doc: str) -> None:
        self.part, self.__doc__ = part, doc

    @overload
    def __get__(self, env: None, kind: type) -> Self: ...

    @overload
    def __get__(self, env: SpecOwner, kind: type) -> list[NestedKey]: ...

    def __get__(self, env: SpecOwner | None, kind: type) -> Self | list[NestedKey]:
        if env is None:
            return self
        keys = env._key_cache.get(self.part)
        if keys is None:
            full: Composite = getattr(env, self.part)
            keys = env._key_cache[self.part] = [normalize_key(key) for key in full.keys(True, True)]
        return list(keys)


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


class EnvSpecs(nn.Module):
    """Module with the specs, the batch size and the device of an env.

    Every spec is stored as a composite. The attributes named after one thing (``action_spec``,
    ``reward_spec``, ``done_spec``) return the leaf itself if there is only one.

    Args:
        device: Device of the tensors; the CPU by default.
        batch_size: Leading dims of everything that the env takes and returns.

    Example:
        >>> specs = EnvSpecs(batch_size=[2])
        >>> specs.action_spec = Unbounded((2, 3))
        >>> specs.action_key, specs.reward_keys, specs.done_spec["done"].shape
        ('action', ['reward'], torch.Size([2, 1]))
    """

    full_observation_spec = FullSpec(
        "full_observation_spec", "Everything except rewards and done flags, as a composite."
    )
    full_reward_spec = FullSpec("full_reward_spec", "The reward spec, always as a composite.")
    full_done_spec = FullSpec("full_done_spec", "The spec of the done flags, as a composite.")
    full_action_spec = FullSpec("full_action_spec", "The action spec, always as a composite.")
    full_state_spec = FullSpec("full_state_spec", "All inputs except actions, as a composite.")
    observation_spec = FullSpec(
        "full_observation_spec", "What ``reset`` and ``step`` write besides reward and done."
    )
    state_spec = FullSpec("full_state_spec", "All inputs except actions.")
    action_spec = LeafSpec("full_action_spec", "Spec of the action; of all, if there are several.")
    reward_spec = LeafSpec("full_reward_spec", "Spec of the reward; of all, if there are several.")
    done_spec = LeafSpec("full_done_spec", "Spec of the done flag; of all, if there are several.")
    observation_keys = LeafKeys("full_observation_spec", "Keys of the observation spec's leaves.")
    state_keys = LeafKeys("full_state_spec", "Keys of the state spec's leaves.")
    action_keys = LeafKeys("full_action_spec", "Keys of the action spec's leaves.")
    reward_keys = LeafKeys("full_reward_spec", "Keys of the reward spec's leaves.")
    done_keys = LeafKeys("full_done_spec", "Keys of the done spec's leaves.")

    def __init__(
        self,
        *,
        device: torch.device | str | int | None = None,
        batch_size: torch.Size | tuple[int, ...] | list[int] | None = None,
    ) -> None:
        super().__init__()
        self._device = available_device(device)
        self._batch_size = torch.Size(batch_size or ())
        self._input_spec: Composite | None = None
        self._output_spec: Composite | None = None
        self._key_cache: dict[str, Any] = {}
        self._own_spec_version = 0

    @property
    def _spec_version(self) -> int:
        """Number that grows whenever a spec changes, here or in an env inside."""
        return self._own_spec_version

    def _forget_specs(self) -> None:
        """Drop everything derived from the specs; called whenever one of them changes."""
        self._key_cache = {}
        self._own_spec_version += 1

    def _set_part(self, side: str, part: str, leaf_name: str | None, value: TensorSpec) -> None:
        """Replace one part of the input or output spec; called by the spec attributes.

        Raises:
            SpecError: ``value`` is not a spec, or its shape does not start with the batch size.
        """
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
    def output_spec(self) -> Composite:
        """What the env returns: ``full_observation_spec``, ``full_reward_spec`` and so on.

        It is locked; set its parts through their own attributes.
        """
        if self._output_spec is None:
            self._output_spec = default_output_spec(self.batch_size, self.device).lock_()
        return self._output_spec

    @property
    def input_spec(self) -> Composite:
        """What the env takes: ``full_state_spec`` and ``full_action_spec``; locked."""
        if self._input_spec is None:
            self._input_spec = default_input_spec(self.batch_size, self.device).lock_()
        return self._input_spec

    @property
    def specs(self) -> Composite:
        """All specs of the env in one composite."""
        return Composite(
            output_spec=self.output_spec,
            input_spec=self.input_spec,
            shape=self.batch_size,
            device=self.device,
        )

    @property
    def action_key(self) -> NestedKey:
        """Key of the action; a ``KeyNotFoundError`` if there is not exactly one."""
        return only_key(self.action_keys, "action")

    @property
    def reward_key(self) -> NestedKey:
        """Key of the reward; a ``KeyNotFoundError`` if there is not exactly one."""
        return only_key(self.reward_keys, "reward")

    @property
    def done_key(self) -> NestedKey:
        """Key that ends in ``done``, or the only done key; a ``KeyNotFoundError`` otherwise."""
        ends = [key for key in self.done_keys if key == "done" or key[-1] == "done"]
        return ends[0] if len(ends) == 1 else only_key(self.done_keys, "done")

    @property
    def done_keys_groups(self) -> list[list[NestedKey]]:
        """The done keys by group: keys with the same parent are one group."""
        groups: dict[NestedKey, list[NestedKey]] = {}
        for key in self.done_keys:
            groups.setdefault(sibling_key(key, "_reset"), []).append(key)
        return list(groups.values())

    @property
    def reset_keys(self) -> list[NestedKey]:
        """Keys of the partial-reset masks: ``_reset`` in each group of done keys."""
        keys = self._key_cache.get("reset")
        if keys is None:
            keys = unique_keys(sibling_key(key, "_reset") for key in self.done_keys)
            self._key_cache["reset"] = keys
        return list(keys)

    # Batch and device

    @property
    def batch_size(self) -> torch.Size:
        """Number of envs that run at once, ``[*B]``; empty for a single env."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: torch.Size | tuple[int, ...] | list[int]) -> None:
        self._batch_size = torch.Size(value)
        self._forget_specs()

    @property
    def shape(self) -> torch.Size:
        """Same as :attr:`batch_size`."""
        return self.batch_size

    @property
    def ndim(self) -> int:
        """Number of batch dims."""
        return len(self.batch_size)

    @property
    def batch_dims(self) -> int:
        """Number of batch dims."""
        return len(self.batch_size)

    def ndimension(self) -> int:
        """Return the number of batch dims."""
        return len(self.batch_size)

    def numel(self) -> int:
        """Return the number of single envs."""
        return self.batch_size.numel()

    @property
    def device(self) -> torch.device:
        """Device of the env's tensors."""
        return self._device

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the env to a device; takes the arguments of ``nn.Module.to``.

        Raises:
            DeviceError: The device does not exist on this machine.
        """
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        if device is not None:
            device = available_device(device)
        super().to(*args, **kwargs)
        if device is not None:
            self._move_to(device)
        return self

    def cpu(self) -> Self:
        """Move the env to the CPU."""
        return self.to("cpu")

    def cuda(self, device: torch.device | int | None = None) -> Self:
        """Move the env to a CUDA device, the current one by default."""
        return self.to(torch.device("cuda") if device is None else torch.device(device))

    def _move_to(self, device: torch.device) -> None:
        if device != self._device:
            self._move(device)

    def _move(self, device: torch.device) -> None:
        output_spec, input_spec = self.output_spec, self.input_spec
        self._device = device
        self._output_spec = self._moved(output_spec)
        self._input_spec = self._moved(input_spec)
        self._forget_specs()

    def _moved(self, spec: Composite) -> Composite:
        moved = spec.clone()
        moved.unlock_()
        return moved.to(self._device).lock_()

    def fake_tensordict(self) -> TensorDictBase:
        """Return zeros for every key of a step, in the declared shapes, dtypes and device."""
        observation, done = self.full_observation_spec.zero(), self.full_done_spec.zero()
        following = new_tensordict({}, self.batch_size, self.device)
        for part in (observation.clone(), self.full_reward_spec.zero(), done.clone()):
            following.update(part)
        root = new_tensordict({}, self.batch_size, self.device)
        # The parts merge into each other where they share a nested key, so ``next`` comes first.
        for part in (observation, done, self.full_state_spec.zero(), self.full_action_spec.zero()):
            root.update(part)
        root.set("next", following)
        return root
