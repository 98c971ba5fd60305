"""Access control of the server: a token, and no requests from other sites."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PARAMETER = "token"
_NO_TOKEN = "The token is missing or wrong: open the address that tdx serve printed."
_CROSS_SITE = "This request was sent by another site, or for another host name."


def is_loopback(host: str) -> bool:
    """True if a host is this machine and can be reached from nowhere else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def random_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(24)


class Access:
    """Lets a request through, or answers it with 403.

    Other users of this machine reach its loopback address as well, so a token is always needed. A
    browser sends it once, in the address; then it has a cookie, and the token is in no later
    address.

    A page of another site must not reach the server either: not through a host name that it points
    to this machine (its name is in ``Host``), and not through a websocket (its site is in
    ``Origin``).

    Args:
        token: Secret that a request must have.
        port: Port of the server. Browsers do not separate cookies by port, so it is part of the
            cookie's name.
        loopback: Whether the server only listens on this machine, so that ``Host`` must name it.
    """

    def __init__(self, token: str, port: int, *, loopback: bool = True) -> None:
        self._token = token
        self._cookie = f"tdx-{port}"
        self._loopback = loopback

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request that has the token.

        Raises:
            HTTPForbidden: It has no token, or comes from another site.
        """
        if not self._is_own(request):
            raise web.HTTPForbidden(text=_CROSS_SITE)
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
        if self._loopback and not is_loopback(host.hostname or ""):
            return False
        origin = request.headers.get("Origin")
        return origin is None or urlsplit(origin).netloc == request.host

    def _is_token(self, given: str | None) -> bool:
        # A header can hold bytes that are not UTF-8.
        found = (given or "").encode(errors="surrogateescape")
        return hmac.compare_digest(found, self._token.encode())
