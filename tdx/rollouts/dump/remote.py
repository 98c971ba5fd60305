"""Dumps at URLs of fsspec, such as ``s3://bucket/dump``: download, upload, and cache.

An object store has no rename. A shard is committed by its manifest, which is uploaded last; files
of a shard without a manifest are ignored.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from tdx.foundation.container import NEW_FILE_FLAGS, Container
from tdx.foundation.errors import (
    ArgumentError,
    MissingPackageError,
    StorageError,
    get_first_line,
    summarize_error,
)
from tdx.foundation.files import atomic_folder
from tdx.foundation.settings import cache_path
from tdx.rollouts.dump.folder import INDEX, MANIFEST, SHARD_INDEX, SHARDS
from tdx.rollouts.dump.shard_plan import shard_name
from tdx.rollouts.dump.verification import verify

_MAX_FILES = 1_000_000
_BLOCK = 2**22
_INDEXES = (MANIFEST, INDEX, SHARD_INDEX)


def is_url(path: object) -> TypeGuard[str]:
    """Return True if a text is a URL rather than a path."""
    return isinstance(path, str) and "://" in path


class RemoteDump:
    """Files of a dump in a folder at a URL, with a protocol of fsspec."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if "::" in url:
            raise ArgumentError(
                f"{url} is a chain of file systems", hint="name one: protocol://path"
            )
        try:
            from fsspec.core import url_to_fs

            self._files: Any
            self._files, root = url_to_fs(self.url)
        except ImportError as error:
            raise MissingPackageError(
                f"{url} needs a package: {get_first_line(error)}",
                hint="install it, and tdx with its extra `remote`",
            ) from error
        except ValueError as error:
            raise ArgumentError(
                f"{url} cannot be opened: {get_first_line(error)}",
                hint="use a protocol of fsspec, such as s3, gs or file",
            ) from error
        self._root = str(root).rstrip("/")

    def list_files(self, below: str = "") -> dict[str, int]:
        """Return the size of each file in the dump, or below one of its folders, by path.

        Files of shards that are not committed are left out. A name that leads out of the dump is
        refused.
        """
        with self._report_errors("list"):
            self._files.invalidate_cache()
            found = self._files.find(f"{self._root}/{below}".rstrip("/"), detail=True)
        if len(found) > _MAX_FILES:
            raise StorageError(
                f"{self.url} has {len(found):,} files", hint="name the folder of one dump"
            )
        sizes: dict[str, int] = {}
        for path, details in found.items():
            name = str(path).removeprefix(self._root).lstrip("/")
            if any(part in ("", ".", "..") or "\0" in part for part in name.split("/")):
                raise StorageError(
                    f"{self.url} has a file outside of its folder: {name!r}",
                    hint="tdx did not write it; do not use dumps from a source that you do not "
                    "trust",
                )
            sizes[name] = int(details["size"])

        def is_committed(name: str) -> bool:
            top, *inner = name.split("/")
            if top != SHARDS or not inner:
                return True
            return inner[0].isdecimal() and f"{SHARDS}/{inner[0]}/{MANIFEST}" in sizes

        return {name: size for name, size in sizes.items() if is_committed(name)}

    def download(self, sizes: dict[str, int], folder: Path) -> None:
        """Write files of :meth:`list_files` into a new or existing folder."""
        folder.mkdir(exist_ok=True)
        with Container.open(folder) as root:
            for name, size in sizes.items():
                with (
                    self._report_errors(f"download {name} of"),
                    root.open_file(name, NEW_FILE_FLAGS) as target,
                    self._files.open(f"{self._root}/{name}", "rb") as source,
                ):
                    left = size
                    while left and (data := source.read(min(left, _BLOCK))):
                        target.write(data)
                        left -= len(data)
                    if left or source.read(1):
                        raise StorageError(
                            f"{self.url}/{name} does not have the {size:,} bytes of its listing",
                            hint="it may be being written: try again later",
                        )

    def upload(self, folder: Path, names: Sequence[str]) -> None:
        """Write files of a folder to the URL, in this order."""
        for name in names:
            path = f"{self._root}/{name}"
            with self._report_errors(f"upload {name} to"):
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                with (folder / name).open("rb") as source, self._files.open(path, "wb") as target:
                    shutil.copyfileobj(source, target, _BLOCK)

    @contextmanager
    def _report_errors(self, task: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            # Each library of a store has its own errors.
            raise StorageError(
                f"cannot {task} {self.url}: {summarize_error(error)}",
                hint="check the URL, the credentials and the network, and try again",
            ) from error


def list_shard_files(folder: Path, shard: int) -> list[str]:
    """Return the files of a committed shard in the order of their upload: the manifest is last."""
    files = (path for path in (folder / shard_name(shard)).rglob("*") if path.is_file())
    names = [str(path.relative_to(folder)) for path in files]
    return sorted(names, key=lambda name: (name.endswith(f"/{MANIFEST}"), name))


def fetch_dump(url: str) -> Path:
    """Download a dump, compare it with its checksums, and return its local folder.

    The folder is kept in the cache, and is used again while the manifest and the index at the URL
    are the same.

    Raises:
        TdxError: The dump is missing or damaged, or cannot be downloaded.
    """
    remote = RemoteDump(url)
    sizes = remote.list_files()
    if MANIFEST not in sizes:
        raise StorageError(f"{url} is not a dump: it has no {MANIFEST}", hint="check the URL")
    key = hashlib.sha256(remote.url.encode()).hexdigest()[:32]
    target = cache_path() / "dumps" / key
    indexes = {name: size for name, size in sizes.items() if name in _INDEXES}
    with tempfile.TemporaryDirectory(prefix="tdx-") as place:
        remote.download(indexes, Path(place))
        is_sealed = INDEX in indexes or SHARD_INDEX in indexes
        if is_sealed and all(_is_same(Path(place, name), target / name) for name in indexes):
            return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(target) as part:
        remote.download(sizes, part)
        problems = verify(part).problems
        if problems:
            raise StorageError(
                f"{url} is damaged: {problems[0].message}", hint="upload or record it again"
            )
    return target


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.read_bytes() == other.read_bytes()
    except FileNotFoundError:
        return False
