"""Open dumps, and summarize them: episodes, returns, and the distribution of each entry."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.foundation.container import Container
from tdx.foundation.errors import StorageError, TdxError
from tdx.foundation.html_repr import repr_html
from tdx.foundation.keys import NestedKey, format_key, split_key
from tdx.foundation.serialization import Entries, Entry, Result, key_entry, to_plain
from tdx.foundation.text import dtype_name
from tdx.pipeline import Pipeline, format_stage, read_pipeline
from tdx.rollouts.dump.entries import list_keys, list_skipped
from tdx.rollouts.dump.episodes import Episode
from tdx.rollouts.dump.folder import DATA, MANIFEST, RAW, SHARDS, read_dump_folder
from tdx.rollouts.dump.manifest import Goal, Manifest, load_manifest
from tdx.rollouts.dump.remote import fetch_dump, is_url
from tdx.rollouts.dump.shard_plan import is_sharded
from tdx.rollouts.dump.sharded import RecentlyUsed, ShardedFolder, ShardedSteps

_BINS = 20
_MAX_VALUES = 2_000_000
"""Number of values of an entry that statistics are computed from, evenly spread over the steps."""


@dataclass(frozen=True, slots=True)
class Dump:
    """A rollout on disk.

    It is also a dataset of its steps for :class:`torch.utils.data.DataLoader`: ``dump[7]`` is a
    step ``[*B]``, and ``dump[[7, 3]]`` has the steps ``[*B, 2]``.

    Args:
        path: Folder of the dump.
        manifest: Description of the rollout.
        data: Entries of the rollout, ``[*B, T]``, memory-mapped; for a sharded dump
            :class:`~tdx.rollouts.dump.sharded.ShardedSteps`, which is indexed in the same way.
        raw: Raw steps of the base env, ``[*B, T]``, if they are stored.
        shards: Committed shards of a sharded dump, each a dump of its own; they are opened when
            they are used.
    """

    _repr_html_ = repr_html

    path: Path
    manifest: Manifest
    data: TensorDictBase
    raw: TensorDictBase | None
    shards: Sequence[Dump] = ()

    def __len__(self) -> int:
        return self.manifest.steps

    def __getitem__(self, index: Any) -> TensorDictBase:
        return self.data[..., index]

    def __getitems__(self, indices: Sequence[int]) -> TensorDictBase:
        return self.data[..., torch.as_tensor(indices)]

    @property
    def pipeline(self) -> Pipeline:
        """Env and chain that the dump was recorded with."""
        return read_pipeline(self.manifest.pipeline, str(self.path / MANIFEST))


def open_dump(path: str | Path) -> Dump:
    """Open a dump; data is read from the disk on access.

    Args:
        path: Folder of the dump, or its URL, from which it is downloaded into the cache.

    Raises:
        StorageError: The dump is missing, of a newer version, or lacks a file.

    Example:
        >>> import tempfile
        >>> from tdx import Pipeline, open_dump, record_dump
        >>> folder = tempfile.mkdtemp() + "/pendulum"
        >>> _ = record_dump(Pipeline.of("Pendulum-v1", "RewardSum"), folder, steps=250, seed=0)
        >>> dump = open_dump(folder)
        >>> dump.data["next", "episode_reward"].shape, len(dump.manifest.episodes)
        (torch.Size([250, 1]), 1)
    """
    folder = fetch_dump(path) if is_url(path) else Path(path)
    return read_dump_folder(folder, _open)


def _open(root: Container) -> Dump:
    sharded = ShardedFolder(root) if is_sharded(root) else None
    manifest = load_manifest(root)[0] if sharded is None else sharded.whole_manifest()
    if manifest.data is None:
        raise StorageError(
            f"{root.path} has no steps yet",
            hint=f"`tdx rollout --resume --out {root.path}` continues it",
        )
    if sharded is None:
        raw = None if manifest.raw is None else manifest.raw.open(root, manifest.raw_steps)
        return Dump(root.path, manifest, manifest.data.open(root, manifest.steps), raw)

    def open_shard(place: int) -> Dump:
        sharded.manifest(place)
        with sharded.open_shard(place) as inner:
            return _open(inner)

    shards = RecentlyUsed(len(sharded.shards), open_shard)
    steps, raw_steps = sharded.steps(DATA), sharded.steps(RAW)
    return Dump(root.path, manifest, steps, raw_steps, shards)


class ShardCount(TypedDict):
    """JSON entries of the number of shards of a dump."""

    committed: int
    count: int


class DumpSummary(TypedDict):
    """JSON entries of a dump in a list of dumps."""

    path: str
    env: str
    complete: bool
    steps: int
    goal: Goal
    shards: ShardCount | None
    batch_size: list[int]
    episodes_ended: int
    not_stored: list[str]
    mean_return: float | None
    mean_length: float | None
    seed: int
    policy: str
    source: str | None
    chunks: int
    bytes: int


class UnreadableDump(TypedDict):
    """JSON entries of a folder in a list of dumps that cannot be read."""

    path: str


class StateTensor(TypedDict):
    """JSON entries of a tensor that a stage keeps."""

    name: str
    dtype: str
    shape: list[int]
    values: list[float]


@dataclass(frozen=True, slots=True)
class Histogram(Result):
    """Histogram of values.

    Args:
        low: Smallest value.
        high: Largest value.
        counts: Number of values in bins of equal width from ``low`` to ``high``.
    """

    low: float
    high: float
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: Tensor) -> Histogram | None:
        """Return the histogram of all finite values; ``None`` if there are none."""
        finite = values[values.isfinite()].to(torch.float64)
        if not len(finite):
            return None
        low, high = finite.min().item(), finite.max().item()
        if low == high:
            return cls(low, high, (len(finite),))
        counts = torch.histc(finite, _BINS, low, high).to(torch.int64).tolist()
        return cls(low, high, tuple(counts))


@dataclass(frozen=True, slots=True)
class EntryStatistics(Result):
    """Statistics of the values of one entry.

    Args:
        key: Key of the entry.
        shape: Shape in one step.
        dtype: Name such as ``"float32"``.
        mean: Mean of all finite values; ``None`` if there are none.
        nans: Number of NaN values.
        histogram: Histogram of all finite values; ``None`` if there are none.
    """

    json_entries: ClassVar[Entries] = (
        *(key_entry("key"), "shape", "dtype", "mean", Entry("nan", "nans"), "histogram"),
    )

    key: NestedKey
    shape: tuple[int, ...]
    dtype: str
    mean: float | None
    nans: int
    histogram: Histogram | None

    @classmethod
    def of(cls, key: NestedKey, values: Tensor, dims: int) -> EntryStatistics:
        """Return the statistics of values with ``dims`` batch dimensions, time last."""
        sample = values.reshape(-1).to(torch.float64)
        finite = sample[sample.isfinite()]
        return cls(
            key,
            (*values.shape[: dims - 1], *values.shape[dims:]),
            dtype_name(values.dtype),
            finite.mean().item() if len(finite) else None,
            int(sample.isnan().sum()),
            Histogram.of(sample),
        )


@dataclass(frozen=True, slots=True)
class Overview(Result):
    """Summary of a dump.

    Args:
        path: Folder of the dump.
        manifest: Description of the rollout.
        calls: Stages of its chain, as the user would type them.
        episodes: All episodes; those still running are the last.
        returns: Returns of the episodes that ended.
        lengths: Lengths of the episodes that ended.
        entries: Statistics of each entry.
        max_listed: Number of episodes in JSON. ``None``: all.
    """

    json_entries: ClassVar[Entries] = (
        *(Entry("summary", inline=True), Entry("versions", "manifest.versions")),
        *(Entry("state", "chain_state"), "returns", "lengths", "entries"),
        *("episodes_total", "episodes_shown", Entry("episodes", "listed")),
    )

    path: str
    manifest: Manifest
    calls: tuple[str, ...]
    episodes: tuple[Episode, ...]
    returns: Histogram | None
    lengths: Histogram | None
    entries: tuple[EntryStatistics, ...]
    max_listed: int | None = None

    @property
    def listed(self) -> tuple[Episode, ...]:
        """Episodes in JSON: the first ones."""
        return self.episodes[: self.max_listed]

    @property
    def episodes_shown(self) -> int:
        """Number of episodes in JSON."""
        return len(self.listed)

    @property
    def episodes_total(self) -> int:
        """Number of all episodes, also those still running."""
        return len(self.episodes)

    @property
    def ended(self) -> list[Episode]:
        """Episodes that ended."""
        return [episode for episode in self.episodes if episode.finished]

    @property
    def chain_state(self) -> list[StateTensor]:
        """Tensors that the stages kept at the end, as JSON entries."""
        tensors: dict[str, Any] = self.manifest.transforms
        return [
            StateTensor(
                name=name, dtype=tensor["dtype"], shape=tensor["shape"], values=tensor["values"]
            )
            for name, tensor in tensors.items()
        ]

    @property
    def summary(self) -> DumpSummary:
        """Result of :func:`summarize`."""
        return summarize(self.path, self.manifest)


def summarize(path: str, manifest: Manifest) -> DumpSummary:
    """Return the row of a dump in a list of dumps, as plain data."""
    index, shards = manifest.episodes, manifest.shards
    mean_return, mean_length = index.means()
    return {
        "path": path,
        "env": manifest.env,
        "complete": manifest.complete,
        "steps": manifest.steps,
        "goal": to_plain(manifest.goal),
        "shards": None if shards is None else {"committed": shards[0], "count": shards[1]},
        "batch_size": list(manifest.batch_size),
        "episodes_ended": len(index),
        "not_stored": [
            f"{format_key(key)} ({kind})" for key, kind in list_skipped(manifest.specs).items()
        ],
        "mean_return": mean_return,
        "mean_length": mean_length,
        "seed": manifest.seed,
        "policy": manifest.policy,
        "source": manifest.source,
        "chunks": len(manifest.chunks),
        "bytes": manifest.size,
    }


def look_at(dump: Dump) -> Overview:
    """Summarize a dump: its episodes, and the values of each entry."""
    episodes = tuple(dump.manifest.episodes)
    ended = [episode for episode in episodes if episode.finished]
    data = dump.data
    keys = data.list_keys() if isinstance(data, ShardedSteps) else list_keys(data)
    parts = [split_key(key) for key in keys]
    return Overview(
        str(dump.path),
        dump.manifest,
        tuple(map(format_stage, dump.pipeline.transforms)),
        episodes,
        Histogram.of(
            torch.tensor([episode.total_reward for episode in ended], dtype=torch.float64)
        ),
        Histogram.of(torch.tensor([episode.length for episode in ended], dtype=torch.float64)),
        tuple(
            EntryStatistics.of(key, _sample(data, key), data.ndim)
            for key in keys
            # Not a key at the root that is below ``next`` as well.
            if split_key(key)[0] == "next" or ("next", *split_key(key)) not in parts
        ),
    )


def _sample(data: TensorDictBase | ShardedSteps, key: NestedKey) -> Tensor:
    """Return the values of evenly spread steps, ``[*B, n, ...]``."""
    if isinstance(data, ShardedSteps):
        width = max(data[..., 0].get(key).numel(), 1)
        return data.sample(key, max(_MAX_VALUES // width, 1))
    values: Tensor = data.get(key)
    stride = max(1, -(-values.numel() // _MAX_VALUES))
    return values[(*[slice(None)] * (data.ndim - 1), slice(None, None, stride))]


@dataclass(frozen=True, slots=True)
class Listed(Result):
    """One of the dumps below a folder.

    Args:
        path: Folder of the dump.
        summary: Result of :func:`summarize`; ``None`` if the dump cannot be read.
        problem: Why it cannot be read.
    """

    json_entries: ClassVar[Entries] = (Entry("columns", inline=True), "problem")

    path: str
    summary: DumpSummary | None
    problem: str | None

    @property
    def columns(self) -> DumpSummary | UnreadableDump:
        """Columns of the dump in a list of dumps, as plain data."""
        return self.summary or {"path": self.path}


def list_dumps(folder: str | Path) -> list[Listed]:
    """List the dumps in a folder and below it, by path.

    Raises:
        StorageError: The folder does not exist.
    """
    root = Path(folder)
    if not root.is_dir():
        raise StorageError(f"{root} is not a folder", hint="name a folder that has dumps")
    dumps = []
    for name, folders, files in os.walk(root):
        if MANIFEST in files:
            dumps.append(Path(name))
            # Shards are part of their dump.
            folders[:] = [name for name in folders if name != SHARDS]
    listed = []
    for path in sorted(dumps):
        try:
            listed.append(Listed(str(path), summarize(str(path), load_manifest_of(path)), None))
        except TdxError as error:
            listed.append(Listed(str(path), None, error.message))
    return listed


def load_manifest_of(folder: Path) -> Manifest:
    """Read the manifest of a dump, or of all committed shards of a sharded one.

    Raises:
        StorageError: The dump is missing or damaged.
    """

    def load(root: Container) -> Manifest:
        if is_sharded(root):
            return ShardedFolder(root).whole_manifest()
        return load_manifest(root)[0]

    return read_dump_folder(folder, load)
