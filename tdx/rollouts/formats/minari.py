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
from tdx.rollouts.dump.episodes import Episode
from tdx.rollouts.dump.manifest import Manifest
from tdx.rollouts.formats.arrays import to_array
from tdx.rollouts.formats.interface import NOTE, ColumnReader, ExportOptions, ExportPlan
from tdx.rollouts.formats.minari_layout import INFOS, ONE_HOT, MinariLayout, nest, nest_space
from tdx.rollouts.formats.minari_reading import ForeignReader, OwnReader, check_dataset
from tdx.rollouts.formats.stored import ExportSource
from tdx.rollouts.formats.target import check_free_space

if TYPE_CHECKING:
    from minari.data_collector import EpisodeBuffer


_FILE = "main_data.hdf5"
_EPISODE = 2**11
"""Bytes that HDF5 takes for an entry of an episode, beside its numbers."""
_ROOT_FOLDER = "MINARI_DATASETS_PATH"


def plan(stored: ExportSource, options: ExportOptions) -> ExportPlan:
    """Which entry goes where."""
    layout = MinariLayout.of(stored)
    entries = stored.entries(layout.columns)
    return ExportPlan(entries, len(stored.episodes), stored.manifest.size, tuple(layout.notes))


def write(stored: ExportSource, target: Path, options: ExportOptions) -> tuple[str, ...]:
    """Write a dataset; its folder is what Minari calls by the dataset's id."""
    import minari

    layout = MinariLayout.of(stored)
    name = dataset_id(options.name)
    with _quiet(), _datasets_in(target):
        dataset = minari.create_dataset_from_buffers(
            name,
            _episodes(stored, layout, target / name / "data" / _FILE),
            observation_space=nest_space(layout.observations),
            action_space=nest_space(layout.actions),
            algorithm_name=stored.manifest.policy,
            jpeg_encoding=False,
        )
        note = stored.note(layout.columns)
        dataset.storage.update_metadata({NOTE: {**note, ONE_HOT: layout.one_hot}})
        env_spec = _env_spec(stored.manifest)
        if env_spec is not None:
            dataset.storage.update_metadata({"env_spec": env_spec})
    shutil.move(str(target / name / "data"), str(target / "data"))
    (target / name).rmdir()
    if name != options.name:
        return (f"its id is {name}; for minari.load_dataset the folder has to be called so",)
    return (f'MINARI_DATASETS_PATH is its parent folder for minari.load_dataset("{name}")',)


def dataset_id(name: str) -> str:
    """The id of a dataset in a folder of that name.

    Example:
        >>> dataset_id("cart v1"), dataset_id("cart-v2")
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
def _quiet() -> Iterator[None]:
    """Without the advice to authors who publish a dataset."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _env_spec(manifest: Manifest) -> str | None:
    """The env as Gymnasium describes it; none where it does not know it."""
    import gymnasium

    from tdx.pipeline import read_pipeline

    env = read_pipeline(manifest.pipeline, "").env
    with suppress(Exception):
        spec = gymnasium.spec(env.id)
        spec.kwargs.update(env.kwargs)
        return spec.to_json()
    return None


def _episodes(stored: ExportSource, layout: MinariLayout, file: Path) -> Iterator[EpisodeBuffer]:
    from minari.data_collector import EpisodeBuffer

    step_bytes = sum(map(stored.data.step_bytes, stored.data.leaves)) // stored.rows

    places = {each.path: each.name for each in layout.columns}
    by_place = {name: path for path, name in places.items()}
    for each in stored.episodes:
        span = _Span(stored, each)
        steps = each.length
        # HDF5 brings the process down where it cannot write what it holds back.
        check_free_space(file, (steps + 1) * step_bytes + _EPISODE * len(places))
        ends = span.flags(("next", "terminated"), ("next", "done"))
        cuts = span.flags(("next", "truncated"))
        rewards = span.total(("next", "reward"))
        yield EpisodeBuffer(
            observations=nest({path: span.whole(path) for path in layout.observations}),
            actions=nest({path: span.action(path, layout) for path in layout.actions}),
            rewards=span.line(by_place["rewards"]) if "rewards" in by_place else rewards,
            terminations=ends,
            truncations=cuts if cuts is not None else np.zeros(steps, bool),
            infos={
                name.removeprefix(INFOS): span.array(path)
                for path, name in places.items()
                if name.startswith(INFOS)
            }
            or None,
        )


class _Span:
    """The entries of one episode, read from the disk as they are asked for."""

    def __init__(self, stored: ExportSource, episode: Episode) -> None:
        self._stored, self._row = stored, episode.row
        self._start, self._stop = episode.start, episode.start + episode.length

    def tensor(self, path: tuple[str, ...]) -> Tensor:
        return self._stored.span(path, self._row, self._start, self._stop)

    def array(self, path: tuple[str, ...]) -> Any:
        return to_array(self.tensor(path), splits_complex=True)

    def line(self, path: tuple[str, ...]) -> Any:
        return self.array(path).reshape(-1)

    def whole(self, path: tuple[str, ...]) -> Any:
        """The T+1 observations."""
        last = self._stored.span(("next", *path), self._row, self._stop - 1, self._stop)
        return to_array(torch.cat([self.tensor(path), last]), splits_complex=True)

    def action(self, path: tuple[str, ...], layout: MinariLayout) -> Any:
        from gymnasium.spaces import Discrete

        if isinstance(layout.actions[path], Discrete):
            return self.tensor(path).to(torch.uint8).argmax(-1).numpy()
        return self.array(path)

    def flags(self, *paths: tuple[str, ...]) -> Any:
        """The first of these that is there, as one flag a step."""
        for path in paths:
            if path in self._stored.data.leaves:
                return self.array(path).reshape(self._stop - self._start, -1).any(-1)
        return None

    def total(self, path: tuple[str, ...]) -> Any:
        values = self.tensor(path).to(torch.float64)
        return values.reshape(self._stop - self._start, -1).sum(-1).numpy()


@contextmanager
def read(path: Path) -> Iterator[ColumnReader]:
    """Open a dataset; an episode is read when a step of it is needed."""
    from minari.dataset.minari_storage import MinariStorage

    metadata, stored = check_dataset(path)
    note = metadata.get(NOTE)
    try:
        with _quiet():
            storage = MinariStorage.read(path / "data")
    except Exception as error:
        told = " ".join(str(error).split())
        message = f"{path} cannot be read as a Minari dataset: {told}"
        raise StorageError(message, hint="name the folder that `data` is in") from error
    if note is None:
        yield ForeignReader(storage)
    else:
        yield OwnReader(storage, note, path, stored)
