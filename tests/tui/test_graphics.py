"""Images in the graphics protocol of a terminal."""

from __future__ import annotations

import base64
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from tdx.inspection.live.views import ImageView
from tdx.tui.compositor import GraphicsUpdate, remove_graphics, use_partial_compositor
from tdx.tui.live.images import ImagePane
from tdx.tui.terminal_graphics import (
    QUERY,
    Graphics,
    GraphicsQuery,
    Protocol,
    encode_kitty,
    encode_sixel,
    find_mode,
    parse_answers,
)

RED, BLUE = (255, 0, 0), (0, 0, 255)
PIXELS = [[RED, BLUE], [BLUE, RED], [RED, RED]]
RGB = bytes(value for row in PIXELS for pixel in row for value in pixel)
SIXEL = re.compile(r'\x1bP0;1q"1;1;(\d+);(\d+)(.*?)\x1b\\', re.DOTALL)
KITTY = re.compile(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\")


def decode_sixel(text: str) -> list[list[tuple[int, ...]]]:
    """Return the pixels of an image, row by row."""
    found = SIXEL.search(text)
    assert found is not None
    width, height = int(found[1]), int(found[2])
    pixels: list[list[tuple[int, ...]]] = [[() for _ in range(width)] for _ in range(height)]
    colors: dict[int, tuple[int, ...]] = {}
    x = top = number = 0
    for command in re.finditer(r"#(\d+)(?:;2;(\d+);(\d+);(\d+))?|!(\d+)(.)|([$-])|(.)", found[3]):
        color, red, green, blue, count, repeated, move, single = command.groups()
        if color is not None:
            number = int(color)
            if red is not None:
                colors[number] = tuple(round(int(each) * 2.55) for each in (red, green, blue))
        elif move is not None:
            x, top = 0, top + 6 * (move == "-")
        else:
            bits = ord(repeated or single) - 63
            start, x = x, x + int(count or 1)
            for y in (top + bit for bit in range(6) if bits >> bit & 1):
                pixels[y][start:x] = [colors[number]] * (x - start)
    return pixels


def decode_kitty(text: str) -> bytes:
    """Return the pixels of an image."""
    data = "".join(found[2] for found in KITTY.finditer(text) if "a=d" not in found[1])
    return zlib.decompress(base64.standard_b64decode(data))


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (b"\x1b_Gi=31;OK\x1b\\\x1b[6;18;8t\x1b[?62;c", ("kitty", (8, 18))),
        (b"\x1b[6;16;8t\x1b[?63;1;2;4;6;9;15;22c", ("sixel", (8, 16))),
        (b"\x1b_Gi=31;ENOTSUPPORTED:x\x1b\\\x1b[?62;22;52c", (None, None)),
        (b"\x1b[?4c", (None, None)),
        (b"\x1b[6;0;0t\x1b[?62;4c", ("sixel", None)),
        (b"", (None, None)),
    ],
)
def test_answers_of_terminals(
    answers: bytes, expected: tuple[Protocol | None, tuple[int, int] | None]
) -> None:
    assert parse_answers(answers) == expected


def test_mode_depends_on_the_terminal_and_the_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TDX_CONFIG", str(tmp_path / "config.toml"))
    assert find_mode({"TERM": "xterm-256color"}) == "auto"
    assert find_mode({"TERM": "tmux-256color", "TMUX": "x"}) == "half-cells"
    assert find_mode({"TERM": "dumb"}) == "half-cells"
    assert find_mode({"TERM": "xterm", "NO_COLOR": "1"}) == "half-cells"
    monkeypatch.setenv("TDX_GRAPHICS", "sixel")
    assert find_mode({"TERM": "tmux-256color", "TMUX": "x"}) == "sixel"


