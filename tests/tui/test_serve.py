"""``tdx serve``: access, refused requests and shutdown."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from tdx.cli.commands.tui import as_arguments
from tdx.cli.options import PipelineOptions
from tdx.cli.process import run
from tdx.tui.serving.serve import serve
from tdx.tui.serving.server import Access, AppServer, is_loopback
from tests.processes import all_ended

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "a-token-of-some-length"
PATHS = ("/", "/?token=wrong", "/ws", "/page/page.js", "/static/js/textual.js", "/download/1")


@asynccontextmanager
async def served(*command: str, most: int = 8, loopback: bool = True) -> AsyncIterator[str]:
    """Run a server of a command with a limit of pages; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        server = AppServer(command, Access(TOKEN, port, loopback=loopback), most)
        runner = web.AppRunner(await server._make_app(), access_log=None)
        await runner.setup()
        await web.SockSite(runner, listening).start()
        yield f"http://127.0.0.1:{port}"
        await runner.cleanup()


async def test_requests_without_the_token_are_refused() -> None:
    async with served() as address, aiohttp.ClientSession() as session:
        for path in PATHS:
            async with session.get(address + path) as answer:
                assert answer.status == 403
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(address + "/ws")


async def test_token_grants_access_and_is_removed_from_the_address() -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    async with served() as address, aiohttp.ClientSession(cookie_jar=jar) as session:
        async with session.get(f"{address}/?token={TOKEN}") as answer:
            assert (answer.status, str(answer.url)) == (200, f"{address}/")
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        async with session.get(address + "/static/js/textual.js") as answer:
            assert answer.status == 200


@asynccontextmanager
async def visitor(address: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Open the printed address as a browser does; yield the session."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        async with session.get(f"{address}/?token={TOKEN}", allow_redirects=False) as answer:
            cookie = answer.headers["Set-Cookie"]
            assert (answer.status, "HttpOnly" in cookie, "SameSite=Strict" in cookie) == (
                302,
                True,
                True,
            )
        yield session


@pytest.mark.parametrize("loopback", [True, False])
async def test_requests_of_other_sites_are_refused(loopback: bool) -> None:
    async with served(loopback=loopback) as address, visitor(address) as session:
        for path in ("/", "/ws"):
            async with session.get(
                address + path, headers={"Origin": "http://example.com"}
            ) as answer:
                assert (answer.status, "another site" in await answer.text()) == (403, True)
        async with session.get(address, headers={"Host": "tdx.example.com"}) as answer:
            assert answer.status == (403 if loopback else 200)
        async with session.get(address) as answer:
            assert answer.status == 200


async def test_undecodable_cookie_is_refused() -> None:
    async with served() as address:
        port = int(address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        cookie = b"Cookie: tdx-%d=\xff\xfe\r\n" % port
        writer.write(
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + cookie + b"\r\n"
        )
        assert (await reader.readline()).split()[1] == b"403"
        writer.close()


async def test_app_is_started_with_its_arguments_and_ends_with_its_page(tmp_path: Path) -> None:
    words = ["a b", "$(touch gone)", "; touch gone", "'"]
    code = "import json, os, sys, time; json.dump([os.getpid(), *sys.argv[1:]], open('said', 'w'))"
    code = f"import os; os.chdir({str(tmp_path)!r}); {code}; time.sleep(100)"
    async with (
        served(sys.executable, "-c", code, *words) as address,
        visitor(address) as session,
    ):
        page = await session.ws_connect(address + "/ws?width=80;touch gone&height=x")
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
        one, two = [await session.ws_connect(f"{address}/ws") for _ in range(2)]
        async with session.get(address) as answer:
            assert (answer.status, answer.content_type) == (503, "text/html")
            assert "2 pages of tdx are open" in await answer.text()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{address}/ws")
        assert refused.value.status == 503
        await one.close()
        status = 503
        while status != 200:
            async with session.get(address) as answer:
                status = answer.status
        third = await session.ws_connect(f"{address}/ws")
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
        (["--t", "RewardSum"], "--t needs an env"),
        (["--pipeline", "-"], "a page cannot read stdin"),
        (["--port", "70000"], "--port must be at most 65535"),
        (["--pages", "0"], "--pages"),
        (["--token", "short"], "--token must have at least 12 characters"),
        (["--env", "Pendulum-v1", "--t", "RewardSum("], "stage 0"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *arguments]) == 2
    assert said in capsys.readouterr().err


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
