"""Open dumps, and summarize them: episodes, returns, and the distribution of each entry."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from tdx.errors import StorageError, TdxError
from tdx.keys import NestedKey, format_key, key_parts
from tdx.pipeline import Pipeline, format_stage, read_pipeline
from tdx.rollouts.dump.entries import all_keys, not_stored
from tdx.rollouts.dump.episodes import Episode
from tdx.rollouts.dump.folder import MANIFEST
from tdx.rollouts.dump.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Dump:
    """A rollout on disk.

    Args:
        path: its folder.
        manifest: all that is known of it.
        data: the rollout, ``[*B, T]``, read from the disk where it is looked at.
        raw: what the env itself gave and took, ``[*B, T]``, where that is stored.
    """

    path: Path
    manifest: Manifest
    data: TensorDictBase
    raw: TensorDictBase | None

    @property
    def pipeline(self) -> Pipeline:
        """The env and the chain that it was made with."""
        return read_pipeline(self.manifest.pipeline, str(self.path / MANIFEST))


def open_dump(path: str | Path) -> Dump:
    """Open a dump; no number is read before it is looked at.

    Args:
        path: its folder.

    Raises:
        StorageError: there is no dump, it is of a newer version, or a file of it is missing.

    Example:
        >>> import tempfile
        >>> from tdx import Pipeline, open_dump, record_dump
        >>> folder = tempfile.mkdtemp() + "/pendulum"
        >>> _ = record_dump(Pipeline.of("Pendulum-v1", "RewardSum"), folder, steps=250, seed=0)
        >>> dump = open_dump(folder)
        >>> dump.data["next", "episode_reward"].shape, len(dump.manifest.episodes)
        (torch.Size([250, 1]), 1)
    """
    folder = Path(path)
    manifest = Manifest.load(folder)
    if manifest.data is None:
        raise StorageError(
            f"{folder} has no steps yet",
            hint=f"`tdx rollout --resume --out {folder}` continues it",
        )
    raw = None if manifest.raw is None else manifest.raw.open(folder, manifest.raw_steps)
    return Dump(folder, manifest, manifest.data.open(folder, manifest.steps), raw)


_BINS = 20


_MOST_VALUES = 2_000_000
"""Of an entry that are looked at; of a longer one evenly spread steps are."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often values fall where.

    Args:
        low: the smallest value.
        high: the largest one.
        counts: of equally wide bins from ``low`` to ``high``.
    """

    low: float
    high: float
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: Tensor) -> Histogram | None:
        """The histogram of all finite values; none where there are none."""
        finite = values[values.isfinite()].to(torch.float64)
        if not len(finite):
            return None
        low, high = finite.min().item(), finite.max().item()
        if low == high:
            return cls(low, high, (len(finite),))
        counts = torch.histc(finite, _BINS, low, high).to(torch.int64).tolist()
        return cls(low, high, tuple(counts))

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"low": self.low, "high": self.high, "counts": list(self.counts)}


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of one entry.

    Args:
        key: the entry.
        shape: in one step.
        dtype: such as ``"float32"``.
        mean: of all finite values.
        nans: how many are no number.
        histogram: none where there is no finite value.
    """

    key: NestedKey
    shape: tuple[int, ...]
    dtype: str
    mean: float | None
    nans: int
    histogram: Histogram | None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "key": format_key(self.key),
            "shape": list(self.shape),
            "dtype": self.dtype,
            "mean": self.mean,
            "nan": self.nans,
            "histogram": None if self.histogram is None else self.histogram.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Overview:
    """A dump at a glance.

    Args:
        path: its folder.
        manifest: all that is known of it.
        calls: the stages of its chain, as the user would write them.
        episodes: every one, those that still ran last.
        returns: of the episodes that ended.
        lengths: of the episodes that ended.
        entries: the values of each.
    """

    path: str
    manifest: Manifest
    calls: tuple[str, ...]
    episodes: tuple[Episode, ...]
    returns: Histogram | None
    lengths: Histogram | None
    entries: tuple[Spread, ...]

    @property
    def ended(self) -> list[Episode]:
        """The episodes that ended."""
        return [each for each in self.episodes if each.finished]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            **summary(self.path, self.manifest),
            "calls": list(self.calls),
            "versions": self.manifest.versions,
            "transforms": self.manifest.transforms,
            "returns": None if self.returns is None else self.returns.to_dict(),
            "lengths": None if self.lengths is None else self.lengths.to_dict(),
            "entries": [each.to_dict() for each in self.entries],
            "episodes": [each.to_dict() for each in self.episodes],
        }


