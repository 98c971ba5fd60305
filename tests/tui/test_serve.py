"""``tdx serve``: who may open a page, and what ends with it."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shlex
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tdx.cli.commands.tui import as_arguments
from tdx.cli.pipelines import PipelineOptions
from tdx.cli.process import run
from tdx.tui.serving.serve import DRIVER, serve
from tdx.tui.serving.server import AppServer
from tests.processes import all_ended
from tests.programs import exhaustive

TOKEN = "a-token-of-some-length"


@asynccontextmanager
async def served(folder: Path, *command: str, most: int = 8) -> AsyncIterator[str]:
    """Serve a command as ``tdx serve`` does, in a process; yield the printed address."""
    code = "import sys; from tests.tui.test_serve import serve_command; serve_command(sys.argv[1:])"
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(most), *command),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=PIPE,
        stderr=PIPE,
    )
    assert server.stdout is not None
    yield (await server.stdout.readline()).decode().strip()
    server.send_signal(signal.SIGINT)
    assert await server.communicate() == (b"", b"")
    assert server.returncode == 0


def serve_command(arguments: list[str]) -> None:
    """Serve a command in place of the app; the first argument is the limit of pages."""
    most, *command = arguments
    sys.modules[serve.__module__].app_command = lambda _: command  # type: ignore[attr-defined]
    sys.exit(
        serve(
            [],
            host="127.0.0.1",
            port=0,
            token=TOKEN,
            pages=int(most),
            say=functools.partial(print, flush=True),
        )
    )


def websocket(address: str) -> str:
    """Return the address of the websocket, as the page derives it from its own."""
    return address.replace("/?", "/ws?width=80;touch gone&height=x&")


@exhaustive
async def test_the_token_opens_the_page_and_nothing_else_does(tmp_path: Path) -> None:
    async with served(tmp_path, "true") as address, aiohttp.ClientSession() as session:
        base = address.partition("?")[0]
        assert address == f"{base}?token={TOKEN}"
        async with session.get(address) as answer:
            assert answer.status == 200
            assert "default-src 'self'" in await answer.text()
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            # The page sends nothing on its own to another port of this machine.
            assert "Set-Cookie" not in answer.headers
        async with session.get(base + "static/js/textual.js") as answer:
            assert answer.status == 200
        for query in ("", "?token=wrong", f"?token={TOKEN}x", "?token=%FF", "?token="):
            async with session.get(base + query) as answer:
                assert (answer.status, "printed" in await answer.text()) == (403, True)
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(base + "ws" + query)
            assert refused.value.status == 403
        async with session.get(base + "download/1") as answer:
            assert answer.status == 404


@exhaustive
async def test_app_is_started_with_its_arguments_and_ends_with_its_page(tmp_path: Path) -> None:
    words = ["a b", "$(touch gone)", "; touch gone", "'"]
    # The app exits when its page is closed, as the driver of a served app does.
    code = (
        "import json, os, sys; json.dump([os.getpid(), *sys.argv[1:]], open('said', 'w')); "
        "print('__GANGLION__', flush=True); sys.stdin.buffer.read(1)"
    )
    async with (
        served(tmp_path, sys.executable, "-c", code, *words) as address,
        aiohttp.ClientSession() as session,
    ):
        page = await session.ws_connect(websocket(address))
        while not (tmp_path / "said").exists() or not (tmp_path / "said").read_text():
            await asyncio.sleep(0.02)
        pid, *said = json.loads((tmp_path / "said").read_text())
        assert said == words
        await page.close()
        assert await asyncio.to_thread(all_ended, [pid])
    assert [each.name for each in tmp_path.iterdir()] == ["said"]


@exhaustive
async def test_an_app_that_hangs_ends_with_its_page(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(f"""
import os, time
os.environ["TEXTUAL_DRIVER"] = "{DRIVER}"
from textual.app import App
from tdx.tui.serving import driver
driver.EXIT_TIMEOUT = 0.1
class Hanging(App):
    def on_mount(self):
        open("said", "w").write(str(os.getpid()))
        time.sleep(600)
Hanging().run()
""")
    async with (
        served(tmp_path, sys.executable, "hanging.py") as address,
        aiohttp.ClientSession() as session,
    ):
        page = await session.ws_connect(websocket(address))
        while not (tmp_path / "said").exists() or not (tmp_path / "said").read_text():
            await asyncio.sleep(0.02)
        await page.close()
        assert await asyncio.to_thread(all_ended, [int((tmp_path / "said").read_text())])


@exhaustive
async def test_number_of_pages_is_limited(tmp_path: Path) -> None:
    code = "import sys; print('__GANGLION__', flush=True); sys.stdin.buffer.read(1)"
    async with aiohttp.ClientSession() as session:
        async with served(tmp_path, sys.executable, "-c", code, most=2) as address:
            one, two = [await session.ws_connect(websocket(address)) for _ in range(2)]
            async with session.get(address) as answer:
                assert answer.status == 503
                assert "2 pages of tdx are open" in await answer.text()
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(websocket(address))
            assert refused.value.status == 503
            await one.close()
            status = 503
            while status != 200:
                async with session.get(address) as answer:
                    status = answer.status
        # A page that is open ends with the server.
        assert (await two.receive()).type is aiohttp.WSMsgType.CLOSE
        await two.close()


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
    monkeypatch.setattr(AppServer, "serve", lambda server: said.append(server.address))
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    for host in ("0.0.0.0", "127.0.0.1", "127.0.0.1"):
        assert serve([], host=host, port=0, token=None, pages=1, say=print) == 0
    assert said[0].startswith("http://here:")
    assert said[1].startswith("http://127.0.0.1:")
    tokens = [each.partition("/?token=")[2] for each in said]
    assert len(set(tokens)) == 3
    assert min(map(len, tokens)) >= 32
