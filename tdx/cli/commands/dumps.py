"""``tdx show DUMP``, ``tdx verify``, ``tdx list dumps`` and ``tdx replay``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tdx.cli.completion import complete_transform
from tdx.cli.options import AllowCode, OutputOptions
from tdx.errors import ExitCode

Folder = Annotated[str, typer.Argument(metavar="DUMP", help="Folder of a dump.")]
Root = Annotated[str, typer.Argument(metavar="[DIR]", help="Folder; the current one by default.")]
Stages = Annotated[
    list[str] | None,
    typer.Option(
        "--t",
        "-t",
        "--transform",
        metavar="CALL",
        autocompletion=complete_transform,
        help="Add a stage to the chain: RewardSum. Can be repeated; the order matters.",
    ),
]
Out = Annotated[
    str | None,
    typer.Option("--out", "-o", metavar="DIR", help="Write the result to a new dump."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing dump.")]


def show_dump(output: OutputOptions, dump: Folder) -> None:
    """Show the contents of a dump: episodes, returns, lengths, and the values of each entry.

    tdx show runs/pendulum
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.views.dumps import dump_view
    from tdx.rollouts import look_at, open_dump

    write_view(dump_view(look_at(open_dump(dump))), output)


def verify(output: OutputOptions, dump: Folder) -> int:
    """Read a whole dump and check its checksums and its values against the manifest and the specs.

    Exits with 0 if the dump is valid, else with 1.

    tdx verify runs/pendulum
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.views.dumps import verify_view
    from tdx.rollouts import verify

    result = verify(dump)
    write_view(verify_view(result), output)
    return ExitCode.OK if result.is_fine else ExitCode.FINDINGS


def list_dumps(output: OutputOptions, root: Root = ".") -> None:
    """List the dumps in a folder and its subfolders.

    tdx list dumps runs
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.views.dumps import list_view
    from tdx.rollouts import list_dumps

    write_view(list_view(list_dumps(root), root), output)


def replay(
    output: OutputOptions,
    dump: Folder,
    stages: Stages = None,
    out: Out = None,
    force: Force = False,
    allow_code: AllowCode = False,
) -> None:
    """Apply another chain to the data of a dump; equals a rollout with that chain.

    The dump must have been written without a chain, or with --raw. Without --out the result is
    shown but not saved.

    tdx replay runs/raw --t RewardSum --out runs/summed
    """
    from tdx.cli.interrupts import third_party_code
    from tdx.cli.output.write import write_view
    from tdx.cli.pipelines import read_stages
    from tdx.cli.progress import progress_on
    from tdx.cli.views.dumps import dump_view, summary_view
    from tdx.rollouts import look_at, open_dump, replay

    source, chain = open_dump(dump), read_stages(stages or [])
    with tempfile.TemporaryDirectory(prefix="tdx-") as scratch:
        target = Path(scratch) / "replay" if out is None else Path(out)
        with third_party_code(), progress_on(sys.stderr) as on_chunk:
            manifest = replay(
                source, chain, target, force=force, allow_code=allow_code, on_chunk=on_chunk
            )
        if out is None:
            view = dump_view(look_at(open_dump(target)), f"replay of {dump}")
        else:
            view = summary_view(out, manifest)
    write_view(view, output)
