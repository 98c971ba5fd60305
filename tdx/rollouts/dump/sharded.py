"""Read the shards of a dump as one rollout: its steps, episodes and chunks.

Shards follow each other in time. Nothing is read before it is used, and only some shards are mapped
into memory at a time.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torch import Tensor

from tdx.foundation.container import Container, replaced_error
from tdx.foundation.errors import StorageError
from tdx.foundation.keys import NestedKey
from tdx.foundation.tensordicts import new_tensordict
from tdx.rollouts.dump.entries import list_keys
from tdx.rollouts.dump.episodes import Episode, EpisodeIndex
from tdx.rollouts.dump.folder import DATA, RAW, read_dump_folder, report_unreadable
from tdx.rollouts.dump.index import Chunk, ChunkList
from tdx.rollouts.dump.manifest import Manifest
from tdx.rollouts.dump.shard_plan import (
    ShardPlan,
    ShardSummary,
    changed_shard,
    list_shards,
    read_shard_index,
    shard_name,
)
from tdx.rollouts.dump.track import Track

_MAX_OPEN = 128
"""Number of shards that are kept open: a process has a limited number of memory maps."""
Opened = TypeVar("Opened")


class RecentlyUsed(Sequence[Opened]):
    """Sequence whose items are opened when they are used, and kept for a while."""

    def __init__(self, count: int, open_item: Callable[[int], Opened]) -> None:
        self._count = count
        self._open_item = lru_cache(_MAX_OPEN)(open_item)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(self._count)[index]]
        return self._open_item(range(self._count)[index])


class ShardedFolder:
    """A sharded dump: its plan, and its committed shards in order.

    Its folder stays open, so that shards that are read later belong to the same dump.
    """

    def __init__(self, source: Path | Container) -> None:
        if isinstance(source, Container):
            self._read(source)
        else:
            read_dump_folder(source, self._read)

    def _read(self, root: Container) -> None:
        self.folder = root.path
        self.plan = ShardPlan.read(root)
        listing = list_shards(root, self.plan.count)
        index = read_shard_index(root, self.plan)
        self.complete = index is not None
        if index is not None:
            self.tracks, self.shards = index
            missing = set(range(self.plan.count)).difference(listing.committed)
            if missing:
                raise StorageError(
                    f"{self.folder / shard_name(min(missing))} is missing",
                    hint=f"`tdx rollout --resume --out {self.folder}` records it again",
                )
        else:
            self.tracks, self.shards = {}, []
            for shard in listing.committed:
                manifest, end = self.plan.read_shard(root, shard)
                self.shards.append(ShardSummary.of(shard, manifest, end))
                self.tracks = {track.name: track for track, _ in manifest.tracks}
        self._manifests = RecentlyUsed(len(self.shards), self._load)
        self.root = Container(root.path, root.folder.duplicate())
        weakref.finalize(self, self.root.folder.close)

    def path(self, place: int) -> Path:
        """Return the folder of a shard by its place among the committed ones."""
        return self.folder / shard_name(self.shards[place].shard)

    @contextmanager
    def open_shard(self, place: int) -> Iterator[Container]:
        """Open a shard by its place among the committed ones."""
        name = shard_name(self.shards[place].shard)
        try:
            with report_unreadable(self.path(place)), self.root.subfolder(name) as root:
                yield root
        except StorageError as error:
            if self.root.is_replaced():
                raise replaced_error(self.folder) from error
            raise

    def manifest(self, place: int) -> Manifest:
        """Return the manifest of a shard by its place among the committed ones."""
        found: Manifest = self._manifests[place]
        return found

    def _load(self, place: int) -> Manifest:
        summary = self.shards[place]
        with self.open_shard(place):
            manifest, end = self.plan.read_shard(self.root, summary.shard)
        if end.check != summary.check or manifest.steps != summary.steps:
            raise changed_shard(self.path(place))
        return manifest

    def whole_manifest(self) -> Manifest:
        """Return the manifest of the whole rollout, whose chunks and episodes are read on use."""
        plan = self.plan.manifest
        return replace(
            plan,
            data=self.tracks.get(DATA),
            raw=self.tracks.get(RAW),
            chunks=ShardedChunks(self),
            episodes=ShardedEpisodes(self),
            complete=self.complete,
            shards=(len(self.shards), self.plan.count),
        )

    def steps(self, name: str) -> ShardedSteps | None:
        """Return the steps of a track as one rollout; ``None`` if it is not stored."""
        track = self.tracks.get(name)
        if track is None:
            return None
        counts = [shard.steps if name == "data" else shard.raw_steps for shard in self.shards]

        def open_shard(place: int) -> TensorDictBase:
            with self.open_shard(place) as root:
                return track.open(root, counts[place])

        return ShardedSteps(track, counts, open_shard)


class ShardedSteps:
    """Steps of all shards, ``[*B, T]``, which are read when they are used.

    An index selects steps, as in a TensorDict: ``steps[..., 100:200]``, ``steps[..., 7]`` or
    ``steps[..., torch.tensor([3, 1])]``. A key selects one entry and reads all of it.
    ``open_shard`` opens the steps of a shard as ``[*B, T]``.
    """

    def __init__(
        self, track: Track, counts: Sequence[int], open_shard: Callable[[int], TensorDictBase]
    ) -> None:
        self._ends = list(accumulate(counts))
        self._shards: RecentlyUsed[TensorDictBase] = RecentlyUsed(len(counts), open_shard)
        total = self._ends[-1] if counts else 0
        self.batch_size = torch.Size((*track.batch_size, total))
        """``[*B, T]``."""

    @property
    def shape(self) -> torch.Size:
        """``[*B, T]``."""
        return self.batch_size

    @property
    def ndim(self) -> int:
        """Number of batch dimensions, with time."""
        return len(self.batch_size)

    @property
    def total(self) -> int:
        """Number of steps."""
        return self.batch_size[-1]

    def keys(self, *arguments: Any, **options: Any) -> Any:
        """Return the keys of the entries, as of a TensorDict."""
        return self._shards[0].keys(*arguments, **options)

    def list_keys(self) -> list[NestedKey]:
        """Return the keys of all entries."""
        return list_keys(self._shards[0])

    def get(self, key: NestedKey, default: Any = None) -> Any:
        """Read one entry of all steps, ``[*B, T, ...]``."""
        if self._shards[0].get(key, None) is None:
            return default
        return torch.cat([shard.get(key) for shard in self._shards], self.ndim - 1)

    def select(self, *keys: NestedKey) -> TensorDictBase:
        """Read some entries of all steps, ``[*B, T]``."""
        found = new_tensordict({}, self.batch_size, torch.device("cpu"))
        for key in keys:
            found.set(key, self[key])
        return found

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str) or (
            isinstance(index, tuple) and index and isinstance(index[0], str)
        ):
            found = self.get(index)
            if found is None:
                raise KeyError(index)
            return found
        parts = index if isinstance(index, tuple) else (index,)
        missing = self.ndim - sum(part is not Ellipsis for part in parts)
        # An array cannot be compared with an ellipsis.
        place = next((at for at, part in enumerate(parts) if part is Ellipsis), None)
        if place is not None:
            parts = (*parts[:place], *[slice(None)] * missing, *parts[place + 1 :])
        else:
            parts = (*parts, *[slice(None)] * missing)
        if len(parts) != self.ndim:
            raise IndexError(f"{len(parts)} indices for the shape {list(self.shape)}")
        *rows, times = parts
        if isinstance(times, slice):
            times = range(self.total)[times]
        if isinstance(times, int):
            place, step = self._locate(range(self.total)[times])
            return self._shards[place][(*rows, step)]
        if not isinstance(times, range) or times.step != 1:
            return self._read_steps(torch.as_tensor(times), rows)
        blocks, start = [], times.start
        while start < times.stop:
            place, first = self._locate(start)
            count = min(times.stop, self._ends[place]) - start
            blocks.append(self._shards[place][(*rows, slice(first, first + count))])
            start += count
        if not blocks:
            return self._shards[0][(*rows, slice(0, 0))]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, blocks[0].ndim - 1)

    def _locate(self, step: int) -> tuple[int, int]:
        """Return the shard of a step, and the step in it."""
        place = bisect_right(self._ends, step)
        return place, step - (self._ends[place - 1] if place else 0)

    def _read_steps(self, times: Tensor, rows: Sequence[Any]) -> TensorDictBase:
        if times.dtype is torch.bool:
            times = times.nonzero().flatten()
        wanted = torch.where(times < 0, times + self.total, times)
        if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < self.total:
            raise IndexError(f"a step is out of range: there are {self.total:,}")
        order = wanted.argsort(stable=True)
        places = torch.searchsorted(torch.tensor(self._ends), wanted[order], right=True)
        parts = []
        for place in places.unique_consecutive().tolist():
            first = self._ends[place - 1] if place else 0
            inside = wanted[order][places == place] - first
            parts.append(self._shards[place][(*rows, inside)])
        if not parts:
            return self._shards[0][(*rows, slice(0, 0))]
        dim = parts[0].ndim - 1
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        found: TensorDictBase = torch.cat(parts, dim)
        return found[(*[slice(None)] * dim, back)]

    def sample(self, key: NestedKey, count: int) -> Tensor:
        """Read one entry of about ``count`` steps, ``[*B, n, ...]``, evenly spread over shards."""
        chosen = range(0, len(self._shards), max(1, -(-len(self._shards) // _MAX_OPEN)))
        each = max(1, count // max(len(chosen), 1))
        dim = self.ndim - 1
        parts = []
        index: tuple[Any, ...]
        for place in chosen:
            values: Tensor = self._shards[place].get(key)
            stride = max(1, -(-values.shape[dim] // each))
            index = (*[slice(None)] * dim, slice(None, None, stride))
            parts.append(values[index])
        return torch.cat(parts, dim)


class ShardedChunks(ChunkList):
    """Chunks of all shards, whose checksums are read when they are used."""

    def __init__(self, folder: ShardedFolder) -> None:
        super().__init__()
        self._folder = folder
        self.steps = sum(shard.steps for shard in folder.shards)
        self.raw_steps = sum(shard.raw_steps for shard in folder.shards)
        self._ends = list(accumulate(shard.chunks for shard in folder.shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index]
        shard = bisect_right(self._ends, place)
        first = self._ends[shard - 1] if shard else 0
        return self._folder.manifest(shard).chunks[place - first]

    def __iter__(self) -> Iterator[Chunk]:
        for place in range(len(self._folder.shards)):
            yield from self._folder.manifest(place).chunks


class ShardedEpisodes(EpisodeIndex):
    """Episodes of all shards, which are read when they are used.

    Each shard starts with a reset, so that it may cut an episode at its end.
    """

    def __init__(self, folder: ShardedFolder) -> None:
        super().__init__(max(prod(folder.plan.manifest.batch_size), 1))
        self._folder = folder
        self.steps = sum(shard.steps for shard in folder.shards)

    def __len__(self) -> int:
        return sum(shard.ended for shard in self._folder.shards)

    def means(self) -> tuple[float | None, float | None]:
        shards, count = self._folder.shards, len(self)
        if not count:
            return None, None
        total = sum(shard.returns for shard in shards)
        mean = total / count if np.isfinite(total) else None
        return mean, sum(shard.lengths for shard in shards) / count

    def column(self, name: str) -> NDArray[Any]:
        columns = []
        for first, manifest in self._manifests():
            values = manifest.episodes.column(name)
            columns.append(values + first if name == "start" else values)
        return np.concatenate(columns) if columns else super().column(name)

    def __iter__(self) -> Iterator[Episode]:
        for first, manifest in self._manifests():
            for episode in manifest.episodes:
                yield replace(episode, start=episode.start + first)

    def _manifests(self) -> Iterator[tuple[int, Manifest]]:
        first = 0
        for place, summary in enumerate(self._folder.shards):
            yield first, self._folder.manifest(place)
            first += summary.steps
