"""``tdx serve``: the terminal app in a browser."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Protocol, cast

import typer

from tdx.cli.arguments import as_arguments
from tdx.cli.choices import number_option
from tdx.cli.commands.tui import File, first_pipeline
from tdx.cli.options import DebugOptions, PipelineOptions
from tdx.errors import ArgumentError

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
    from tdx.cli.source import with_file

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
