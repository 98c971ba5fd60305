"""Policies of planned rollouts: what they read and write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import tensordict.nn
import torch
from torch import Tensor, nn

from tdx.core.envs.env_base import EnvBase
from tdx.core.envs.policies import TensorPolicy, as_policy, is_public_class
from tdx.core.planned.columns import as_tensordict
from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, format_key, normalize_key, split_key
from tdx.foundation.tensordicts import maps_keys_only, read
from tdx.foundation.torch_internals import has_hooks


@dataclass(frozen=True, slots=True)
class KeyedPolicy:
    """A policy whose keys are known; ``act`` maps the entries to read, ``[*B, ...]``, by key."""

    reads: tuple[NestedKey, ...]
    writes: tuple[NestedKey, ...]
    act: Callable[[Mapping[NestedKey, Tensor]], dict[NestedKey, Tensor]]
    name: str = "policy"


def keyed_policy(policy: Any, env: EnvBase) -> KeyedPolicy | None:
    """Return a policy with its keys; ``None`` if it may read and write any entry."""
    over, name = as_policy(policy, env), type(policy).__name__
    if isinstance(over, TensorPolicy):
        return replace(_over_tensors(over), name=name)
    if not isinstance(policy, nn.Module) or not _keeps_to_keys(policy):
        return None
    reads = tuple(map(normalize_key, policy.in_keys))  # type: ignore[arg-type]
    writes = tuple(map(normalize_key, policy.out_keys))  # type: ignore[arg-type]
    if any(split_key(key)[0] in ("next", "_") for key in writes):
        return None
    if maps_keys_only(policy) and not has_hooks(policy):
        act = _through_module(cast("Callable[..., Any]", policy.module), reads, writes)
    else:
        act = _through_tensordict(policy, reads, writes, env)
    return KeyedPolicy(reads, writes, act, name)


def _over_tensors(policy: TensorPolicy) -> KeyedPolicy:
    keys, (out, *_) = policy.keys, policy.outs

    def act(root: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
        return {out: policy.action([root[key] for key in keys])}

    return KeyedPolicy(tuple(keys), (out,), act)


def _keeps_to_keys(policy: nn.Module) -> bool:
    """Return True if each part reads and writes only the keys that it declares.

    This holds for classes exported by tensordict and TorchRL. A subclass may override ``forward``.
    """
    has_keys = hasattr(policy, "in_keys") and hasattr(policy, "out_keys")
    loaded = [sys.modules.get(name) for name in ("torchrl.modules", "torchrl.envs")]
    parts = [type(part) for part in policy.modules() if hasattr(part, "in_keys")]
    return has_keys and all(
        any(is_public_class(kind, namespace) for namespace in (tensordict.nn, *loaded))
        for kind in parts
    )


def _through_module(
    module: Callable[..., Any], reads: Sequence[NestedKey], writes: Sequence[NestedKey]
) -> Callable[[Mapping[NestedKey, Tensor]], dict[NestedKey, Tensor]]:
    def several(result: Any) -> dict[NestedKey, Tensor]:
        results = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(value, Tensor) for value in results):
            # As a TensorDict does.
            results = tuple(
                torch.tensor(value) if isinstance(value, int | float) else value
                for value in results
            )
        if len(results) != len(writes) or not all(isinstance(value, Tensor) for value in results):
            raise ArgumentError(
                f"the policy's module returned {len(results)} values for {len(writes)} out_keys",
                hint="return one tensor for each of them",
            )
        return dict(zip(writes, results, strict=True))

    if len(reads) == len(writes) == 1:
        read_key, written_key = reads[0], writes[0]

        def act_on_one(root: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
            result = module(root[read_key])
            return {written_key: result} if isinstance(result, Tensor) else several(result)

        return act_on_one

    def act(root: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
        return several(module(*[root[key] for key in reads]))

    return act


def _through_tensordict(
    policy: Callable[[Any], Any],
    reads: Sequence[NestedKey],
    writes: Sequence[NestedKey],
    env: EnvBase,
) -> Callable[[Mapping[NestedKey, Tensor]], dict[NestedKey, Tensor]]:
    batch_size, device = env.batch_size, env.device

    def act(root: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
        given = as_tensordict({key: root[key] for key in reads}, batch_size, device)
        result = policy(given)
        written = {key: read(result, key) for key in writes}
        missing = [format_key(key) for key, value in written.items() if value is None]
        if missing:
            raise ArgumentError(
                f"the policy names {missing[0]!r} in its out_keys and did not write it",
                hint="have the policy write the key, or correct its out_keys",
            )
        return written

    return act
