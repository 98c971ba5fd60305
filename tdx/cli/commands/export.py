"""``tdx export`` and ``tdx import``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tdx.cli.completion import (
    DUMP,
    complete_dump_keys,
    complete_env,
    complete_export,
    complete_import,
)
from tdx.cli.options import (
    Functions,
    OutputOptions,
    integer_option,
    split_list,
)
from tdx.foundation.errors import ArgumentError
from tdx.rollouts.formats.registry import builtin_formats

if TYPE_CHECKING:
    from tdx.rollouts import Progress

_FPS = 30
_IMPORTED = [name for name, (kind, _) in builtin_formats().items() if kind.can_import]

Folder = Annotated[str, DUMP]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="FORMAT",
        autocompletion=complete_export,
        help=f"{', '.join(builtin_formats())}; by default the extension of --out.",
    ),
]
OutFile = Annotated[
    str | None,
    typer.Option(
        *("-o", "--out"),
        metavar="PATH",
        help="Target; next to the dump by default. - writes jsonl to stdout.",
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--keys",
        metavar="KEYS",
        autocompletion=complete_dump_keys,
        help="Export only these entries: observation,next.reward. Without `next.`, both are "
        "exported.",
    ),
]
Episodes = Annotated[
    str | None,
    typer.Option(
        "--episodes",
        metavar="NUMBERS",
        help="For videos: episodes to export, numbered as in tdx show: 0,3-5.",
    ),
]
Fps = Annotated[
    int,
    integer_option("--fps", 1, "For videos: frames per second."),
]
Split = Annotated[
    bool, typer.Option("--split", help="For videos: one file per episode, in a folder.")
]
Lossy = Annotated[
    bool,
    typer.Option(
        "--lossy", help="For mp4: write a smaller, lossy file that every player supports."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Write nothing; show the entries and the size.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing export.")]

Source = Annotated[
    str, typer.Argument(metavar="PATH", help="File, or folder of a dataset or group.")
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        autocompletion=complete_import,
        help=f"{', '.join(_IMPORTED)}; detected from PATH by default.",
    ),
]
OutDump = Annotated[str, typer.Option("-o", "--out", metavar="DIR", help="Folder of the new dump.")]
EnvId = Annotated[
    str | None,
    typer.Option(
        "--env",
        metavar="ID",
        autocompletion=complete_env,
        help="Env of the data, if tdx export did not write the file.",
    ),
]
ForceDump = Annotated[bool, typer.Option("--force", help="Replace an existing dump.")]


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
    """Convert a dump to another format, without loss.

    `tdx import` converts the result back to a dump.

    tdx export runs/pendulum --to parquet

    tdx export runs/pendulum --keys observation,reward --out steps.npz
    """
    from tdx.cli.output import STDOUT, write_view
    from tdx.cli.views.dumps import export_view
    from tdx.rollouts import export_dump, export_lines
    from tdx.rollouts.formats.registry import find_format

    selected = tuple(split_list(keys)) or None
    if out == STDOUT and not dry_run:
        kind = find_format(to or "jsonl")
        if kind.name != "jsonl" or any((episodes, split, lossy)):
            raise ArgumentError(f"{kind.name} cannot be written to stdout", hint="use --to jsonl")
        export_lines(dump, sys.stdout.buffer, keys=selected)
        return
    with _interruptible_progress() as on_rows:
        result = export_dump(
            dump,
            out,
            to=to,
            keys=selected,
            episodes=None if episodes is None else parse_episodes(episodes),
            fps=fps,
            split=split,
            lossy=lossy,
            force=force,
            dry_run=dry_run,
            on_rows=on_rows,
        )
    write_view(export_view(result), output)


@contextmanager
def _interruptible_progress() -> Iterator[Callable[[Progress], None]]:
    """Yield a function that shows the progress, and raises a Ctrl-C that a library has lost."""
    from tdx.cli.progress import progress_on
    from tdx.cli.runtime import reliable_sigint

    with reliable_sigint() as check, progress_on(sys.stderr) as show:

        def on_rows(progress: Progress) -> None:
            check()
            show(progress)

        yield on_rows


def parse_episodes(text: str) -> tuple[int, ...]:
    """Parse numbers and ranges.

    Example:
        >>> parse_episodes("0,3-5")
        (0, 3, 4, 5)
    """
    episodes: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if (
            not first.isdecimal()
            or (last and not last.isdecimal())
            or int(last or first) < int(first)
        ):
            raise ArgumentError(
                f"invalid value {text!r} for --episodes", hint="write numbers and ranges: 0,3-5"
            )
        episodes += range(int(first), int(last or first) + 1)
    return tuple(episodes)


def import_(
    output: OutputOptions,
    path: Source,
    out: OutDump,
    kind: From = None,
    env: EnvId = None,
    force: ForceDump = False,
) -> None:
    """Convert a file in another format to a dump.

    The file is from tdx export, or from another source.

    tdx import pendulum.parquet --out runs/again

    tdx import steps.txt --from jsonl --out runs/steps
    """
    from tdx.cli.output import write_view
    from tdx.cli.views.dumps import import_view
    from tdx.rollouts import import_dump

    with _interruptible_progress() as on_rows:
        result = import_dump(path, out, format=kind, env=env, force=force, on_rows=on_rows)
    write_view(import_view(result), output)


COMMANDS: Functions = {
    "export": export,
    "import": import_,
}
