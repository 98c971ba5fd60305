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

    A page of another site must not reach the server: neither through a host name that resolves to
    this machine (checked in ``Host``) nor through a websocket (checked in ``Origin``).

    Args:
        token: Secret that a request must contain.
        port: Port of the server. It is part of the cookie's name, because browsers share cookies
            between ports.
        loopback: True if the server only listens on this machine, so that ``Host`` must name it.
    """

    def __init__(self, token: str, port: int, *, loopback: bool = True) -> None:
        self._token = token
        self._cookie = f"tdx-{port}"
        self._loopback = loopback

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request with a valid token.

        Raises:
            HTTPForbidden: The token is missing, or the request comes from another site.
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
        # A header may contain bytes that are not UTF-8.
        found = (given or "").encode(errors="surrogateescape")
        return hmac.compare_digest(found, self._token.encode())