def test_sixel_decodes_to_the_scaled_pixels() -> None:
    decoded = decode_sixel(encode_sixel(RGB, (2, 3), (8, 12)))
    assert decoded == [[PIXELS[y // 4][x // 4] for x in range(8)] for y in range(12)]


def test_sixel_has_at_most_256_colors() -> None:
    rgb = bytes(value * 37 % 256 for value in range(3 * 60 * 60))
    text = encode_sixel(rgb, (60, 60), (60, 60))
    assert len(re.findall(r"#\d+;2;", text)) <= 256
    assert all(pixel for row in decode_sixel(text) for pixel in row)


def test_kitty_data_is_sent_in_chunks() -> None:
    rgb = os.urandom(3 * 80 * 60)
    text = encode_kitty(rgb, (80, 60), (10, 4), 7)
    commands = [found[1] for found in KITTY.finditer(text)]
    assert decode_kitty(text) == rgb
    assert all(len(found[2]) <= 4096 for found in KITTY.finditer(text))
    assert "s=80,v=60,i=7,p=1,c=10,r=4" in commands[0]
    assert [command[-3:] for command in commands] == ["m=1"] * (len(commands) - 1) + ["m=0"]


@dataclass
class Terminal:
    """Terminal that answers the query.

    Args:
        answer: Bytes to answer with.
        received: Bytes that it received.
    """

    answer: bytes
    received: list[bytes] = field(default_factory=list)

    def ask(self, monkeypatch: pytest.MonkeyPatch) -> Graphics | None:
        """Return the result of a query in this terminal."""
        ours, theirs = pty.openpty()
        monkeypatch.setattr("tdx.tui.terminal_graphics._INPUT", theirs)
        monkeypatch.setattr("tdx.tui.terminal_graphics._OUTPUT", theirs)
        thread = threading.Thread(target=self._answer, args=(ours,))
        thread.start()
        try:
            return GraphicsQuery().result()
        finally:
            thread.join()
            os.close(ours)
            os.close(theirs)

    def _answer(self, descriptor: int) -> None:
        while len(b"".join(self.received)) < len(QUERY):
            self.received.append(os.read(descriptor, 4096))
        os.write(descriptor, self.answer)


@pytest.fixture
def in_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("TDX_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("SSH_CONNECTION", "a slow one")
    for name in ("TMUX", "STY", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_terminal_is_queried(in_terminal: pytest.MonkeyPatch) -> None:
    terminal = Terminal(b"\x1b[6;20;10t\x1b[?62;4c")
    assert terminal.ask(in_terminal) == Graphics("sixel", (10, 20))
    assert b"".join(terminal.received) == QUERY
    assert Terminal(b"\x1b[?6c").ask(in_terminal) is None


class GraphicsApp(App[None]):
    """App that consists of an image."""

    CSS = "Static { layer: above; width: 4; height: 1; display: none; } Screen { layers: a above; }"

    def __init__(self, graphics: Graphics | None) -> None:
        super().__init__()
        self.graphics = graphics

    def compose(self) -> ComposeResult:
        yield ImagePane()
        yield Static("note")

    def get_default_screen(self) -> Screen[None]:
        screen: Screen[None] = Screen()
        use_partial_compositor(screen)
        return screen

    def drawn(self, *, full: bool = True) -> str:
        """Return an update of the screen as it is sent to a terminal."""
        update = self.screen._compositor.render_update(full=full)
        if isinstance(update, GraphicsUpdate):
            return update.render_segments(Console(color_system="truecolor"))
        return "" if update is None else update.render_segments(self.console)  # type: ignore[union-attr]


IMAGE = ImageView("pixels@0", "env", -1, (3, 2, 3), 2, 3, RGB, 2 / 3)


@pytest.mark.parametrize("protocol", ["kitty", "sixel"])
async def test_image_covers_the_cells_until_a_dialog_opens(protocol: Protocol) -> None:
    app = GraphicsApp(Graphics(protocol, (4, 8)))
    async with app.run_test(size=(30, 10)) as pilot:
        pane = app.query_one(ImagePane)
        pane.show([IMAGE])
        await pilot.pause()
        drawn = app.drawn()
        assert "▀" not in drawn
        if protocol == "sixel":
            pixels = decode_sixel(drawn)
            assert [pixels[0][0], pixels[0][-1], pixels[-1][-1]] == [RED, BLUE, RED]
        else:
            assert decode_kitty(drawn) == RGB

        app.query_one(Static).display = True
        await pilot.pause()
        covered = app.drawn()
        assert "▀" in covered
        assert SIXEL.search(covered) is None
        assert "a=T" not in covered

        app.query_one(Static).display = False
        await pilot.pause()
        assert "▀" not in app.drawn()
        remove_graphics(app.screen)
        assert pane.set_graphics_mode(False) is False


async def test_only_changed_images_are_sent() -> None:
    app = GraphicsApp(Graphics("sixel", (4, 8)))
    async with app.run_test(size=(30, 10)) as pilot:
        pane = app.query_one(ImagePane)
        pane.show([IMAGE])
        await pilot.pause()
        app.drawn()
        pane.refresh(Region(0, 0, 5, 1))
        assert SIXEL.search(app.drawn(full=False)) is None
        numbers, changed = pane.graphics([Region(0, 1, 1, 1)])
        assert [each.number for each in changed] == sorted(numbers)


async def test_dialog_shows_cells_below_it() -> None:
    app = GraphicsApp(Graphics("kitty", (4, 8)))
    async with app.run_test(size=(30, 10)) as pilot:
        pane = app.query_one(ImagePane)
        pane.show([IMAGE])
        await pilot.pause()
        app.drawn()
        remove_graphics(app.screen)
        app.push_screen(ModalScreen())
        await pilot.pause()
        line = "".join(segment.text for segment in pane.render_line(pane.size.height - 1))
        assert "▀" in line


_SCRIPT = """
from tdx.tui.terminal_graphics import GraphicsQuery
from tests.tui.test_graphics import IMAGE, GraphicsApp
from tdx.tui.live.images import ImagePane

app = GraphicsApp(GraphicsQuery().result())
app.call_later(lambda: app.query_one(ImagePane).show([IMAGE]))
app.run()
"""


@pytest.mark.parametrize(
    ("answer", "end"), [(b"\x1b_Gi=31;OK\x1b\\\x1b[?62c", "a=T,"), (b"\x1b[?62;4c", '\x1bP0;1q"')]
)
def test_images_arrive_in_a_terminal(
    in_terminal: pytest.MonkeyPatch, answer: bytes, end: str
) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 30, 120, 160))
    command = [sys.executable, "-c", _SCRIPT]
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=root, start_new_session=True
    )
    os.close(theirs)
    received, is_answered = "", False
    try:
        while not (is_answered and re.search(re.escape(end) + ".*\x1b\\\\", received, re.DOTALL)):
            assert select.select([ours], [], [], 60)[0], f"no {end!r} in {received!r}"
            received += os.read(ours, 65_536).decode(errors="replace")
            if not is_answered and QUERY.decode() in received:
                os.write(ours, answer)
                received, is_answered = "", True
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    if "P" in end:
        assert decode_sixel(received)[0][0] == RED
    else:
        assert decode_kitty(received) == RGB


async def test_without_graphics_images_are_half_cells() -> None:
    app = GraphicsApp(None)
    async with app.run_test(size=(30, 10)) as pilot:
        app.query_one(ImagePane).show([IMAGE])
        await pilot.pause()
        assert "▀" in app.drawn()
