"""``tdx show``."""

from __future__ import annotations

from typing import Annotated

import typer

from tdx.cli.completion import complete_name
from tdx.cli.options import OutputOptions


def show_transform(
    output: OutputOptions,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", autocompletion=complete_name, help="Its class name."),
    ],
    example: Annotated[
        bool,
        typer.Option(
            "--example/--no-example",
            help="Show the specs before and after it on an example; this loads torch.",
        ),
    ] = True,
) -> None:
    """Show a transform: what it does, its arguments, and what it makes of an env's specs.

    tdx show transform CatFrames
    """
    from tdx.cli.output.write import write
    from tdx.cli.views.transform_view import transform_view
    from tdx.pipeline.catalog import load_catalog

    info = load_catalog()[name]
    found = None
    if example:
        from tdx.cli.foreign_code import foreign_code
        from tdx.inspection.transform_example import find_example

        with foreign_code():
            found = find_example(info)
    write(transform_view(info, found), output)
