"""Each kind of difference is named with its numbers, and predicts another rollout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tdx.compare.explanations import Explainer, Sides, explain, predict_stage, reproduces
from tdx.compare.explanations.history import History
from tdx.compare.values import Tolerance
from tests.programs import exhaustive

STARTS = (0, 12)
EPISODES = [(0, 12), (12, 18)]
MEAN = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -0.3])
STD = torch.tensor([0.5, 2.0, 1.5, 0.8, 1.2, 0.6])
IS_RESET = torch.zeros(18, 1, 1, dtype=torch.bool)
IS_RESET[list(STARTS)] = True
ROUNDING = Tolerance(1e-5, 1e-6)


def states(seed: int) -> Tensor:
    """Values of a rollout, ``[18, 1, 6]``."""
    return 3 * torch.randn(18, 1, 6, generator=torch.Generator().manual_seed(seed))


def other_states(seed: int) -> Tensor:
    """Values of another key of the same rollout."""
    return torch.randn(18, 1, 6, generator=torch.Generator().manual_seed(seed + 100))


def pictures(seed: int) -> Tensor:
    """Colored images without symmetry, ``[18, 1, 24, 32, 3]``."""
    coarse = torch.rand(18, 3, 6, 8, generator=torch.Generator().manual_seed(seed))
    fine = interpolate(coarse, (24, 32), mode="bilinear").mul(255).byte()
    return fine.movedim(1, -1).unsqueeze(1)


def norm(x: Tensor) -> Tensor:
    return (x - MEAN) / STD


def late(x: Tensor) -> Tensor:
    return torch.cat([x[:1], x[:11], x[12:13], x[12:17]])


def changes(x: Tensor) -> Tensor:
    return x - late(x)


def stacked(x: Tensor, **options: object) -> Tensor:
    history = History(**{"dim": 0, "is_new_dim": False, "length": 3, **options})  # type: ignore[arg-type]
    return history.apply(x.double(), EPISODES).float()


def used_before(x: Tensor) -> Tensor:
    """Return stacks that start with steps which were not recorded."""
    made = stacked(x, padding="previous episode")
    made[0, ..., : 2 * x.shape[-1]] = torch.randn(2 * x.shape[-1])
    made[1, ..., : x.shape[-1]] = made[0, ..., x.shape[-1] : 2 * x.shape[-1]]
    return made


def resized(mode: str, *, antialias: bool = False) -> Callable[[Tensor], Tensor]:
    def resize(x: Tensor) -> Tensor:
        planes = x.squeeze(1).movedim(-1, 1).float()
        options = {"antialias": antialias} if mode in ("bilinear", "bicubic") else {}
        small = interpolate(planes, (12, 12), mode=mode, **options)
        return small.round().clamp(0, 255).byte().movedim(1, -1).unsqueeze(1)

    return resize


def gray(*weights: float) -> Callable[[Tensor], Tensor]:
    return lambda x: (x.float() @ torch.tensor(weights)).round().byte().unsqueeze(-1)


def same(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Case:
    """A stage of the reference and of the target, and what is expected.

    Args:
        kind: Kind, or both kinds.
        reference: What the stage of the reference makes of the values.
        target: What that of the target makes of them.
        parameters: Some of the numbers that are named.
        text: Part of the sentence.
        source: Creates the values of a rollout.
        other: True if the stage reads a second key, which it scales in another way.
    """

    kind: str
    reference: Callable[[Tensor], Tensor]
    target: Callable[[Tensor], Tensor]
    parameters: dict[str, object] | None = None
    text: str = ""
    source: Callable[[int], Tensor] = states
    other: bool = False


CASES = {
    "inactive": Case("inactive", norm, same),
    "inactive in steps": Case(
        "inactive",
        norm,
        lambda x: torch.where(IS_RESET, norm(x), x),
        {"in": "steps"},
        "right only after a reset",
    ),
    "inactive in resets": Case(
        "inactive", norm, lambda x: torch.where(IS_RESET, x, norm(x)), {"in": "resets"}
    ),
    "reshaped instead of transposed": Case(
        "reshape",
        lambda x: x.movedim(-1, 2),
        lambda x: x.reshape(18, 1, 3, 24, 32),
        {"shape": [3, 24, 32]},
        source=pictures,
    ),
    "crop of BGR": Case(
        "channel order and crop",
        lambda x: x[:, :, 4:20, 8:24],
        lambda x: x[:, :, 0:16, 8:24].flip(-1),
        {"order": [2, 1, 0], "top": 0, "left": 8},
        source=pictures,
    ),
    "twice": Case("twice", norm, lambda x: norm(norm(x))),
    "scale": Case(
        "scale",
        norm,
        lambda x: 2 * norm(x) + 1,
        {"factor": 2.0, "offset": 1.0},
        "multiplied by 2 and shifted by 1",
    ),
    "scale and clip": Case(
        *("scale", norm, lambda x: (2 * norm(x)).clamp(-1, 1)), {"factor": 2.0, "low": -1.0}
    ),
    "feature scale": Case("feature scale", norm, lambda x: (x - MEAN.flip(0)) / STD),
    "range": Case(
        "range",
        lambda x: x / 255,
        lambda x: x / 127.5 - 1,
        {"factor": 2.0},
        "-1 … 1 instead of 0 … 1",
        pictures,
    ),
    "two features are swapped": Case(
        "permutation",
        norm,
        lambda x: norm(x)[..., [1, 0, 2, 3, 4, 5]],
        {"order": [1, 0, 2, 3, 4, 5]},
        "features 0 and 1 are swapped",
    ),
    "selection": Case(
        *("selection", norm, lambda x: norm(x)[..., [0, 1, 2, 4]]), {"order": [0, 1, 2, 4]}
    ),
    "padding": Case(
        "padding", norm, lambda x: torch.cat([norm(x), torch.zeros_like(x[..., :2])], -1)
    ),
    "constant": Case("constant", norm, lambda x: norm(x) * (torch.arange(6) != 3)),
    "clip": Case("clip", norm, lambda x: norm(x).clamp(-1, 1), {"low": -1.0, "high": 1.0}),
    "clip is missing": Case("clip", lambda x: norm(x).clamp(-1, 1), norm, None, "not clipped"),
    "other clip": Case(
        "clip",
        lambda x: norm(x).clamp(-1, 1),
        lambda x: norm(x).clamp(-2, 2),
        {"low": -2.0, "high": 2.0},
        "[-2, 2] instead of [-1, 1]",
    ),
    "float16": Case("rounding", norm, lambda x: norm(x).half().float(), {"to": "float16"}),
    "whole numbers": Case("rounding", norm, lambda x: norm(x).round()),
    "late": Case("time shift", norm, lambda x: late(norm(x)), {"steps": 1}),
    "delta": Case("delta", norm, lambda x: changes(norm(x)), {"of": "the step before"}),
    "permutation and scale": Case(
        "permutation and feature scale",
        norm,
        lambda x: (norm(x) * torch.arange(1, 7))[..., [3, 1, 2, 0, 4, 5]],
    ),
    "permutation and clip": Case(
        "permutation and clip",
        norm,
        lambda x: norm(x).clamp(-1, 1)[..., [3, 1, 2, 0, 4, 5]],
    ),
    "newest first": Case(
        "history",
        stacked,
        lambda x: stacked(x, newest_first=True),
        {"newest_first": True},
        "the newest step is the first one",
    ),
    "zeros at the start": Case(
        "history",
        stacked,
        lambda x: stacked(x, padding="zeros"),
        {"padding": "zeros"},
        "zeros instead of copies of the first step",
    ),
    "stack leaks": Case(
        "history",
        stacked,
        lambda x: stacked(x, padding="previous episode"),
        {"padding": "previous episode"},
        "steps of the episode before",
    ),
    "stack that was used before leaks": Case(
        "history",
        stacked,
        used_before,
        {"padding": "previous episode"},
        "steps of the episode before",
    ),
    "stack that copies the first step leaks": Case(
        "history",
        stacked,
        lambda x: stacked(x, padding="previous episode", first_padding="zeros"),
        {"padding": "previous episode"},
        "steps of the episode before",
    ),
    "longer stack": Case(
        "history", stacked, lambda x: stacked(x, length=4), None, "4 instead of 3 steps"
    ),
    "every second step": Case("history", stacked, lambda x: stacked(x, spacing=2)),
    "by feature": Case("history", stacked, lambda x: stacked(x, by_feature=True)),
    "BGR": Case(
        *("channel order", same, lambda x: x.flip(-1)), None, "BGR instead of RGB", pictures
    ),
    "mirrored": Case(
        "flip", same, lambda x: x.flip(3), {"dim": 1}, "dim 1 is in reverse order", pictures
    ),
    "stacked features": Case(
        "selection",
        lambda x: torch.stack([late(x), x], 2),
        lambda x: torch.stack([late(x), x], 2)[..., [1, 4]],
        {"order": [1, 4]},
        "it has only the features [1, 4] of 6",
    ),
    "channels first": Case(
        "axis order",
        same,
        lambda x: x.movedim(-1, 2),
        {"axes": [2, 0, 1]},
        "",
        pictures,
    ),
    "BGR and range": Case(
        "channel order and range",
        lambda x: x / 255,
        lambda x: x.flip(-1).float(),
        None,
        "",
        pictures,
    ),
    "kernel": Case(
        "resampling",
        resized("area"),
        resized("bilinear"),
        {"kernel": "bilinear"},
        "bilinear instead of area",
        pictures,
    ),
    "antialiasing": Case(
        "resampling",
        resized("bilinear"),
        resized("bilinear", antialias=True),
        {"antialias": True},
        "",
        pictures,
    ),
    "crop": Case(
        "crop",
        lambda x: x[:, :, 4:20, 4:28],
        lambda x: x[:, :, 5:21, 4:28],
        {"top": 5, "left": 4},
        "row 5 and column 4 instead of row 4 and column 4",
        pictures,
    ),
    "weights of gray": Case(
        "gray weights",
        gray(0.299, 0.587, 0.114),
        gray(1 / 3, 1 / 3, 1 / 3),
        None,
        "the mean",
        pictures,
    ),
    "gray of BGR": Case(
        "gray weights",
        gray(0.299, 0.587, 0.114),
        gray(0.114, 0.587, 0.299),
        None,
        "BGR taken for RGB",
        pictures,
    ),
    "weights of gray, as torchvision rounds them": Case(
        "gray weights",
        gray(1 / 3, 1 / 3, 1 / 3),
        gray(0.2989, 0.587, 0.114),
        {"weights": [0.2989, 0.587, 0.114]},
        "",
        pictures,
    ),
    "scale of features in a batch": Case(
        "feature scale",
        lambda x: norm(x).unsqueeze(2),
        lambda x: norm(x).unsqueeze(2) * STD + MEAN.flip(0),
        {"factor": STD.tolist(), "offset": MEAN.flip(0).tolist()},
    ),
    "statistics of another key": Case(
        "swapped statistics", norm, lambda x: (x - 5) / 3, {"key": "other"}, other=True
    ),
}


def sides_of(case: Case, seed: int) -> Sides:
    x = case.source(seed)
    others = {}
    if case.other:
        y = other_states(seed)
        others["other"] = y, (y - 5) / 3
    made = case.reference(x), case.target(x)
    return Sides(*made, x, STARTS, ROUNDING if x.is_floating_point() else Tolerance(), others)


@pytest.mark.parametrize("name", CASES)
def test_kind_and_numbers_are_named_and_predict_another_rollout(name: str) -> None:
    case = CASES[name]
    found = explain(sides_of(case, 0))
    assert found is not None
    assert (found.kind, case.text in found.text) == (case.kind, True), found
    for parameter, value in (case.parameters or {}).items():
        assert found.parameters[parameter] == pytest.approx(value), found
    assert reproduces(found, sides_of(case, 1))


@pytest.mark.parametrize("passes", [0, 1])
def test_moving_statistics_are_found_after_an_earlier_run_of_the_same_steps(passes: int) -> None:
    x = states(0).double()
    mean, variance, count = MEAN.double(), STD.double() ** 2, 20.0
    rows = []
    for value in torch.cat([x] * (passes + 1)).flatten(0, 1):
        total = count + 1
        gap = value - mean
        variance = (variance * count + gap**2 * count / total) / total
        mean, count = mean + gap / total, total
        rows.append((value - mean) / variance.sqrt())
    target = torch.stack(rows[-len(x) :]).unsqueeze(1).float()

    found = explain(Sides(norm(x.float()), target, x.float(), STARTS, ROUNDING))

    assert found is not None
    assert (found.kind, found.parameters) == ("moving statistics", {"count": 20.0})


def test_the_scale_of_channels_predicts_no_image_with_other_channels() -> None:
    x = pictures(0).float()
    scale = torch.tensor([1.0, 2.0, 3.0])
    assert predict_stage(Sides(x * scale, x * scale, x), torch.cat([x] * 3, -1)) is None


def test_noise_is_called_consistent_with_noise() -> None:
    x = states(0)
    noise = 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    found = explain(Sides(norm(x), norm(x) + noise, x, STARTS, ROUNDING))
    assert found is not None
    assert found.kind == "noise"
    assert found.parameters["deviation"] == pytest.approx(0.1, rel=0.2)


@exhaustive
def test_noise_of_pixels_differs_from_other_images() -> None:
    x = pictures(0).double()
    noise = 5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3)).double()
    found = explain(Sides(x, (x + noise.round()).clamp(0, 255), x, STARTS))
    assert found is not None
    assert found.kind == "noise"
    assert found.parameters["deviation"] == pytest.approx(5, rel=0.1)
    # A cast to uint8 drops the fraction.
    cast = explain(Sides(x, (x + noise).clamp(0, 255).floor(), x, STARTS))
    assert cast is not None
    assert cast.kind == "noise"
    # The fraction is half a step everywhere, which many pixels show.
    large = 60 + 100 * torch.rand(14, 1, 84, 84, 3, generator=torch.Generator().manual_seed(1))
    drawn = 5 * torch.randn(large.shape, generator=torch.Generator().manual_seed(2))
    many = explain(Sides(large.floor(), (large.floor() + drawn).floor(), None, STARTS))
    assert many is not None
    assert many.kind == "noise"
    blurred = (x + x.roll(1, 2) + x.roll(1, 3)).div(3).round()
    for other in (blurred, pictures(1).double()):
        assert explain(Sides(x, other, x, STARTS)) is None


@exhaustive
def test_two_edits_of_large_images_are_found() -> None:
    x = torch.rand(4, 1, 90, 150, 3, generator=torch.Generator().manual_seed(0)).double()
    found = explain(Sides(x, (0.7 * x.flip(3) + 0.1).clamp(0.2, 0.6), None, (0,), ROUNDING))
    assert found is not None
    assert [edit.kind for edit in found.edits] == ["flip", "scale"]


def test_equal_values_are_explained_once() -> None:
    x = torch.rand(8, 1, 3)
    explainer, sides = Explainer(), Sides(x, 3 * x)
    found = explainer.explain(sides)
    assert found is not None
    assert explainer.explain(Sides(x.clone(), 3 * x)) is found
    other = explainer.explain(Sides(x, 2 * x))
    assert other is not None
    assert other.parameters["factor"] == pytest.approx(2)


@exhaustive
def test_hints_take_an_edit_back() -> None:
    x = states(0)
    targets = {
        "index the features by [3, 1, 2, 0, 4, 5], or build": norm(x)[..., [3, 1, 2, 0, 4, 5]],
        "subtract 0.5 and then divide by 2": 2 * norm(x) + 0.5,
        "multiply by 4": norm(x) / 4,
        "drop feature 6": torch.cat([norm(x), torch.zeros(18, 1, 1)], -1),
    }
    for hint, target in targets.items():
        found = explain(Sides(norm(x), target, x, STARTS, ROUNDING))
        assert found is not None
        assert (found.hint or "").startswith(hint), found


def test_a_difference_of_another_form_is_not_explained() -> None:
    x = states(0)
    assert explain(Sides(norm(x), norm(x).sin(), x, STARTS, ROUNDING)) is None


def test_few_values_prove_no_scale() -> None:
    x = torch.tensor([[[1.0]], [[2.0]]])
    assert explain(Sides(x, 3 * x + 1, None, (0,), ROUNDING)) is None


RARE = torch.zeros(9, 1, 1, dtype=torch.float64).index_fill(0, torch.tensor([4]), 1.0)
"""A sparse reward."""


@pytest.mark.parametrize(
    ("reference", "target", "received", "kind", "text"),
    [
        (RARE * 0 + 3, RARE * 0 + 2, None, "few values", "it is always 2 instead of 3"),
        (RARE, RARE / 2, None, "few values", "it is 0.5 instead of 1, and 0 is kept"),
        (6 * RARE - 3, 2 * RARE - 1, None, "few values", "it is -1 instead of -3 and 1 instead of"),
        (RARE, 255 * RARE, None, "range", "its range is 0 … 255 instead of 0 … 1"),
        (RARE * 0 + 3, RARE * 0 + 2, RARE * 0 + 2, "inactive", "the target passes on what it"),
    ],
)
def test_few_different_values_show_no_cause_that_others_share(
    reference: Tensor, target: Tensor, received: Tensor | None, kind: str, text: str
) -> None:
    found = explain(Sides(reference, target, received, (0,), ROUNDING))
    assert found is not None
    assert found.kind == kind
    assert found.text.startswith(text)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("tanh(x)", torch.tanh),
        ("symlog(x)", lambda x: x.sign() * x.abs().log1p()),
        ("sign(x)", torch.sign),
        (
            "sign(x) (sqrt(|x| + 1) - 1) + 0.001 x",
            lambda x: x.sign() * ((x.abs() + 1).sqrt() - 1) + 0.001 * x,
        ),
    ],
)
def test_functions_of_numbers_are_named_on_either_side(
    name: str, function: Callable[[Tensor], Tensor]
) -> None:
    x = 3 * norm(states(0))
    for sides, text in (
        (Sides(x, function(x), None, STARTS, ROUNDING), f"it is {name} where the reference has x"),
        (Sides(function(x), x, None, STARTS, ROUNDING), f"it is x where the reference has {name}"),
    ):
        found = explain(sides)
        assert found is not None
        assert (found.kind, found.text) == ("function", text)
    bounded = explain(Sides(x.clamp(-2, 2), torch.tanh(x), x, STARTS, ROUNDING))
    assert bounded is not None
    assert bounded.text == "it is tanh(x) of what it receives"


def test_smoothed_values_have_their_weight() -> None:
    x = norm(states(0))
    smooth, last = [], torch.zeros_like(x[0])
    for value in x:
        last = 0.3 * value + 0.7 * last
        smooth.append(last)
    found = explain(Sides(x, torch.stack(smooth), x, (0,), ROUNDING))
    assert found is not None
    assert found.kind == "smoothing"
    assert found.parameters["weight"] == pytest.approx(0.3)


def test_repeated_frames_are_a_selection() -> None:
    frames = torch.rand(6, 1, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    found = explain(Sides(frames, frames[:, :, [3, 3, 2, 3]], None, (0,), ROUNDING))
    assert found is not None
    assert (found.kind, found.parameters) == ("selection", {"dim": 0, "order": [3, 3, 2, 3]})


def test_one_number_proves_no_clip() -> None:
    x = norm(states(0))
    place = int(x.argmax())
    for value in (x.max() - 0.01, x.max() + 1):
        changed = x.clone()
        changed.view(-1)[place] = value
        assert explain(Sides(x, changed, None, STARTS, ROUNDING)) is None


def test_one_step_proves_no_constant_feature() -> None:
    x = norm(states(0))[:1]
    changed = x.clone()
    changed[..., 0] += 1
    found = explain(Sides(x, changed, None, (0,), ROUNDING))
    assert found is None or found.kind != "constant"


def test_steps_about_which_an_edit_says_nothing_are_not_counted() -> None:
    x = norm(states(0))
    found = explain(Sides(x, late(x), None, STARTS, ROUNDING))
    assert found is not None
    assert (found.kind, found.values) == ("time shift", 16 * 6)
