"""Actions that repair a chain: measure a normalizer, exclude entries, open the source line."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from tdx.foundation.errors import explain_os_error
from tdx.foundation.keys import format_key
from tdx.pipeline.draft import DraftStage
from tdx.pipeline.values import CodeReference, StageConfig
from tdx.tui.backend.requests import FindUnstorable, MeasureNorm
from tdx.tui.chain_status import NO_PIPELINE
from tdx.tui.screens.dialogs import Choice, ChoiceScreen, ask

if TYPE_CHECKING:
    from textual.app import App
    from textual.screen import Screen

    from tdx.tui.commands import WorkerCommands
    from tdx.tui.workspace import Workspace

_FILE_WITH_LINE = ("hx", "helix", "subl", "zed", "zeditor")
_GO_TO = ("code", "code-insiders", "codium", "cursor", "windsurf")
_MAX_SOURCE = 4 * 2**20


@dataclass
class SourceLine:
    """A line of a file."""

    path: Path
    line: int  # the line, from 1
    has_changed: bool = False  # true if the user has edited the file

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def find_source(workspace: Workspace) -> SourceLine | str:
    """Return the line of the error at the selection, or of the selection itself; else why not.

    That is a line of Python for code of the user and wrappers of other libraries, and a line of the
    pipeline file for a stage in it.
    """
    stage = workspace.stage
    for problem in workspace.list_selected_problems()[0]:
        source = None if problem.origin is None else _parse_location(problem.origin)
        if source is not None:
            return source
    env = workspace.draft.env
    name = "the env" if stage is None else stage.config.name
    if stage is not None and stage.wrapper is not None:
        source = _parse_location(stage.wrapper.location or "")
        return source or f"{name} has no Python source"
    code = env.code if stage is None and env is not None else stage and stage.config.code
    if isinstance(code, CodeReference):
        # Nothing is imported.
        inside = code.module.replace(".", "/")
        names = (code.module,) if code.is_file else (f"{inside}.py", f"{inside}/__init__.py")
        for folder in (".", *sys.path):
            for path in (Path(folder or ".", file).expanduser() for file in names):
                if path.is_file():
                    return SourceLine(path, _line_of(path, code.name.partition(".")[0]))
        return f"{code} was not found in the current folder or on the Python path"
    file, line = workspace.draft.file, 1 if stage is None else stage.config.line
    if file is not None and line is not None and os.path.isfile(file):
        return SourceLine(Path(file), line)
    return f"{name} is not code of yours, so it has no line to open"


def _parse_location(text: str) -> SourceLine | None:
    path, _, line = text.rpartition(":")
    if not line.isdecimal() or not os.path.isfile(path):
        return None
    return SourceLine(Path(path), int(line))


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
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if name in names:
                return node.lineno
    return 1


def edit_source(app: App[None], source: SourceLine) -> str | None:
    """Open a line in ``$VISUAL`` or ``$EDITOR``, and wait for it; the app is suspended meanwhile.

    Mark the line if the file has changed; return why it was not opened.
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
        return f"the editor {command[0]!r} did not start: {explain_os_error(error)}"
    source.has_changed = source.path.is_file() and source.path.stat().st_mtime_ns != before
    return f"the editor {command[0]!r} ended with status {status}" if status else None


