"""HTTP server, access control and app sessions, built on textual-serve.

This module overrides ``Server._process_messages`` and ``AppService._open_app_process``, and uses
``AppService._build_environment``, ``_process`` and ``_stdin``, which are private to textual-serve.
Tested with textual-serve 1.1.3; ``tests/tui/test_private_api.py`` fails if they change.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import secrets
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager
from textual_serve.server import Server, to_int

from tdx.tui.serving.driver import NAME

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PARAMETER = "token"
_NO_TOKEN = "The token is missing or wrong: open the address that tdx serve printed."
_CROSS_SITE = "This request comes from another site or names another host."


def is_loopback(host: str) -> bool:
    """Return True if a host name is this machine and cannot be reached from elsewhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def random_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(24)


class Access:
    """Authorizes requests; rejects the others with status 403.

    Other users of this machine can reach its loopback address, so a token is always required. A
    browser sends it once, in the URL, and gets a cookie, so that later URLs do not contain the
    token.

    A browser sends a cookie to every port of a host, so that another server there could read it.
    This one belongs to a path that is random, as are its name and its value; a server that gets a
    request with it would have to know the path, and would not learn the token.

    A page of another site must not reach the server: neither through a host name that resolves to
    this machine (checked in ``Host``) nor by a request or a websocket of its own (checked in
    ``Origin`` and ``Sec-Fetch-Site``). Another port of this host is another site.

    Args:
        token: Secret that the first request must contain.
        loopback: True if the server only listens on this machine, so that ``Host`` must name it.
    """

    def __init__(self, token: str, *, loopback: bool = True) -> None:
        self._token = token
        self._session = random_token()
        self._cookie = f"tdx-{secrets.token_hex(8)}"
        self.path = f"/{secrets.token_urlsafe(12)}"
        self._loopback = loopback

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request with a valid token.

        Raises:
            HTTPForbidden: The token is missing, or the request comes from another site.
        """
        try:
            name = urlsplit(f"//{request.host}").hostname or ""
        except ValueError:  # such as a bracket without its partner
            raise web.HTTPForbidden(text=_CROSS_SITE) from None
        if self._loopback and not is_loopback(name):
            raise web.HTTPForbidden(text=_CROSS_SITE)
        if request.path == "/" and _is_equal(request.query.get(PARAMETER), self._token):
            # The address may be opened from anywhere: its token is not known anywhere else.
            welcome = web.HTTPFound(f"{self.path}/")
            welcome.set_cookie(
                self._cookie, self._session, path=self.path, httponly=True, samesite="Strict"
            )
            welcome.headers["Referrer-Policy"] = "no-referrer"
            raise welcome
        if not self._is_same_origin(request):
            raise web.HTTPForbidden(text=_CROSS_SITE)
        if not _is_equal(request.cookies.get(self._cookie), self._session):
            raise web.HTTPForbidden(text=_NO_TOKEN)
        return await handler(request)

    def _is_same_origin(self, request: web.Request) -> bool:
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return False
        origin = request.headers.get("Origin")
        if origin is None:
            # Browsers send it with each websocket, but not with each page.
            return "Upgrade" not in request.headers
        try:
            return urlsplit(origin).netloc == request.host
        except ValueError:
            return False


def _is_equal(given: str | None, secret: str) -> bool:
    # A header may contain bytes that are not UTF-8.
    return hmac.compare_digest((given or "").encode(errors="surrogateescape"), secret.encode())


STOP_TIMEOUT = 5.0
"""Seconds that an app has to exit."""


class AppSession(AppService):
    """An app process that is started without a shell and exits with its page.

    Args:
        command: Command line of the app.
        write_bytes: Sends bytes to the page.
        write_str: Sends text to the page.
        close: Closes the connection to the page.
        download_manager: Serves files to the browser.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        write_bytes: Callable[[bytes], Awaitable[None]],
        write_str: Callable[[str], Awaitable[None]],
        close: Callable[[], Awaitable[None]],
        download_manager: DownloadManager,
    ) -> None:
        super().__init__(
            "",
            write_bytes=write_bytes,
            write_str=write_str,
            close=close,
            download_manager=download_manager,
        )
        self._words = tuple(command)

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        environment = self._build_environment(width=width, height=height)
        # NO_COLOR is meant for the terminal that runs the server.
        environment.pop("NO_COLOR", None)
        environment["TEXTUAL_DRIVER"] = NAME
        self._process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=environment,
            start_new_session=True,
        )
        self._stdin = self._process.stdin
        return self._process

    async def run(self) -> None:
        """Forward the output of the app; close the page when it exits."""
        with suppress(ConnectionError):
            await super().run()
        await self.remote_close()

    async def stop(self) -> None:
        """Ask the app to exit, and kill it if it does not."""
        if self._process is None:
            return
        stopping = asyncio.create_task(super().stop())
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(stopping), STOP_TIMEOUT)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await stopping


