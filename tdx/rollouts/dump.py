"""Open a dump: its manifest, and its entries as memory-mapped files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tensordict import TensorDictBase

from tdx.errors import StorageError
from tdx.pipeline import Pipeline, read_pipeline
from tdx.rollouts.manifest import MANIFEST, Manifest


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
