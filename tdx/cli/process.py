"""One run of ``tdx``, from its arguments to its exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import TextIO

import typer

from tdx.cli.errors import ErrorStyle, as_tdx_error, show_error, show_unexpected_error
from tdx.cli.interrupts import InterruptWatch, kill_worker_processes
from tdx.cli.streams import close_quietly, prepared_streams
from tdx.cli.typer_internals import is_help_without_arguments
from tdx.errors import ExitCode, OutputError, TdxError

PROGRAM = "tdx"

_GYMNASIUM_PREFIX = re.compile(r"\x1b\[\d*m|WARN: ")
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def run(arguments: Sequence[str]) -> int:
    """Run ``tdx`` with some arguments.

    Errors are shown on stderr as one line with a hint.

    Args:
        arguments: Arguments after ``tdx``.

    Returns:
        Exit code of the process, one of :class:`tdx.errors.ExitCode`.
    """
    style = ErrorStyle.from_arguments(arguments)
    _configure_headless_rendering()
    with prepared_streams():
        if _handles_interrupts(arguments):
            return _run(arguments, style)
        with InterruptWatch() as watch:
            code = _run(arguments, style, watch)
            if watch.is_interrupted:
                # Errors after Ctrl-C, such as an interrupted import, are consequences of it.
                code = int(ExitCode.INTERRUPTED)
                kill_worker_processes()
            return code


def _handles_interrupts(arguments: Sequence[str]) -> bool:
    """Return True for the commands that handle Ctrl-C themselves."""
    return not arguments or arguments[0] in ("tui", "serve")


def _run(arguments: Sequence[str], style: ErrorStyle, watch: InterruptWatch | None = None) -> int:
    try:
        with _short_warnings():
            code = _invoke(list(arguments))
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
    return code


def _report(error: Exception, style: ErrorStyle) -> int:
    """Show an error and return its exit code."""
    if is_help_without_arguments(error):
        return ExitCode.USAGE
    if isinstance(error, OSError) and error.errno in _WRITE_ERRORS and not error.filename:
        close_quietly(sys.stdout)
        error = OutputError(
            f"cannot write to stdout: {error.strerror}",
            hint="free some disk space, or redirect the output elsewhere",
        )
    if style.debug:
        traceback.print_exception(error)
    if isinstance(error, (TdxError, typer.TyperException)):
        known = as_tdx_error(error)
        show_error(known, style)
        return int(known.exit_code)
    return show_unexpected_error(error, style)


def _configure_headless_rendering() -> None:
    """Let envs render without a display, and silence the banner of Pygame."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")


def _invoke(arguments: list[str]) -> int:
    from tdx.cli.app import build_command
    from tdx.cli.commands.tui import is_interactive

    if not arguments and is_interactive():
        arguments = ["tui"]
    result = build_command().main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    return result if isinstance(result, int) else ExitCode.OK


@contextlib.contextmanager
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
        text = " ".join(_GYMNASIUM_PREFIX.sub("", str(message)).split())
        print(f"warning: {text}", file=file or sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