_PAGE = Path(__file__).parent / "page"
_MAX_CELLS = 1000
_SLOT_TIMEOUT = 2.0
MAX_PAGES = 8
"""Maximum number of open pages; each has its own app and worker processes."""
_HEADERS = {
    # The page and its libraries must not load anything from other sites.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class AppServer(Server):
    """Serves the app on its own page; textual-serve's page loads a font from a third party.

    Args:
        command: Command line of the app.
        access: Authorizes requests.
        most: Maximum number of open pages.
    """

    def __init__(self, command: Sequence[str], access: Access, most: int = MAX_PAGES) -> None:
        super().__init__("", templates_path=_PAGE)
        self._words = tuple(command)
        self._access = access
        self._most = most
        self._pages: set[web.WebSocketResponse] = set()

    async def make_application(self) -> web.Application:
        """Return the HTTP application: page, websocket and downloads."""
        app = web.Application(middlewares=[self._access.middleware])
        path = self._access.path
        app.add_routes(
            [
                web.get(f"{path}/", self._index),
                web.get(f"{path}/ws", self.handle_websocket),
                web.get(f"{path}/download/{{key}}", self.handle_download),
                web.static(f"{path}/static", self.statics_path),
                web.static(f"{path}/page", _PAGE),
            ]
        )
        app.on_shutdown.append(self.on_shutdown)
        return app

    async def _index(self, request: web.Request) -> web.StreamResponse:
        # A reloaded page connects before the websocket of the old one is closed.
        end = asyncio.get_running_loop().time() + _SLOT_TIMEOUT
        while self._is_full and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
        if self._is_full:
            text = (_PAGE / "full.html").read_text(encoding="utf-8")
            page = text.replace("{most}", str(self._most))
            return web.Response(
                text=page, status=503, headers=_HEADERS, content_type="text/html", charset="utf-8"
            )
        return web.FileResponse(_PAGE / "index.html", headers=_HEADERS)

    @property
    def _is_full(self) -> bool:
        return len(self._pages) >= self._most

    async def on_shutdown(self, app: web.Application) -> None:
        """Close all pages, and with them their apps."""
        await asyncio.gather(*(page.close() for page in self._pages))

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run an app for as long as the page is open.

        Raises:
            HTTPServiceUnavailable: The maximum number of pages is open.
        """
        if self._is_full:
            raise web.HTTPServiceUnavailable(
                text=f"all {self._most} pages are in use; close one first"
            )
        page = web.WebSocketResponse(heartbeat=15)
        self._pages.add(page)
        try:
            await page.prepare(request)
            await self._run(request, page)
        finally:
            self._pages.discard(page)
        return page

    async def _run(self, request: web.Request, page: web.WebSocketResponse) -> None:
        """Start an app, and stop it when its page is closed."""

        async def close() -> None:
            await page.close()

        session = AppSession(
            self._words,
            write_bytes=page.send_bytes,
            write_str=page.send_str,
            close=close,
            download_manager=self.download_manager,
        )
        size = (
            _parse_cells(request.query.get("width"), 80),
            _parse_cells(request.query.get("height"), 24),
        )
        try:
            await session.start(*size)
            await self._process_messages(page, session)
        finally:
            await session.stop()

    async def _process_messages(
        self, websocket: web.WebSocketResponse, app_service: AppService
    ) -> None:
        async for message in websocket:
            if message.type == WSMsgType.TEXT:
                try:
                    kind, data = [*message.json(), None][:2]
                except (ValueError, TypeError):
                    continue
                await _handle_message(kind, data, websocket, app_service)


async def _handle_message(
    kind: object, data: object, page: web.WebSocketResponse, session: AppService
) -> None:
    """Handle a message of a page; ignore malformed ones."""
    if kind == "stdin" and isinstance(data, str):
        await session.send_bytes(data.encode(errors="replace"))
    elif kind == "resize" and isinstance(data, dict):
        width, height = (_parse_cells(data.get(name), 0) for name in ("width", "height"))
        if width and height:
            await session.set_terminal_size(width, height)
    elif kind == "ping":
        await page.send_json(["pong", data])
    elif kind == "blur":
        await session.blur()
    elif kind == "focus":
        await session.focus()


def _parse_cells(given: object, otherwise: int) -> int:
    number = to_int(str(given), otherwise)
    return number if 0 < number <= _MAX_CELLS else otherwise
