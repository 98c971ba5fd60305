"""``tdx config``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdx.cli.options import DebugOptions, OutputOptions
from tdx.errors import ExitCode

Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")]


def config_path(debug: DebugOptions) -> None:
    """Print where the configuration file is, or would be.

    tdx config path
    """
    from tdx.settings import config_path

    print(config_path())


def config_show(output: OutputOptions) -> None:
    """Show every setting, its value, and where that comes from.

    tdx config show
    """
    from tdx.cli.output.write import write
    from tdx.cli.views.setup import config_view
    from tdx.settings import load_settings

    write(config_view(load_settings()), output)


def config_init(debug: DebugOptions, force: Force = False) -> None:
    """Write a configuration file that shows all that can be set, and sets nothing.

    tdx config init
    """
    import sys

    from tdx.cli.output.write import write_new
    from tdx.settings import config_path, template

    path = config_path()
    write_new(path, template(), force=force, create_folder=True)
    print(f"wrote {path}", file=sys.stderr)


def doctor(output: OutputOptions) -> int:
    """Look at this machine: versions, devices, env packages, terminal, folders, shell.

    Ends with exit code 1 where something stops tdx from working.

    tdx doctor
    """
    from tdx.cli.interrupts import foreign_code
    from tdx.cli.output.write import write
    from tdx.cli.views.setup import doctor_view
    from tdx.inspection.doctor.examination import examine
    from tdx.inspection.doctor.surroundings import terminal

    # Inside foreign code stdout is not what the user sees.
    shown = list(terminal(sys.stdout))
    with foreign_code():
        report = examine(shown)
    write(doctor_view(report), output)
    return ExitCode.OK if report.ok else ExitCode.FINDINGS
