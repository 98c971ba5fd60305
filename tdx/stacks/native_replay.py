"""Replace the env inside a chain of TensorDicts by recorded results: tdx and TorchRL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from tdx.keys import NestedKey, normalize_key, split_key
from tdx.stacks.replay import BaseCalls, Entries, base_key, fit, replaced_attributes
from tdx.stacks.sources import instance_dict

FLAGS = ("done", "terminated", "truncated")


@contextmanager
def replaced_env(env: Any, calls: BaseCalls, *, hooks: str = "_completed_") -> Iterator[None]:
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
    with replaced_attributes(changes):
        yield


def to_entries(tensordict: TensorDictBase, size: torch.Size) -> Entries:
    """Return the leaves of a TensorDict as entries ``[R, ...]``."""
    found: Entries = {}
    for key in tensordict.keys(True, True):
        value = tensordict.get(key)
        if isinstance(value, Tensor):
            name = normalize_key(key)
            found[base_key(name)] = to_rows(name, value.detach(), len(size))
    return found


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
        known["done"] = known["terminated"] | known["truncated"]
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
    found = TensorDict({}, batch_size=size, device=env.device)
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
        found.set(key, fitted.to(leaf.dtype).to(leaf.device))
    return found


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
