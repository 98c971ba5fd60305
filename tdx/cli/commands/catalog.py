"""``tdx list envs``, ``list transforms``, ``show transform``, ``explain`` and ``schema``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdx.cli.completion import complete_codes, complete_name
from tdx.cli.options import DebugOptions, OutputOptions

Search = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SEARCH]...", help="Words that must all match; case is ignored."),
]
All = Annotated[bool, typer.Option("--all", help="Include envs whose package is not installed.")]
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=complete_name, help="Name of the transform."),
]
Example = Annotated[
    bool,
    typer.Option(
        "--example/--no-example",
        help="Show the specs before and after the transform on an example env; slower.",
    ),
]
Code = Annotated[
    str | None,
    typer.Argument(
        metavar="CODE",
        autocompletion=complete_codes,
        help="Code of an error or of a rule of tdx check; lists all codes by default.",
    ),
]


def list_envs(output: OutputOptions, search: Search = None, missing: All = False) -> None:
    """List the envs that --env accepts.

    tdx list envs pong
    """
    from tdx.cli.interrupts import third_party_code
    from tdx.cli.output.write import write_view
    from tdx.cli.views.catalog import envs_view
    from tdx.inspection.envs import find_envs
    from tdx.text import escape_control_characters

    words = " ".join(search or ())
    with third_party_code():
        result = find_envs(words, missing=missing)
    write_view(envs_view(result.envs, words), output)
    for broken in result.broken:
        text = escape_control_characters(f"{broken.message} ({broken.hint})")
        print(f"warning: {text}", file=sys.stderr)


def list_transforms(output: OutputOptions, search: Search = None) -> None:
    """List the transforms that --t accepts.

    tdx list transforms reward
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.views.catalog import transforms_view
    from tdx.pipeline.catalog import load_catalog

    words = " ".join(search or ())
    write_view(transforms_view(load_catalog().search(words), words), output)


def show_transform(output: OutputOptions, name: Name, example: Example = True) -> None:
    """Show the documentation of a transform, its arguments, and its effect on the specs of an env.

    tdx show transform CatFrames
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.views.catalog import transform_view
    from tdx.pipeline.catalog import load_catalog

    info = load_catalog()[name]
    shown_example = None
    if example:
        from tdx.cli.interrupts import third_party_code
        from tdx.inspection.transform_example import find_example

        with third_party_code():
            shown_example = find_example(info)
    write_view(transform_view(info, shown_example), output)


def explain(output: OutputOptions, code: Code = None) -> None:
    """Explain an error or rule: what is wrong, why it matters, and how to fix it.

    tdx explain TDX421
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.views.check import codes_view, explain_view
    from tdx.inspection.explanations import all_explanations, explain_code

    if code is None:
        write_view(codes_view(all_explanations()), output)
    else:
        write_view(explain_view(explain_code(code)), output)


def schema(debug: DebugOptions) -> None:
    """Print the JSON Schema of pipeline files, for completion in an editor.

    tdx schema > tdx.schema.json
    """
    from tdx.pipeline.json_schema import SCHEMA_FILE

    sys.stdout.write(SCHEMA_FILE.read_text(encoding="utf-8"))
