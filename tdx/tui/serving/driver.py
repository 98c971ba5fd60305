"""Textual driver of an app that is served to a browser."""

from __future__ import annotations

import os
from threading import Timer

from textual import events, messages
from textual.drivers.web_driver import WebDriver

EXIT_TIMEOUT = 5.0
"""Seconds that an app has to exit after its page is closed."""


class ServedDriver(WebDriver):
    """Has the focus from the start, as its page has; exits with its page and with the server."""

    def start_application_mode(self) -> None:
        super().start_application_mode()
        self._app.call_later(self._app.post_message, events.AppFocus())

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        super().on_meta(packet_type, payload)
        if packet_type == "quit":
            self._limit_exit()

    def run_input_thread(self) -> None:
        super().run_input_thread()
        # The server is gone.
        if not self.exit_event.is_set():
            self._app.post_message(messages.ExitApp())
            self._limit_exit()

    def _limit_exit(self) -> None:
        """End the process if the app does not: the server waits for it."""
        timer = Timer(EXIT_TIMEOUT, os._exit, (1,))
        timer.daemon = True
        timer.start()
