"""``tdx list``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdx.cli.options import OutputOptions

Search = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SEARCH]...", help="Words that must all occur; case is ignored."),
]


def list_envs(
    output: OutputOptions,
    search: Search = None,
    missing: Annotated[
        bool, typer.Option("--all", help="Also those whose package is not installed.")
    ] = False,
) -> None:
    """List the envs that --env takes.

    tdx list envs pong
    """
    from tdx.cli.foreign_code import foreign_code
    from tdx.cli.output.write import write
    from tdx.cli.views.list_view import envs_view
    from tdx.inspection.env_list import find_envs
    from tdx.text import escape_control_characters

    words = " ".join(search or ())
    with foreign_code():
        found = find_envs(words, missing=missing)
    write(envs_view(found.envs, words), output)
    for broken in found.broken:
        text = escape_control_characters(f"{broken.message} ({broken.hint})")
        print(f"warning: {text}", file=sys.stderr)


def list_transforms(output: OutputOptions, search: Search = None) -> None:
    """List the transforms that --t takes.

    tdx list transforms reward
    """
    from tdx.cli.output.write import write
    from tdx.cli.views.list_view import transforms_view
    from tdx.pipeline.catalog import load_catalog

    words = " ".join(search or ())
    write(transforms_view(load_catalog().search(words), words), output)
