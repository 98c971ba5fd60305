"""The HTTP server: textual-serve's, with a token and a limit of open pages."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from aiohttp import web
from textual_serve.server import Server

TOKEN = "token"
ANY_HOST = ("", "0.0.0.0", "::")
_PAGE = Path(__file__).parent / "page"
_NO_TOKEN = "The token is missing or wrong: open the address that tdx serve printed."


class AppServer(Server):
    """Serves a command, one process per page, to whoever has the token.

    The page and its websocket need the token in their address. There is no cookie, so a browser
    sends nothing on behalf of another site or to another port of this machine. The files of
    textual-serve itself need none, and a download has an address that cannot be guessed.

    ``on_start`` is called with the address of the page, once it can be opened; ``shown_host`` is
    the name of this machine in it, and ``most`` the maximum number of open pages.
    """

    def __init__(
        self,
        command: str,
        *,
        host: str,
        port: int,
        token: str,
        most: int,
        on_start: Callable[[str], None],
        shown_host: str,
    ) -> None:
        super().__init__(
            command,
            host=host,
            port=port,
            title="tdx",
            public_url=f"http://{shown_host}:{port}",
            templates_path=_PAGE,
        )
        self._token = token
        self._most = most
        self._on_start = on_start
        self._pages: set[asyncio.Task[object]] = set()

    @property
    def address(self) -> str:
        """Address of the page, with the token."""
        return f"{self.public_url}/?{urlencode({TOKEN: self._token})}"

    def initialize_logging(self) -> None:
        """Leave logging as it is: the address is printed once, and requests are not."""

    async def on_startup(self, app: web.Application) -> None:
        """Report the address as soon as the server listens, which is after this call."""
        self._announcing = asyncio.create_task(self._announce())

    async def _announce(self) -> None:
        host = "localhost" if self.host in ANY_HOST else self.host
        while True:
            try:
                _, writer = await asyncio.open_connection(host, self.port)
            except OSError:
                await asyncio.sleep(0.01)
            else:
                break
        writer.close()
        self._on_start(self.address)

    async def on_shutdown(self, app: web.Application) -> None:
        """End the open pages, and with them their apps."""
        for page in self._pages:
            page.cancel()

    def _admit(self, request: web.Request) -> None:
        """Refuse a request without the token, or for one page too many."""
        given = request.query.get(TOKEN, "").encode(errors="surrogateescape")
        if not hmac.compare_digest(given, self._token.encode()):
            raise web.HTTPForbidden(text=_NO_TOKEN)
        if len(self._pages) >= self._most:
            raise web.HTTPServiceUnavailable(
                text=f"{self._most} pages of tdx are open here, which is the most. Close one of "
                "them and reload, or start tdx serve with a larger number of --pages."
            )

    async def handle_index(self, request: web.Request) -> web.StreamResponse:
        """Return the page; raise what :meth:`_admit` does."""
        self._admit(request)
        response: web.StreamResponse = await super().handle_index(request)
        # The token is a part of the address.
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"
        return response

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run an app for as long as the page is open; raise what :meth:`_admit` does."""
        self._admit(request)
        page = asyncio.current_task()
        assert page is not None
        self._pages.add(page)
        try:
            return await super().handle_websocket(request)
        finally:
            self._pages.discard(page)
