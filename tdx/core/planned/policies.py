"""Policies by the keys that they read and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from tdx.core.envs import EnvBase
from tdx.core.envs.policies import OverTensors, as_policy
from tdx.core.planned.columns import as_tensordict
from tdx.errors import ArgumentError
from tdx.keys import NestedKey, format_key, normalize_key, split_key
from tdx.tensordicts import read

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_KEPT_TO_KEYS = ("tensordict.", "torchrl.")


@dataclass(frozen=True, slots=True)
class KeyedPolicy:
    """A policy of which it is known what it reads and writes.

    Args:
        reads: the keys that it reads.
        writes: the keys that it writes.
        act: from the entries that it reads, ``[*B, ...]``, by key, to those that it writes.
        name: what a person knows it by.
    """

    reads: tuple[NestedKey, ...]
    writes: tuple[NestedKey, ...]
    act: Callable[[Mapping[NestedKey, Tensor]], dict[NestedKey, Tensor]]
    name: str = "policy"


def keyed_policy(policy: Any, env: EnvBase) -> KeyedPolicy | None:
    """The policy by its keys; ``None`` for one that may read and write any entry.

    Args:
        policy: a callable over TensorDicts, or a module over tensors.
        env: the env that it acts in.
    """
    over, name = as_policy(policy, env), type(policy).__name__
    if isinstance(over, OverTensors):
        return replace(_over_tensors(over), name=name)
    if not isinstance(policy, nn.Module) or not _keeps_to_keys(policy):
        return None
    reads = tuple(map(normalize_key, policy.in_keys))  # type: ignore[arg-type]
    writes = tuple(map(normalize_key, policy.out_keys))  # type: ignore[arg-type]
    if any(split_key(key)[0] in ("next", "_") for key in writes):
        return None
    if _is_plain(policy):
        act = _through_module(cast("Callable[..., Any]", policy.module), reads, writes)
    else:
        act = _through_tensordict(policy, reads, writes, env)
    return KeyedPolicy(reads, writes, act, name)


def _over_tensors(policy: OverTensors) -> KeyedPolicy:
    keys, (out, *_) = policy.keys, policy.outs

    def act(root: Mapping[NestedKey, Tensor]) -> dict[NestedKey, Tensor]:
        return {out: policy.action([root[key] for key in keys])}

    return KeyedPolicy(tuple(keys), (out,), act)


def _keeps_to_keys(policy: nn.Module) -> bool:
    """Whether its class is one that reads and writes the keys that it names, and no others."""
    declares = hasattr(policy, "in_keys") and hasattr(policy, "out_keys")
    parts = [each for each in policy.modules() if hasattr(each, "in_keys")]
    return declares and all(type(each).__module__.startswith(_KEPT_TO_KEYS) for each in parts)


def _is_plain(policy: nn.Module) -> bool:
    """Whether calling it does no more than to call its module with the in-keys."""
    if type(policy) is not TensorDictModule or any(getattr(policy, name) for name in _HOOKS):
        return False
    made: Any = policy
    return (
        not made._kwargs
        and made.method in (None, "forward", "__call__")
        and not made.method_kwargs
        and made.inplace is True
        and list(made.out_keys) == list(made._out_keys)
    )


def _through_module(
    module: Callable[..., Any], reads: Sequence[NestedKey], writes: Sequence[NestedKey]
) -> Callable[[Mapping[NestedKey, Tensor]], dict[NestedKey, Tensor]]:
    def several(result: Any) -> dict[NestedKey, Tensor]:
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(writes) or not all(isinstance(each, Tensor) for each in results):
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
                f"the policy names {missing[0]!r} and wrote no such entry",
                hint="have the policy write the key, or correct its out_keys",
            )
        return written

    return act
