"""Updates of stored steps that apply only if the steps were not replaced meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tdx.data.layout import Index, StateDict, to_time_first
from tdx.data.storage import Storage, TensorStorage, require_leaf
from tdx.foundation.errors import ArgumentError, ChainError, StorageError, Where
from tdx.foundation.keys import NestedKey, format_key, normalize_key

UNWRITTEN = -1


class Generations:
    """Counts how often each step of a storage was replaced."""

    def __init__(self) -> None:
        self._numbers = torch.zeros(0, dtype=torch.int64)

    def _grow(self, count: int) -> None:
        missing = count - len(self._numbers)
        if missing > 0:
            new = self._numbers.new_full((missing,), UNWRITTEN)
            self._numbers = torch.cat([self._numbers, new])

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:
        """Count the writes to steps, which may occur more than once."""
        if len(index):
            self._grow(int(index.max()) + 1)
            self._numbers.index_add_(0, index, torch.ones_like(index))

    def mark_empty(self) -> None:
        """Count the removal of all written steps."""
        self._numbers += self._numbers != UNWRITTEN

    def mark_loaded(self, count: int) -> None:
        """Count the replacement of all steps by ``count`` others."""
        self._grow(count)
        self._numbers[count:] += self._numbers[count:] != UNWRITTEN
        self._numbers[:count] += 1

    def of(self, steps: Tensor) -> Tensor:
        """Return the count of each step, int64 in the shape of ``steps``; -1: never written."""
        steps = steps.cpu()
        known = (steps >= 0) & (steps < len(self._numbers))
        numbers = torch.full_like(steps, UNWRITTEN)
        numbers[known] = self._numbers[steps[known]]
        return numbers

    def state(self) -> StateDict:
        """Return a copy of the counts."""
        return {"_generation": self._numbers.clone()}

    def restore(self, state: StateDict, count: int) -> None:
        """Continue from what :meth:`state` returned; without it, count ``count`` loaded steps.

        Raises:
            StorageError: The counts are not valid.
        """
        if "_generation" not in state:
            self.mark_loaded(count)
            return
        try:
            numbers = torch.as_tensor(state["_generation"], dtype=torch.int64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise StorageError(f"the generations of the writer are not valid: {error}") from error
        if numbers.ndim != 1 or bool((numbers < UNWRITTEN).any()):
            raise StorageError(
                "the generations of the writer are not valid", hint="save the buffer again"
            )
        self._numbers = numbers.to("cpu", copy=True)


@dataclass(frozen=True)
class ConditionalUpdate:
    """Result of :meth:`ReplayBuffer.update_if_present`.

    Attributes:
        updated: Mask of the steps that were updated, bool ``[N]``.
        stale: Mask of the steps that were replaced or removed meanwhile, bool ``[N]``.
        version_rejected: Mask of the steps whose stored version is as new, bool ``[N]``; ``None``
            without versions.
    """

    updated: Tensor
    stale: Tensor
    version_rejected: Tensor | None = None

    @property
    def updated_count(self) -> int:
        """Number of updated steps."""
        return int(self.updated.sum())

    @property
    def stale_count(self) -> int:
        """Number of steps that were replaced or removed meanwhile."""
        return int(self.stale.sum())

    @property
    def version_rejected_count(self) -> int:
        """Number of steps whose stored version is as new."""
        return 0 if self.version_rejected is None else int(self.version_rejected.sum())


def update_if_present(
    storage: Storage,
    generations: Generations | None,
    index: Index,
    generation: Tensor,
    patch: Mapping[NestedKey, Tensor],
    dim_extend: int,
    version_key: NestedKey | None,
    version: Tensor | int | None,
    require_newer: bool,
) -> ConditionalUpdate:
    """See :meth:`ReplayBuffer.update_if_present`; nothing is written if an argument is invalid."""
    if generations is None or not isinstance(storage, TensorStorage):
        raise ChainError(
            "conditional updates need tensors and a writer that tracks generations",
            hint="pass storage=LazyTensorStorage(...) and "
            "writer=TensorDictRoundRobinWriter(track_generations=True)",
        )
    steps = storage.step_numbers(index).reshape(-1).cpu()
    handles = torch.as_tensor(generation).reshape(-1).cpu()
    if len(handles) != len(steps):
        raise ArgumentError(f"got {len(handles)} generations for {len(steps)} steps")
    only_stored = "only stored keys can be updated"
    values: dict[NestedKey, tuple[Tensor, Tensor]] = {}
    for key, value in patch.items():
        name = normalize_key(key)
        leaf = require_leaf(storage, name, only_stored)
        feature = leaf.shape[storage.ndim :]
        if storage.ndim > 1 and value.ndim == leaf.ndim:
            value = to_time_first(value, dim_extend).flatten(0, storage.ndim - 1)
        if value.shape != (len(steps), *feature) or value.dtype != leaf.dtype:
            raise ArgumentError(
                f"{format_key(name)!r} must be {leaf.dtype} of shape {(len(steps), *feature)}, "
                f"got {value.dtype} of shape {tuple(value.shape)}",
                where=Where(key=name),
            )
        values[name] = leaf, value
    live = (steps >= 0) & (steps < len(storage)) & (generations.of(steps) == handles)
    live &= handles != UNWRITTEN
    updated, rejected = live, None
    if (version_key is None) != (version is None):
        raise ArgumentError("version_key and version belong together: pass both or neither")
    if version_key is not None and version is not None:
        version_key = normalize_key(version_key)
        if version_key in values:
            raise ArgumentError(
                f"the version {format_key(version_key)!r} may not appear in patch",
                hint="it is written with the patch: remove it there",
            )
        stored = require_leaf(storage, version_key, only_stored)
        if stored.dtype is not torch.int64 or stored[:1].numel() != storage.width:
            raise ArgumentError(
                f"the version {format_key(version_key)!r} must be one int64 per step, got "
                f"{stored.dtype} of shape {tuple(stored.shape[storage.ndim :])}",
                where=Where(key=version_key),
            )
        versions = torch.as_tensor(version, dtype=torch.int64).reshape(-1).cpu()
        if len(versions) not in (1, len(steps)):
            raise ArgumentError(f"got {len(versions)} versions for {len(steps)} steps")
        versions = versions.expand(len(steps))
        updated = live.clone()
        before = stored.reshape(-1)[steps[live].to(stored.device)].cpu()
        newer = versions[live] > before if require_newer else versions[live] >= before
        updated[live] = newer
        # Of several updates of one step, the one with the highest version wins.
        rank = torch.empty_like(steps)
        rank[versions.argsort(stable=True)] = torch.arange(len(steps))
        rank = torch.where(updated, rank, -1)
        best = torch.full((len(storage),), -1)
        best.scatter_reduce_(0, torch.where(live, steps, 0), rank, "amax")
        updated &= best[torch.where(live, steps, 0)] == rank
        rejected = live & ~updated
        values[version_key] = stored, versions.reshape(-1, *stored.shape[storage.ndim :])
    rows = steps[updated]
    for leaf, value in values.values():
        flat = leaf.view(-1, *leaf.shape[storage.ndim :])
        flat[rows.to(leaf.device)] = value[updated.to(value.device)].to(leaf.device)
    storage.version += 1
    return ConditionalUpdate(updated, ~live, rejected)
