"""``tdx config`` and ``tdx doctor``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdx.cli.options import DebugOptions, OutputOptions
from tdx.errors import ExitCode

Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


def config_path(debug: DebugOptions) -> None:
    """Print the path of the configuration file, even if it does not exist.

    tdx config path
    """
    from tdx.settings import config_path

    print(config_path())


def config_show(output: OutputOptions) -> None:
    """Show all settings with their values and where these come from.

    tdx config show
    """
    from tdx.cli.output.write import write_view
    from tdx.cli.views.setup import config_view
    from tdx.settings import load_settings

    write_view(config_view(load_settings()), output)


def config_init(debug: DebugOptions, force: Force = False) -> None:
    """Create a configuration file with all settings commented out.

    tdx config init
    """
    from tdx.cli.output.write import write_file
    from tdx.settings import config_path, config_template

    path = config_path()
    write_file(path, config_template(), force=force, create_folder=True)
    print(f"wrote {path}", file=sys.stderr)


def doctor(output: OutputOptions) -> int:
    """Check this machine: versions, devices, env packages, terminal, folders, shell.

    Exits with 1 if something prevents tdx from working.

    tdx doctor
    """
    from tdx.cli.interrupts import third_party_code
    from tdx.cli.output.write import write_view
    from tdx.cli.views.setup import doctor_view
    from tdx.inspection.doctor import check_terminal, diagnose

    # third_party_code() replaces stdout.
    terminal_checks = list(check_terminal(sys.stdout))
    with third_party_code():
        report = diagnose(terminal_checks)
    write_view(doctor_view(report), output)
    return ExitCode.OK if report.ok else ExitCode.FINDINGS
