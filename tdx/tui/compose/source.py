"""The source line of what is selected, and the editor of the user."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from tdx.pipeline.editing.stack_draft import WrapperStage
from tdx.pipeline.values import CodeReference

if TYPE_CHECKING:
    from textual.app import App

    from tdx.tui.workspace import Workspace

_FILE_WITH_LINE = ("hx", "helix", "subl", "zed", "zeditor")
_GO_TO = ("code", "code-insiders", "codium", "cursor", "windsurf")
_MAX_SOURCE = 4 * 2**20


@dataclass
class SourceLine:
    """A line of a file.

    Args:
        path: The file.
        line: The line, from 1.

    Attributes:
        has_changed: True if the user has edited the file.
    """

    path: Path
    line: int
    has_changed: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def find_source(workspace: Workspace) -> SourceLine | str:
    """Return the line of the error at the selection, or of the selection itself.

    That is a line of Python for code of the user and wrappers of other libraries, and a line of the
    pipeline file for a stage in it.

    Args:
        workspace: State of the app.

    Returns:
        The line, or why there is none.
    """
    stage = workspace.stage
    for problem in workspace.list_selected_problems()[0]:
        found = None if problem.origin is None else _parse_location(problem.origin)
        if found is not None:
            return found
    env = workspace.draft.env
    name = "the env" if stage is None else stage.config.name
    if isinstance(stage, WrapperStage):
        found = _parse_location(stage.wrapper.location or "")
        return found or f"{name} has no Python source"
    code = env.code if stage is None and env is not None else stage and stage.config.code
    if isinstance(code, CodeReference):
        found = next(_find_definitions(code), None)
        return found or f"{code} was not found in the current folder or on the Python path"
    file, line = workspace.draft.file, 1 if stage is None else stage.config.line
    if file is not None and line is not None and os.path.isfile(file):
        return SourceLine(Path(file), line)
    return f"{name} is not code of yours: there is no line to open"


def _parse_location(text: str) -> SourceLine | None:
    path, _, line = text.rpartition(":")
    if not line.isdecimal() or not os.path.isfile(path):
        return None
    return SourceLine(Path(path), int(line))


def _find_definitions(code: CodeReference) -> Iterator[SourceLine]:
    """Yield where an object may be defined; nothing is imported."""
    inside = code.module.replace(".", "/")
    for folder in (".", *sys.path):
        names = (code.module,) if code.is_file else (f"{inside}.py", f"{inside}/__init__.py")
        for path in (Path(folder or ".", name).expanduser() for name in names):
            if path.is_file():
                yield SourceLine(path, _line_of(path, code.name.partition(".")[0]))


def _line_of(path: Path, name: str) -> int:
    """Return the line of a definition; 1 if the file does not show it."""
    try:
        if path.stat().st_size > _MAX_SOURCE:
            return 1
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return 1
    for node in tree.body:
        is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if is_definition and getattr(node, "name", None) == name:
            return node.lineno
        if isinstance(node, ast.Assign):
            names = [each.id for each in node.targets if isinstance(each, ast.Name)]
            if name in names:
                return node.lineno
    return 1


def edit_source(app: App[None], source: SourceLine) -> str | None:
    """Open a line in ``$VISUAL`` or ``$EDITOR``, and wait for it; the app is suspended meanwhile.

    Args:
        app: The app.
        source: The line; it is marked if the file has changed.

    Returns:
        Why it was not opened. ``None``: it was.
    """
    command = editor_command(os.environ, source)
    if command is None:
        return f"set EDITOR to open {source}"
    if shutil.which(command[0]) is None:
        return f"the editor {command[0]!r} does not exist: set EDITOR to open {source}"
    before = source.path.stat().st_mtime_ns
    try:
        with app.suspend():
            status = subprocess.run(command, check=False).returncode
    except SuspendNotSupported:
        return f"an editor cannot be opened from here: see {source}"
    except OSError as error:
        return f"the editor {command[0]!r} did not start: {(error.strerror or str(error)).lower()}"
    source.has_changed = source.path.is_file() and source.path.stat().st_mtime_ns != before
    return f"the editor {command[0]!r} ended with status {status}" if status else None


def editor_command(environ: Mapping[str, str], source: SourceLine) -> list[str] | None:
    """Return the command that opens a line; ``None`` without an editor.

    Args:
        environ: Environment variables.
        source: The line.

    Example:
        >>> editor_command({"EDITOR": "vim -n"}, SourceLine(Path("my_envs.py"), 7))
        ['vim', '-n', '+7', 'my_envs.py']
        >>> editor_command({"VISUAL": "code --wait"}, SourceLine(Path("my_envs.py"), 7))
        ['code', '--wait', '--goto', 'my_envs.py:7']
    """
    try:
        words = shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or "")
    except ValueError:
        return None
    if not words:
        return None
    # A path that starts with a dash would be an option.
    path = os.path.join(".", source.path) if str(source.path).startswith("-") else str(source.path)
    name = Path(words[0]).name
    if name in _GO_TO:
        return [*words, "--goto", f"{path}:{source.line}"]
    if name in _FILE_WITH_LINE:
        return [*words, f"{path}:{source.line}"]
    return [*words, f"+{source.line}", path]
