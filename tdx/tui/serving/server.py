"""The server: the page with what it loads, and a websocket for each app."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from tdx.tui.serving.access import Access
from tdx.tui.serving.session import Session

_PAGE = Path(__file__).parent / "page"
_MOST_CELLS = 1000
_FOR_A_PLACE = 2.0
MOST_PAGES = 8
"""Pages that may be open at once; each has an app with processes of its own behind it."""
_HEADERS = {
    # Whatever the page or a library of it would load, it is not loaded from elsewhere.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class AppServer(Server):
    """Serves the app; textual-serve's own page loads a font from elsewhere, so this has its own.

    Args:
        command: the words that start the app.
        access: who may talk to it.
        most: how many pages may be open at once; each has processes of its own.
    """

    def __init__(self, command: Sequence[str], access: Access, most: int = MOST_PAGES) -> None:
        super().__init__("", templates_path=_PAGE)
        self._words = tuple(command)
        self._access = access
        self._most = most
        self._pages: set[web.WebSocketResponse] = set()

    async def _make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._access.middleware])
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/ws", self.handle_websocket),
                web.get("/download/{key}", self.handle_download),
                web.static("/static", self.statics_path),
                web.static("/page", _PAGE),
            ]
        )
        app.on_shutdown.append(self.on_shutdown)
        return app

    async def _index(self, request: web.Request) -> web.StreamResponse:
        # A page that is loaded anew comes before the line of the old one has ended.
        end = asyncio.get_running_loop().time() + _FOR_A_PLACE
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
        """End every page's line, and with it the app behind it."""
        await asyncio.gather(*(page.close() for page in self._pages))

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run an app for as long as the page is open.

        Raises:
            HTTPServiceUnavailable: as many pages as may be are open.
        """
        if self._is_full:
            raise web.HTTPServiceUnavailable(text=f"{self._most} pages are open, which is the most")
        page = web.WebSocketResponse(heartbeat=15)
        self._pages.add(page)
        try:
            await page.prepare(request)
            await self._run(request, page)
        finally:
            self._pages.discard(page)
        return page

    async def _run(self, request: web.Request, page: web.WebSocketResponse) -> None:
        """Start an app, and end it where its page is closed."""

        async def close() -> None:
            await page.close()

        session = Session(
            self._words,
            write_bytes=page.send_bytes,
            write_str=page.send_str,
            close=close,
            download_manager=self.download_manager,
        )
        size = (_cells(request.query.get("width"), 80), _cells(request.query.get("height"), 24))
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
                await _pass_on(kind, data, websocket, app_service)


async def _pass_on(kind: Any, data: Any, page: web.WebSocketResponse, session: AppService) -> None:
    """Do what a page asks for; what cannot be understood is left out."""
    if kind == "stdin" and isinstance(data, str):
        await session.send_bytes(data.encode(errors="replace"))
    elif kind == "resize" and isinstance(data, dict):
        width, height = (_cells(data.get(name), 0) for name in ("width", "height"))
        if width and height:
            await session.set_terminal_size(width, height)
    elif kind == "ping":
        await page.send_json(["pong", data])
    elif kind == "blur":
        await session.blur()
    elif kind == "focus":
        await session.focus()


def _cells(given: Any, otherwise: int) -> int:
    number = to_int(str(given), otherwise)
    return number if 0 < number <= _MOST_CELLS else otherwise
