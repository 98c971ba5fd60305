"""``tdx tui`` and ``tdx serve``: the terminal app, in a terminal and in a browser."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.options import DebugOptions, Functions, integer_option
from tdx.cli.pipelines import PipelineOptions, PolicyName, Samples, TargetOptions, given_options
from tdx.foundation.errors import ArgumentError

if TYPE_CHECKING:
    from tdx.pipeline import Pipeline

_WEB_DRIVERS = (":WebDriver", ":ServedDriver")
_MIN_TOKEN_LENGTH, _MAX_TOKEN_LENGTH = 12, 1_000
_TOKEN_VARIABLE = "TDX_SERVE_TOKEN"
_MAX_PORT = 65535

Host = Annotated[
    str,
    typer.Option("--host", metavar="ADDRESS", help="Address to listen on; 0.0.0.0 for all."),
]
Port = Annotated[int, integer_option("--port", 0, "Port to listen on; 0 for any free port.")]
Pages = Annotated[
    int,
    integer_option("--pages", 1, "Maximum number of open pages; each runs its own processes."),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        help="Rejected: other users can read the command line.",
        hidden=True,
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the secret that a browser must send; by default a new random one at each "
        f"start. The variable {_TOKEN_VARIABLE} sets it, too.",
    ),
]


def tui(
    pipeline: TargetOptions,
    debug: DebugOptions,
    samples: Samples = None,
    policy: PolicyName = None,
) -> int:
    """Build, inspect, step and profile a chain in a terminal app.

    tdx tui pendulum.yaml

    tdx tui Pendulum-v1 -t StepCounter -t RewardSum

    tdx tui Pendulum-v1 --policy sb3:model.zip --allow-code

    Without arguments, `tdx` opens it too. Before it runs a Python file, it asks once.
    """
    from tdx.cli.pipelines import with_target

    if not is_interactive():
        alternative = shlex.join(["tdx", "inspect", "spec", "--stages", *sys.argv[2:]])
        reason = ", and TERM is dumb" if _is_dumb() else ""
        raise ArgumentError(
            f"the terminal app needs a terminal{reason}", hint=f"without one: {alternative}"
        )
    options = with_target(pipeline)
    config = initial_pipeline(options, samples, policy)
    allow_code = options.allow_code
    if config is not None and not allow_code:
        from tdx.cli.permission import ask_to_run

        allow_code = ask_to_run(config.env.id)
    from tdx.tui import open_app

    return open_app(config, allow_code=allow_code, samples=samples)


def serve(
    pipeline: TargetOptions,
    debug: DebugOptions,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    token_file: TokenFile = None,
    pages: Pages = 8,
    samples: Samples = None,
) -> int:
    """Serve the terminal app to a browser.

    tdx serve pendulum.yaml

    tdx serve Pendulum-v1 -t RewardSum --host 0.0.0.0

    Each page runs its own app. Anyone who opens it can do what you can do: read and write your
    files, and run code with --allow-code. The printed address contains a token. Requests without
    it are rejected, including those of other users of this machine.
    """
    from tdx.cli.pipelines import with_target

    options = with_target(pipeline)
    if options.pipeline == "-":
        raise ArgumentError("a page cannot read stdin", hint="pass a pipeline file")
    if port > _MAX_PORT:
        raise ArgumentError(
            f"--port must be at most {_MAX_PORT}, got {port}", hint="--port 0 uses any free port"
        )
    if token is not None:
        raise ArgumentError(
            "--token is refused: other users can read it in the list of processes",
            hint=f"write it into a file and pass --token-file FILE, or set {_TOKEN_VARIABLE}",
        )
    secret = _read_token(token_file)
    initial_pipeline(options, samples)
    from tdx.tui.serving.serve import serve

    def announce(address: str) -> None:
        print(address, flush=True)
        print("press Ctrl-C to stop", file=sys.stderr)

    arguments = [
        *as_arguments(options),
        *([] if samples is None else [f"--samples={samples}"]),
    ]
    return serve(arguments, host=host, port=port, token=secret, pages=pages, say=announce)


def _read_token(file: str | None) -> str | None:
    """Return the secret of the file or of the variable, which the apps do not inherit."""
    token = os.environ.pop(_TOKEN_VARIABLE, None)
    source = _TOKEN_VARIABLE
    if file is not None:
        source = f"the token in {file}"
        try:
            with open(file, encoding="utf-8") as opened:
                token = opened.read(_MAX_TOKEN_LENGTH).strip()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ArgumentError(
                f"cannot read {file}: {reason}", hint="write the token into it"
            ) from None
    if token is not None and len(token) < _MIN_TOKEN_LENGTH:
        raise ArgumentError(
            f"{source} must have at least {_MIN_TOKEN_LENGTH} characters, got {len(token)}",
            hint="remove it to use a random one",
        )
    return token


def as_arguments(options: PipelineOptions) -> list[str]:
    """Return the command-line arguments that give the same options.

    Each is one word, ``--name=value``, so that no value is mistaken for an option.

    Example:
        >>> as_arguments(PipelineOptions(env="Pendulum-v1", transforms=["RewardSum"], num_envs=2))
        ['--env=Pendulum-v1', '--t=RewardSum', '--num-envs=2']
    """
    # A short option takes no `=`.
    given = (("--t" if name == "-t" else name, value) for name, value in given_options(options))
    return [name if value is None else f"{name}={value}" for name, value in given]


def initial_pipeline(
    options: PipelineOptions, samples: str | None, policy: str | None = None
) -> Pipeline | None:
    """Return the pipeline that the app opens with; ``None`` for an empty one."""
    from tdx.cli.pipelines import read_pipeline

    if options.env is not None or options.pipeline is not None:
        # The app reports broken settings itself.
        config = read_pipeline(options, tolerant=True)
        from tdx.stacks.checkpoints import is_checkpoint

        if samples is not None and not (config.is_factory or is_checkpoint(config.env.id)):
            raise ArgumentError(
                "--samples needs a policy checkpoint or module:function", hint="leave it out"
            )
        return config if policy is None else replace(config, policy=policy)
    if samples is not None or policy is not None:
        name = "--samples" if policy is None else "--policy"
        raise ArgumentError(f"{name} needs a target", hint="tdx tui --help shows examples")
    if options.transforms:
        raise ArgumentError("-t needs an env", hint="name an env: tdx tui ID -t CALL")
    return None


def is_interactive() -> bool:
    """Return True if a user can see and type: at a terminal or through a web driver."""
    if os.environ.get("TEXTUAL_DRIVER", "").endswith(_WEB_DRIVERS):
        return True
    streams = (sys.stdin, sys.stdout, sys.__stderr__)
    return not _is_dumb() and all(stream is not None and stream.isatty() for stream in streams)


def _is_dumb() -> bool:
    """Return True if the terminal cannot draw, such as the shell of an editor."""
    return os.environ.get("TERM") == "dumb"


COMMANDS: Functions = {
    "tui": tui,
    "serve": serve,
}
