"""Serve the app to browsers until Ctrl-C."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from tdx.foundation.errors import ArgumentError, ExitCode, MissingPackageError, install_extra
from tdx.foundation.safe_path import python_command

DRIVER = "tdx.tui.serving.driver:ServedDriver"

# Textual reads the driver when it is imported. NO_COLOR is meant for the server's terminal.
_BOOTSTRAP = f"""\
import json, os, sys
sys.path[:] = json.loads(sys.argv.pop(1))
os.environ.pop("NO_COLOR", None)
os.environ["TEXTUAL_DRIVER"] = "{DRIVER}"
from tdx.cli import main
main()
"""


def serve(
    arguments: Sequence[str],
    *,
    host: str,
    port: int,
    token: str | None,
    pages: int,
    say: Callable[[str], None],
) -> int:
    """Serve the app until the process is asked to exit.

    Args:
        arguments: Arguments of ``tdx tui`` for the app.
        host: Address to listen on.
        port: Port. ``0``: any free port.
        token: Secret that a browser must send. ``None``: a new one is drawn.
        pages: Maximum number of open pages.
        say: Called with the URL.

    Returns:
        Exit code of the process.

    Raises:
        MissingPackageError: textual-serve is not installed.
        ArgumentError: The address cannot be used.
    """
    try:
        from tdx.tui.serving.server import ANY_HOST, AppServer
    except ImportError as error:
        raise MissingPackageError(
            f"the app in a browser needs textual-serve: {error}", hint=install_extra("serve")
        ) from error
    command = app_command(arguments)
    # A shell runs it.
    words = subprocess.list2cmdline(command) if os.name == "nt" else f"exec {shlex.join(command)}"
    try:
        # textual-serve reports neither the port that it got nor a wrong address.
        with _listen(host, port) as listening:
            port = listening.getsockname()[1]
        AppServer(
            words,
            host=host,
            port=port,
            token=token or secrets.token_urlsafe(24),
            most=pages,
            on_start=say,
            shown_host=_bracket_ipv6(socket.gethostname() if host in ANY_HOST else host),
        ).serve()
    except (OSError, UnicodeError) as error:
        where = f"{_bracket_ipv6(host)}:{port}"
        raise ArgumentError(
            f"cannot listen at {where}: {_reason(error)}", hint=_hint(error)
        ) from None
    return ExitCode.OK


def _listen(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)


def app_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of an app process."""
    return python_command("-c", _BOOTSTRAP, json.dumps(sys.path), "tui", *arguments)


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "invalid address"
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return (reason or str(error)).lower()


def _hint(error: OSError | UnicodeError) -> str:
    is_host = isinstance(error, UnicodeError | socket.gaierror)
    if is_host or getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
        return "use an address of this machine: --host 127.0.0.1, or 0.0.0.0 for all of them"
    if getattr(error, "errno", None) == errno.EACCES:
        return "ports below 1024 need privileges; use --port 8000"
    return "use another port: --port N, or --port 0 for any free port"


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host
