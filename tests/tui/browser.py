"""Headless Chromium, driven through its DevTools, with a page that shows the app."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.processes import PATIENCE
from tests.programs import BROWSERS, require_program

# The page does not expose its terminal: store it when it is created.
_HOLD = """
Object.defineProperty(Object.prototype, "fitAddon", {
  configurable: true,
  set(addon) {
    Object.defineProperty(this, "fitAddon", {value: addon, writable: true});
    window.held = this;
  },
});
"""
_SCREEN = """(() => {
  if (!window.held) return null;
  const terminal = window.held.terminal, buffer = terminal.buffer.active;
  return Array.from({length: terminal.rows}, (_, row) =>
    buffer.getLine(buffer.viewportY + row)?.translateToString(true) ?? "");
})()"""
_CELLS = """(() => {
  const box = document.querySelector(".xterm-screen").getBoundingClientRect();
  const terminal = window.held.terminal;
  return [box.left, box.top, box.width / terminal.cols, box.height / terminal.rows];
})()"""
_KEYS = {
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "Backspace": (8, ""),
    "ArrowUp": (38, ""),
    "ArrowDown": (40, ""),
}


class Page:
    """Page with the app, which reads text and clicks.

    Args:
        line: Connection to the DevTools of the page.
    """

    def __init__(self, line: aiohttp.ClientWebSocketResponse) -> None:
        self._line = line
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.requests: list[str] = []
        """URLs of all requests, including websockets."""
        self.complaints: list[str] = []
        """Errors that the browser reported."""

    async def listen(self) -> None:
        """Dispatch the messages of the browser until it closes the connection."""
        async for message in self._line:
            said = json.loads(message.data)
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            else:
                self._handle_event(said["method"], said["params"])

    def _handle_event(self, method: str, said: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.requests.append(said["url"])
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.complaints.append(said["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"]))

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools."""
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._line.send_json({"id": number, "method": method, "params": parameters})
        said = await asyncio.wait_for(self._answers[number], PATIENCE)
        assert "error" not in said, said
        result: dict[str, Any] = said["result"]
        return result

    async def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        said = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return said["result"].get("value")

    async def open(self, address: str) -> None:
        """Open the app and wait until it is drawn."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.ask(f"{domain}.enable")
        await self.ask("Emulation.setFocusEmulationEnabled", enabled=True)
        await self.ask("Page.addScriptToEvaluateOnNewDocument", source=_HOLD)
        await self.ask("Page.navigate", url=address)

    async def screen(self) -> list[str]:
        """Return the lines on the screen."""
        return await self.value(_SCREEN) or []

    async def sees(
        self, *texts: str, gone: str | None = None, patience: float = PATIENCE
    ) -> list[str]:
        """Wait until all texts and not ``gone`` are on the screen; return its lines."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience
        while True:
            lines = await self.screen()
            shown = "\n".join(lines)
            if all(text in shown for text in texts) and (gone is None or gone not in shown):
                return lines
            assert loop.time() < end, f"no {texts} (or still {gone}) on:\n{shown}"
            await asyncio.sleep(0.1)

    async def click(self, text: str, *, nth: int = 0, times: int = 1, dx: int = 0) -> None:
        """Wait for a text and click it.

        Args:
            text: Text to click.
            nth: Index of the occurrence; -1: the last.
            times: Number of clicks.
            dx: Offset from its first cell, in cells.
        """
        lines = await self.sees(text)
        found = [
            (at, row)
            for row, line in enumerate(lines)
            for at in range(len(line))
            if line.startswith(text, at)
        ]
        column, row = found[nth]
        await self.click_cell(column + dx, row, times=times)

    async def click_for(self, text: str, *shown: str, dx: int = 0) -> None:
        """Click on a text, again if it was just redrawn, until other texts appear."""
        for _ in range(4):
            await self.click(text, dx=dx)
            with suppress(AssertionError):
                await self.sees(*shown, patience=PATIENCE / 4)
                return
        await self.sees(*shown, patience=0)

    async def click_cell(self, column: int, row: int, *, times: int = 1) -> None:
        """Click a cell."""
        left, top, width, height = await self.value(_CELLS)
        where = {"x": left + (column + 0.5) * width, "y": top + (row + 0.5) * height}
        await self.ask("Input.dispatchMouseEvent", type="mouseMoved", **where)
        for count in range(1, times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                await self.ask(
                    "Input.dispatchMouseEvent",
                    type=kind,
                    button="left",
                    clickCount=count,
                    **where,
                )

    async def press(self, *keys: str) -> None:
        """Press keys: letters, digits, or names such as ``Enter``."""
        for key in keys:
            code, text = _KEYS.get(key, (ord(key.upper()[0]), key))
            named = {"key": key, "windowsVirtualKeyCode": code}
            await self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
            await self.ask("Input.dispatchKeyEvent", type="keyUp", **named)

    async def type(self, text: str) -> None:
        """Type a text."""
        for sign in text:
            await self.ask("Input.dispatchKeyEvent", type="char", text=sign)

    async def picture(self, target: Path | None = None) -> bytes:
        """Return a screenshot as PNG."""
        said = await self.ask("Page.captureScreenshot", format="png")
        data = base64.b64decode(said["data"])
        if target is not None:
            target.write_bytes(data)
        return data


@asynccontextmanager
async def chromium(width: int = 1200, height: int = 820) -> AsyncIterator[Page]:
    """Start a browser with one empty page, or skip the test; close it at the end."""
    path = require_program(*BROWSERS)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            *(path, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update"),
            *(f"--window-size={width},{height}", "--remote-debugging-port=0"),
            *(f"--user-data-dir={folder}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(folder) / "DevToolsActivePort")
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(await _page_address(session, port), max_msg_size=0) as line,
            ):
                page = Page(line)
                listening = asyncio.create_task(page.listen())
                try:
                    yield page
                finally:
                    listening.cancel()
        finally:
            process.kill()
            await process.wait()


async def _port(file: Path) -> int:
    for _ in range(int(PATIENCE / 0.05)):
        if file.exists() and file.read_text().count("\n"):
            return int(file.read_text().splitlines()[0])
        await asyncio.sleep(0.05)
    raise AssertionError("the browser does not start")


async def _page_address(session: aiohttp.ClientSession, port: int) -> str:
    for _ in range(int(PATIENCE / 0.05)):
        async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [each for each in await answer.json() if each["type"] == "page"]
        if pages:
            return str(pages[0]["webSocketDebuggerUrl"])
        await asyncio.sleep(0.05)
    raise AssertionError("the browser has no page")
