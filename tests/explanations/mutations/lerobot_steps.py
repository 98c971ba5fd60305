"""Preprocessors of LeRobot checkpoints, written as JSON and safetensors.

Faults are other arguments, statistics and steps of the registry: a folder has no code of its own.
"""

from __future__ import annotations

import atexit
import copy
import itertools
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.explanations.mutations.envs import HEIGHT, IMAGE, WIDTH, record
from tests.explanations.mutations.model import Array, Fault, Mutation
from tests.stacks.checkpoints.folders import IMAGE as CAMERA
from tests.stacks.checkpoints.folders import STATE, Folder, statistics

SURROUNDINGS = "observation.environment_state"
WIDTHS = 6
RENAME, DEVICE, CROP, NORMALIZER = 0, 2, 3, 4
"""Stages of the reference; stage 1 adds the batch dim."""

Generator = np.random.Generator
Edit = Callable[[Folder, Generator], Fault]

_FOLDERS = tempfile.TemporaryDirectory(prefix="tdx-mutations-")
atexit.register(_FOLDERS.cleanup)
_NUMBERS = itertools.count()


def make_folder(seed: int) -> Folder:
    """Return a reference with random statistics and a random crop."""
    rng = np.random.default_rng(seed)
    folder = Folder()
    features = folder.config["input_features"]
    features[CAMERA]["shape"] = [3, HEIGHT, WIDTH]
    features[SURROUNDINGS] = {"type": "ENV", "shape": [WIDTHS]}
    for config in (folder.normalizer, folder.unnormalizer):
        config["norm_map"] = {**config["norm_map"], "ENV": "MEAN_STD"}
    folder.config["normalization_mapping"]["ENV"] = "MEAN_STD"
    folder.normalizer["features"] = {**folder.normalizer["features"], **copy.deepcopy(features)}
    for named in folder.both:
        named[STATE] = statistics(rng.normal(1, 3, (300, WIDTHS)) + rng.uniform(-2, 2, WIDTHS))
        named[SURROUNDINGS] = statistics(rng.normal(-2, 1, (300, WIDTHS)))
    box = [int(rng.integers(2, 10)), int(rng.integers(2, 14)), HEIGHT - 12, WIDTH - 16]
    crop = {"crop_params_dict": {CAMERA: box}, "resize_size": [21, 24]}
    folder.insert(CROP, "image_crop_resize_processor", **crop)
    return folder


def samples(seed: int = 0) -> list[dict[str, Array]]:
    """Return samples: vectors, and pictures in 0 … 1 with channels first."""
    rng = np.random.default_rng(seed)
    pictures = [np.moveaxis(picture, -1, 0) for picture, _ in record(IMAGE, seed)]
    return [
        {
            STATE: rng.normal(1, 3, WIDTHS).astype(np.float32),
            SURROUNDINGS: rng.normal(-2, 1, WIDTHS).astype(np.float32),
            CAMERA: picture.astype(np.float32) / np.float32(255),
        }
        for picture in pictures
    ]


def _step(folder: Folder, name: str) -> dict[str, Any]:
    return next(step for step in folder.before if step["registry_name"] == name)


def _position(folder: Folder, name: str) -> int:
    return folder.before.index(_step(folder, name))


NORMALIZES, CROPS = "normalizer_processor", "image_crop_resize_processor"


def _missing_crop(folder: Folder, rng: Generator) -> Fault:
    del folder.before[_position(folder, CROPS)]
    return Fault("missing stage", CROP, (RENAME, CROP), {"stage": CROPS})


def _missing_normalizer(folder: Folder, rng: Generator) -> Fault:
    del folder.before[_position(folder, NORMALIZES)]
    return Fault("missing stage", NORMALIZER, None, {"stage": NORMALIZES})


def _extra(folder: Folder, rng: Generator) -> Fault:
    name = "xvla_imagenet_normalize"
    folder.insert(_position(folder, CROPS) + 1, name)
    return Fault("extra stage", CROP, None, {"stage": name})


