"""Random chains, and the edits that a user would make to them, with their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tests.explanations.mutations.envs import HEIGHT, IMAGE, VECTORS, WIDTH, key_of, record
from tests.explanations.mutations.model import (
    Array,
    Chain,
    Fault,
    Mutation,
    Stage,
    differ,
    simulate,
)

Generator = np.random.Generator

GRAY_601, GRAY_709, GRAY_EQUAL = (0.2989, 0.587, 0.114), (0.2126, 0.7152, 0.0722), (1 / 3,) * 3
WEIGHTS = (GRAY_601, GRAY_709, GRAY_EQUAL)
SEEN = 1e-4
"""An observable fault changes the values by more than this share of the largest."""
UNSEEN = 1e-5
"""An unobservable one, and rounding, by less."""
WIDE = 1e4
"""Bound of a clip that is never reached."""
ATTEMPTS = 400


@dataclass(frozen=True)
class Layout:
    """How a library arranges values.

    Args:
        library: Name of the library.
        channels_first: Images become ``[C, H, W]`` in the first stage.
        new_axis: A history has its own axis in front, instead of joining features or channels.
        padding: What fills a history at the start of an episode.
        kernel: Kernel of the library's own stage that resizes images.
        gray: Weights of its gray images.
        offset: Stages of an opened stack inside the first stage of the chain.
        renames: True if its observations have keys.
    """

    library: str
    channels_first: bool
    new_axis: bool
    padding: str
    kernel: str
    gray: tuple[float, ...]
    offset: int
    renames: bool


@dataclass(frozen=True)
class Edit:
    """What replaces stages of a chain.

    Args:
        kind: See :class:`Fault`.
        stages: The stages instead of ``width`` stages.
        parameters: See :class:`Fault`.
        residual: Operation on the output of the stage that has the same effect, if there is one.
        width: Number of stages that are replaced.
        observable: See :class:`Fault`.
    """

    kind: str
    stages: tuple[Stage, ...]
    parameters: dict[str, object] = field(default_factory=dict)
    residual: Stage | None = None
    width: int = 1
    observable: bool = True


# Chains


def draw_chain(layout: Layout, rng: Generator) -> Chain:
    """Return a random chain of vectors or images."""
    base = str(rng.choice([*VECTORS, IMAGE, IMAGE]))
    stages = _image_stages(layout, rng) if base == IMAGE else _vector_stages(layout, base, rng)
    return Chain(base, tuple(stages))


def _vector_stages(layout: Layout, base: str, rng: Generator) -> list[Stage]:
    frames = record(base)
    stages: list[Stage] = []
    width = frames[0][0].shape[-1]
    if rng.random() < 0.4:
        order = [int(index) for index in rng.permutation(width)]
        indices = order if rng.random() < 0.5 else sorted(order[1:])
        stages.append(Stage("select", {"indices": indices}))
    values = np.stack(simulate(stages, frames)).astype(np.float32)
    mean, std = values.mean(0), values.std(0) + np.float32(0.05)
    if rng.random() < 0.5:
        arguments = {
            "mean": mean,
            "std": std,
            "range": np.ptp(values, 0) / 2 + 0.05,
            "epsilon": 1e-8,
        }
        stages.append(Stage("normalize", arguments))
    else:
        arguments = {"mean": mean, "variance": std**2, "count": 100.0, "update": False}
        stages.append(Stage("running", arguments))
    if rng.random() < 0.6:
        factor, offset = (round(float(rng.uniform(*ends)), 2) for ends in ((0.4, 2.5), (-1, 1)))
        stages.append(Stage("scale", {"factor": factor, "offset": offset}))
    if rng.random() < 0.7:
        stages.append(_clip(stages, frames, rng))
    if rng.random() < 0.3:
        stages.insert(0, Stage("clip", {"low": -WIDE, "high": WIDE}))
    if rng.random() < 0.6:
        stages.append(_history(layout, rng, -1))
    return stages


def _clip(stages: list[Stage], frames: Sequence[tuple[Array, bool]], rng: Generator) -> Stage:
    low, high = np.quantile(np.stack(simulate(stages, frames)), (0.1, 0.85))
    if rng.random() < 0.2:
        low, high = -WIDE, WIDE
    return Stage("clip", {"low": round(float(low), 3), "high": round(float(high), 3)})


def _history(layout: Layout, rng: Generator, axis: int) -> Stage:
    length = int(rng.integers(2, 5))
    arguments = {"length": length, "padding": layout.padding, "axis": axis}
    return Stage("history", {**arguments, "new_axis": layout.new_axis})


def _image_stages(layout: Layout, rng: Generator) -> list[Stage]:
    first = {"channels_first": layout.channels_first}
    to_float = Stage("to_float", {"low": 0.0, "high": 1.0, **first})
    top, left = (int(rng.integers(2, most)) for most in (10, 14))
    crop = {"top": top, "left": left, "height": HEIGHT - 12, "width": WIDTH - 16, **first}
    resize = {"height": 21, "width": 24, "kernel": layout.kernel, "antialias": True, **first}
    stages = []
    if rng.random() < 0.8:
        stages.append(Stage("crop", crop))
    if rng.random() < 0.8 or not stages:
        stages.append(Stage("resize", resize))
    is_gray = rng.random() < 0.5
    if is_gray:
        stages.append(Stage("gray", {"weights": layout.gray, **first}))
    if layout.channels_first:
        stages.insert(0, to_float)
    else:
        stages.append(to_float)
    if rng.random() < 0.7:
        shape = (1 if is_gray else 3, 1, 1) if layout.channels_first else (1 if is_gray else 3,)
        mean, std = (
            rng.uniform(*ends, shape).astype(np.float32) for ends in ((0.3, 0.6), (0.2, 0.4))
        )
        spread = std * np.float32(1.9)
        stages.append(
            Stage("normalize", {"mean": mean, "std": std, "range": spread, "epsilon": 1e-8})
        )
    if rng.random() < 0.5:
        stages.append(_history(layout, rng, -3 if layout.channels_first else -1))
    return stages


# Edits: each returns None where it does not apply.

Maker = Callable[[Layout, Chain, int, Generator], Edit | None]


def _input(chain: Chain, index: int, *, after: bool) -> Array:
    return np.stack(simulate(chain.stages[: index + after], record(chain.base)))


def _missing(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit:
    stage = chain.stages[index]
    is_wide = stage.operation == "clip" and stage.arguments["high"] == WIDE
    return Edit("missing stage", (), {"stage": stage.operation}, observable=not is_wide)


def _extra(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    values = _input(chain, index, after=True)
    if values.dtype == np.uint8:
        return None
    if rng.random() < 0.5:
        low, high = (round(float(x), 3) for x in np.quantile(values, (0.2, 0.75)))
        added = Stage("clip", {"low": low, "high": high})
    else:
        factor, offset = round(float(rng.uniform(1.3, 2)), 2), round(float(rng.uniform(0.2, 1)), 2)
        added = Stage("scale", {"factor": factor, "offset": offset})
    parameters: dict[str, object] = {"stage": added.operation, **added.arguments}
    return Edit("extra stage", (chain.stages[index], added), parameters, added)


def _twice(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation not in ("normalize", "running", "scale", "crop"):
        return None
    return Edit("twice", (stage, stage), {"stage": stage.operation}, stage)


def _inactive(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    off: dict[str, dict[str, object]] = {
        "normalize": {"mean": 0.0, "std": 1.0, "epsilon": 0.0},
        "scale": {"factor": 1.0, "offset": 0.0},
        "clip": {"low": -WIDE, "high": WIDE},
        "select": {"indices": range(_input(chain, index, after=False).shape[-1])},
    }
    arguments = off.get(stage.operation)
    if arguments is None or stage.arguments.get("high") == WIDE:
        return None
    return Edit("inactive", (stage.replaced(**arguments),), {"stage": stage.operation})


def _sometimes_inactive(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    values = _input(chain, index, after=False)
    if stage.operation not in ("normalize", "running", "scale") or values.dtype == np.uint8:
        return None
    off = ("resets", "steps")[int(rng.integers(2))]
    changed = Stage("sometimes", {"stages": (stage,), "off": off})
    return Edit("sometimes inactive", (changed,), {"in": off})


def _order(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    if index + 1 >= len(chain.stages):
        return None
    one, other = chain.stages[index : index + 2]
    where = (index + layout.offset, index + 1 + layout.offset)
    return Edit("order", (other, one), {"stages": where}, width=2)


def _affine(stage: Stage, factor: Any, offset: Any) -> Stage | None:
    """Return the stage with its output multiplied and shifted, by its own arguments."""
    arguments = stage.arguments
    if stage.operation == "scale" and np.ndim(factor) == 0:
        (a, b) = (float(arguments[name]) for name in ("factor", "offset"))  # type: ignore[arg-type]
        return stage.replaced(factor=a * factor, offset=b * factor + offset)
    if stage.operation == "normalize":
        mean, std = np.asarray(arguments["mean"]), np.asarray(arguments["std"])
        return stage.replaced(mean=mean - offset * std / factor, std=std / factor)
    return None


def _scale(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    factor, offset = (
        round(float(rng.uniform(1.2, 3)), 2),
        round(float(rng.choice([0, 0.25, -0.5])), 2),
    )
    stage = _affine(chain.stages[index], factor, offset)
    residual = Stage("scale", {"factor": factor, "offset": offset})
    if stage is None:
        return None
    return Edit("scale", (stage,), {"factor": factor, "offset": offset}, residual)


def _feature_scale(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "normalize":
        return None
    shape = np.asarray(stage.arguments["mean"]).shape
    if np.prod(shape) < 2:
        return None
    factor = rng.uniform(0.5, 2, shape).round(3).astype(np.float32)
    offset = rng.uniform(-0.5, 0.5, shape).round(3).astype(np.float32)
    changed = _affine(stage, factor, offset)
    assert changed is not None
    numbers: dict[str, object] = {
        "factor": factor.ravel().tolist(),
        "offset": offset.ravel().tolist(),
    }
    residual = Stage("scale", {"factor": factor, "offset": offset})
    return Edit("feature scale", (changed,), numbers, residual)


def _insert(chain: Chain, index: int, kind: str, added: Stage, **parameters: object) -> Edit:
    return Edit(kind, (chain.stages[index], added), parameters, added)


def _is_vector(chain: Chain) -> bool:
    return chain.base != IMAGE


def _permutation(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    if not _is_vector(chain):
        return None
    width = _input(chain, index, after=True).shape[-1]
    order = [int(i) for i in rng.permutation(width)]
    if order == sorted(order):
        return None
    return _insert(chain, index, "permutation", Stage("select", {"indices": order}), order=order)


def _selection(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    width = _input(chain, index, after=True).shape[-1]
    if not _is_vector(chain) or width < 2:
        return None
    size = int(rng.integers(1, width))
    indices = sorted(int(i) for i in rng.choice(width, size, replace=False))
    return _insert(
        chain, index, "selection", Stage("select", {"indices": indices}), indices=indices
    )


def _padding(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    if not _is_vector(chain):
        return None
    before, after = ((0, 2), (1, 0), (0, 1))[int(rng.integers(3))]
    arguments: dict[str, object] = {"before": before, "after": after, "value": 0.0}
    return _insert(chain, index, "padding", Stage("pad", arguments), **arguments)


def _channel_axis(layout: Layout, chain: Chain, index: int) -> int | None:
    """Return the axis of three channels after a stage."""
    if _is_vector(chain):
        return None
    is_float = "to_float" in [stage.operation for stage in chain.stages[: index + 1]]
    axis = -3 if layout.channels_first and is_float else -1
    shape = _input(chain, index, after=True).shape[1:]
    return axis if len(shape) == 3 and shape[axis] == 3 else None


def _channel_order(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    axis = _channel_axis(layout, chain, index)
    if axis is None:
        return None
    order = (2, 1, 0) if rng.random() < 0.7 else (1, 2, 0)
    added = Stage("select", {"indices": order, "axis": axis})
    return _insert(chain, index, "channel order", added, order=order)


def _axis_order(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    if _is_vector(chain) or chain.stages[index].operation == "history":
        return None
    axes = (0, 2, 1) if layout.channels_first else (1, 0, 2)
    return _insert(chain, index, "axis order", Stage("transpose", {"axes": axes}), order=axes)


def _range(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "to_float":
        return None
    low, high = (0.0, 255.0) if rng.random() < 0.5 else (-1.0, 1.0)
    numbers: dict[str, object] = {"low": low, "high": high}
    affine: dict[str, object] = {"factor": high - low, "offset": low}
    changed = stage.replaced(**numbers)
    return Edit("range", (changed,), numbers | affine, Stage("scale", affine))


def _resampling(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "resize":
        return None
    smooth = stage.arguments["kernel"] != "nearest"
    choices: list[dict[str, object]] = [
        {"kernel": "nearest", "antialias": False},
        {"kernel": "bicubic", "antialias": True},
        {"height": 22, "width": 26},
        {"height": 24, "width": 21},
    ]
    if smooth:
        choices.append({"kernel": "bilinear", "antialias": False})
    if stage.arguments["kernel"] == "area":
        choices.append({"kernel": "bilinear", "antialias": True})
    changed = stage.replaced(**choices[int(rng.integers(len(choices)))])
    names = ("kernel", "antialias", "height", "width")
    return Edit("resampling", (changed,), {name: changed.arguments[name] for name in names})


def _crop(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "crop":
        return None
    place = {"top": int(rng.integers(0, 12)), "left": int(rng.integers(0, 16))}
    names = ("top", "left", "height", "width")
    changed = stage.replaced(**place)
    return Edit("crop", (changed,), {name: changed.arguments[name] for name in names})


def _rounding(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    if not np.issubdtype(_input(chain, index, after=True).dtype, np.floating):
        return None
    dtype = "float16"
    return _insert(chain, index, "rounding", Stage("cast", {"dtype": dtype}), dtype=dtype)


def _clip_bounds(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "clip" or stage.arguments["high"] == WIDE:
        return None
    values = _input(chain, index, after=False)
    low, high = (round(float(x), 3) for x in np.quantile(values, (0.25, 0.7)))
    if rng.random() < 0.5:
        low = float(stage.arguments["low"])  # type: ignore[arg-type]
    return Edit("clip", (stage.replaced(low=low, high=high),), {"low": low, "high": high})


def _other_history(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "history":
        return None
    padding = "zeros" if stage.arguments["padding"] == "same" else "same"
    changes: list[dict[str, object]] = [
        {"order": "newest first"},
        {"padding": padding},
        {"length": int(stage.arguments["length"]) + 1},  # type: ignore[call-overload]
        {"start": "kept"},
    ]
    change = changes[int(rng.integers(4))]
    parameters = {"order": "oldest first", "start": "reset", **stage.arguments, **change}
    names = ("order", "padding", "length", "start")
    return Edit("history", (stage.replaced(**change),), {name: parameters[name] for name in names})


def _delta(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    if _input(chain, index, after=True).dtype == np.uint8:
        return None
    return _insert(chain, index, "delta", Stage("delta"))


def _fresh(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "running":
        return None
    zero = np.zeros_like(np.asarray(stage.arguments["mean"]))
    changed = stage.replaced(mean=zero, variance=zero + 1, count=1e-4)
    return Edit("statistics fresh", (changed,), {"mean": 0.0, "std": 1.0})


def _moving(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "running":
        return None
    return Edit("statistics moving", (stage.replaced(update=True),), {"count": 100.0})


def _other_width(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "normalize":
        return None
    std, width = (np.asarray(stage.arguments[name]) for name in ("std", "range"))
    ratio = np.broadcast_to(std / width, std.shape)
    numbers: dict[str, object] = {"width": "half range", "factor": ratio.ravel().tolist()}
    residual = Stage("scale", {"factor": ratio, "offset": 0.0})
    return Edit("statistics of another width", (stage.replaced(std=width),), numbers, residual)


def _noise(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit:
    std, seed = round(float(rng.uniform(0.05, 0.2)), 3), int(rng.integers(1000))
    return _insert(chain, index, "noise", Stage("noise", {"std": std, "seed": seed}), std=std)


def _time_shift(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit:
    steps = int(rng.integers(1, 4))
    return _insert(chain, index, "time shift", Stage("delay", {"steps": steps}), steps=steps)


def _renamed(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    if not layout.renames or index != len(chain.stages) - 1:
        return None
    added = Stage("rename", {"key": "state"})
    parameters: dict[str, object] = {"old": key_of(chain.base), "new": "state"}
    return Edit("renamed key", (chain.stages[index], added), parameters)


def _gray_weights(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "gray":
        return None
    # Those of Gymnasium are rounded ones of the standard 709.
    others = [weights for weights in WEIGHTS if abs(weights[0] - layout.gray[0]) > 0.01]
    weights = others[int(rng.integers(len(others)))]
    return Edit("gray weights", (stage.replaced(weights=weights),), {"weights": weights})


def _epsilon(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "normalize":
        return None
    changed = stage.replaced(epsilon=5e-8)
    return Edit("epsilon", (changed,), {"epsilon": 5e-8}, observable=False)


EDITS: dict[str, Maker] = {
    "missing stage": _missing,
    "extra stage": _extra,
    "twice": _twice,
    "inactive": _inactive,
    "sometimes inactive": _sometimes_inactive,
    "order": _order,
    "scale": _scale,
    "feature scale": _feature_scale,
    "permutation": _permutation,
    "selection": _selection,
    "padding": _padding,
    "channel order": _channel_order,
    "axis order": _axis_order,
    "range": _range,
    "resampling": _resampling,
    "crop": _crop,
    "rounding": _rounding,
    "clip": _clip_bounds,
    "history": _other_history,
    "delta": _delta,
    "statistics fresh": _fresh,
    "statistics moving": _moving,
    "statistics of another width": _other_width,
    "noise": _noise,
    "time shift": _time_shift,
    "renamed key": _renamed,
    "gray weights": _gray_weights,
    "epsilon": _epsilon,
}
"""Swapped statistics need two keys: only the checkpoints have them."""


def _flip(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    if _is_vector(chain) or chain.stages[index].operation == "history":
        return None
    is_float = "to_float" in [stage.operation for stage in chain.stages[: index + 1]]
    rows = -2 if layout.channels_first and is_float else -3
    axis = rows + int(rng.integers(2))
    return _insert(chain, index, "flip", Stage("flip", {"axis": axis}), axis=axis)


def _negated(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    values = _input(chain, index, after=True)
    if not _is_vector(chain) or values.shape[-1] < 2:
        return None
    factor = np.ones(values.shape[-1], np.float32)
    factor[int(rng.integers(len(factor)))] = -1
    numbers: dict[str, object] = {"factor": factor.tolist(), "offset": [0.0] * len(factor)}
    added = Stage("scale", {"factor": factor, "offset": 0.0})
    return Edit("feature scale", (chain.stages[index], added), numbers, added)


def _masked(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    values = _input(chain, index, after=True)
    if not _is_vector(chain) or values.shape[-1] < 2:
        return None
    factor = np.ones(values.shape[-1], np.float32)
    masked = int(rng.integers(len(factor)))
    factor[masked] = 0
    # Libraries refuse a scale of zero.
    masks = Stage("scale", {"factor": factor, "offset": 0.0})
    added = Stage("sequence", {"stages": (masks,)})
    return Edit("constant", (chain.stages[index], added), {"feature": masked}, added)


def _shift(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    offset = round(float(rng.uniform(0.1, 2)), 2)
    stage = _affine(chain.stages[index], 1.0, offset)
    if stage is None:
        return None
    numbers: dict[str, object] = {"factor": 1.0, "offset": offset}
    return Edit("scale", (stage,), numbers, Stage("scale", numbers))


def _one_sided(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    values = _input(chain, index, after=True)
    if values.dtype == np.uint8:
        return None
    limits = {"low": -WIDE, "high": round(float(np.quantile(values, 0.6)), 3)}
    added = Stage("clip", limits)
    return Edit("extra stage", (chain.stages[index], added), {"stage": "clip", **limits}, added)


def _swap(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    width = _input(chain, index, after=True).shape[-1]
    if not _is_vector(chain) or width < 3:
        return None
    order = list(range(width))
    order[0], order[-1] = order[-1], order[0]
    return _insert(chain, index, "permutation", Stage("select", {"indices": order}), order=order)


def _spaced(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "history":
        return None
    changed = stage.replaced(spacing=2, order="oldest first")
    numbers = {"order": "oldest first", "start": "reset", "spacing": 2}
    names = ("padding", "length")
    arguments = {name: stage.arguments[name] for name in names}
    return Edit("history", (changed,), {**numbers, **arguments})


def _larger_crop(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    # The size that the next stage receives may matter to nothing but a resize.
    if stage.operation != "crop":
        return None
    changed = stage.replaced(height=HEIGHT - 14, width=WIDTH - 18)
    names = ("top", "left", "height", "width")
    return Edit("crop", (changed,), {name: changed.arguments[name] for name in names})


def _by_variance(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    stage = chain.stages[index]
    if stage.operation != "normalize":
        return None
    std = np.asarray(stage.arguments["std"])
    numbers: dict[str, object] = {"factor": (1 / std).ravel().tolist()}
    residual = Stage("scale", {"factor": 1 / std, "offset": 0.0})
    changed = stage.replaced(std=std**2)
    return Edit("statistics of another width", (changed,), numbers, residual)


def _to_whole_numbers(layout: Layout, chain: Chain, index: int, rng: Generator) -> Edit | None:
    if not np.issubdtype(_input(chain, index, after=True).dtype, np.floating):
        return None
    return _insert(chain, index, "rounding", Stage("floor"), dtype="whole numbers")


HELD_OUT: dict[str, Maker] = {
    "flip": _flip,
    "negated feature": _negated,
    "masked feature": _masked,
    "shift": _shift,
    "one-sided clip": _one_sided,
    "swapped features": _swap,
    "spaced history": _spaced,
    "larger crop": _larger_crop,
    "variance": _by_variance,
    "whole numbers": _to_whole_numbers,
}
"""Kinds that were written after the engine, and measured before it was changed for them."""


# Mutations


def draw_mutation(
    layout: Layout,
    build: Callable[[Chain], object],
    seed: int,
    kinds: Sequence[str],
    rng: Generator,
) -> Mutation | None:
    """Return a mutation with one fault of each kind; ``None`` if no random chain suits them."""
    for _ in range(ATTEMPTS):
        chain = draw_chain(layout, rng)
        edits = _draw_edits(layout, chain, kinds, rng)
        target = None if edits is None else _apply(chain, edits)
        if edits is None or target is None:
            continue
        faults = tuple(
            Fault(
                edit.kind,
                index + layout.offset,
                _shifted(_interval(chain, index, edit), layout.offset),
                edit.parameters,
                edit.observable,
            )
            for index, edit in edits
        )
        name = f"{layout.library} {seed} {chain.base}: {' and '.join(f.kind for f in faults)}"
        return Mutation(
            name,
            layout.library,
            seed,
            partial(build, chain),
            partial(build, target),
            faults,
            (chain, target),
            build,
            layout.offset,
        )
    return None


def _draw_edits(
    layout: Layout, chain: Chain, kinds: Sequence[str], rng: Generator
) -> list[tuple[int, Edit]] | None:
    edits: dict[int, Edit] = {}
    taken: set[int] = set()
    for kind in kinds:
        # Two edits of one stage would not be two faults.
        for index in (int(i) for i in rng.permutation(len(chain.stages))):
            edit = {**EDITS, **HELD_OUT}[kind](layout, chain, index, rng)
            if edit is None or taken & set(range(index, index + edit.width)):
                continue
            # Each alone must have the effect that its label claims.
            if _apply(chain, [(index, edit)]) is None:
                continue
            edits[index] = edit
            taken |= set(range(index, index + edit.width))
            break
        else:
            return None
    return sorted(edits.items())


def _apply(chain: Chain, edits: Sequence[tuple[int, Edit]]) -> Chain | None:
    """Return the edited chain; ``None`` if it is invalid or hides what should be observable."""
    stages = list(chain.stages)
    for index, edit in reversed(edits):
        stages[index : index + edit.width] = edit.stages
    if not stages:
        return None
    frames = record(chain.base)
    plain = [stage for stage in stages if stage.operation != "rename"]
    is_renamed = len(plain) < len(stages)
    try:
        result = simulate(plain, frames)
    except (ValueError, IndexError, RuntimeError, TypeError):
        return None
    if result[0].dtype == np.uint8 and chain.base != IMAGE:
        return None
    if not all(np.isfinite(value).all() for value in result):
        return None
    reference = simulate(chain.stages, frames)
    if any(edit.observable for _, edit in edits):
        is_valid = is_renamed or differ(reference, result, SEEN)
    else:
        is_valid = not differ(reference, result, UNSEEN)
    return Chain(chain.base, tuple(stages)) if is_valid else None


def _interval(chain: Chain, index: int, edit: Edit) -> tuple[int, int] | None:
    """Return the stages at which the edit has the same effect on recorded observations."""
    frames, stages = record(chain.base), list(chain.stages)
    if edit.residual is not None:
        rest, moved, place = stages, edit.residual, index + 1
    elif edit.kind in ("missing stage", "inactive"):
        rest, moved, place = stages[:index] + stages[index + 1 :], stages[index], index
    else:
        return None
    try:
        expected = simulate([*rest[:place], moved, *rest[place:]], frames)
    except (ValueError, IndexError, RuntimeError, TypeError):
        return None

    def is_same(at: int) -> bool:
        try:
            result = simulate([*rest[:at], moved, *rest[at:]], frames)
        except (ValueError, IndexError, RuntimeError, TypeError):
            return False
        return not differ(expected, result, UNSEEN)

    shift = 1 if edit.residual is not None else 0
    low = high = place
    while low - 1 >= shift and is_same(low - 1):
        low -= 1
    while high + 1 <= len(rest) and is_same(high + 1):
        high += 1
    return None if low == high else (low - shift, high - shift)


def _shifted(interval: tuple[int, int] | None, offset: int) -> tuple[int, int] | None:
    return None if interval is None else (interval[0] + offset, interval[1] + offset)


def kinds_of(layout: Layout, rng: Generator, makers: Mapping[str, Maker] = EDITS) -> Iterator[str]:
    """Yield kinds in random order, so that each comes up before one repeats."""
    while True:
        for index in rng.permutation(len(makers)):
            kind = list(makers)[int(index)]
            if kind != "renamed key" or layout.renames:
                yield kind


def held_out(
    layout: Layout, build: Callable[[Chain], object], seed: int, count: int
) -> list[Mutation]:
    """Return mutations with one fault of the kinds that were held out."""
    return single(layout, build, seed, count, HELD_OUT)


def single(
    layout: Layout,
    build: Callable[[Chain], object],
    seed: int,
    count: int,
    makers: Mapping[str, Maker] = EDITS,
) -> list[Mutation]:
    """Return mutations with one fault."""
    rng = np.random.default_rng(seed)
    kinds = kinds_of(layout, rng, makers)
    mutations: list[Mutation] = []
    while len(mutations) < count:
        mutation = draw_mutation(layout, build, seed, (next(kinds),), rng)
        if mutation is not None:
            name = f"{mutation.name} {len(mutations)}"
            mutations.append(replace(mutation, name=name))
    return mutations


def double(
    layout: Layout, build: Callable[[Chain], object], seed: int, count: int
) -> list[Mutation]:
    """Return mutations with two faults of different kinds and stages."""
    rng = np.random.default_rng(seed + 10_000)
    kinds = kinds_of(layout, rng)
    mutations: list[Mutation] = []
    while len(mutations) < count:
        pair = (next(kinds), next(kinds))
        mutation = draw_mutation(layout, build, seed, pair, rng) if _is_possible(pair) else None
        if mutation is not None:
            name = f"{mutation.name} {len(mutations)}"
            mutations.append(replace(mutation, name=name))
    return mutations


_OF_VECTORS = {
    "permutation", "selection", "padding", "statistics fresh", "statistics moving",
    "clip", "scale",
}  # fmt: skip
_OF_IMAGES = {"channel order", "axis order", "range", "resampling", "crop", "gray weights"}
# Chains have one normalizer, which only one of these kinds can change.
_OF_NORMALIZERS = {
    "feature scale", "statistics fresh", "statistics moving", "statistics of another width",
    "epsilon",
}  # fmt: skip


def _is_possible(pair: tuple[str, str]) -> bool:
    kinds = set(pair)
    is_mixed = bool(kinds & _OF_VECTORS) and bool(kinds & _OF_IMAGES)
    if kinds == {"gray weights", "feature scale"}:  # of one channel
        return False
    return len(kinds) == 2 and not is_mixed and not kinds <= _OF_NORMALIZERS


def clean(
    layout: Layout, build: Callable[[Chain], object], seed: int, count: int
) -> list[Mutation]:
    """Return pairs without a fault."""
    rng = np.random.default_rng(seed + 20_000)
    pairs = []
    for number in range(count):
        chain = draw_chain(layout, rng)
        make = partial(build, chain)
        name = f"{layout.library} {seed} {chain.base}: clean {number}"
        pairs.append(Mutation(name, layout.library, seed, make, make))
    return pairs
