"""Terminal, folders and shell, as tdx finds them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from tdx.errors import TdxError
from tdx.inspection.doctor.report import Diagnosis, Status

_COLUMNS, _LINES = 80, 24
_COMPLETIONS = {
    "bash": ".bash_completions/tdx.sh",
    "zsh": ".zfunc/_tdx",
    "fish": ".config/fish/completions/tdx.fish",
}


def terminal(stream: TextIO) -> Iterator[Diagnosis]:
    """Colours, size and signs of the terminal behind a stream."""
    if not stream.isatty():
        yield Diagnosis("terminal", "output", "ok", "no terminal: nothing is coloured or cut")
    else:
        size = shutil.get_terminal_size()
        small = size.columns < _COLUMNS or size.lines < _LINES
        hint = f"{_COLUMNS}×{_LINES} shows tables without wrapping" if small else None
        status: Status = "warn" if small else "ok"
        text = f"{size.columns}×{size.lines}"
        yield Diagnosis("terminal", "size", status, text, hint)
        yield _colours()
    encoding = (stream.encoding or "unknown").lower()
    unicode = encoding.replace("-", "").startswith("utf")
    hint = None if unicode else "set LANG=C.UTF-8 or PYTHONUTF8=1; signs are shown as ASCII"
    yield Diagnosis("terminal", "unicode", "ok" if unicode else "warn", encoding, hint)


def _colours() -> Diagnosis:
    term = os.environ.get("TERM", "")
    if os.environ.get("NO_COLOR"):
        return Diagnosis("terminal", "colours", "ok", "off: NO_COLOR is set")
    if term in ("", "dumb"):
        hint = "set TERM, for example to xterm-256color"
        return Diagnosis("terminal", "colours", "warn", f"none: TERM is {term!r}", hint)
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return Diagnosis("terminal", "colours", "ok", "16 million")
    return Diagnosis("terminal", "colours", "ok", "256" if "256" in term else "16")


def files() -> Iterator[Diagnosis]:
    """Folders that tdx writes to, and the configuration file."""
    from platformdirs import user_cache_path

    from tdx.settings import FILE_VARIABLE, config_path, load_settings

    path = config_path()
    yield _folder("config", path.parent, f"{FILE_VARIABLE}=FILE puts it elsewhere")
    yield _folder("cache", user_cache_path("tdx"), "env ids are looked up anew each time")
    try:
        settings = load_settings()
    except TdxError as error:
        value = f"{error.where}: {error.message}" if str(error.where) else error.message
        yield Diagnosis("files", "settings", "fail", value, error.hint)
        return
    value = str(path) if settings.exists else f"{path} (not there: all defaults)"
    yield Diagnosis("files", "settings", "ok", value)


def _folder(name: str, path: Path, otherwise: str) -> Diagnosis:
    """Whether a folder can be written to, or be made."""
    nearest = path
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        value = str(path) if nearest == path else f"{path} (made when it is needed)"
        return Diagnosis("files", name, "ok", value)
    return Diagnosis("files", name, "warn", f"{path} cannot be written to", otherwise)


def shell() -> Iterator[Diagnosis]:
    """Whether the shell finds tdx, and completes its words."""
    found = shutil.which("tdx")
    if found is None:
        hint = f"activate the environment, or run `{Path(sys.executable).name} -m tdx`"
        yield Diagnosis("shell", "PATH", "warn", "tdx is not on it", hint)
    elif Path(found).parent.resolve() != Path(sys.executable).parent.resolve():
        hint = f"this is {sys.executable}"
        yield Diagnosis("shell", "PATH", "warn", f"has another tdx: {found}", hint)
    else:
        yield Diagnosis("shell", "PATH", "ok", found)
    name = Path(os.environ.get("SHELL", "")).name
    file = _COMPLETIONS.get(name)
    if file is None:
        yield Diagnosis("shell", "completion", "ok", f"not known for {name or 'no shell'}")
    elif (Path.home() / file).exists():
        yield Diagnosis("shell", "completion", "ok", f"{name}: ~/{file}")
    else:
        hint = "tdx --install-completion"
        yield Diagnosis("shell", "completion", "warn", f"{name}: not installed", hint)
