"""Textual driver of an app that is served to a browser."""

from __future__ import annotations

from textual import events, messages
from textual.drivers.web_driver import WebDriver

NAME = "tdx.tui.serving.driver:ServedDriver"


class ServedDriver(WebDriver):
    """Has the focus from the start, as its page has; exits when the server is gone."""

    def start_application_mode(self) -> None:
        super().start_application_mode()
        self._app.call_later(self._app.post_message, events.AppFocus())

    def run_input_thread(self) -> None:
        super().run_input_thread()
        if not self.exit_event.is_set():
            self._app.post_message(messages.ExitApp())