def summary(path: str, manifest: Manifest) -> dict[str, Any]:
    """What a list of dumps says of each, as plain data."""
    index = manifest.episodes
    returns = torch.from_numpy(index.column("return"))
    finite = bool(len(returns)) and bool(returns.isfinite().all())
    lengths = torch.from_numpy(index.column("length")).to(torch.float64)
    return {
        "path": path,
        "env": manifest.env,
        "complete": manifest.complete,
        "steps": manifest.steps,
        "goal": {"steps": manifest.goal.steps, "episodes": manifest.goal.episodes},
        "batch_size": list(manifest.batch_size),
        "episodes_ended": len(index),
        "not_stored": [
            f"{format_key(key)} ({kind})" for key, kind in not_stored(manifest.specs).items()
        ],
        "mean_return": returns.mean().item() if finite else None,
        "mean_length": lengths.mean().item() if len(lengths) else None,
        "seed": manifest.seed,
        "policy": manifest.policy,
        "source": manifest.source,
        "chunks": len(manifest.chunks),
        "bytes": manifest.size,
    }


def look_at(dump: Dump) -> Overview:
    """Look at all that is in a dump.

    Args:
        dump: the dump.
    """
    episodes = tuple(dump.manifest.episodes)
    ended = [each for each in episodes if each.finished]
    data = dump.data
    keys = [key for key in all_keys(data) if _is_shown(key, all_keys(data))]
    return Overview(
        str(dump.path),
        dump.manifest,
        tuple(map(format_stage, dump.pipeline.transforms)),
        episodes,
        Histogram.of(torch.tensor([each.total_reward for each in ended], dtype=torch.float64)),
        Histogram.of(torch.tensor([each.length for each in ended], dtype=torch.float64)),
        tuple(_spread(key, data.get(key), data.ndim) for key in keys),
    )


def _is_shown(key: NestedKey, keys: Sequence[NestedKey]) -> bool:
    """Whether an entry is shown: what is below ``next`` too is shown once."""
    parts = key_parts(key)
    return parts[0] == "next" or ("next", *parts) not in [key_parts(each) for each in keys]


def _spread(key: NestedKey, values: Tensor, dims: int) -> Spread:
    steps = values.shape[dims - 1]
    stride = max(1, -(-values.numel() // _MOST_VALUES))
    index = (*[slice(None)] * (dims - 1), slice(0, steps, stride))
    looked = values[index].reshape(-1).to(torch.float64)
    finite = looked[looked.isfinite()]
    return Spread(
        key,
        (*values.shape[: dims - 1], *values.shape[dims:]),
        str(values.dtype).removeprefix("torch."),
        finite.mean().item() if len(finite) else None,
        int(looked.isnan().sum()),
        Histogram.of(looked),
    )


@dataclass(frozen=True, slots=True)
class Listed:
    """One of the dumps below a folder.

    Args:
        path: its folder.
        summary: what is known of it, as plain data; none where it cannot be read.
        problem: why not.
    """

    path: str
    summary: dict[str, Any] | None
    problem: str | None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {**(self.summary or {"path": self.path}), "problem": self.problem}


def list_dumps(folder: str | Path) -> list[Listed]:
    """Every dump in a folder and below it, by path.

    Raises:
        StorageError: there is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise StorageError(f"there is no folder {root}", hint="name a folder that has dumps")
    found = []
    for path in sorted(Path(each) for each, _, files in os.walk(root) if MANIFEST in files):
        try:
            found.append(Listed(str(path), summary(str(path), Manifest.load(path)), None))
        except TdxError as error:
            found.append(Listed(str(path), None, error.message))
    return found
