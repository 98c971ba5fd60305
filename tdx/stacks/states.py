"""Restore the state of the stages of a stack, and write values into it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
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

    Envs inside the owners are left out.
    """

    def __init__(self, owners: Iterable[object], *, generators: bool = True) -> None:
        self._generators = generators
        self._seen: set[int] = set()
        self._restore: list[Callable[[], object]] = []
        for owner in owners:
            self._keep(owner, 0)

    def restore(self) -> None:
        for undo in reversed(self._restore):
            undo()

    def _keep(self, value: object, depth: int) -> None:
        """Remember the content of a value that can change in place, and of what it holds."""
        if id(value) in self._seen or depth > _MAX_DEPTH:
            return
        restore: Callable[[], object]
        held: Iterable[object] = ()
        if isinstance(value, Tensor):
            restore = _restore_lazy(value) if is_lazy(value) else _restore_tensor(value)
        elif isinstance(value, np.ndarray):
            if value.dtype == object or not value.flags.writeable:
                return
            restore = partial(np.copyto, value, value.copy())
        elif isinstance(value, _GENERATORS):
            if not self._generators:
                return
            if isinstance(value, np.random.Generator):
                bits = value.bit_generator
                restore = partial(setattr, bits, "state", bits.state)
            elif isinstance(value, random.Random):
                restore = partial(value.setstate, value.getstate())
            else:
                # A RandomState or a Generator of torch, whose states have different types.
                generator: Any = value
                restore = partial(generator.set_state, generator.get_state())
        elif isinstance(value, dict):
            restore, held = partial(_replace_items, value, dict(value)), list(value.values())
        elif isinstance(value, list | deque):
            restore, held = partial(_replace_parts, value, list(value)), list(value)[:100]
        elif depth == 0 or _is_plain(value):
            own = instance_dict(value)
            if own is None:
                return
            kept = {name: part for name, part in own.items() if name not in _ENVS}
            restore, held = partial(_replace_attributes, own, kept), kept.values()
        else:
            return
        self._seen.add(id(value))
        self._restore.append(restore)
        for part in held:
            self._keep(part, depth + 1)


def _is_plain(value: object) -> bool:
    """Return True for plain objects such as running statistics, also for those that are called."""
    # Networks have weights that a step does not change.
    if isinstance(value, type | torch.nn.Module | FunctionType | MethodType | BuiltinFunctionType):
        return False
    return not (hasattr(value, "step") or hasattr(value, "sample"))


def _restore_lazy(value: Tensor) -> Callable[[], object]:
    """Return a function that removes the values that a lazy tensor got in the meantime."""
    kind = type(value)

    def restore() -> None:
        if not is_lazy(value):
            value.data = torch.empty(0, device=value.device, dtype=value.dtype)
            value.__class__ = kind

    return restore


def _restore_tensor(value: Tensor) -> Callable[[], object]:
    copy = value.detach().clone()

    def restore() -> None:
        with torch.no_grad():
            if value.shape != copy.shape:
                value.data = copy
            else:
                value.copy_(copy)

    return restore


def _replace_items(target: dict[object, object], items: Mapping[object, object]) -> None:
    target.clear()
    target.update(items)


def _replace_parts(target: list[object] | deque[object], parts: Sequence[object]) -> None:
    target.clear()
    target.extend(parts)


def _replace_attributes(own: dict[str, object], kept: Mapping[str, object]) -> None:
    for name in [name for name in own if name not in kept and name not in _ENVS]:
        del own[name]
    own.update(kept)


def write_number(owner: object, path: str, value: Tensor) -> bool:
    """Write a tensor to an attribute of an object, such as ``obs_rms.mean``; False if missing."""
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


def _member(target: object, name: str) -> object:
    if isinstance(target, dict):
        return next((item for key, item in target.items() if str(key) == name), None)
    return (instance_dict(target) or {}).get(name)


def _like(old: object, value: Tensor) -> object:
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
    if not isinstance(old, list | deque):
        return old
    parts = list(array)
    if len(old) == len(parts):
        # A list may hold deques, whose methods its owner calls.
        parts = [
            _like(item, inner) if isinstance(item, list | deque) else part
            for item, part, inner in zip(old, parts, value, strict=True)
        ]
    return deque(parts, maxlen=old.maxlen) if isinstance(old, deque) else parts


def write_tensor(stage: Any, name: str, value: Tensor) -> bool:
    """Write a tensor to a buffer, parameter or entry of a transform; False if it does not exist."""
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
