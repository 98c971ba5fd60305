"""Parts of the live tab that do not need an app."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from tdx.inspection.live.views import HookView, ImageView, PlotView, TraceView, ValueView
from tdx.tui.live.connection import TraceCache
from tdx.tui.live.images import place_images
from tdx.tui.live.plots import draw_braille, plot_heights
from tdx.tui.live.values import build_value_lines


def view(index: int) -> TraceView:
    return TraceView(index, index, 0, "step", None, (), (), 0, 0)


def test_history_is_bounded_and_searchable() -> None:
    seen = TraceCache(max_size=3)
    assert seen.nearest(1, 2) is None
    for index in (0, 4, 8, 12):
        seen.add(view(index))
    seen.add_images(())
    assert len(seen) == 3

    def at(index: int, since: int) -> int:
        found = seen.nearest(index, since)
        assert found is not None
        return found[0].index

    assert [at(11, 12), at(7, 8), at(0, 4)] == [8, 4, 4]
    assert [at(5, 4), at(9, 8), at(99, 12)] == [8, 12, 12]
    seen.clear()
    assert len(seen) == 0


def test_plot_lines_are_continuous() -> None:
    assert draw_braille([0, 3], [0, 3], 1, 1) == ["⡸"]
    assert draw_braille([0, 0, 7, 7], [7, 7, 7, 7], 2, 2) == ["⣿⠉", "⣿⠀"]
    assert draw_braille([None, 1], [None, 1], 1, 1) == ["⠠"]
    assert draw_braille([], [], 2, 1) == ["  "]


def _image(width: int, height: int, frames: int = 1) -> ImageView:
    shape, size = (frames, height, width), (width, height)
    return ImageView("pixels@0", "GymEnv", -1, shape, 1, 1, bytes(3), size, frames)


def test_images_fill_the_pane_with_one_zoom() -> None:
    frame, small, strip = _image(160, 210), _image(84, 84), _image(84, 84, frames=4)
    zoom, [[alone]] = place_images([small], 60, 22)
    assert (alone.width, alone.height) == (42, 21), "a line is left for the title"
    assert zoom == 0.5
    _, [[before, after]] = place_images([frame, small], 120, 30)
    assert (before.width, before.height) == (44, 29)
    assert (after.width, after.height) == (23, 12), "a resized image is smaller"
    zoom, lines = place_images([small, strip], 60, 30)
    assert [len(line) for line in lines] == [1, 1]
    assert lines[1][0].width == 4 * round(84 * zoom) + 3 <= 60
    assert sum(placed.height for line in lines for placed in line) <= 30 - 3


def test_constant_plot_takes_two_lines() -> None:
    flat = PlotView("reward", 0, 1, (1.0, 1.0), (1.0, 1.0), 1.0)
    rising = PlotView("return", 0, 1, (0.0, 1.0), (0.0, 1.0), 1.0)
    assert plot_heights([flat, rising], 20) == [1, 19]
    assert plot_heights([flat, flat], 20) == [1, 1]
    assert plot_heights([rising, rising, flat], 21) == [10, 10, 1]


def _values() -> TraceView:
    """Make a trace with numbers, with a NaN, and with a text."""
    numbers = ValueView(
        *("observation", "observation@0", (4,), "float32", "[1 2 3 4]", 1.0, 2.5, 4.0),
        histogram=(1, 0, 1, 0, 0, 1, 0, 1),
    )
    broken = replace(numbers, key="velocity", version="velocity@0", nans=12, infinities=3)
    text = ValueView("mission", "mission@0", (), "str", "get to the green goal square")
    place = HookView("env", -1, "GymEnv", "forward", 10, (0, 1, 2), (0, 1, 2))
    return TraceView(3, 3, 0, "step", None, (place,), (numbers, broken, text), 10, 0)


@pytest.mark.parametrize("width", range(50, 140))
def test_values_and_their_titles_fit_the_width(width: int) -> None:
    lines = ["".join(text for text, _ in each.line) for each in build_value_lines(_values(), width)]
    assert max(map(len, lines)) <= width, lines
    header = [line for line in lines if "version" in line]
    assert all(line.endswith("histogram") for line in header)
    assert any("12 nan 3 inf" in line for line in lines), "what is wrong is not cut off"
    (mission,) = (line for line in lines if "mission@0" in line)
    assert "get to" in mission
    assert "–" not in mission


def test_narrow_values_show_numbers_instead_of_a_histogram() -> None:
    trace = _values()
    long = replace(
        trace.values[0], text="[-0.5514 0.4309 0.1 0.2]", minimum=-0.55141, maximum=0.43094
    )
    lines = build_value_lines(replace(trace, values=(long, *trace.values[1:])), 32)
    assert any("-0.55 … 0.43" in text for line in lines for text, _ in line.line)
    same = replace(long, text="[0.25 0.25 0.25 0.25]", minimum=0.25, maximum=0.25)
    (line, *_) = build_value_lines(replace(trace, values=(same, *trace.values[1:])), 32)[1:]
    shown = "".join(text for text, _ in line.line)
    assert "all 0.25" in shown
    assert "obser…tion@0" in shown, "the number of the version stays"


def test_short_vector_is_whole_if_it_does_not_fit_beside_its_mean() -> None:
    trace = _values()
    vector = replace(trace.values[0], text="[0.03881 0.537 0.009543 -0.8718]")
    trace = replace(trace, values=(vector, *trace.values[1:]))
    for width in (70, 80, 160):
        lines = ("".join(text for text, _ in each.line) for each in build_value_lines(trace, width))
        (line,) = (line for line in lines if "observation@0" in line)
        assert (vector.text in line) is (width > 70), line
        assert ("2.5" in line) is (width != 80), "and its mean, if there is room"


def test_wide_characters_keep_the_columns() -> None:
    trace = _values()
    key = replace(trace.values[0], key="観測", version="観測@0")
    trace = replace(trace, values=(key, *trace.values[1:]))
    lines = ["".join(text for text, _ in each.line) for each in build_value_lines(trace, 100)]
    wide, other = (next(line for line in lines if name in line) for name in ("観測", "velocity"))
    ends = [cell_len(line[: line.index("[4] float32")]) for line in (wide, other)]
    assert ends[0] == ends[1]


def test_narrow_image_shows_its_shape_instead_of_the_word() -> None:
    trace = _values()
    shape = {"key": "pixels", "version": "pixels@4", "shape": (1, 60, 60), "is_image": True}
    image = replace(trace.values[0], **shape, change="changed", before="[0.2")  # type: ignore[arg-type]
    trace = replace(trace, values=(image, *trace.values[1:]), is_earlier=True)
    for width, text in ((29, "1×60×60"), (42, "image → 1×60×60"), (80, "image → image 1×60×60")):
        lines = build_value_lines(
            trace, width, difference=True, first_differences={"pixels": 0, "observation": 0}
        )
        line = "".join(part for part, _ in lines[1].line)
        assert text in " ".join(line.split())
        assert "≠0" in line
        assert len(line) <= width


def test_a_long_key_keeps_its_version() -> None:
    trace = _values()
    key = replace(trace.values[0], version="observation.images.top@2")
    lines = build_value_lines(replace(trace, values=(key, *trace.values[1:])), 46)
    assert any(text.startswith("observat…ges.top@2 ") for line in lines for text, _ in line.line)


def test_image_is_compared_as_an_image() -> None:
    trace = _values()
    image = replace(trace.values[0], is_image=True, change="changed", before="[0.2333 0.2 …")
    trace = replace(trace, values=(image, *trace.values[1:]))
    line = build_value_lines(trace, 60, difference=True)[1]
    text = " ".join("".join(part for part, _ in line.line).split())
    assert text.startswith("~ observation@0 image → image 4"), text


def test_unchanged_values_use_the_room_of_the_difference() -> None:
    trace = _values()
    flag = replace(trace.values[0], text="false", change="same", minimum=None)
    trace = replace(trace, values=(flag, *trace.values[1:]))
    for width in (30, 44):
        line = build_value_lines(trace, width, difference=True)[1]
        text = "".join(part for part, _ in line.line)
        assert "false" in text
        assert len(text) <= width
        assert ("unchanged" in text) == (width == 44)
