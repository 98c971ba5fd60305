"""Views of traces: values, changes, spec violations, images."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorData

from tdx import (
    CatFrames,
    GrayScale,
    PendulumEnv,
    RewardScaling,
    StepCounter,
    ToTensorImage,
    Tracer,
    TransformedEnv,
)
from tdx.core.tracing import TraceChecker
from tdx.inspection.live.arrays import (
    RowSelector,
    count_bins,
    find_images,
    format_array,
    is_image_shape,
    unravel_row,
)
from tdx.inspection.live.trace_view import find_problems, view_trace
from tdx.inspection.live.views import TraceView, ValueView
from tdx.inspection.value_stats import NumberSummary
from tests.inspection.live.stages import At, Ragged, pendulum, raises, writes_nan, writes_too_much


def value(view: TraceView, version: str) -> ValueView:
    return next(each for each in view.values if each.version == version)


def test_view_lists_the_values_of_each_stage() -> None:
    tracer = Tracer(pendulum(RewardScaling(0.0, 2.0), StepCounter(5)))
    first = tracer.reset()
    second = tracer.step(torch.tensor([0.5]))
    view = view_trace(second, against=first)
    assert [place.title for place in view.places] == [
        *("given", "PendulumEnv", "0 RewardScaling", "1 StepCounter"),
    ]
    scaled = view.places[2]
    assert [view.values[at].version for at in scaled.written] == ["reward@1"]
    assert value(view, "reward@1").by_writer == "changed"
    assert value(view, "done@1").by_writer == "same"
    assert value(view, "step_count@1").by_writer == "new"
    reward = float(second.version("reward@0").value)
    assert value(view, "reward@1").mean == pytest.approx(2 * reward)
    assert {view.values[at].key for at in scaled.present} >= {"observation", "reward"}


def test_view_compares_with_another_trace() -> None:
    tracer = Tracer(pendulum(StepCounter(5)))
    tracer.reset()
    one, two = tracer.step(torch.tensor([0.5])), tracer.step(torch.tensor([0.5]))
    view = view_trace(two, against=one)
    count = value(view, "step_count@1")
    assert (count.change, count.before, count.text, count.delta) == ("changed", "1", "2", 1.0)
    assert value(view, "terminated@0").change == "same"
    assert value(view_trace(two), "step_count@1").change == "new"


def test_texts_that_differ_behind_what_is_shown_have_changed() -> None:
    mission = "go to the red ball behind the door on your left, then pick up the "

    def writes(thing: str) -> At:
        return At(0, lambda tensordict: tensordict.set("mission", NonTensorData(mission + thing)))

    tracer = Tracer(pendulum(writes("green key"), writes("green key")))
    tracer.reset()
    first = tracer.step()
    other = Tracer(pendulum(writes("green key"), writes("grey key")))
    other.reset()
    view = view_trace(other.step(), against=first)
    same, changed = value(view, "mission@1"), value(view, "mission@2")
    assert (same.change, changed.change) == ("same", "changed")
    assert changed.text == changed.before == f"{mission[:59]}…"


def test_a_stage_that_writes_the_same_nan_changes_nothing() -> None:
    tracer = Tracer(pendulum(At(0, writes_nan), At(0, writes_nan)))
    tracer.reset()
    step = tracer.step()
    view = view_trace(step, against=step)
    written = value(view, "reward@1"), value(view, "reward@2")
    assert [entry.by_writer for entry in written] == ["changed", "same"]
    assert (written[1].change, written[1].delta) == ("same", 0.0)


def test_view_of_one_row() -> None:
    env = Ragged()
    tracer = Tracer(env)
    tracer.reset()
    trace = tracer.step()
    rewards = [value(view_trace(trace, row=row), "reward@0").mean for row in (0, 1)]
    assert rewards == [1.0, 10.0]
    both = value(view_trace(trace), "reward@0")
    assert (both.shape, both.minimum, both.maximum) == ((2, 1), 1.0, 10.0)


def test_view_attributes_violations_and_nan() -> None:
    env = pendulum(At(0, writes_too_much), At(1, writes_nan))
    tracer, promises = Tracer(env), TraceChecker(env)
    tracer.reset()
    first = view_trace(tracer.step(), promises=promises)
    assert value(first, "observation@0").violations == ()
    [violation] = value(first, "observation@1").violations
    assert "99" in violation
    second = view_trace(tracer.step(), promises=promises)
    assert value(second, "reward@0").nans == 0
    assert value(second, "reward@1").nans == 1
    assert second.has_problem
    assert tracer.last is not None
    assert [(stage.name, text) for stage, text in find_problems(tracer.last, promises)] == [
        ("At", "reward: NaN")
    ]


def test_view_of_a_trace_that_ended_in_an_error() -> None:
    tracer = Tracer(pendulum(StepCounter(5), At(0, raises)))
    tracer.reset()
    with pytest.raises(Exception, match="out of order"):
        tracer.step()
    assert tracer.last is not None
    view = view_trace(tracer.last)
    assert view.error is not None
    assert "out of order" in view.error
    assert view.places[-1].title == "1 At"
    assert view.has_problem


def test_view_is_small_and_free_of_torch() -> None:
    tracer = Tracer(pendulum(*(RewardScaling(0.0, 1.1) for _ in range(30))))
    tracer.reset()
    view = view_trace(tracer.step())
    data = pickle.dumps(view)
    assert b"torch" not in data.replace(b"tdx.", b"")
    assert len(data) < 20_000


def test_missing_key_is_attributed_to_its_stage() -> None:
    env = pendulum(At(0, lambda tensordict: tensordict.exclude("terminated")))
    tracer, promises = Tracer(env), TraceChecker(env)
    tracer.reset()
    trace = tracer.step()
    view = view_trace(trace, promises=promises)
    assert view.places[-1].dropped == ("terminated",)
    assert [violation for place in view.places[:-1] for violation in place.violations] == []


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_statistics_match_the_numbers(numbers: list[float]) -> None:
    array = np.array(numbers, dtype=np.float32)
    statistics = NumberSummary(torch.from_numpy(array))
    (low, high), mean = statistics.extremes, statistics.mean
    assert statistics.nans == sum(map(math.isnan, numbers))
    assert statistics.finite == sum(map(math.isfinite, numbers))
    known = array[~np.isnan(array)]
    assert (low, high) == ((known.min(), known.max()) if known.size else (None, None))
    finite = known[np.isfinite(known)]
    if finite.size and mean is not None:
        assert mean == pytest.approx(float(finite.astype(np.float64).mean()), rel=1e-5, abs=1e-5)
    counts = count_bins(array, low, high)
    assert not counts or sum(counts) == finite.size


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.uint16, torch.int64])
def test_statistics_of_whole_numbers(dtype: torch.dtype) -> None:
    statistics = NumberSummary(torch.tensor([0, 1, 1]).to(dtype))
    assert (*statistics.extremes, statistics.mean) == (0, 1, pytest.approx(2 / 3))


def test_numbers_as_text() -> None:
    assert format_array(np.array([True, False])) == "[true false]"
    assert format_array(np.array([0.123456])) == "0.1235"
    assert format_array(np.arange(9)) == "[0 1 2 3 4 5 …]"


def test_rows_of_several_batch_dims() -> None:
    assert unravel_row(5, (2, 3)) == (1, 2)
    tensor = torch.arange(12).reshape(2, 3, 2)
    assert RowSelector((2, 3), 5).of(tensor).tolist() == [10, 11]
    assert RowSelector((4,), 1).of(tensor) is tensor


@pytest.mark.parametrize(
    ("shape", "kind", "is_image"),
    [
        *(((84, 84, 3), "u", True), ((3, 84, 84), "f", True), ((1, 8, 8), "f", True)),
        *(((4, 84, 84), "f", True), ((16, 16), "f", True), ((12,), "f", False)),
        *(((3, 4), "f", False), ((84, 84, 3), "b", False), ((50, 84, 84), "f", False)),
        *(((84, 84, 9), "u", True), ((4, 84, 84, 3), "u", True), ((50, 84, 84, 3), "u", False)),
    ],
)
def test_image_shapes(shape: tuple[int, ...], kind: str, is_image: bool) -> None:
    assert is_image_shape(shape, kind) is is_image


def test_images_of_each_stage() -> None:
    env = TransformedEnv(Ragged(), ToTensorImage(in_keys=["pixels"]))
    tracer = Tracer(env)
    tracer.reset()
    before, after = find_images(tracer.step(), row=1)
    assert [(image.stage, image.name) for image in (before, after)] == [
        *((-1, "Ragged"), (0, "ToTensorImage")),
    ]
    assert (before.width, before.height, before.shape) == (12, 8, (8, 12, 3))
    assert before.rgb[:3] == bytes([200, 0, 0])
    assert after.shape == (3, 8, 12)
    assert after.rgb[0] in (199, 200)


def test_stacked_frames_are_a_strip() -> None:
    env = TransformedEnv(Ragged(), ToTensorImage(in_keys=["pixels"]))
    env.append_transform(GrayScale(in_keys=["pixels"]))
    env.append_transform(CatFrames(5, dim=-3, in_keys=["pixels"]))
    tracer = Tracer(env)
    tracer.reset()
    stacked = list(find_images(tracer.step()))[-1]
    assert (stacked.frames, stacked.shape, stacked.frame_size) == (5, (5, 8, 12), (12, 8))
    frames, gaps = 5 * 12, 4
    assert (stacked.width, stacked.height) == (frames + gaps, 8)
    assert stacked.rgb[12 * 3 : 13 * 3] == bytes(3)


def test_images_are_downsampled() -> None:
    tracer = Tracer(Ragged())
    tracer.reset()
    [small] = find_images(tracer.step(), zoom=0.5)
    assert (small.width, small.height, len(small.rgb)) == (6, 4, 6 * 4 * 3)
    assert small.rgb[:3] == bytes([200, 0, 0])
    assert replace(small, version="") != small


def test_tiny_image_of_a_stage_is_one_frame() -> None:
    # A view before the layout asks for a small zoom, at which the sides are as short as a stack.
    env = TransformedEnv(Ragged(), ToTensorImage(in_keys=["pixels"]))
    env.append_transform(GrayScale(in_keys=["pixels"]))
    tracer = Tracer(env)
    tracer.reset()
    images = list(find_images(tracer.step(), zoom=0.25))
    assert [image.frames for image in images] == [1, 1, 1]
    assert [(image.width, image.height) for image in images] == [(3, 2)] * 3


def test_env_without_images() -> None:
    tracer = Tracer(PendulumEnv())
    assert list(find_images(tracer.reset())) == []
