"""Serve the app to browsers until Ctrl-C."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tdx.foundation.errors import ArgumentError, ExitCode, MissingPackageError, install_extra
from tdx.foundation.safe_path import python_command

if TYPE_CHECKING:
    from tdx.tui.serving.server import AppServer


_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from tdx.cli import main; main()"
)
_SHUTDOWN_TIMEOUT = 10.0


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
        from tdx.tui.serving.server import Access, AppServer, is_loopback, random_token
    except ImportError as error:
        raise MissingPackageError(
            f"the app in a browser needs textual-serve: {error}", hint=install_extra("serve")
        ) from error
    token = token or random_token()
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        where = f"{_bracket_ipv6(host)}:{port}"
        raise ArgumentError(
            f"cannot listen at {where}: {_reason(error)}", hint=_hint(error)
        ) from None
    with listening:
        port = listening.getsockname()[1]
        server = AppServer(app_command(arguments), Access(token, loopback=is_loopback(host)), pages)
        say(_address(host, port, token))
        asyncio.run(_serve_until_signal(server, listening))
    return ExitCode.OK


def app_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of an app process.

    Args:
        arguments: Arguments of ``tdx tui``.
    """
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


async def _serve_until_signal(server: AppServer, listening: socket.socket) -> None:
    """Serve until Ctrl-C, SIGTERM, or the end of the terminal."""
    from aiohttp import web

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(
        await server.make_application(), shutdown_timeout=_SHUTDOWN_TIMEOUT, access_log=None
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        await stop.wait()
    finally:
        await runner.cleanup()


def _address(host: str, port: int, token: str) -> str:
    anywhere = host in ("", "0.0.0.0", "::")
    shown = socket.gethostname() if anywhere else host
    return f"http://{_bracket_ipv6(shown)}:{port}/?{urlencode({'token': token})}"


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host
