"""One run of ``tdx`` from its arguments to its exit code."""

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

from tdx.cli.errors import Early, as_tdx_error, asked_for_nothing, show_error, show_unexpected
from tdx.cli.interrupts import InterruptWatch, end_children
from tdx.cli.streams import close_quietly, prepared_streams
from tdx.errors import ExitCode, OutputError, TdxError

PROGRAM = "tdx"

_GYMNASIUM_WARNS = re.compile(r"\x1b\[\d*m|WARN: ")
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def run(arguments: Sequence[str]) -> int:
    """Run ``tdx`` with these arguments.

    Every error that is meant for the user is shown as one line with a hint on stderr.

    Args:
        arguments: what stands after ``tdx`` on the command line.

    Returns:
        The exit code of the process, one of :class:`tdx.errors.ExitCode`.
    """
    early = Early.read(arguments)
    _expect_no_screen()
    with prepared_streams():
        if _has_screen(arguments):
            return _run(arguments, early)
        with InterruptWatch() as watch:
            code = _run(arguments, early, watch)
            if watch.pressed:
                # What failed after Ctrl-C, as an import that was cut short does, failed for that.
                code = int(ExitCode.INTERRUPTED)
                end_children()
            return code


def _has_screen(arguments: Sequence[str]) -> bool:
    """True for the commands that handle Ctrl-C by themselves."""
    return not arguments or arguments[0] in ("tui", "serve")


def _run(arguments: Sequence[str], early: Early, watch: InterruptWatch | None = None) -> int:
    try:
        with _short_warnings():
            code = _invoke(list(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        close_quietly(sys.stdout)
        return ExitCode.OK
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            # Rich, which writes the help, ends the process by itself.
            return ExitCode.OK
        raise
    except (TdxError, typer.TyperException) as error:
        if watch is not None and watch.pressed:
            return ExitCode.INTERRUPTED
        if asked_for_nothing(error):
            return ExitCode.USAGE
        return _failed(as_tdx_error(error), early)
    except Exception as error:
        if watch is not None and watch.pressed:
            return ExitCode.INTERRUPTED
        if isinstance(error, OSError) and error.errno in _CANNOT_WRITE and not error.filename:
            close_quietly(sys.stdout)
            return _failed(
                OutputError(
                    f"cannot write to stdout: {error.strerror}",
                    hint="free space on the disk, or send the output to another place",
                ),
                early,
            )
        if early.debug:
            traceback.print_exc()
        return show_unexpected(error, early)
    return code


def _expect_no_screen() -> None:
    """Let envs render without a screen, and without SDL saying that it misses one."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")


def _invoke(arguments: list[str]) -> int:
    from tdx.cli.app import build_command
    from tdx.cli.commands.tui import on_terminal

    if not arguments and on_terminal():
        arguments = ["tui"]
    outcome = build_command().main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    return outcome if isinstance(outcome, int) else ExitCode.OK


def _failed(error: TdxError, early: Early) -> int:
    if early.debug:
        traceback.print_exc()
    show_error(error, early)
    return int(error.exit_code)


@contextlib.contextmanager
def _short_warnings() -> Iterator[None]:
    """Show a Python warning as one line on stderr, without the source line it came from."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = " ".join(_GYMNASIUM_WARNS.sub("", str(message)).split())
        print(f"warning: {text}", file=file or sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
