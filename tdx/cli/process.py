"""One run of ``tdx``: from its arguments to its exit code, with errors as one line and a hint."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TextIO

import typer

from tdx.cli.runtime import (
    SCHEMA_VERSION,
    InterruptWatch,
    close_quietly,
    finish_interrupt,
    json_text,
    kill_worker_processes,
    prepared_streams,
    raw_stream,
    reliable_sigint,
)
from tdx.foundation.errors import (
    ArgumentError,
    ExitCode,
    OutputError,
    StorageError,
    TdxError,
    UnknownNameError,
    explain_os_error,
    find_similar_names,
)
from tdx.foundation.files import SYSTEM_HINTS
from tdx.foundation.safe_path import environment_variable, safe_path
from tdx.foundation.text import escape_control_characters
from tdx.foundation.untrusted import ALLOW_DOWNLOAD

if TYPE_CHECKING:
    from tdx.cli.options import Color

PROGRAM = "tdx"

_GYMNASIUM_PREFIX = re.compile(r"\x1b\[\d*m|WARN: ")
_FOR_DEVELOPERS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
"""Warnings that concern the code of a library rather than its users."""
_CAST_BOUNDS = "precision lowered by casting"
"""Gymnasium warns of it for each space with bounds in Python numbers, also in its own wrappers."""
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_COMPLETION = "_TDX_COMPLETE"
"""Variable that the completion of a shell sets."""
_UNKNOWN_OPTION = re.compile(r"No such option: (\S.*)")
_EXTRA_ARGUMENTS = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.*)\)$")
_STAGE = re.compile(r"[A-Z]\w*(\(.*\))?|[\w.]+:[\w.]+")
"""A transform with its arguments, or the code of one, as ``-t`` takes it."""
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def run(arguments: Sequence[str]) -> int:
    """Run ``tdx`` with some arguments.

    Errors are shown on stderr as one line with a hint.

    The result is one of :class:`tdx.foundation.errors.ExitCode`.
    """
    style = ErrorStyle.from_arguments(arguments)
    # Let envs render without a display, and silence the banner of Pygame.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    # Some libraries run `python -c` when they are imported. A user who allows code gets the path
    # that Python gives to the scripts which an env starts.
    path = nullcontext() if "--allow-code" in arguments else safe_path()
    is_allowed = "--allow-download" in arguments
    # Worker processes inherit the variable.
    downloads = environment_variable(ALLOW_DOWNLOAD, "1") if is_allowed else nullcontext()
    with prepared_streams(), path, downloads:
        if not arguments or arguments[0] in ("tui", "serve"):
            # They handle Ctrl-C themselves.
            return _run(arguments, style)
        with InterruptWatch() as watch:
            try:
                with reliable_sigint():
                    code = _run(arguments, style, watch)
            except KeyboardInterrupt:
                code = int(ExitCode.INTERRUPTED)
            if code == ExitCode.INTERRUPTED or watch.is_interrupted:
                # Errors after Ctrl-C, such as an interrupted import, are consequences of it.
                code = int(ExitCode.INTERRUPTED)
                kill_worker_processes()
                finish_interrupt()
            return code


def _run(arguments: Sequence[str], style: ErrorStyle, watch: InterruptWatch | None = None) -> int:
    from tdx.cli.commands import build_root

    words = list(arguments)
    if not words:
        from tdx.cli.commands.tui import is_interactive

        words = ["tui"] if is_interactive() else []
    try:
        with _short_warnings():
            result = build_root().main(args=words, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        close_quietly(sys.stdout)
        return ExitCode.OK
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):
            # Rich, which prints the help, exits on a broken pipe.
            return ExitCode.OK
        raise
    except Exception as error:
        if watch is not None and watch.is_interrupted:
            return ExitCode.INTERRUPTED
        return _report(error, style)
    return result if isinstance(result, int) else ExitCode.OK


def _report(error: Exception, style: ErrorStyle) -> int:
    """Show an error and return its exit code."""
    if isinstance(error, typer.Abort) and isinstance(error.__cause__, EOFError):
        # Click takes an EOFError of any library for the end of the input.
        error = error.__cause__
    if isinstance(error, OSError) and not isinstance(error, TdxError):
        error = _explain_system_error(error)
    if style.debug:
        traceback.print_exception(error)
    if isinstance(error, (TdxError, typer.TyperException)):
        known = error if isinstance(error, TdxError) else as_tdx_error(error)
        show_error(known, style)
        return int(known.exit_code)
    return show_unexpected_error(error, style)


def _explain_system_error(error: OSError) -> Exception:
    """Return an error of the disk or of the system's limits as one of tdx; others unchanged."""
    reason = explain_os_error(error)
    # Reading an open file fails without its name, too. A terminal that is gone reports EIO.
    is_read = error.errno == errno.EIO and not sys.stdout.isatty()
    if error.errno in _WRITE_ERRORS and not error.filename and not is_read:
        close_quietly(sys.stdout)
        known: TdxError = OutputError(
            f"cannot write to stdout: {error.strerror}",
            hint="free some disk space, or redirect the output elsewhere",
        )
    elif error.errno in SYSTEM_HINTS:
        # A file that is opened below a folder has only its last name here.
        name = f" of {os.fsdecode(error.filename)}" if isinstance(error.filename, str) else ""
        known = StorageError(
            f"reading or writing{name} failed: {reason}", hint=SYSTEM_HINTS[error.errno]
        )
    else:
        return error
    return known.with_traceback(error.__traceback__)


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Print each Python warning as one line on stderr, without its source line."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, _FOR_DEVELOPERS) and not filename.startswith(_PACKAGE):
            return
        if _COMPLETION in os.environ:
            # Shells show it between the words of the command line.
            return
        text = " ".join(_GYMNASIUM_PREFIX.sub("", str(message)).split())
        if _CAST_BOUNDS in text:
            return
        print(f"warning: {text}", file=file or sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@dataclass(frozen=True, slots=True)
class ErrorStyle:
    """How to show an error, found in the arguments before they are parsed."""

    format: str | None
    debug: bool
    color: Color | None

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> Self:
        """Find ``--format``, ``--debug`` and ``--color`` in unparsed arguments."""
        color = _value_of("--color", arguments)
        return cls(
            format=_value_of("--format", arguments),
            debug="--debug" in arguments,
            # `tdx --help` does without the options of the commands, which take longer to import.
            color=None if color is None else _parse_color(color),
        )

    @property
    def is_json(self) -> bool:
        """True if the output would have been JSON."""
        from tdx.cli.options import Format

        output = self.format or _configured("format")
        return output in (Format.JSON, Format.JSONL, Format.SARIF)

    def use_color(self, stream: TextIO) -> bool:
        """Return True if output to ``stream`` is colored."""
        from tdx.cli.options import Color

        return (self.color or Color(_configured("color") or "auto")).is_enabled(stream)


def _configured(name: str) -> str | None:
    """Return a default that the user configured; ``None`` if the settings are broken."""
    from tdx.cli.options import configured_values

    return configured_values([name], tolerant=True).get(name)


def _parse_color(text: str) -> Color | None:
    from tdx.cli.options import Color

    return Color(text) if text in list(Color) else None


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    value = None
    for position, argument in enumerate(arguments):
        if argument == option and position + 1 < len(arguments):
            value = arguments[position + 1]
        elif argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value


def show_error(error: TdxError, style: ErrorStyle) -> None:
    """Write an error to stderr, as JSON if the output would have been JSON."""
    place = str(error.where)
    _write(
        f"{place}: {error.message}" if place else error.message,
        error.hint,
        {**error.to_dict(), "exit_code": int(error.exit_code)},
        style,
    )


def show_unexpected_error(error: Exception, style: ErrorStyle) -> int:
    """Write an error that is not a ``TdxError``; return its exit code."""
    name = type(error).__name__
    message = f"unexpected {name}: {error}" if str(error) else f"unexpected {name}"
    hint = "report this as a bug" if style.debug else "--debug shows the traceback"
    data: dict[str, Any] = {
        "code": TdxError.code,
        "error": name,
        "message": message,
        "hint": hint,
        "where": {},
    }
    _write(message, hint, {**data, "exit_code": int(ExitCode.ENVIRONMENT)}, style)
    return ExitCode.ENVIRONMENT


def _write(message: str, hint: str | None, data: dict[str, Any], style: ErrorStyle) -> None:
    def one_line(text: str) -> str:
        return escape_control_characters(" ".join(text.split()))

    with suppress(OSError):
        stream = raw_stream(sys.stderr)
        if style.is_json:
            document = {"schema_version": SCHEMA_VERSION, "kind": "error", "error": data}
            stream.write(json_text(document, stream))
            return
        red, cyan, reset = (
            ("\x1b[1;31m", "\x1b[36m", "\x1b[0m") if style.use_color(stream) else ("", "", "")
        )
        print(f"{red}error:{reset} {one_line(message)}", file=stream)
        if hint:
            print(f"{cyan}hint:{reset} {one_line(hint)}", file=stream)


def as_tdx_error(error: typer.TyperException) -> TdxError:
    """Convert a usage error of Typer; suggest the nearest spelling of an unknown name."""
    context: typer.Context | None = getattr(error, "ctx", None)
    message = (error.message or error.format_message()).rstrip(".")
    unknown = _UNKNOWN_OPTION.match(message)
    if unknown is None:
        return ArgumentError(f"{message[:1].lower()}{message[1:]}", hint=_hint(message, context))
    option, command = unknown[1], PROGRAM if context is None else context.command_path
    params = [] if context is None else context.command.params
    # Without dashes, which all options share: --out is not a misspelling of --to.
    names = {
        name.lstrip("-"): name for param in params for name in param.opts if name.startswith("--")
    }
    if any("-t" in param.opts for param in params):
        names["transform"] = "-t"
    hint = f"{command} --help lists the options"
    # Options that other programs have.
    if option == "--silent":
        hint = "use --quiet"
    elif near := find_similar_names(option.lstrip("-"), names):
        hint = f"did you mean {' or '.join(names[name] for name in near)}?"
    elif option in ("--out", "--output", "-o"):
        hint = f"redirect the output: {command} … > FILE"
    return UnknownNameError(f"no such option: {option}", hint=hint)


def _hint(message: str, context: typer.Context | None) -> str:
    command = PROGRAM if context is None else context.command_path
    known = {name for param in context.command.params for name in param.opts} if context else ()
    if "requires an argument" in message or ("requires" in message and "arguments" in message):
        return "write the value after the option"
    from tdx.cli.pipelines import is_file_target

    extra = _EXTRA_ARGUMENTS.search(message)
    if extra is not None and context is not None and "-t" in known:
        words = extra[1]
        if _STAGE.fullmatch(words):
            return f"write a stage as -t {shlex.quote(words)}"
        if is_file_target(words):
            if "target" not in {param.name for param in context.command.params}:
                return f"{command} takes no pipeline: write each stage of {words} as -t STAGE"
            return f"{command} takes one target: run it again for {words}; tdx diff compares two"
    return f"{command} --help lists the options"
