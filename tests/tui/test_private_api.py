"""Private parts of Textual that the app overrides.

A failure means that an upgrade has changed one of them: adapt the module in the message.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

from textual._compositor import ChopsUpdate, Compositor
from textual.app import App
from textual.screen import Screen

from tdx.tui.textual_internals import PartialCompositor, use_partial_compositor
from tests.programs import exhaustive

_ADAPT = "has changed in this version: adapt {}"


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_compositor_of_textual_is_as_expected() -> None:
    message = "textual._compositor " + _ADAPT.format("tdx/tui/textual_internals.py")
    names = (
        *("cuts", "visible_widgets", "_regions_to_spans"),
        *("render_partial_update", "reflow"),
    )
    for name in names:
        assert hasattr(Compositor, name), message
    assert {"_dirty_regions", "_full_map"} <= vars(Compositor()).keys(), message
    assert parameters(Compositor.reflow) == ["self", "parent", "size"], message
    assert parameters(ChopsUpdate.__init__) == ["self", "chops", "spans", "chop_ends"], message
    screen: Screen[None] = Screen()
    use_partial_compositor(screen)
    assert type(screen._compositor) is PartialCompositor, message


def test_app_of_textual_is_as_expected() -> None:
    message = "textual.app " + _ADAPT.format("tdx/tui/textual_internals.py")
    assert parameters(App._handle_exception) == ["self", "error"], message
    assert parameters(App._fatal_error) == ["self"], message
    assert App()._exit is False, message


@exhaustive
def test_frames_per_second_are_set_by_the_environment() -> None:
    code = "from textual.screen import UPDATE_PERIOD; print(round(1 / UPDATE_PERIOD))"
    variables = {**os.environ, "TEXTUAL_FPS": "120"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    message = "textual.constants " + _ADAPT.format("open_app in tdx/tui/__init__.py")
    assert done.stdout == "120\n", message
