"""``tdx show DUMP``, ``tdx verify``, ``tdx list dumps`` and ``tdx replay``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tdx.cli.completion import complete_transform
from tdx.cli.options import OutputOptions
from tdx.errors import ExitCode

Folder = Annotated[str, typer.Argument(metavar="DUMP", help="The folder of a dump.")]
Root = Annotated[str, typer.Argument(metavar="[DIR]", help="A folder; the current one by default.")]
Stages = Annotated[
    list[str] | None,
    typer.Option(
        "--t",
        "-t",
        "--transform",
        metavar="CALL",
        autocompletion=complete_transform,
        help="A stage of the chain: RewardSum. Repeat it; the order counts.",
    ),
]
Out = Annotated[
    str | None,
    typer.Option("--out", "-o", metavar="DIR", help="Keep the result as a dump of its own."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a dump that is there.")]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code", help="Import the Python objects that a pipeline names as module:name."
    ),
]


def show_dump(output: OutputOptions, dump: Folder) -> None:
    """Show what is in a dump: episodes, returns, lengths, and the spread of each entry.

    tdx show runs/pendulum
    """
    from tdx.cli.output.write import write
    from tdx.cli.views.dumps import dump_view
    from tdx.rollouts import look_at, open_dump

    write(dump_view(look_at(open_dump(dump))), output)


def verify(output: OutputOptions, dump: Folder) -> int:
    """Read a whole dump and hold it against its manifest: checksums, and what the specs promise.

    Ends with exit code 0 where all is well, else with 1.

    tdx verify runs/pendulum
    """
    from tdx.cli.output.write import write
    from tdx.cli.views.dumps import verify_view
    from tdx.rollouts import verify

    found = verify(dump)
    write(verify_view(found), output)
    return ExitCode.OK if found.is_fine else ExitCode.FINDINGS


def list_dumps(output: OutputOptions, root: Root = ".") -> None:
    """List the dumps in a folder and below it.

    tdx list dumps runs
    """
    from tdx.cli.output.write import write
    from tdx.cli.views.dumps import list_view
    from tdx.rollouts import list_dumps

    write(list_view(list_dumps(root), root), output)


def replay(
    output: OutputOptions,
    dump: Folder,
    stages: Stages = None,
    out: Out = None,
    force: Force = False,
    allow_code: AllowCode = False,
) -> None:
    """Apply another chain to what a dump's env gave; equal to having rolled out with it.

    The dump must have been made without a chain, or with --raw. Without --out the result is shown
    and not kept.

    tdx replay runs/raw --t RewardSum --out runs/summed
    """
    from tdx.cli.interrupts import foreign_code
    from tdx.cli.output.write import write
    from tdx.cli.pipelines import read_stages
    from tdx.cli.progress import progress_on
    from tdx.cli.views.dumps import dump_view, summary_view
    from tdx.rollouts import look_at, open_dump, replay

    source, chain = open_dump(dump), read_stages(stages or [])
    with tempfile.TemporaryDirectory(prefix="tdx-") as scratch:
        target = Path(scratch) / "replay" if out is None else Path(out)
        with foreign_code(), progress_on(sys.stderr) as on_chunk:
            manifest = replay(
                source, chain, target, force=force, allow_code=allow_code, on_chunk=on_chunk
            )
        if out is None:
            view = dump_view(look_at(open_dump(target)), f"replay of {dump}")
        else:
            view = summary_view(out, manifest)
    write(view, output)
