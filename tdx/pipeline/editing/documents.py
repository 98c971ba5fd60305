"""Pipeline files on disk: the one that is edited, recent files, samples; and small state files."""

from __future__ import annotations

import difflib
import errno
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tdx.foundation.container import UnsyncedError, make_folders
from tdx.foundation.errors import (
    ArgumentError,
    OutputError,
    PipelineError,
    StorageError,
    explain_os_error,
)
from tdx.foundation.files import atomic_write, report_write_errors
from tdx.foundation.settings import state_path
from tdx.foundation.untrusted import parse_json, read_limited
from tdx.pipeline.file.pipeline_file import PipelineFile
from tdx.pipeline.model import Pipeline


def write_json(path: Path, document: Any) -> None:
    """Write plain data atomically, readable by this user only."""
    text = json.dumps(document, separators=(",", ":"))
    try:
        with report_write_errors(path, "TDX_STATE_DIR names another place", kind=StorageError):
            make_folders(path.parent, 0o700)
            with atomic_write(path, mode=0o600) as file:
                file.write(text.encode())
    except (ArgumentError, OutputError) as error:
        raise StorageError(error.message, hint=error.hint) from error


class UnreadableError(StorageError):
    """The system cannot read a file, which may be intact."""


def read_json(path: Path) -> Any:
    """Read plain data; ``None`` if the file does not exist.

    Raises:
        UnreadableError: It cannot be read.
        StorageError: It is not valid JSON.
    """
    try:
        return parse_json(read_limited(path), path)
    except FileNotFoundError:
        return None
    except StorageError:
        raise
    except OSError as error:
        raise UnreadableError(
            f"cannot read {path}: {explain_os_error(error)}",
            hint="check its permissions, or remove it",
        ) from error


def set_aside(path: Path) -> None:
    """Rename a damaged file, so that it is not read again."""
    with suppress(OSError):
        path.replace(path.with_name(f"{path.name}.broken"))


DiskState = Literal["same", "changed", "gone"]
_FileState = tuple[int, int, int]


class ChangedOnDiskError(StorageError):
    """Another program changed the file since it was read."""


class Document:
    """A pipeline file that is edited; detects changes on disk."""

    def __init__(self, path: str | Path, base: str | None = None) -> None:
        self.path = Path(path)
        self.base = base
        self._stat: _FileState | None = None
        self._template: str | None = None

    @classmethod
    def load(cls, path: str | Path) -> tuple[Document, Pipeline]:
        if Path(path).exists() and not Path(path).is_file():
            # Reading a pipe would block until something is written to it.
            raise PipelineError(f"{path} is not a regular file", hint="name a pipeline file")
        file = PipelineFile.load(path)
        try:
            document = cls(path, _read_text(Path(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise PipelineError(
                f"cannot read {path}: {explain_os_error(error)}",
                hint="check its permissions, and the disk",
            ) from error
        document._stat = _read_stat(document.path)
        return document, file.pipeline

    def disk_state(self) -> DiskState:
        """Compare the file with its last known text; reads it only if its time or size changed."""
        if self.base is None:
            return "same"
        now = _read_stat(self.path)
        if now is None:
            return "gone"
        if now == self._stat:
            return "same"
        if self._disk_text() != self.base:
            return "changed"
        self._stat = now
        return "same"

    def accept_disk(self) -> None:
        """Accept the current text on disk, so that the next save edits and overwrites it."""
        self._template = None
        self.base = self._disk_text()
        self._stat = _read_stat(self.path)

    def take_comments(self, other: Document) -> None:
        """Use the text of another document as a template for a file that does not exist yet."""
        self._template = other.base

    def save(self, pipeline: Pipeline, *, force: bool = False) -> None:
        """Write the pipeline to the file and keep its comments.

        ``force`` overwrites a file that was changed by another program or exists already; comments
        on disk are kept.

        Raises:
            ChangedOnDiskError: Another program changed the file, and ``force`` is false.
            PipelineError: It cannot be written; the file on disk is unchanged.
            UnsyncedError: It is written, but a power loss may bring the old file back.
        """
        state = self.disk_state()
        if self.base is None and self.path.exists() and not force:
            raise ChangedOnDiskError(
                f"{self.path} already exists", hint="save under another name, or overwrite it"
            )
        if state == "changed" and not force:
            raise ChangedOnDiskError(
                f"{self.path} was changed by someone else", hint="load it again, or overwrite it"
            )
        file = self._edited_file(pipeline)
        if self.path.exists() and not os.access(self.path, os.W_OK):
            # A rename would replace it.
            raise PipelineError(
                f"cannot write {self.path}: it is read-only", hint="save it under another name"
            )
        try:
            file.save(self.path)
        except UnsyncedError:
            self.accept_disk()
            raise
        self.accept_disk()

    def difference(self, pipeline: Pipeline) -> str:
        """Return a unified diff from the text on disk to the text that a save would write."""
        before = (self._disk_text() or "").splitlines()
        after = self._edited_file(pipeline).text.splitlines()
        return "\n".join(difflib.unified_diff(before, after, "on disk", "yours", lineterm=""))

    def _edited_file(self, pipeline: Pipeline) -> PipelineFile:
        """Edit the template, the file on disk, or the last known text: the first one that parses.

        Without any, return a new text.
        """
        for text in (self._template, self._disk_text(), self.base):
            if text is None:
                continue
            try:
                file = PipelineFile(text, str(self.path))
            except PipelineError:
                continue
            file.update(pipeline)
            return file
        return PipelineFile.new(pipeline, str(self.path))

    def _disk_text(self) -> str | None:
        try:
            return _read_text(self.path)
        except (OSError, UnicodeDecodeError):
            return None


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
    with path.open(encoding="utf-8", newline="") as stream:
        return stream.read()


def _read_stat(path: Path) -> _FileState | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


RECENT_FILE = "recent.json"
MAX_RECENT = 30


class RecentFiles:
    """List of recently used pipeline files, shared by all apps of this user."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or state_path() / RECENT_FILE

    def all(self) -> list[Path]:
        """Return the files, latest first, existing or not; empty if the list cannot be read."""
        try:
            return self._read()
        except UnreadableError:
            return []

    def _read(self) -> list[Path]:
        """Return the files; a damaged list is set aside."""
        try:
            names = read_json(self.path)
        except UnreadableError:
            raise
        except StorageError:
            names = False
        if names is None:
            return []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            set_aside(self.path)
            return []
        return [Path(name) for name in names]

    def add(self, file: str | Path) -> None:
        """Move a file to the top of the list.

        Raises:
            StorageError: The list cannot be read or written.
        """
        path = Path(file).expanduser().absolute()
        others = [other for other in self._read() if other != path]
        write_json(self.path, [*map(str, [path, *others][:MAX_RECENT])])


SAMPLES_FOLDER = "sample_pipelines"


@dataclass(frozen=True, slots=True)
class Preset:
    """A sample pipeline."""

    name: str
    title: str
    path: Path


def list_presets() -> tuple[Preset, ...]:
    """List the sample pipelines by name, of an installed package or a checkout."""
    package = Path(__file__).parents[2]
    folders = (package / SAMPLES_FOLDER, package.parent / SAMPLES_FOLDER)
    folder = next(filter(Path.is_dir, folders), None)
    presets = []
    for path in sorted(folder.glob("*.yaml")) if folder else ():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        title = first.removeprefix("#").strip().rstrip(".") if first.startswith("#") else ""
        presets.append(Preset(path.stem, title, path))
    return tuple(presets)
