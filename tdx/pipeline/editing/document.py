"""A pipeline file while it is edited: what others do to it on disk meanwhile is noticed."""

from __future__ import annotations

import difflib
import errno
import os
from pathlib import Path
from typing import Literal

from tdx.errors import PipelineError, StorageError
from tdx.pipeline.model import Pipeline
from tdx.pipeline.pipeline_file import PipelineFile

DiskState = Literal["same", "changed", "gone"]
_Stat = tuple[int, int, int]


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
        self._stat: _Stat | None = None
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
        document = cls(path, _text(Path(path)))
        document._stat = _stat(document.path)
        return document, file.pipeline

    def disk_state(self) -> DiskState:
        """Whether the file is what it was; its text is only read where its time or size differ."""
        if self.base is None:
            return "same"
        now = _stat(self.path)
        if now is None:
            return "gone"
        if now == self._stat:
            return "same"
        try:
            same = _text(self.path) == self.base
        except (OSError, UnicodeDecodeError):
            return "changed"
        if same:
            self._stat = now
        return "same" if same else "changed"

    def accept_disk(self) -> None:
        """Let what is on disk now count as known, so that the next save writes over it."""
        try:
            self.base = _text(self.path)
        except (OSError, UnicodeDecodeError):
            self.base = None
        self._stat = _stat(self.path)

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
            there = _text(self.path)
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
            return _text(self.path)
        except (OSError, UnicodeDecodeError):
            return None

    def _check_writable(self) -> None:
        """Renaming would get around a file that is read-only."""
        if self.path.exists() and not os.access(self.path, os.W_OK):
            raise PipelineError(
                f"cannot write {self.path}: it is read-only", hint="save it under another name"
            )


def _text(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no file", str(path))
    with path.open(encoding="utf-8", newline="") as stream:
        return stream.read()


def _stat(path: Path) -> _Stat | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
