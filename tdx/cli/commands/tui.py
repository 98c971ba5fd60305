"""``tdx tui``: the terminal app."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Protocol, cast

import typer

from tdx.cli.choices import number_option
from tdx.cli.options import DebugOptions, PipelineOptions, as_arguments
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
    from tdx.cli.pipelines import with_file

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
    face = cast("_Face", import_module("tdx.tui.open"))
    return face.open_app(config, allow_code=options.allow_code)


def first_pipeline(options: PipelineOptions) -> Pipeline | None:
    """The pipeline that the app begins with; none for an empty one.

    Raises:
        ArgumentError: there are stages and no env, or the options do not go together.
        PipelineError: the file or a stage cannot be read.
    """
    from tdx.cli.pipelines import read_pipeline

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


_LEAST_TOKEN = 12
_MOST_PORT = 65535

Host = Annotated[
    str,
    typer.Option(
        "--host", metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for all of this machine's."
    ),
]
Port = Annotated[
    int,
    number_option("--port", 0, "The port; 0 for any that is free."),
]
Pages = Annotated[
    int,
    number_option(
        "--pages", 1, "How many pages may be open at once; each has processes of its own."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        help="Secret that a browser must send; by default a fresh one is drawn at each start.",
    ),
]


class _Face(Protocol):
    """What the app in a browser offers."""

    def serve(
        self,
        arguments: Sequence[str],
        *,
        host: str,
        port: int,
        token: str | None,
        pages: int,
        say: Callable[[str], None],
    ) -> int: ...


def serve(
    pipeline: PipelineOptions,
    debug: DebugOptions,
    file: File = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    pages: Pages = 8,
) -> int:
    """Serve the terminal app to a browser.

    tdx serve pendulum.yaml

    tdx serve --host 0.0.0.0 --env Pendulum-v1 --t RewardSum

    Each page has an app of its own. Whoever opens it can do what you can do: read and write your
    files, and run code with --allow-code. The address that is printed has a token; requests without
    it are refused, also from other users of this machine.
    """
    from tdx.cli.pipelines import with_file

    options = with_file(pipeline, file)
    if options.pipeline == "-":
        raise ArgumentError("a page cannot read stdin", hint="give a pipeline file")
    if port > _MOST_PORT:
        raise ArgumentError(
            f"--port must be at most {_MOST_PORT}, got {port}", hint="--port 0 takes any free port"
        )
    if token is not None and token != "random" and len(token) < _LEAST_TOKEN:
        raise ArgumentError(
            f"--token must have at least {_LEAST_TOKEN} characters",
            hint="leave it out: a random one is drawn",
        )
    first_pipeline(options)
    # The faces do not import each other: docs/decisions/0013-the-terminal-app.md.
    face = cast("_Face", import_module("tdx.tui.serving.serve"))
    arguments = as_arguments(options)
    return face.serve(arguments, host=host, port=port, token=token, pages=pages, say=_say)


def _say(address: str) -> None:
    print(address, flush=True)
    print("Ctrl-C ends it", file=sys.stderr)
