"""Commands that take a worker a while: the status bar shows them, and one key cancels them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from tdx.tui.backend.client import RequestError, SupersededError
from tdx.tui.backend.messages import Request

if TYPE_CHECKING:
    from textual.screen import Screen

    from tdx.tui.workspace import Workspace

T = TypeVar("T")


class WorkerCommands:
    """Runs commands in workers, and reports why one has failed."""

    def __init__(self, screen: Screen[None], workspace: Workspace) -> None:
        self._screen, self._workspace = screen, workspace
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_running(self) -> bool:
        """True while a worker is busy with a command."""
        return bool(self._workspace.running)

    def start(self, command: Coroutine[Any, Any, None]) -> None:
        """Run a command in the background."""
        task = asyncio.get_running_loop().create_task(command)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ask(self, request: Request[T], worker: str, doing: str, failed: str) -> T | None:
        """Ask a worker; a newer command of the same worker replaces this one.

        ``doing`` is for the status bar, ``failed`` the title of the notice without an answer.
        Return ``None`` for a command that has failed, or was cancelled or replaced.
        """
        entry = worker, doing
        self._workspace.set_running([*self._workspace.running, entry])
        try:
            ticket = self._workspace.backend.ask(request, worker=worker, slot=f"{worker} command")
            return await ticket
        except SupersededError:
            return None
        except RequestError as error:
            if error.is_cancelled:
                self._screen.app.notify("cancelled", title=failed, timeout=4)
            else:
                text = error.sentence
                self._screen.app.notify(text, title=failed, severity="error", timeout=10)
            return None
        finally:
            left = list(self._workspace.running)
            left.remove(entry)
            self._workspace.set_running(left)

    def cancel(self) -> None:
        """Kill the workers that are busy with commands."""
        for worker in dict(self._workspace.running):
            self._workspace.backend.restart(worker)
