"""``tdx doctor``."""

from __future__ import annotations

import sys

from tdx.cli.options import OutputOptions
from tdx.errors import ExitCode


def doctor(output: OutputOptions) -> int:
    """Look at this machine: versions, devices, env packages, terminal, folders, shell.

    Ends with exit code 1 where something stops tdx from working.

    tdx doctor
    """
    from tdx.cli.foreign_code import foreign_code
    from tdx.cli.output.write import write
    from tdx.cli.views.doctor_view import doctor_view
    from tdx.inspection.doctor import check_terminal, diagnose

    # Inside foreign code stdout is not what the user sees.
    shown = list(check_terminal(sys.stdout))
    with foreign_code():
        report = diagnose(shown)
    write(doctor_view(report), output)
    return ExitCode.OK if report.ok else ExitCode.FINDINGS
