"""One app process behind one page."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from tdx.tui.serving.driver import NAME

PATIENCE = 5.0
"""Seconds that an app has to end by itself."""


class Session(AppService):
    """An app process that is started without a shell, and does not outlive its page.

    Args:
        command: the words of the command.
        write_bytes: sends bytes to the page.
        write_str: sends text to the page.
        close: ends the line to the page.
        download_manager: passes files on to the browser.
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
        # NO_COLOR speaks of the terminal in which the server runs.
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
        """Pass on what the app says; where it ends, so does the line to the page."""
        with suppress(ConnectionError):
            await super().run()
        await self.remote_close()

    async def stop(self) -> None:
        """Ask the app to end, and end it where it does not."""
        if self._process is None:
            return
        stopping = asyncio.create_task(super().stop())
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(stopping), PATIENCE)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await stopping
