"""Small edits of composites that several transforms make, each on a copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase

from tdx.errors import ChainError, Where
from tdx.keys import NestedKey, format_key, normalize_key, sibling_key, split_key
from tdx.specs import Composite, TensorSpec


def with_entries(spec: Composite, entries: Mapping[NestedKey, TensorSpec]) -> Composite:
    """The composite with these entries set; the argument stays as it is."""
    result = spec.clone()
    result.unlock_()
    for key, entry in entries.items():
        result[key] = entry
    return result


def without_keys(spec: Composite, keys: Iterable[NestedKey]) -> Composite:
    """The composite without these entries, of which some may not be there."""
    present = [key for key in keys if spec.get(key, None) is not None]
    if not present:
        return spec
    result = spec.clone()
    result.unlock_()
    for key in present:
        if result.get(key, None) is not None:
            del result[key]
    return result


def refuse_lost_flags(before: Composite, after: Composite) -> None:
    """Raise where a group of done flags has lost all of them.

    Args:
        before: the done spec upstream of a transform.
        after: what the transform leaves of it.

    Raises:
        ChainError: nothing would tell the end of the group's episodes.
    """
    left = {group.reset_key for group in done_groups(after)}
    for group in done_groups(before):
        if group.reset_key not in left:
            flags = ", ".join(repr(format_key(key)) for key in group.keys)
            raise ChainError(
                f"no done flag would be left of {flags}, and nothing tells when an episode ends",
                hint="keep at least one of them",
                where=Where(key=group.keys[0]),
            )


@dataclass(frozen=True, slots=True)
class DoneGroup:
    """The done flags that sit side by side and are reset together.

    Args:
        reset_key: the key of their reset mask.
        keys: the flags' keys.
        shape: the flags' shape, ``[*B, *G, 1]``.
        device: where the flags live.
    """

    reset_key: NestedKey
    keys: tuple[NestedKey, ...]
    shape: torch.Size
    device: torch.device

    def beside(self, name: str) -> NestedKey:
        """The key of that name in this group."""
        return sibling_key(self.reset_key, name)

    def has(self, name: str) -> bool:
        """Whether the group has a flag of that name."""
        return any(split_key(key)[-1] == name for key in self.keys)


def done_groups(full_done_spec: Composite) -> tuple[DoneGroup, ...]:
    """The groups of done flags in a done spec, in order."""
    groups: dict[NestedKey, DoneGroup] = {}
    for raw_key, spec in full_done_spec.items(True, True):
        key = normalize_key(raw_key)
        reset_key = sibling_key(key, "_reset")
        earlier = groups[reset_key].keys if reset_key in groups else ()
        device = torch.device("cpu") if spec.device is None else spec.device
        groups[reset_key] = DoneGroup(reset_key, (*earlier, key), spec.shape, device)
    return tuple(groups.values())


def shape_in(tensordict: TensorDictBase, shape: torch.Size, batch_dims: int) -> torch.Size:
    """The shape of an entry ``[*B, ...]`` in a TensorDict ``[*A, *B]``.

    Args:
        tensordict: of the env's batch size, or of a larger one where the env takes that.
        shape: as the spec says, ``[*B, ...]``.
        batch_dims: the number of dims in ``B``.
    """
    return torch.Size((*tensordict.batch_size[: tensordict.ndim - batch_dims], *shape))


def refuse_taken(spec: Composite, key: NestedKey) -> None:
    """Raise where an entry that a transform would add is there already.

    Raises:
        ChainError: the composite has an entry of that key.
    """
    if spec.get(key, None) is not None:
        raise ChainError(
            f"the key {format_key(key)!r} that this transform would write is already there",
            hint="give this stage another key, or remove the stage that writes it",
            where=Where(key=key),
        )
