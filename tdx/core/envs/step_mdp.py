"""``step_mdp``: from the result of a step to the input of the next one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor

from tdx.foundation.errors import ArgumentError
from tdx.foundation.keys import NestedKey, normalize_key, split_key
from tdx.foundation.tensordicts import (
    is_step_result,
    mark_step_result,
    new_tensordict,
    read,
    unstack_parts,
)


def step_anywhere(
    original: TensorDictBase,
    device: torch.device | None,
    complete: Callable[[TensorDictBase, TensorDictBase | None], TensorDictBase],
) -> TensorDictBase:
    """Make a step of a TensorDict that may be on another device, or lazy; write its ``next``.

    ``complete`` makes the step: from the input and the existing ``next`` to the new one.
    """
    if original.is_locked:
        raise ArgumentError(
            "the TensorDict is locked, so the step cannot write its result into it",
            hint="pass a copy: env.step(tensordict.clone(recurse=False))",
        )
    moved = None not in (device, original.device) and original.device != device
    tensordict = original.to(device) if moved and device is not None else original
    given_next = read(tensordict, "next")
    if any(is_step_result(read(part, "next"), part) for part in unstack_parts(original)):
        given_next = None
    following = complete(tensordict, given_next)
    if given_next is not None:
        following.update(given_next)
    original.set("next", following.to(original.device) if moved else following)
    for part in unstack_parts(original):
        mark_step_result(read(part, "next"), part)
    return original


def step_mdp(
    tensordict: TensorDictBase,
    next_tensordict: TensorDictBase | None = None,
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
    reward_keys: NestedKey | Sequence[NestedKey] = "reward",
    done_keys: NestedKey | Sequence[NestedKey] = "done",
    action_keys: NestedKey | Sequence[NestedKey] = "action",
) -> TensorDictBase:
    """Move the entries of ``next`` to the root, which gives the input of the next step.

    Args:
        tensordict: Result of ``env.step``, of shape ``[*B]``; not changed.
        next_tensordict: Where to write; a new TensorDict by default.
        keep_other: If True, keep root entries that ``next`` does not have.
        exclude_reward: If True, leave out rewards.
        exclude_done: If True, leave out done flags.
        exclude_action: If True, leave out actions.
        reward_keys: Keys of the rewards.
        done_keys: Keys of the done flags.
        action_keys: Keys of the actions.

    Returns:
        A TensorDict of shape ``[*B]`` that shares its tensors with the input.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> after = step_mdp(
        ...     TensorDict(
        ...         observation=torch.zeros(1), action=torch.zeros(1),
        ...         next=TensorDict(observation=torch.ones(1), reward=torch.ones(1)),
        ...     )
        ... )
        >>> after["observation"], sorted(after.keys())
        (tensor([1.]), ['observation'])
    """
    dropped: set[NestedKey] = set()
    for wanted, keys in (
        (exclude_reward, reward_keys),
        (exclude_done, done_keys),
        (exclude_action, action_keys),
    ):
        if wanted:
            dropped.update(_key_list(keys))
    kept = None if keep_other else [] if exclude_action else _key_list(action_keys)
    result = advance(tensordict, dropped, kept, keep_empty=False)
    if next_tensordict is None:
        return result
    next_tensordict.update(result)
    return next_tensordict


def _key_list(keys: NestedKey | Iterable[NestedKey]) -> list[NestedKey]:
    if isinstance(keys, (str, tuple)):
        return [normalize_key(keys)]
    return [normalize_key(key) for key in keys]


def advance(
    tensordict: TensorDictBase,
    dropped: Collection[NestedKey],
    kept: Collection[NestedKey] | None = None,
    keep_empty: bool = True,
) -> TensorDictBase:
    """Return the root updated with ``next``, without ``dropped`` keys; ``kept``: only these."""
    if type(tensordict) is LazyStackedTensorDict:
        # The entries of the rows may not stack.
        rows = [advance(row, dropped, kept, keep_empty) for row in tensordict.tensordicts]
        return LazyStackedTensorDict.lazy_stack(rows, tensordict.stack_dim)
    following = read(tensordict, "next")
    root = tensordict if kept is None else tensordict.select(*kept, strict=False)
    names = {split_key(key) for key in dropped}
    return _overlaid(root, following, {*names, ("next",)}, keep_empty)


def _overlaid(
    under: TensorDictBase | None,
    over: TensorDictBase | None,
    dropped: Collection[tuple[str, ...]],
    keep_empty: bool,
) -> TensorDictBase:
    if type(over) is LazyStackedTensorDict:
        return _overlaid_rows(over, under, over, dropped, keep_empty)
    if type(under) is LazyStackedTensorDict:
        return _overlaid_rows(under, under, over, dropped, keep_empty)
    present = [level for level in (under, over) if level is not None]
    nested_drops: dict[str, set[tuple[str, ...]]] = {}
    names = set()
    for parts in dropped:
        if len(parts) == 1:
            names.add(parts[0])
        else:
            nested_drops.setdefault(parts[0], set()).add(parts[1:])
    fields = {}
    for level in present:
        for name in level.keys():
            if name not in names:
                fields[name] = read(level, name)
    for name, value in list(fields.items()):
        # A tensorclass is a value: its fields are not merged.
        if isinstance(value, TensorDictBase) and not is_non_tensor(value):
            below, above = (None if level is None else read(level, name) for level in (under, over))
            fields[name] = _overlaid(below, above, nested_drops.get(name, ()), keep_empty)
            if (name in nested_drops or not keep_empty) and fields[name].is_empty():
                del fields[name]
    return new_tensordict(fields, present[0].batch_size, present[0].device)


def _overlaid_rows(
    lazy: LazyStackedTensorDict,
    under: TensorDictBase | None,
    over: TensorDictBase | None,
    dropped: Collection[tuple[str, ...]],
    keep_empty: bool,
) -> TensorDictBase:
    """Overlay row by row, in a lazy stack like ``lazy``: the entries of the rows may not stack."""
    dim = lazy.stack_dim
    below, above = (
        [None] * len(lazy.tensordicts) if level is None else level.unbind(dim)
        for level in (under, over)
    )
    pairs = zip(below, above, strict=True)
    rows = [_overlaid(*pair, dropped=dropped, keep_empty=keep_empty) for pair in pairs]
    return LazyStackedTensorDict.lazy_stack(rows, dim)
