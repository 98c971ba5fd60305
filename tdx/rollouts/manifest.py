"""``manifest.json``: all that is known of a dump beside the numbers themselves."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tdx.errors import StorageError
from tdx.rollouts.episodes import EpisodeIndex
from tdx.rollouts.track import Track, write_atomically

FORMAT, VERSION = "tdx-dump", 1
MANIFEST = "manifest.json"
DATA, RAW = "data", "raw"
_PACKAGES = ("tdx", "torch", "tensordict", "gymnasium", "numpy")


@dataclass(frozen=True, slots=True)
class Goal:
    """How long a rollout is to be: one of the two.

    Args:
        steps: of each env.
        episodes: of all envs together.
    """

    steps: int | None = None
    episodes: int | None = None

    def __str__(self) -> str:
        count, noun = (self.steps, "step") if self.steps else (self.episodes, "episode")
        return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a dump that was written as one.

    Args:
        steps: how many steps of the rollout.
        raw_steps: how many of the env itself, where these are stored.
        crc32: the checksum of its part of each file.
        partial: whether the env failed in it; such a chunk is the last one.
    """

    steps: int
    raw_steps: int
    crc32: Mapping[str, str]
    partial: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        counts = {"steps": self.steps, "raw_steps": self.raw_steps, "partial": self.partial}
        return {**counts, "crc32": dict(self.crc32)}


@dataclass(slots=True)
class Manifest:
    """What a dump's ``manifest.json`` says.

    Args:
        pipeline: the pipeline as YAML.
        seed: of the env and of the actions.
        policy: as it was asked for: ``"random"``, ``"module:FILE"``, ...
        policy_sha256: of its file, where it has one.
        goal: how long the rollout is to be.
        chunk_steps: of every chunk but the last.
        keys: the entries that are stored; none for all.
        batch_size: ``[*B]``.
        specs: what the env promises of each entry, as plain data.
        versions: of the packages that made it.
        source: the dump that was replayed, where it was.
        data: the rollout's entries.
        raw: what the env itself gave, where that is stored.
        chunks: in order.
        episodes: where they begin and end, and what they returned.
        transforms: the running state of ``VecNorm`` and its like, by stage and name.
        state: the file with what ``--resume`` needs.
        complete: whether the goal is reached.
    """

    pipeline: str
    seed: int
    policy: str
    policy_sha256: str | None
    goal: Goal
    chunk_steps: int
    keys: tuple[str, ...] | None
    batch_size: tuple[int, ...]
    specs: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    source: str | None = None
    data: Track | None = None
    raw: Track | None = None
    keeps_raw: bool = False
    chunks: list[Chunk] = field(default_factory=list)
    episodes: EpisodeIndex = field(default_factory=lambda: EpisodeIndex(1))
    transforms: dict[str, Any] = field(default_factory=dict)
    state: str | None = None
    complete: bool = False

    @property
    def steps(self) -> int:
        """How many steps of each env are stored."""
        return sum(chunk.steps for chunk in self.chunks)

    @property
    def raw_steps(self) -> int:
        """How many steps of the env itself are stored."""
        return sum(chunk.raw_steps for chunk in self.chunks)

    @property
    def tracks(self) -> list[tuple[Track, int]]:
        """What is stored, each with its number of steps."""
        both = ((self.data, self.steps), (self.raw, self.raw_steps))
        return [(track, steps) for track, steps in both if track is not None]

    @property
    def size(self) -> int:
        """How many bytes the stored entries have."""
        return sum(
            steps * track.step_bytes(path) for track, steps in self.tracks for path in track.leaves
        )

    @property
    def env(self) -> str:
        """The env's id."""
        from tdx.pipeline import read_pipeline

        return read_pipeline(self.pipeline, MANIFEST).env.id

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "pipeline": self.pipeline,
            "seed": self.seed,
            "policy": {"name": self.policy, "sha256": self.policy_sha256},
            "goal": {"steps": self.goal.steps, "episodes": self.goal.episodes},
            "chunk_steps": self.chunk_steps,
            "keys": None if self.keys is None else list(self.keys),
            "batch_size": list(self.batch_size),
            "source": self.source,
            "complete": self.complete,
            "steps": self.steps,
            "versions": self.versions,
            "specs": self.specs,
            "tracks": {track.name: track.to_dict() for track, _ in self.tracks},
            "keeps_raw": self.keeps_raw,
            "transforms": self.transforms,
            "state": self.state,
            "episodes": self.episodes.to_dict(),
            "chunks": [chunk.to_dict() for chunk in self.chunks],
        }

    def save(self, folder: Path) -> None:
        """Put it in its place whole, or not at all."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        write_atomically(folder / MANIFEST, text)

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest of a dump.

        Raises:
            StorageError: there is none, it is of a newer version, or cannot be understood.
        """
        file = folder / MANIFEST
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise ValueError(f"its format is {data['format']!r}")
            if data["version"] != VERSION:
                raise StorageError(
                    f"{folder} is a dump of version {data['version']}, "
                    f"this release reads version {VERSION}",
                    hint="read it with a newer release: pip install -U tdx",
                )
            return cls.from_dict(data)
        except StorageError:
            raise
        except (FileNotFoundError, NotADirectoryError):
            message = f"there is no dump in {folder}: no {MANIFEST}"
            hint = "`tdx list dumps DIR` finds those below a folder"
            raise StorageError(message, hint=hint) from None
        except OSError as error:
            hint = "see who may read it, and whether the disk is well"
            raise StorageError(f"cannot read {file}: {_reason(error)}", hint=hint) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            told = " ".join(str(error).split())
            raise StorageError(
                f"{file} cannot be understood: {type(error).__name__}: {told}",
                hint="it was changed by hand, or is no manifest of a dump",
            ) from error

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Manifest:
        """The manifest that :meth:`to_dict` described.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is none.
        """
        batch = tuple(map(int, data["batch_size"]))
        chunks = [
            Chunk(int(each["steps"]), int(each["raw_steps"]), each["crc32"], each["partial"])
            for each in data["chunks"]
        ]
        tracks = {name: Track.from_dict(name, batch, each) for name, each in data["tracks"].items()}
        rows, steps = _product(batch), sum(chunk.steps for chunk in chunks)
        return cls(
            pipeline=str(data["pipeline"]),
            seed=int(data["seed"]),
            policy=str(data["policy"]["name"]),
            policy_sha256=data["policy"]["sha256"],
            goal=Goal(data["goal"]["steps"], data["goal"]["episodes"]),
            chunk_steps=int(data["chunk_steps"]),
            keys=None if data["keys"] is None else tuple(data["keys"]),
            batch_size=batch,
            specs=list(data["specs"]),
            versions=dict(data["versions"]),
            source=data["source"],
            data=tracks.get(DATA),
            raw=tracks.get(RAW),
            keeps_raw=bool(data["keeps_raw"]),
            chunks=chunks,
            episodes=EpisodeIndex.from_dict(data["episodes"], rows, steps),
            transforms=dict(data["transforms"]),
            state=data["state"],
            complete=bool(data["complete"]),
        )


def _product(batch: tuple[int, ...]) -> int:
    rows = 1
    for size in batch:
        rows *= size
    return rows


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def package_versions() -> dict[str, str]:
    """The versions of what a dump is made with."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            if name == "tdx":
                import tdx

                found[name] = tdx.__version__
    return found
