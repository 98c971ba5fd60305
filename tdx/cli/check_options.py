"""The options of ``tdx check``."""

from __future__ import annotations

from typing import Annotated

import typer

from tdx.cli.completion import complete_rules

_RULES = "Rules"

File = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help="A pipeline file; the same as --pipeline FILE."),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="The policy that is to run on it, random or module:name with --allow-code; "
        "what it reads and carries is checked too.",
        rich_help_panel="Pipeline",
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="CODES",
        autocompletion=complete_rules,
        help="Look for these rules only: TDX421,TDX44. `tdx explain` lists them.",
        rich_help_panel=_RULES,
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="CODES",
        autocompletion=complete_rules,
        help="Leave these rules out.",
        rich_help_panel=_RULES,
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Treat suggestions like warnings.", rich_help_panel=_RULES),
]
Diff = Annotated[
    bool,
    typer.Option("--diff", help="Show the mended pipeline as a diff.", rich_help_panel=_RULES),
]
Fix = Annotated[
    bool,
    typer.Option(
        "--fix",
        help="Write the mended pipeline into its file; for --env and --t print its options.",
        rich_help_panel=_RULES,
    ),
]
