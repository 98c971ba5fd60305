"""``tdx list``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdx.cli.completion import complete_codes, complete_name
from tdx.cli.options import DebugOptions, OutputOptions

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
    from tdx.cli.interrupts import foreign_code
    from tdx.cli.output.write import write
    from tdx.cli.views.catalog import envs_view
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
    from tdx.cli.views.catalog import transforms_view
    from tdx.pipeline.entries import catalogue

    words = " ".join(search or ())
    write(transforms_view(catalogue().search(words), words), output)


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
    from tdx.cli.views.catalog import transform_view
    from tdx.pipeline.entries import catalogue

    info = catalogue()[name]
    found = None
    if example:
        from tdx.cli.interrupts import foreign_code
        from tdx.inspection.transform_example import find_example

        with foreign_code():
            found = find_example(info)
    write(transform_view(info, found), output)


def explain(
    output: OutputOptions,
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE",
            autocompletion=complete_codes,
            help="The code of an error or of a finding of tdx check; without it all are listed.",
        ),
    ] = None,
) -> None:
    """Explain a code: what is wrong, why, and an example with and without it.

    tdx explain TDX421
    """
    from tdx.cli.output.write import write
    from tdx.cli.views.check import codes_view, explain_view
    from tdx.inspection.explanations import explanation, explanations

    if code is None:
        write(codes_view(explanations()), output)
    else:
        write(explain_view(explanation(code)), output)


def schema(debug: DebugOptions) -> None:
    """Print the JSON Schema of the pipeline file, for completion in an editor.

    tdx schema > tdx.schema.json
    """
    from tdx.pipeline.json_schema import SCHEMA_FILE

    sys.stdout.write(SCHEMA_FILE.read_text(encoding="utf-8"))
