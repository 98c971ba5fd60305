"""``tdx explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from tdx.cli.completion import complete_codes
from tdx.cli.options import OutputOptions


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
    from tdx.cli.views.explain_view import codes_view, explain_view
    from tdx.inspection.explanations import all_explanations, explain_code

    if code is None:
        write(codes_view(all_explanations()), output)
    else:
        write(explain_view(explain_code(code)), output)
