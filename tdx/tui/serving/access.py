"""Who may talk to the server: whoever knows the token, and no page of another site."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PARAMETER = "token"
_NO_TOKEN = "the token is missing or wrong: take the address that tdx serve printed"
_FOREIGN = "this is another site's request"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and can be reached from nowhere else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def random_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(24)


class Access:
    """Lets a request through, or answers it with 403.

    A browser shows the token once, in the address; from then on it has a cookie, so that the token
    is in no further address. A page of another site must not reach the server either: not by a
    name that it lets point to this machine (such a name is not in ``Host``), and not by a websocket
    of its own (which has its ``Origin``).

    Args:
        token: what must be known; none where everybody on this machine may come.
        port: the port of the server; browsers do not tell cookies apart by port, so the name of
            the cookie does.
    """

    def __init__(self, token: str | None, port: int) -> None:
        self._token = token
        self._cookie = f"tdx-{port}"

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, where it may be answered."""
        if not self._is_own(request):
            raise web.HTTPForbidden(text=_FOREIGN)
        if self._token is None:
            return await handler(request)
        if request.path == "/" and self._is_token(request.query.get(PARAMETER)):
            welcome = web.HTTPFound("/")
            welcome.set_cookie(self._cookie, self._token, httponly=True, samesite="Strict")
            welcome.headers["Referrer-Policy"] = "no-referrer"
            raise welcome
        if not self._is_token(request.cookies.get(self._cookie)):
            raise web.HTTPForbidden(text=_NO_TOKEN)
        return await handler(request)

    def _is_own(self, request: web.Request) -> bool:
        host = urlsplit(f"//{request.host}")
        if self._token is None and not is_loopback(host.hostname or ""):
            return False
        origin = request.headers.get("Origin")
        return origin is None or urlsplit(origin).netloc == request.host

    def _is_token(self, given: str | None) -> bool:
        if given is None or self._token is None:
            return False
        return hmac.compare_digest(given.encode(), self._token.encode())
