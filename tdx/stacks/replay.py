"""Replace the calls of the env inside a stack, and restore the state of its stages.

A stack whose env inside can be replaced runs its stages on recorded inputs: its env need not be
deterministic, and is not stepped.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor
from torch.nn.parameter import is_lazy

from tdx.foundation.keys import NestedKey, normalize_key, split_key
from tdx.foundation.patches import Patches, instance_dict

Method = Literal["reset", "step"]
Entries = dict[NestedKey, Tensor]
"""Values by key, ``[R, ...]`` for R rows. An entry of a ``Dict`` observation has its own key."""


class BaseCalls(Protocol):
    """Answers the calls of the env inside a stack."""

    def answer(self, rows: Sequence[int], method: Method, run: Callable[[], Entries]) -> Entries:
        """Return the result of a call: observation, and for a step reward and flags.

        Args:
            rows: Sub-envs that are called; ``[0]`` for a single env.
            method: The called method.
            run: Calls the env itself.
        """
        ...


def base_key(key: NestedKey) -> NestedKey:
    """Return the key of an entry without the ``observation`` that groups those of a ``Dict``.

    Example:
        >>> base_key(("observation", "image")), base_key("observation")
        ('image', 'observation')
    """
    if isinstance(key, tuple) and len(key) > 1 and key[0] == "observation":
        return key[1] if len(key) == 2 else key[1:]
    return key


def fit(value: Tensor | None, shape: Sequence[int]) -> Tensor:
    """Return a value in another shape: cut or filled with zeros where it differs.

    Args:
        value: Any value; ``None``: zeros.
        shape: Shape to return.
    """
    size = torch.Size(shape)
    if value is None:
        return torch.zeros(size)
    if value.shape == size:
        return value
    if value.numel() == size.numel():
        return value.reshape(size)
    flat = value.reshape(-1)[: size.numel()]
    missing = size.numel() - flat.numel()
    return torch.cat([flat, flat.new_zeros(missing)]).reshape(size)


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


FLAGS = ("done", "terminated", "truncated")


@contextmanager
def replaced_env(env: Any, calls: BaseCalls, *, hooks: str = "completed_") -> Iterator[None]:
    """Answer the calls of an env in a block.

    Args:
        env: The env inside all chains.
        calls: Answers the calls.
        hooks: Prefix of its methods.
    """
    size = torch.Size(env.batch_size)
    rows = range(max(size.numel(), 1))
    step, reset = getattr(env, f"{hooks}step"), getattr(env, f"{hooks}reset")

    def answer(method: Any, run: Callable[[], TensorDictBase], is_reset: bool) -> TensorDictBase:
        entries = calls.answer(rows, method, lambda: to_entries(run(), size))
        return from_entries(env, entries, size, is_reset=is_reset)

    def replayed_step(tensordict: TensorDictBase, *args: Any) -> TensorDictBase:
        return answer("step", lambda: step(tensordict, *args), False)

    def replayed_reset(tensordict: Any = None, **kwargs: Any) -> TensorDictBase:
        return answer("reset", lambda: reset(tensordict, **kwargs), True)

    changes = [(env, f"{hooks}step", replayed_step), (env, f"{hooks}reset", replayed_reset)]
    with Patches(changes):
        yield


def to_entries(tensordict: TensorDictBase, size: torch.Size) -> Entries:
    """Return the leaves of a TensorDict as entries ``[R, ...]``."""
    entries: Entries = {}
    for key in tensordict.keys(True, True):
        value = tensordict.get(key)
        if isinstance(value, Tensor):
            name = normalize_key(key)
            entries[base_key(name)] = to_rows(name, value.detach(), len(size))
    return entries


def to_rows(key: NestedKey, value: Tensor, batch_dims: int) -> Tensor:
    """Return a value ``[*B, ...]`` as ``[R, ...]``; flags and rewards without their last dim."""
    rows = value.reshape(-1, *value.shape[batch_dims:]) if batch_dims else value.unsqueeze(0)
    last = split_key(key)[-1]
    if last in (*FLAGS, "reward") and rows.ndim > 1 and rows.shape[-1] == 1:
        rows = rows.squeeze(-1)
    return rows.clone()


def from_entries(env: Any, entries: Entries, size: torch.Size, *, is_reset: bool) -> TensorDictBase:
    """Return the result of an env that has the recorded values, in the form of its specs."""
    result = TensorDict({}, batch_size=size, device=env.device)
    parts = ["full_observation_spec", "full_done_spec"]
    if not is_reset:
        parts.append("full_reward_spec")
    known = dict(entries)
    if "terminated" in known and "done" not in known:
        ended = known["terminated"]
        known["done"] = ended | known.get("truncated", torch.zeros_like(ended))
    for part in parts:
        spec = getattr(env, part)
        for key in [] if spec is None else spec.keys(True, True):
            leaf = spec[key]
            value = known.get(base_key(normalize_key(key)))
            rows = _repeated(value, max(size.numel(), 1))
            shape = torch.Size(leaf.shape)
            if rows is None:
                result.set(key, leaf.zero())
                continue
            inner = shape[len(size) :]
            fitted = torch.stack([fit(row, inner) for row in rows]).reshape(shape)
            result.set(key, fitted.to(leaf.dtype).to(leaf.device))
    return result


def _repeated(value: Tensor | None, count: int) -> list[Tensor] | None:
    return None if value is None else [value[index % len(value)] for index in range(count)]


def build_action(env: Any, entries: Entries, keys: Sequence[NestedKey]) -> TensorDictBase:
    """Return the actions of an env from entries ``[R, ...]``.

    An index becomes one-hot where the env takes it so.

    Args:
        env: Env with its chain.
        entries: Values by key.
        keys: Its action keys.
    """
    size = torch.Size(env.batch_size)
    count = max(size.numel(), 1)
    actions = TensorDict({}, batch_size=size, device=env.device)
    spec = env.full_action_spec
    values = list(entries.values())
    for index, key in enumerate(keys):
        leaf = spec[key]
        name = normalize_key(key)
        value = entries.get(name, values[index] if index < len(values) else None)
        rows = _repeated(value, count) or [torch.zeros(())] * count
        inner = torch.Size(leaf.shape)[len(size) :]
        if type(leaf).__name__ == "OneHot" and rows[0].numel() == 1:
            rows = [
                torch.nn.functional.one_hot(row.reshape(()).long() % inner[-1], inner[-1])
                for row in rows
            ]
        fitted = torch.stack([fit(row, inner) for row in rows]).reshape(leaf.shape)
        actions.set(key, fitted.to(leaf.dtype).to(leaf.device))
    return actions


def learning_switches(stages: Sequence[Any]) -> list[tuple[Any, str, Any]]:
    """Return the changes that stop the updates of running statistics.

    A normalizer without statistics yet is left out: it cannot run frozen.

    Args:
        stages: Transforms.
    """
    changes: list[tuple[Any, str, Any]] = []
    for stage in stages:
        if not callable(getattr(type(stage), "freeze", None)):
            continue
        name = "_frozen" if hasattr(stage, "_frozen") else "frozen"
        if isinstance(getattr(stage, name, None), bool):
            changes.append((stage, name, True))
    return changes


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
