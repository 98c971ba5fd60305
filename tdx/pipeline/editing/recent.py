"""The pipeline files that were opened or saved last."""

from __future__ import annotations

from pathlib import Path

from tdx.errors import StorageError
from tdx.pipeline.editing.state_files import put_aside, read_json, write_json
from tdx.settings import state_path

FILE = "recent.json"
MOST_KEPT = 30


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
        self.path = path or state_path() / FILE

    def all(self) -> list[Path]:
        """The files, the latest first, whether they are there or not; none where that is broken."""
        try:
            names = read_json(self.path)
            if names is None:
                return []
            if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
                raise StorageError(f"{self.path} is not a list of files", hint="remove it")
        except StorageError:
            put_aside(self.path)
            return []
        return [Path(name) for name in names]

    def add(self, file: str | Path) -> None:
        """Put a file on top.

        Raises:
            StorageError: the list cannot be written.
        """
        path = Path(file).expanduser().absolute()
        others = [each for each in self.all() if each != path]
        write_json(self.path, [str(each) for each in [path, *others][:MOST_KEPT]])
