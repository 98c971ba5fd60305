"""``tdx serve``: access, refused requests and shutdown."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from tdx.cli.commands.tui import as_arguments
from tdx.cli.pipelines import PipelineOptions
from tdx.cli.process import run
from tdx.tui.serving.serve import serve
from tdx.tui.serving.server import Access, AppServer, is_loopback
from tests.processes import all_ended

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "a-token-of-some-length"
PATHS = ("", "ws", "page/page.js", "static/js/textual.js", "download/1")


@asynccontextmanager
async def served(*command: str, most: int = 8, loopback: bool = True) -> AsyncIterator[str]:
    """Run a server of a command with a limit of pages; yield its address with its path."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        access = Access(TOKEN, loopback=loopback)
        server = AppServer(command, access, most)
        runner = web.AppRunner(await server.make_application(), access_log=None)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        yield f"http://127.0.0.1:{port}{access.path}/"
        await runner.cleanup()


async def test_requests_without_the_token_are_refused() -> None:
    async with served() as address, aiohttp.ClientSession() as session:
        addresses = [urljoin(address, "/"), urljoin(address, "/?token=wrong")]
        for one in (*addresses, *(address + path for path in PATHS)):
            async with session.get(one) as answer:
                assert answer.status == 403
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(address + "ws", origin=origin_of(address))


async def test_token_grants_access_and_is_removed_from_the_address() -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    async with served() as address, aiohttp.ClientSession(cookie_jar=jar) as session:
        async with session.get(urljoin(address, f"/?token={TOKEN}")) as answer:
            assert (answer.status, str(answer.url)) == (200, address)
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        async with session.get(address + "static/js/textual.js") as answer:
            assert answer.status == 200


def origin_of(address: str) -> str:
    return "{0.scheme}://{0.netloc}".format(urlsplit(address))


