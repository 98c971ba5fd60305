"""Episodes of stored steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tdx.data.storage import Storage
from tdx.data.tensor_storage import TensorStorage
from tdx.foundation.errors import ArgumentError, ChainError, KeyNotFoundError, Where
from tdx.foundation.keys import NestedKey, format_key, normalize_key

TRAJECTORY_KEYS: tuple[NestedKey, ...] = (("collector", "traj_ids"), "episode")


@dataclass(frozen=True)
class Episodes:
    """Stored episodes, in time order within each column.

    Args:
        first: Number of rows from the oldest row to the first step.
        length: Number of steps.
        column: Position in the row.
    """

    first: Tensor
    length: Tensor
    column: Tensor


class EpisodeBoundaries:
    """Finds episodes by flags or identifiers.

    Args:
        end_key: Flag of the last step of an episode.
        end_keys: Instead, flags any of which ends an episode.
        traj_key: Entry that identifies the episode.
        ends: Flags of all steps, ``[rows, *B]``, instead of entries.
        trajectories: Identifiers of the episodes of all steps, instead of entries.

    Raises:
        ArgumentError: Two of the alternatives are given.
    """

    def __init__(
        self,
        end_key: NestedKey | None,
        end_keys: Sequence[NestedKey] | None,
        traj_key: NestedKey | None,
        ends: Tensor | None,
        trajectories: Tensor | None,
    ) -> None:
        for pair in ((end_key, end_keys), (ends, trajectories)):
            if None not in [each if each is None else 0 for each in pair]:
                raise ArgumentError(
                    "the ends of episodes are given in two ways", hint="remove one of them"
                )
        given = [end_key] if end_key is not None else list(end_keys or ())
        self.end_keys = [normalize_key(key) for key in given or [("next", "done")]]
        self._end_is_given = bool(given)
        self.traj_key = None if traj_key is None else normalize_key(traj_key)
        self.ends, self.trajectories = ends, trajectories

    def find(self, storage: TensorStorage) -> Episodes:
        """Return the stored episodes.

        Raises:
            KeyNotFoundError: The entries that separate episodes are missing.
            ChainError: A stored step is itself a sequence.
            ArgumentError: ``ends`` or ``trajectories`` are shorter than the data.
        """
        rows, width = storage.rows, storage.width
        values, ended = self._boundaries(storage)
        if values is not None:
            begins = torch.ones(rows, width, dtype=torch.bool)
            begins[1:] = self._changes(values)
        else:
            assert ended is not None
            begins = _in_time_order(storage.begins, storage)
            begins[1:] |= ended[:-1]
            identifier = None if self._end_is_given else self._stored_identifier(storage)
            if identifier is not None and rows > 1 and bool(begins[1:].all()):
                # `next` does not hold the next step, as in synthetic data.
                begins[1:] = self._changes(self._flags(storage, identifier))
        begins[0] = True
        first = begins.t().flatten().nonzero().squeeze(-1)
        length = torch.diff(first, append=torch.tensor([rows * width]))
        return Episodes(first % rows, length, first // rows)

    def _boundaries(self, storage: TensorStorage) -> tuple[Tensor | None, Tensor | None]:
        """Return the episode of each step, ``[rows, width, n]``, or its flag ``[rows, width]``."""
        rows, width = storage.rows, storage.width
        for given in (self.trajectories, self.ends):
            if given is not None and given.shape[:1].numel() * width < rows * width:
                raise ArgumentError(
                    f"ends or trajectories have {len(given)} rows, the storage has {rows}",
                    hint="pass one value for each stored step",
                )
        if self.trajectories is not None:
            values = _in_time_order(self.trajectories[:rows].cpu(), storage)
            return values.reshape(rows, width, -1), None
        if self.ends is not None:
            flags = _in_time_order(self.ends[:rows].cpu(), storage)
            return None, flags.reshape(rows, width, -1).bool().any(-1)
        stored = [key for key in self.end_keys if storage.leaf(key) is not None]
        key = self.traj_key
        if key is None and not self._end_is_given and not stored:
            key = self._stored_identifier(storage)
        can_use_flag = self._end_is_given and stored
        if key is not None and not (storage.leaf(key) is None and can_use_flag):
            self.traj_key = key
            return self._flags(storage, key), None
        ended = [self._flags(storage, key).bool().any(-1) for key in stored or self.end_keys]
        return None, torch.stack(ended).any(0)

    @staticmethod
    def _stored_identifier(storage: TensorStorage) -> NestedKey | None:
        return next((key for key in TRAJECTORY_KEYS if storage.leaf(key) is not None), None)

    @staticmethod
    def _changes(values: Tensor) -> Tensor:
        return (values[1:] != values[:-1]).any(-1)

    def _flags(self, storage: TensorStorage, key: NestedKey) -> Tensor:
        """Return an entry in time order, ``[rows, width, n]``."""
        leaf = storage.leaf(key)
        if leaf is None:
            known = [] if storage.layout is None else storage.layout.shapes
            names = sorted(format_key(path) for path in known)
            raise KeyNotFoundError(
                f"the buffer has no {format_key(key)!r} to separate episodes",
                hint=f"pass end_key or traj_key; existing keys: {', '.join(names)}",
                where=Where(key=key),
            )
        if storage.layout is not None and storage.layout.groups[()]:
            raise ChainError(
                "each stored step is itself a sequence of shape "
                f"{tuple(storage.layout.groups[()])}",
                hint="extend with rollout.reshape(-1), or use a storage with ndim=2",
            )
        ordered = _in_time_order(leaf, storage).cpu()
        return ordered.reshape(storage.rows, storage.width, -1)


def _in_time_order(values: Tensor, storage: Storage) -> Tensor:
    """Return a copy of the filled rows, oldest first."""
    return torch.cat([values[storage.oldest : storage.rows], values[: storage.oldest]])