def editor_command(environ: Mapping[str, str], source: SourceLine) -> list[str] | None:
    """Return the command that opens a line; ``None`` without an editor.

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


NORMS = ("ObservationNorm", "VecNorm", "VecNormV2")
WORKER = "repair"
"""Worker of the measurement; the one for specs answers each key press."""
_STEPS = (100, 1_000, 10_000)
_MAX_STEPS = 1_000_000


class Repairs:
    """Asks for what a repair needs, and applies it as one edit."""

    def __init__(
        self, screen: Screen[None], workspace: Workspace, commands: WorkerCommands
    ) -> None:
        self._screen, self._workspace, self._commands = screen, workspace, commands

    @property
    def can_measure(self) -> bool:
        """True if a normalizer is selected whose statistics can be measured."""
        stage = self._workspace.stage
        if stage is None or stage.wrapper is not None:
            return False
        return stage.config.name in NORMS and stage.enabled

    def measure(self) -> None:
        """Ask for a number of steps, and measure the selected normalizer."""
        stage = self._workspace.stage
        if stage is None or not self.can_measure:
            self._screen.notify("select an enabled ObservationNorm or VecNorm", timeout=3)
            return
        title = "Measure loc and scale over"
        if stage.config.name != "ObservationNorm":
            title = f"Replace {stage.config.name} by its statistics after"

        def start(text: str) -> None:
            if text.isdecimal() and 2 <= int(text[:9]) <= _MAX_STEPS:
                self._commands.start(self._measure(stage, int(text)))
            else:
                notice = f"enter 2 to {_MAX_STEPS:,} steps"
                self._screen.notify(notice, severity="warning", timeout=4)

        choices = [Choice(str(steps), f"{steps:,} random steps") for steps in _STEPS]
        dialog = ChoiceScreen(title, choices, allow_custom=True, is_verbatim=str.isdecimal)
        ask(self._screen.app, dialog, start)

    async def _measure(self, stage: DraftStage, steps: int) -> None:
        workspace = self._workspace
        place = workspace.draft.find_place(stage.number)
        if place is None:
            return
        stages = [*(other for other in workspace.draft.stages[:place] if other.enabled), stage]
        transforms = tuple(stage.config for stage in stages)
        chain = replace(workspace.draft.pipeline(), transforms=transforms, off=())
        doing = f"measuring {stage.config.name}"
        request = MeasureNorm(chain, steps, workspace.allow_code)
        measured = await self._commands.ask(request, WORKER, doing, "Not measured")
        if measured is None:
            return
        place = workspace.draft.find_place(stage.number)
        if place is None or workspace.draft.stages[place].config != stage.config:
            self._screen.notify("the stage has changed: measure it again", severity="warning")
            return
        draft = workspace.draft.replace(place, measured[0])
        if measured[1:]:
            draft = draft.insert(place + 1, measured[1:])
        workspace.edit(f"measure {stage.config.name}", draft, place=place)
        self._screen.notify(f"measured over {steps:,} steps; u undoes it", timeout=5)

    def exclude(self) -> None:
        """Add an ``ExcludeTransform`` for the entries that a dump cannot store."""
        if self._workspace.draft.env is None:
            self._screen.notify(NO_PIPELINE, timeout=3)
        else:
            self._commands.start(self._exclude())

    async def _exclude(self) -> None:
        workspace = self._workspace
        revision = workspace.editor.revision
        request = FindUnstorable(workspace.draft.pipeline(), workspace.allow_code)
        doing = "looking for what cannot be stored"
        keys = await self._commands.ask(request, WORKER, doing, "Not excluded")
        if keys is None:
            return
        if not keys:
            self._screen.notify("all entries can be stored", timeout=4)
        elif revision != workspace.editor.revision:
            self._screen.notify("the chain has changed: try again", severity="warning")
        else:
            count = len(workspace.draft.stages)
            stage = StageConfig("ExcludeTransform", tuple(keys))
            draft = workspace.draft.insert(count, [stage])
            if workspace.edit("exclude what cannot be stored", draft, place=count):
                listed = ", ".join(map(format_key, keys))
                self._screen.notify(f"excluded {listed}; u undoes it", timeout=5)

    def open_source(self) -> None:
        """Open the line of the selected stage, or of its error, in the editor of the user."""
        source = find_source(self._workspace)
        problem = source if isinstance(source, str) else edit_source(self._screen.app, source)
        if isinstance(source, SourceLine) and problem is None and source.has_changed:
            self._workspace.reload_code()
        if problem is not None:
            self._screen.notify(problem, timeout=6)
