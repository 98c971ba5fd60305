"""``tdx config``."""

from __future__ import annotations

from typing import Annotated

import typer

from tdx.cli.options import DebugOptions, OutputOptions

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
    from tdx.cli.views.config_view import config_view
    from tdx.settings import load_settings

    write(config_view(load_settings()), output)


def config_init(debug: DebugOptions, force: Force = False) -> None:
    """Write a configuration file that shows all that can be set, and sets nothing.

    tdx config init
    """
    import sys

    from tdx.cli.new_file import write_new
    from tdx.settings import config_path, config_template

    path = config_path()
    write_new(path, config_template(), force=force, create_folder=True)
    print(f"wrote {path}", file=sys.stderr)
