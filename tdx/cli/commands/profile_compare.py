"""``tdx profile compare``."""

from __future__ import annotations

from typing import Annotated

import typer

from tdx.cli.options import OutputOptions
from tdx.cli.profile_options import FailIf
from tdx.errors import ExitCode

Before = Annotated[str, typer.Argument(metavar="BEFORE", help="A profile that --save has kept.")]
After = Annotated[str, typer.Argument(metavar="AFTER", help="The one that is held against it.")]
Force = Annotated[bool, typer.Option("--force", help="Compare what was not measured alike.")]


def profile_compare(
    output: OutputOptions,
    before: Before,
    after: After,
    fail_if: FailIf = None,
    force: Force = False,
) -> int:
    """Hold a profile against an earlier one: what has become slower, and by more than noise.

    tdx profile compare base.json now.json --fail-if p95:10%
    """
    from tdx.cli.output.write import write
    from tdx.cli.views.profile_change_view import change_view
    from tdx.profiling.compare import compare_profiles, parse_limits
    from tdx.profiling.saved import read_profile

    limits = parse_limits(fail_if or ())
    found = compare_profiles(read_profile(before), read_profile(after), limits, force=force)
    write(change_view(found, limits, before, after), output)
    return ExitCode.FINDINGS if found.failures else ExitCode.OK
