"""Restore the state of the stages of a stack, and write values into it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import is_tensor_collection
from torch import Tensor
from torch.nn.parameter import is_lazy

from tdx.foundation.patches import instance_dict

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_ENVS = ("env", "venv", "envs", "base_env", "parent", "_container", "_parent", "unwrapped")
_MAX_DEPTH = 4


class StateKeeper:
    """Remembers the attributes of objects, and writes them back in place.

    Arrays, lists, deques, dicts and plain objects keep their identity, so that statistics that two
    envs share stay shared.

    Args:
        owners: Objects to remember; envs inside them are left out.
        generators: True to restore random generators as well.
    """

    def __init__(self, owners: Iterable[Any], *, generators: bool = True) -> None:
        self._generators = generators
        self._seen: set[int] = set()
        self._restore: list[Callable[[], None]] = []
        for owner in owners:
            self._keep(owner, 0)

    def restore(self) -> None:
        """Write everything back."""
        for undo in reversed(self._restore):
            undo()

    def _keep(self, value: Any, depth: int) -> None:
        """Remember the content of a value that can change in place."""
        if id(value) in self._seen or depth > _MAX_DEPTH:
            return
        if isinstance(value, Tensor):
            self._keep_tensor(value)
        elif isinstance(value, np.ndarray):
            if value.dtype != object and value.flags.writeable:
                copy = value.copy()
                self._add(value, lambda: np.copyto(value, copy))
        elif isinstance(value, _GENERATORS):
            if self._generators:
                self._keep_generator(value)
        elif isinstance(value, dict):
            items = dict(value)
            self._add(value, lambda: _replace_items(value, items))
            for item in items.values():
                self._keep(item, depth + 1)
        elif isinstance(value, list | deque):
            parts = list(value)
            self._add(value, lambda: _replace_parts(value, parts))
            for item in parts[:100]:
                self._keep(item, depth + 1)
        elif _has_attributes(value, depth):
            self._keep_attributes(value, depth)

    def _keep_tensor(self, value: Tensor) -> None:
        if is_lazy(value):
            kind: Any = type(value)
            self._add(value, lambda: _make_lazy(value, kind))
            return
        copy = value.detach().clone()
        self._add(value, lambda: _write_tensor(value, copy))

    def _keep_generator(self, value: Any) -> None:
        if isinstance(value, np.random.Generator):
            bits = value.bit_generator
            state = bits.state
            self._add(value, lambda: setattr(bits, "state", state))
        elif isinstance(value, random.Random):
            known = value.getstate()
            self._add(value, lambda: value.setstate(known))
        else:
            current = value.get_state()
            self._add(value, lambda: value.set_state(current))

    def _keep_attributes(self, value: Any, depth: int) -> None:
        own = instance_dict(value)
        if own is None:
            return
        kept = {name: attribute for name, attribute in own.items() if name not in _ENVS}
        self._add(value, lambda: _replace_attributes(own, kept))
        for attribute in kept.values():
            self._keep(attribute, depth + 1)

    def _add(self, value: Any, restore: Callable[[], None]) -> None:
        self._seen.add(id(value))
        self._restore.append(restore)


def _has_attributes(value: Any, depth: int) -> bool:
    """Return True for the owner itself, and for plain objects such as running statistics."""
    if depth == 0:
        return True
    if isinstance(value, type) or (callable(value) and not hasattr(value, "__dict__")):
        return False
    return not (hasattr(value, "step") or hasattr(value, "sample") or callable(value))


def _make_lazy(value: Any, kind: Any) -> None:
    """Remove the values that a lazy tensor got in the meantime."""
    if not is_lazy(value):
        value.data = torch.empty(0, device=value.device, dtype=value.dtype)
        value.__class__ = kind


def _write_tensor(value: Tensor, copy: Tensor) -> None:
    with torch.no_grad():
        if value.shape != copy.shape:
            value.data = copy
        else:
            value.copy_(copy)


def _replace_items(target: dict[Any, Any], items: Mapping[Any, Any]) -> None:
    target.clear()
    target.update(items)


def _replace_parts(target: Any, parts: Sequence[Any]) -> None:
    target.clear()
    target.extend(parts)


def _replace_attributes(own: dict[str, Any], kept: Mapping[str, Any]) -> None:
    for name in [name for name in own if name not in kept and name not in _ENVS]:
        del own[name]
    own.update(kept)


def write_number(owner: Any, path: str, value: Tensor) -> bool:
    """Write a tensor to an attribute of an object, such as ``obs_rms.mean``; False if missing.

    Args:
        owner: The object.
        path: Names of attributes or keys, with dots.
        value: The new value.
    """
    *parents, last = path.split(".")
    target = owner
    for name in parents:
        target = _member(target, name)
        if target is None:
            return False
    if isinstance(target, dict):
        key = next((name for name in target if str(name) == last), None)
        if key is None:
            return False
        target[key] = _like(target[key], value)
        return True
    own = instance_dict(target)
    if own is None or last not in own:
        return False
    own[last] = _like(own[last], value)
    return True


def _member(target: Any, name: str) -> Any:
    if isinstance(target, dict):
        return next((item for key, item in target.items() if str(key) == name), None)
    return (instance_dict(target) or {}).get(name)


def _like(old: Any, value: Tensor) -> Any:
    """Convert a tensor to the type of the value that it replaces."""
    if isinstance(old, Tensor):
        return value.to(old.dtype).clone()
    if isinstance(old, bool | int | float):
        return type(old)(value.item())
    array = value.detach().cpu().numpy()
    if isinstance(old, np.generic):
        return old.dtype.type(array.item())
    if isinstance(old, np.ndarray):
        return array.astype(old.dtype)
    if isinstance(old, deque):
        return deque(list(array), maxlen=old.maxlen)
    return list(array) if isinstance(old, list) else old


def write_tensor(stage: Any, name: str, value: Tensor) -> bool:
    """Write a tensor to a buffer, parameter or entry of a transform; False if it does not exist.

    Args:
        stage: The transform.
        name: Name in :meth:`tdx.Stack.state`.
        value: The new value.
    """
    module, _, last = name.rpartition(".")
    owner = stage
    for part in module.split(".") if module else ():
        owner = getattr(owner, "_modules", {}).get(part) or getattr(owner, part, None)
    if is_tensor_collection(owner):
        if last not in owner.keys():
            return False
        owner.get(last).copy_(value)
        return True
    held = getattr(owner, "_buffers", {})
    if last in held:
        held[last] = value.clone() if held[last] is None else value.to(held[last]).clone()
        return True
    own = (instance_dict(owner) or {}) if owner is not None else {}
    known = getattr(owner, "_parameters", {}).get(last, own.get(last))
    if not isinstance(known, Tensor):
        return False
    with torch.no_grad():
        known.copy_(value)
    return True
