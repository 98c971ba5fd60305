"""Pipeline files: the one that is edited, recent files and sample pipelines."""

from __future__ import annotations

import difflib
import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tdx.errors import PipelineError, StorageError
from tdx.pipeline.editing.state_files import read_json, set_aside, write_json
from tdx.pipeline.file.pipeline_file import PipelineFile
from tdx.pipeline.model import Pipeline
from tdx.settings import state_path

DiskState = Literal["same", "changed", "gone"]
_FileState = tuple[int, int, int]


class ChangedOnDiskError(StorageError):
    """The file to be written is another one than when it was read."""


class Document:
    """A pipeline file, with the text that it had when it was read or written last.

    Args:
        path: the file.
        base: its text then; none for a file that is yet to be written.

    Example:
        >>> import tempfile
        >>> from tdx.pipeline import Pipeline
        >>> document = Document(Path(tempfile.mkdtemp()) / "a.yaml")
        >>> document.save(Pipeline.of("Pendulum-v1"))
        >>> document.disk_state()
        'same'
    """

    def __init__(self, path: str | Path, base: str | None = None) -> None:
        self.path = Path(path)
        self.base = base
        self._stat: _FileState | None = None
        self._template: str | None = None

    @classmethod
    def load(cls, path: str | Path) -> tuple[Document, Pipeline]:
        """A file and the pipeline in it.

        Raises:
            PipelineError: it cannot be read, or is not a pipeline.
        """
        if Path(path).exists() and not Path(path).is_file():
            # A pipe would let the reader wait for whoever writes into it.
            raise PipelineError(f"{path} is no file", hint="name a pipeline file")
        file = PipelineFile.load(path)
        document = cls(path, _read_text(Path(path)))
        document._stat = _read_stat(document.path)
        return document, file.pipeline

    def disk_state(self) -> DiskState:
        """Whether the file is what it was; its text is only read where its time or size differ."""
        if self.base is None:
            return "same"
        now = _read_stat(self.path)
        if now is None:
            return "gone"
        if now == self._stat:
            return "same"
        try:
            same = _read_text(self.path) == self.base
        except (OSError, UnicodeDecodeError):
            return "changed"
        if same:
            self._stat = now
        return "same" if same else "changed"

    def accept_disk(self) -> None:
        """Let what is on disk now count as known, so that the next save writes over it."""
        try:
            self.base = _read_text(self.path)
        except (OSError, UnicodeDecodeError):
            self.base = None
        self._stat = _read_stat(self.path)

    def take_comments(self, other: Document) -> None:
        """Let a file that is yet to be written begin with the text of another one."""
        self._template = other.base

    def save(self, pipeline: Pipeline, *, force: bool = False) -> None:
        """Write the pipeline into the file; comments of what is there stay.

        Args:
            pipeline: what the file shall say.
            force: whether a file that others have changed, or a new one's place that is taken, is
                written over; the comments on disk stay then.

        Raises:
            ChangedOnDiskError: somebody has changed it, and ``force`` is not given.
            PipelineError: it cannot be written; what is on disk is as before.
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
        file = self._file()
        if file is None:
            file = PipelineFile.new(pipeline, str(self.path))
        else:
            file.update(pipeline)
        self._check_writable()
        file.save(self.path)
        self._template = None
        self.accept_disk()

    def difference(self, pipeline: Pipeline) -> str:
        """What the file would become, as a unified diff against what is on disk."""
        try:
            there = _read_text(self.path)
        except (OSError, UnicodeDecodeError):
            there = ""
        file = self._file()
        if file is None:
            file = PipelineFile.new(pipeline, str(self.path))
        else:
            file.update(pipeline)
        lines = difflib.unified_diff(
            there.splitlines(), file.text.splitlines(), "on disk", "yours", lineterm=""
        )
        return "\n".join(lines)

    def _file(self) -> PipelineFile | None:
        """What to edit: a template, else what is on disk, else what was; none of these, none."""
        for text in (self._template, self._disk_text(), self.base):
            if text is None:
                continue
            try:
                return PipelineFile(text, str(self.path))
            except PipelineError:
                continue
        return None

    def _disk_text(self) -> str | None:
        try:
            return _read_text(self.path)
        except (OSError, UnicodeDecodeError):
            return None

    def _check_writable(self) -> None:
        """Renaming would get around a file that is read-only."""
        if self.path.exists() and not os.access(self.path, os.W_OK):
            raise PipelineError(
                f"cannot write {self.path}: it is read-only", hint="save it under another name"
            )


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no file", str(path))
    with path.open(encoding="utf-8", newline="") as stream:
        return stream.read()


def _read_stat(path: Path) -> _FileState | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


RECENT_FILE = "recent.json"
MAX_RECENT = 30


class RecentFiles:
    """The list of recent files, shared by all apps of this user.

    Args:
        path: its file; in the state folder by default.

    Example:
        >>> import tempfile
        >>> recent = RecentFiles(Path(tempfile.mkdtemp()) / "recent.json")
        >>> recent.add("/tmp/a.yaml"), recent.add("/tmp/b.yaml"), recent.add("/tmp/a.yaml")
        (None, None, None)
        >>> [file.name for file in recent.all()]
        ['a.yaml', 'b.yaml']
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or state_path() / RECENT_FILE

    def all(self) -> list[Path]:
        """The files, the latest first, whether they are there or not; none where that is broken."""
        try:
            names = read_json(self.path)
            if names is None:
                return []
            if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
                raise StorageError(f"{self.path} is not a list of files", hint="remove it")
        except StorageError:
            set_aside(self.path)
            return []
        return [Path(name) for name in names]

    def add(self, file: str | Path) -> None:
        """Put a file on top.

        Raises:
            StorageError: the list cannot be written.
        """
        path = Path(file).expanduser().absolute()
        others = [each for each in self.all() if each != path]
        write_json(self.path, [str(each) for each in [path, *others][:MAX_RECENT]])


SAMPLES_FOLDER = "sample_pipelines"


@dataclass(frozen=True, slots=True)
class Preset:
    """A sample pipeline.

    Args:
        name: its file without the ending.
        title: the first line of its comment.
        path: the file.
    """

    name: str
    title: str
    path: Path


def list_presets() -> tuple[Preset, ...]:
    """The sample pipelines, by name; where tdx is installed as well as in its sources.

    Example:
        >>> "pendulum" in [preset.name for preset in list_presets()]
        True
    """
    package = Path(__file__).parents[2]
    folder = next(
        (
            each
            for each in (package / SAMPLES_FOLDER, package.parent / SAMPLES_FOLDER)
            if each.is_dir()
        ),
        None,
    )
    paths = sorted(folder.glob("*.yaml")) if folder else []
    return tuple(Preset(path.stem, _read_title(path), path) for path in paths)


def _read_title(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip().rstrip(".") if first.startswith("#") else ""
