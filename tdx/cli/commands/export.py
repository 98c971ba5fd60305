"""``tdx export`` and ``tdx import``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.choices import number_option
from tdx.cli.completion import complete_dump_keys, complete_env, complete_export, complete_import
from tdx.cli.options import OutputOptions
from tdx.cli.output.write import STDOUT
from tdx.errors import ArgumentError

if TYPE_CHECKING:
    from tdx.rollouts import Progress

_FPS = 30

Folder = Annotated[str, typer.Argument(metavar="DUMP", help="The folder of a dump.")]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="FORMAT",
        autocompletion=complete_export,
        help="minari, parquet, hdf5, zarr, safetensors, npz, jsonl, mp4 or gif; what --out ends "
        "with by default.",
    ),
]
OutFile = Annotated[
    str | None,
    typer.Option(
        "--out",
        "-o",
        metavar="PATH",
        help="Where to; beside the dump by default. - is stdout, for jsonl.",
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--keys",
        metavar="KEYS",
        autocompletion=complete_dump_keys,
        help="Export these entries only: observation,next.reward. Without `next.` both are meant.",
    ),
]
Episodes = Annotated[
    str | None,
    typer.Option(
        "--episodes",
        metavar="NUMBERS",
        help="Of a film: these episodes, counted from 0 as tdx show lists them: 0,3-5.",
    ),
]
Fps = Annotated[
    int,
    number_option("--fps", 1, "Of a film: frames a second; 30 by default."),
]
Split = Annotated[
    bool, typer.Option("--split", help="Of a film: a file for each episode, in a folder.")
]
Lossy = Annotated[
    bool, typer.Option("--lossy", help="Of an mp4: small and for every player, not exact.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing; show what would be in it.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an export that is there.")]

Source = Annotated[
    str, typer.Argument(metavar="PATH", help="A file, or the folder of a dataset or group.")
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        autocompletion=complete_import,
        help="minari, parquet, hdf5, zarr, safetensors, npz or jsonl; told by PATH by default.",
    ),
]
OutDump = Annotated[
    str, typer.Option("--out", "-o", metavar="DIR", help="The folder of the new dump.")
]
EnvId = Annotated[
    str | None,
    typer.Option(
        "--env",
        metavar="ID",
        autocompletion=complete_env,
        help="The env that a file by somebody else comes from.",
    ),
]
ForceDump = Annotated[bool, typer.Option("--force", help="Overwrite a dump that is there.")]


def export(
    output: OutputOptions,
    dump: Folder,
    to: To = None,
    out: OutFile = None,
    keys: Keys = None,
    episodes: Episodes = None,
    fps: Fps = _FPS,
    split: Split = False,
    lossy: Lossy = False,
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Write a dump in another format: every number as it is, and all that the dump knows of them.

    tdx import makes a dump of it again.

    tdx export runs/pendulum --to parquet
    """
    from tdx.cli.interrupts import heard_interrupts
    from tdx.cli.output.write import write
    from tdx.cli.progress import progress_on
    from tdx.cli.views.dumps import export_view
    from tdx.rollouts import export_dump

    wanted = listed(keys)
    if out == STDOUT and not dry_run:
        _to_stdout(dump, to, wanted, any((episodes, split, lossy)))
        return
    with heard_interrupts() as check, progress_on(sys.stderr) as show:

        def on_rows(progress: Progress) -> None:
            check()
            show(progress)

        found = export_dump(
            dump,
            out,
            to=to,
            keys=wanted,
            episodes=None if episodes is None else numbers(episodes),
            fps=fps,
            split=split,
            lossy=lossy,
            force=force,
            dry_run=dry_run,
            on_rows=on_rows,
        )
    write(export_view(found), output)


def _to_stdout(dump: str, to: str | None, keys: tuple[str, ...] | None, film: bool) -> None:
    from tdx.rollouts import export_lines
    from tdx.rollouts.formats.registry import find_format

    kind = find_format(to or "jsonl")
    if kind.name != "jsonl" or film:
        raise ArgumentError(f"{kind.name} cannot be written to stdout", hint="--to jsonl can")
    export_lines(dump, sys.stdout.buffer, keys=keys)


def listed(keys: list[str] | None) -> tuple[str, ...] | None:
    """Names that were given one by one, or with commas between."""
    names = [name.strip() for text in keys or () for name in text.split(",") if name.strip()]
    return tuple(names) or None


def numbers(text: str) -> tuple[int, ...]:
    """Numbers and ranges of them.

    Example:
        >>> numbers("0,3-5")
        (0, 3, 4, 5)
    """
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if (
            not first.isdecimal()
            or (last and not last.isdecimal())
            or int(last or first) < int(first)
        ):
            raise ArgumentError(
                f"--episodes cannot be {text!r}", hint="write numbers and ranges: 0,3-5"
            )
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def import_(
    output: OutputOptions,
    path: Source,
    out: OutDump,
    kind: From = None,
    env: EnvId = None,
    force: ForceDump = False,
) -> None:
    """Make a dump of a file in another format: what tdx export wrote, or data by somebody else.

    tdx import pendulum.parquet --out runs/again
    """
    from tdx.cli.interrupts import heard_interrupts
    from tdx.cli.output.write import write
    from tdx.cli.progress import progress_on
    from tdx.cli.views.dumps import import_view
    from tdx.rollouts import import_dump

    with heard_interrupts() as check, progress_on(sys.stderr) as show:

        def on_rows(progress: Progress) -> None:
            check()
            show(progress)

        found = import_dump(path, out, format=kind, env=env, force=force, on_rows=on_rows)
    write(import_view(found), output)