def _twice(folder: Folder, rng: Generator) -> Fault:
    step = _step(folder, NORMALIZES)
    folder.before.insert(_position(folder, NORMALIZES), copy.deepcopy(step))
    return Fault("twice", NORMALIZER, None, {"stage": NORMALIZES})


def _inactive(folder: Folder, rng: Generator) -> Fault:
    folder.normalizer["norm_map"] = dict.fromkeys(folder.normalizer["norm_map"], "IDENTITY")
    return Fault("inactive", NORMALIZER, None, {"stage": NORMALIZES})


def _order(folder: Folder, rng: Generator) -> Fault:
    one, other = _position(folder, CROPS), _position(folder, NORMALIZES)
    folder.before[one], folder.before[other] = folder.before[other], folder.before[one]
    return Fault("order", CROP, None, {"stages": (CROP, NORMALIZER)})


def _scale(folder: Folder, rng: Generator) -> Fault:
    factor = round(float(rng.uniform(1.2, 3)), 2)
    folder.statistics["before"][STATE]["std"] /= np.float32(factor)
    return Fault("scale", NORMALIZER, None, {"key": STATE, "factor": factor, "offset": 0.0})


def _feature_scale(folder: Folder, rng: Generator) -> Fault:
    factor = rng.uniform(0.5, 2, WIDTHS).round(3).astype(np.float32)
    offset = rng.uniform(-0.5, 0.5, WIDTHS).round(3).astype(np.float32)
    named = folder.statistics["before"][STATE]
    named["mean"] = named["mean"] - offset * named["std"] / factor
    named["std"] = named["std"] / factor
    numbers = {"factor": factor.tolist(), "offset": offset.tolist()}
    return Fault("feature scale", NORMALIZER, None, {"key": STATE, **numbers})


def _range(folder: Folder, rng: Generator) -> Fault:
    folder.insert(_position(folder, CROPS) + 1, "xvla_image_scale")
    numbers = {"low": 0.0, "high": 255.0, "factor": 255.0, "offset": 0.0}
    return Fault("range", CROP, None, {"key": CAMERA, **numbers})


def _resampling(folder: Folder, rng: Generator) -> Fault:
    height, width = ((22, 26), (24, 21), (18, 24))[int(rng.integers(3))]
    _step(folder, CROPS)["config"]["resize_size"] = [height, width]
    return Fault("resampling", CROP, None, {"key": CAMERA, "height": height, "width": width})


def _crop(folder: Folder, rng: Generator) -> Fault:
    boxes = _step(folder, CROPS)["config"]["crop_params_dict"]
    top, left, height, width = boxes[CAMERA]
    top, left = (top + int(rng.integers(1, 8))) % 12, (left + int(rng.integers(1, 10))) % 16
    boxes[CAMERA] = [top, left, height, width]
    numbers = {"top": top, "left": left, "height": height, "width": width}
    return Fault("crop", CROP, None, {"key": CAMERA, **numbers})


def _rounding(folder: Folder, rng: Generator) -> Fault:
    _step(folder, "device_processor")["config"]["float_dtype"] = "float16"
    return Fault("rounding", DEVICE, (RENAME, DEVICE), {"dtype": "float16"})


def _fresh(folder: Folder, rng: Generator) -> Fault:
    named = folder.statistics["before"][STATE]
    named["mean"], named["std"] = np.zeros_like(named["mean"]), np.ones_like(named["std"])
    return Fault("statistics fresh", NORMALIZER, None, {"key": STATE, "mean": 0.0, "std": 1.0})


def _other_width(folder: Folder, rng: Generator) -> Fault:
    mode = ("MIN_MAX", "QUANTILES")[int(rng.integers(2))]
    folder.normalizer["norm_map"]["STATE"] = mode
    return Fault("statistics of another width", NORMALIZER, None, {"key": STATE, "width": mode})