@asynccontextmanager
async def visitor(address: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Open the printed address as a browser does; yield the session."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        entry = urljoin(address, f"/?token={TOKEN}")
        async with session.get(entry, allow_redirects=False) as answer:
            cookie = answer.headers["Set-Cookie"]
            assert answer.status == 302
            assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
        yield session


@pytest.mark.parametrize("loopback", [True, False])
async def test_requests_of_other_sites_are_refused(loopback: bool) -> None:
    async with served(loopback=loopback) as address, visitor(address) as session:
        port = int(urlsplit(address).port or 0)
        others = ("http://example.com", f"http://127.0.0.1:{port + 1}", "null", "http://[")
        for path in ("", "ws", "page/page.js"):
            for headers in (
                *({"Origin": other} for other in others),
                *({"Sec-Fetch-Site": site} for site in ("same-site", "cross-site")),
            ):
                async with session.get(address + path, headers=headers) as answer:
                    assert (answer.status, "another site" in await answer.text()) == (403, True)
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(address + "ws")
        async with session.get(address, headers={"Host": "tdx.example.com"}) as answer:
            assert answer.status == (403 if loopback else 200)
        async with session.get(address) as answer:
            assert answer.status == 200


async def raw_status(address: str, host: bytes, cookie: bytes) -> bytes:
    """Return the status of a request with a host and a cookie that no browser would send."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection("127.0.0.1", parts.port)
    head = b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nCookie: %s\r\n\r\n"
    writer.write(head % (parts.path.encode(), host, cookie))
    status = (await reader.readline()).split()[1]
    writer.close()
    return status


async def test_undecodable_cookie_is_refused() -> None:
    async with served() as address, visitor(address) as session:
        (name,) = [cookie.key for cookie in session.cookie_jar]
        assert await raw_status(address, b"127.0.0.1", name.encode() + b"=\xff\xfe") == b"403"


@pytest.mark.parametrize("loopback", [True, False])
async def test_malformed_host_is_refused(
    loopback: bool, log_records: list[logging.LogRecord]
) -> None:
    async with served(loopback=loopback) as address:
        for host in (b"[", b"[::1", b"a[b]c", b"[v1.x", b"a b", b"\xff", b""):
            assert (await raw_status(address, host, b"a=b")) in (b"400", b"403"), host
            assert not log_records


async def test_cookie_is_of_no_use_elsewhere() -> None:
    cookies = []
    for _ in range(2):
        async with served() as address, visitor(address) as session:
            (cookie,) = session.cookie_jar
            assert cookie["path"] == urlsplit(address).path.rstrip("/")
            assert TOKEN not in str(cookie)
            assert not session.cookie_jar.filter_cookies(URL(urljoin(address, "/")))
            cookies.append((cookie.key, cookie.value, cookie["path"]))
    for one, other in zip(*cookies, strict=True):
        assert one != other


async def test_app_is_started_with_its_arguments_and_ends_with_its_page(tmp_path: Path) -> None:
    words = ["a b", "$(touch gone)", "; touch gone", "'"]
    code = "import json, os, sys, time; json.dump([os.getpid(), *sys.argv[1:]], open('said', 'w'))"
    code = f"import os; os.chdir({str(tmp_path)!r}); {code}; time.sleep(100)"
    async with (
        served(sys.executable, "-c", code, *words) as address,
        visitor(address) as session,
    ):
        page = await session.ws_connect(
            address + "ws?width=80;touch gone&height=x", origin=origin_of(address)
        )
        await page.send_str("[nonsense")
        await page.send_str('["resize", {"width": "1;2", "height": -1}]')
        while not (tmp_path / "said").exists() or not (tmp_path / "said").read_text():
            await asyncio.sleep(0.02)
        pid, *said = json.loads((tmp_path / "said").read_text())
        assert said == words
        await page.close()
    assert all_ended([pid])
    assert [each.name for each in tmp_path.iterdir()] == ["said"]


async def test_number_of_pages_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdx.tui.serving.server.STOP_TIMEOUT", 0.2)
    code = "import time; time.sleep(100)"
    async with (
        served(sys.executable, "-c", code, most=2) as address,
        visitor(address) as session,
    ):
        connect = functools.partial(session.ws_connect, f"{address}ws", origin=origin_of(address))
        one, two = [await connect() for _ in range(2)]
        async with session.get(address) as answer:
            assert (answer.status, answer.content_type) == (503, "text/html")
            assert "2 pages of tdx are open" in await answer.text()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await connect()
        assert refused.value.status == 503
        await one.close()
        status = 503
        while status != 200:
            async with session.get(address) as answer:
                status = answer.status
        third = await connect()
        assert not third.closed
        await asyncio.gather(two.close(), third.close())


def test_server_passes_its_arguments_to_the_app() -> None:
    options = PipelineOptions("Pendulum-v1", "g=9.8", ["CatFrames(4, dim=-1)", "--help"], seed=0)
    expected = "--env=Pendulum-v1 --env-kwargs=g=9.8 '--t=CatFrames(4, dim=-1)' --t=--help --seed=0"
    assert as_arguments(options) == shlex.split(expected)


def test_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert run(["serve", "--port", str(port)]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: cannot listen at 127.0.0.1:{port}: address already in use"
    assert "--port 0" in hint


@pytest.mark.parametrize("host", ["256.0.0.1", "192.0.2.1", ".", "a" * 300, "no such host"])
def test_unknown_host_is_reported(
    host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = socket.getaddrinfo

    def numbers_alone(*arguments: Any, **options: Any) -> Any:
        return found(*arguments, **{**options, "flags": socket.AI_NUMERICHOST})

    monkeypatch.setattr(socket, "getaddrinfo", numbers_alone)  # no network access
    assert run(["serve", "--port", "0", "--host", host]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: cannot listen at {host}:0: ")
    assert hint.startswith("hint: use an address of this machine: --host ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--t", "RewardSum"], "-t needs an env"),
        (["--pipeline", "-"], "a page cannot read stdin"),
        (["--port", "70000"], "--port must be at most 65535"),
        (["--pages", "0"], "--pages"),
        (["--token", "a-secret-of-some-length"], "--token is refused: other users can read it"),
        (["--token-file", "/dev/null"], "the token in /dev/null must have at least 12 characters"),
        (["--token-file", "/no/such"], "cannot read /no/such: No such file or directory"),
        (["--env", "Pendulum-v1", "--t", "RewardSum("], "stage 0"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_token_comes_from_a_file_or_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens: list[str | None] = []
    inherited: list[str | None] = []

    def record(arguments: Any, *, token: str | None, **options: Any) -> int:
        tokens.append(token)
        inherited.append(os.environ.get("TDX_SERVE_TOKEN"))
        return 0

    monkeypatch.setattr("tdx.tui.serving.serve.serve", record)
    (tmp_path / "token").write_text("a-secret-in-a-file\n")
    assert run(["serve", "--token-file", str(tmp_path / "token")]) == 0
    monkeypatch.setenv("TDX_SERVE_TOKEN", "a-secret-in-a-variable")
    assert run(["serve"]) == 0
    assert run(["serve"]) == 0
    assert tokens == ["a-secret-in-a-file", "a-secret-in-a-variable", None]
    assert inherited == [None] * 3
    monkeypatch.setenv("TDX_SERVE_TOKEN", "short")
    assert run(["serve"]) == 2
    assert "TDX_SERVE_TOKEN must have at least 12 characters" in capsys.readouterr().err


def test_missing_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tdx.tui.serving.server", None)
    assert run(["serve"]) == 3
    assert "hint: install tdx with its extra `serve`" in capsys.readouterr().err


def test_each_start_has_a_new_token(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("tdx.tui.serving.serve._serve_until_signal", lambda *_: asyncio.sleep(0))
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    for host in ("0.0.0.0", "127.0.0.1", "127.0.0.1"):
        assert serve([], host=host, port=0, token=None, pages=1, say=said.append) == 0
    assert said[0].startswith("http://here:")
    assert said[1].startswith("http://127.0.0.1:")
    tokens = [each.partition("/?token=")[2] for each in said]
    assert len(set(tokens)) == 3
    assert min(map(len, tokens)) >= 32
    names = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "192.168.0.1", "example.com")
    assert [is_loopback(name) for name in names] == [True] * 3 + [False] * 3
