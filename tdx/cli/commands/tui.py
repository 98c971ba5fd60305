"""``tdx tui``: the terminal app."""

from __future__ import annotations

import os
import shlex
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Protocol, cast

import typer

from tdx.cli.options import DebugOptions, PipelineOptions
from tdx.errors import ArgumentError

if TYPE_CHECKING:
    from tdx.pipeline.model import Pipeline

_WEB_DRIVERS = (":WebDriver", ":ServedDriver")
File = Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="A pipeline file.")]


class _Face(Protocol):
    """What the terminal app offers."""

    def open_app(self, pipeline: object = None, *, allow_code: bool = False) -> int: ...


def tui(pipeline: PipelineOptions, debug: DebugOptions, file: File = None) -> int:
    """Compose a chain, look at it, step it and profile it, in a terminal app.

    tdx tui pendulum.yaml

    tdx alone on a terminal opens it too.
    """
    from tdx.cli.source import with_file

    if not on_terminal():
        given = sys.argv[2:] if file is None else ["--pipeline", *sys.argv[2:]]
        without = shlex.join(["tdx", "inspect", "spec", "--stages", *given])
        why = ", and TERM is dumb" if _is_dumb() else ""
        raise ArgumentError(
            f"the terminal app needs a terminal{why}", hint=f"without one: {without}"
        )
    options = with_file(pipeline, file)
    config = first_pipeline(options)
    # The faces do not import each other: docs/decisions/0013-the-terminal-app.md.
    face = cast("_Face", import_module("tdx.tui"))
    return face.open_app(config, allow_code=options.allow_code)


def first_pipeline(options: PipelineOptions) -> Pipeline | None:
    """The pipeline that the app begins with; none for an empty one.

    Raises:
        ArgumentError: there are stages and no env, or the options do not go together.
        PipelineError: the file or a stage cannot be read.
    """
    from tdx.cli.source import read_pipeline

    if options.env is not None or options.pipeline is not None:
        # The app says what is wrong with the settings.
        return read_pipeline(options, tolerant=True)
    if options.transforms:
        raise ArgumentError("stages are given without an env", hint="add --env ID")
    return None


def on_terminal() -> bool:
    """Whether there is someone to look and to type, at a terminal or through a web driver."""
    if os.environ.get("TEXTUAL_DRIVER", "").endswith(_WEB_DRIVERS):
        return True
    streams = (sys.stdin, sys.stdout, sys.__stderr__)
    return not _is_dumb() and all(stream is not None and stream.isatty() for stream in streams)


def _is_dumb() -> bool:
    """Whether it is a terminal on which nothing can be drawn, such as an editor's shell."""
    return os.environ.get("TERM") == "dumb"
