"""Minari datasets: one episode at a time, with T+1 observations and T of everything else."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdx.errors import StorageError
from tdx.pipeline import read_pipeline
from tdx.rollouts.dump.episodes import Episode
from tdx.rollouts.dump.manifest import Manifest
from tdx.rollouts.formats.arrays import to_array
from tdx.rollouts.formats.files import check_free_space
from tdx.rollouts.formats.interface import NOTE, ColumnReader, ExportOptions, ExportPlan
from tdx.rollouts.formats.minari_layout import INFOS, ONE_HOT, MinariLayout, nest, nest_space
from tdx.rollouts.formats.minari_reading import ForeignReader, OwnReader, check_dataset
from tdx.rollouts.formats.stored import ExportSource

if TYPE_CHECKING:
    from minari.data_collector import EpisodeBuffer


_FILE = "main_data.hdf5"
_EPISODE = 2**11
"""Number of bytes of HDF5 metadata per entry of an episode."""
_ROOT_FOLDER = "MINARI_DATASETS_PATH"


def plan(source: ExportSource, options: ExportOptions) -> ExportPlan:
    """Return the place of each entry."""
    layout = MinariLayout.of(source)
    entries = source.entries(layout.columns)
    return ExportPlan(entries, len(source.episodes), source.manifest.size, tuple(layout.notes))


def write(source: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write a dataset; Minari finds it by the name of its folder."""
    import minari

    layout = MinariLayout.of(source)
    name = format_dataset_id(options.name)
    with _ignore_warnings(), _datasets_in(target):
        dataset = minari.create_dataset_from_buffers(
            name,
            _iter_episodes(source, layout, target / name / "data" / _FILE),
            observation_space=nest_space(layout.observations),
            action_space=nest_space(layout.actions),
            algorithm_name=source.manifest.policy,
            jpeg_encoding=False,
        )
        note = source.note(layout.columns)
        dataset.storage.update_metadata({NOTE: {**note, ONE_HOT: layout.one_hot}})
        env_spec = _env_spec(source.manifest)
        if env_spec is not None:
            dataset.storage.update_metadata({"env_spec": env_spec})
    shutil.move(str(target / name / "data"), str(target / "data"))
    (target / name).rmdir()
    if name != options.name:
        return (f"its id is {name}; minari.load_dataset needs a folder of that name",)
    return (f'set MINARI_DATASETS_PATH to its parent folder for minari.load_dataset("{name}")',)


def format_dataset_id(name: str) -> str:
    """Return the id of a dataset in a folder of that name.

    Example:
        >>> format_dataset_id("cart v1"), format_dataset_id("cart-v2")
        ('cart-v1-v0', 'cart-v2')
    """
    plain = re.sub(r"[^\w-]+", "-", name).strip("-") or "dump"
    return plain if re.fullmatch(r".+-v\d+", plain) and plain == name else f"{plain}-v0"


@contextmanager
def _datasets_in(folder: Path) -> Iterator[None]:
    before = os.environ.get(_ROOT_FOLDER)
    os.environ[_ROOT_FOLDER] = str(folder.resolve())
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ROOT_FOLDER]
        else:
            os.environ[_ROOT_FOLDER] = before


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    """Suppress Minari's advice to authors who publish a dataset."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _env_spec(manifest: Manifest) -> str | None:
    """Return the spec of the env as JSON; ``None`` if Gymnasium does not have it."""
    import gymnasium

    env = read_pipeline(manifest.pipeline, "").env
    with suppress(Exception):
        spec = gymnasium.spec(env.id)
        spec.kwargs.update(env.kwargs)
        return spec.to_json()
    return None


def _iter_episodes(
    source: ExportSource, layout: MinariLayout, file: Path
) -> Iterator[EpisodeBuffer]:
    from minari.data_collector import EpisodeBuffer

    step_bytes = sum(map(source.data.step_bytes, source.data.leaves)) // source.rows

    places = {each.path: each.name for each in layout.columns}
    by_place = {name: path for path, name in places.items()}
    for each in source.episodes:
        reader = _EpisodeReader(source, each)
        steps = each.length
        # HDF5 crashes if it cannot write its buffers.
        check_free_space(file, (steps + 1) * step_bytes + _EPISODE * len(places))
        ends = reader.flags(("next", "terminated"), ("next", "done"))
        cuts = reader.flags(("next", "truncated"))
        rewards = reader.total(("next", "reward"))
        yield EpisodeBuffer(
            observations=nest({path: reader.observations(path) for path in layout.observations}),
            actions=nest({path: reader.action(path, layout) for path in layout.actions}),
            rewards=reader.flat(by_place["rewards"]) if "rewards" in by_place else rewards,
            terminations=ends,
            truncations=cuts if cuts is not None else np.zeros(steps, bool),
            infos={
                name.removeprefix(INFOS): reader.array(path)
                for path, name in places.items()
                if name.startswith(INFOS)
            }
            or None,
        )


class _EpisodeReader:
    """Reads the entries of one episode."""

    def __init__(self, source: ExportSource, episode: Episode) -> None:
        self._source, self._row = source, episode.row
        self._start, self._stop = episode.start, episode.start + episode.length

    def tensor(self, path: tuple[str, ...]) -> Tensor:
        return self._source.span(path, self._row, self._start, self._stop)

    def array(self, path: tuple[str, ...]) -> Any:
        return to_array(self.tensor(path), splits_complex=True)

    def flat(self, path: tuple[str, ...]) -> Any:
        return self.array(path).reshape(-1)

    def observations(self, path: tuple[str, ...]) -> Any:
        """Return the T+1 observations."""
        last = self._source.span(("next", *path), self._row, self._stop - 1, self._stop)
        return to_array(torch.cat([self.tensor(path), last]), splits_complex=True)

    def action(self, path: tuple[str, ...], layout: MinariLayout) -> Any:
        from gymnasium.spaces import Discrete

        if isinstance(layout.actions[path], Discrete):
            return self.tensor(path).to(torch.uint8).argmax(-1).numpy()
        return self.array(path)

    def flags(self, *paths: tuple[str, ...]) -> Any:
        """Return the first existing entry as one flag per step."""
        for path in paths:
            if path in self._source.data.leaves:
                return self.array(path).reshape(self._stop - self._start, -1).any(-1)
        return None

    def total(self, path: tuple[str, ...]) -> Any:
        values = self.tensor(path).to(torch.float64)
        return values.reshape(self._stop - self._start, -1).sum(-1).numpy()


@contextmanager
def read(path: Path) -> Iterator[ColumnReader]:
    """Open a dataset; episodes are read on demand."""
    from minari.dataset.minari_storage import MinariStorage

    metadata, size = check_dataset(path)
    note = metadata.get(NOTE)
    try:
        with _ignore_warnings():
            storage = MinariStorage.read(path / "data")
    except Exception as error:
        message = f"{path} cannot be read as a Minari dataset: {' '.join(str(error).split())}"
        raise StorageError(message, hint="name the folder that `data` is in") from error
    if note is None:
        yield ForeignReader(storage)
    else:
        yield OwnReader(storage, note, path, size)