def _swapped(folder: Folder, rng: Generator) -> Fault:
    named = folder.statistics["before"]
    named[STATE], named[SURROUNDINGS] = named[SURROUNDINGS], named[STATE]
    keys = {"keys": (STATE, SURROUNDINGS)}
    return Fault("statistics swapped between keys", NORMALIZER, None, dict(keys))


def _renamed(folder: Folder, rng: Generator) -> Fault:
    old, new = ((CAMERA, "observation.images.front"), (STATE, "observation.joints"))[
        int(rng.integers(2))
    ]
    _step(folder, "rename_observations_processor")["config"]["rename_map"] = {old: new}
    return Fault("renamed key", RENAME, None, {"old": old, "new": new})


def _epsilon(folder: Folder, rng: Generator) -> Fault:
    folder.normalizer["eps"] = 5e-8
    return Fault("epsilon", NORMALIZER, None, {"epsilon": 5e-8}, observable=False)


EDITS: tuple[Edit, ...] = (
    _missing_crop, _missing_normalizer, _extra, _twice, _inactive, _order, _scale, _feature_scale,
    _range, _resampling, _crop, _rounding, _fresh, _other_width, _swapped, _renamed, _epsilon,
)  # fmt: skip


def _draw(edits: Sequence[Edit], chain_seed: int, edit_seed: int) -> tuple[Folder, list[Fault]]:
    folder, rng = make_folder(chain_seed), np.random.default_rng(edit_seed)
    return folder, [edit(folder, rng) for edit in edits]


def _write(edits: Sequence[Edit], chain_seed: int, edit_seed: int) -> object:
    return write(_draw(edits, chain_seed, edit_seed)[0])


def write(folder: Folder) -> Path:
    """Write a folder to a new place."""
    return folder.write(Path(_FOLDERS.name) / str(next(_NUMBERS)))


def _mutation(edits: Sequence[Edit], seed: int, number: int) -> Mutation:
    chain_seed, edit_seed = 1000 * seed + number, 1000 * seed + number + 500
    faults = sorted(_draw(edits, chain_seed, edit_seed)[1], key=lambda fault: fault.stage)
    kinds = " and ".join(fault.kind for fault in faults) or "clean"
    return Mutation(
        f"lerobot {seed} checkpoint: {kinds} {number}",
        "lerobot",
        seed,
        partial(_write, (), chain_seed, edit_seed),
        partial(_write, tuple(edits), chain_seed, edit_seed),
        tuple(faults),
        folders=lambda: (
            _draw((), chain_seed, edit_seed)[0],
            _draw(edits, chain_seed, edit_seed)[0],
        ),
    )


def _order_of_edits(seed: int) -> itertools.chain[Edit]:
    rng = np.random.default_rng(seed)
    return itertools.chain.from_iterable(
        [EDITS[int(index)] for index in rng.permutation(len(EDITS))] for _ in itertools.count()
    )


def single(seed: int, count: int) -> list[Mutation]:
    """Return mutations with one fault."""
    edits = _order_of_edits(seed)
    return [_mutation([next(edits)], seed, number) for number in range(count)]


def double(seed: int, count: int) -> list[Mutation]:
    """Return mutations with two faults at different stages."""
    edits, mutations = _order_of_edits(seed + 10_000), list[Mutation]()
    while len(mutations) < count:
        pair = [next(edits), next(edits)]
        if not _stages(pair[0]) & _stages(pair[1]):
            mutations.append(_mutation(pair, seed, len(mutations)))
    return mutations


def clean(seed: int, count: int) -> list[Mutation]:
    """Return pairs without a fault."""
    return [_mutation([], seed, number) for number in range(count)]


def _stages(edit: Edit) -> set[int]:
    """Return the stages that an edit touches."""
    fault = edit(make_folder(0), np.random.default_rng(0))
    return {CROP, NORMALIZER} if fault.kind == "order" else {fault.stage}
