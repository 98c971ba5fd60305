"""Faults in processors of LeRobot checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

import tdx
from tests.explanations.held_out.model import Case, Fault, fault
from tests.explanations.mutations.lerobot_steps import (
    CROP,
    CROPS,
    NORMALIZES,
    SURROUNDINGS,
    make_folder,
    samples,
    write,
)
from tests.stacks.checkpoints.folders import ACTION, STATE, Folder
from tests.stacks.checkpoints.folders import IMAGE as CAMERA

Edit = Callable[[Folder], None]
N = "normalizer"
EXTRA = "missing stage"


def step(folder: Folder, name: str) -> dict[str, Any]:
    return next(step for step in folder.before if step["registry_name"] == name)


def remove(folder: Folder, name: str) -> None:
    folder.before.remove(step(folder, name))


def opened(*edits: Edit) -> Any:
    folder = make_folder(77)
    for edit in edits:
        edit(folder)
    return tdx.open_stack(write(folder), samples=samples(5))


def case(*edits: Edit, faults: tuple[Fault, ...]) -> Case:
    return Case(opened, lambda: opened(*edits), faults)


def dtype(name: str) -> Edit:
    return lambda folder: step(folder, "device_processor")["config"].update(float_dtype=name)


def no_crop(folder: Folder) -> None:
    remove(folder, CROPS)


def no_normalizer(folder: Folder) -> None:
    remove(folder, NORMALIZES)


def pixels(folder: Folder) -> None:
    folder.insert(CROP + 1, "xvla_image_scale")


def identity(folder: Folder) -> None:
    folder.normalizer["norm_map"]["STATE"] = "IDENTITY"


def degrees(folder: Folder) -> None:
    named = folder.statistics["before"][STATE]
    named["mean"], named["std"] = (np.rad2deg(named[name]) for name in ("mean", "std"))


def joints(folder: Folder) -> None:
    named = folder.statistics["before"][STATE]
    order = [1, 0, 2, 3, 4, 5]
    for name, value in named.items():
        named[name] = value[order].copy()


def other_mean(folder: Folder) -> None:
    named = folder.statistics["before"][CAMERA]
    named["mean"], named["std"] = (np.full_like(named["mean"], 0.5) for _ in range(2))


def epsilon(folder: Folder) -> None:
    folder.normalizer["eps"] = 0.05


def rename(**names: str) -> Edit:
    mapping = {key.replace("__", "."): value for key, value in names.items()}
    return lambda folder: step(folder, "rename_observations_processor")["config"].update(
        rename_map=mapping
    )


def size(folder: Folder) -> None:
    step(folder, CROPS)["config"]["resize_size"] = [24, 21]


def place(folder: Folder) -> None:
    boxes = step(folder, CROPS)["config"]["crop_params_dict"]
    boxes[CAMERA] = [0, 0, *boxes[CAMERA][2:]]


def swapped(folder: Folder) -> None:
    named = folder.statistics["before"]
    named[STATE], named[SURROUNDINGS] = named[SURROUNDINGS], named[STATE]


def of_actions(folder: Folder) -> None:
    named = folder.statistics["before"]
    named[STATE] = copy.deepcopy(named[ACTION])


def doubled(folder: Folder) -> None:
    folder.before.append(copy.deepcopy(step(folder, NORMALIZES)))


def unnormalizer(folder: Folder) -> None:
    folder.statistics["after"][ACTION]["std"] *= np.float32(2)


CASES: dict[str, Case] = {
    "LeRobot: bfloat16": case(
        dtype("bfloat16"), faults=(fault("device", "rounding", "argument", "dtype"),)
    ),
    "LeRobot: float16 and no crop": case(
        dtype("float16"),
        no_crop,
        faults=(
            fault("device", "rounding", "argument", "dtype"),
            fault("image_crop_resize", EXTRA),
        ),
    ),
    "LeRobot: 0 to 255 and no normalizer": case(
        pixels,
        no_normalizer,
        faults=(
            fault("xvla_image_scale", EXTRA, numbers={"factor": 255}),
            fault(N, EXTRA),
        ),
    ),
    "LeRobot: state as it is": case(
        identity, faults=(fault(N, "argument", "inactive", says="IDENTITY"),)
    ),
    "LeRobot: statistics in degrees": case(degrees, faults=(fault(N, "feature scale", "value"),)),
    "LeRobot: joints of the statistics swapped": case(
        joints, faults=(fault(N, "value", "feature scale", says="1, 0, 2, 3, 4, 5"),)
    ),
    "LeRobot: mean 0.5 of the images": case(
        other_mean, faults=(fault(N, "feature scale", "scale", "value"),)
    ),
    "LeRobot: eps": case(epsilon, faults=(fault(N, "argument", says="eps is 0.05"),)),
    "LeRobot: keys swapped": case(
        rename(observation__state=SURROUNDINGS, observation__environment_state=STATE),
        faults=(fault("rename_observations", "argument", "renamed key"),),
    ),
    "LeRobot: sizes swapped": case(
        size, faults=(fault("image_crop_resize", "argument", "resampling", says="24"),)
    ),
    "LeRobot: crop at the corner": case(
        place, faults=(fault("image_crop_resize", "argument", "crop"),)
    ),
    "LeRobot: statistics of another dict": case(swapped, faults=(fault(N, "swapped statistics"),)),
    "LeRobot: statistics of the actions": case(
        of_actions, faults=(fault(N, "swapped statistics", says=ACTION),)
    ),
    "LeRobot: normalized twice, float16": case(
        doubled,
        dtype("float16"),
        faults=(
            fault(N, EXTRA, says="twice"),
            fault("device", "rounding", "argument", "dtype"),
        ),
    ),
    "LeRobot: unnormalizer": case(
        unnormalizer, faults=(fault("unnormalizer", "scale", "value", "width"),)
    ),
    "LeRobot: swapped statistics and another size": case(
        swapped,
        size,
        faults=(
            fault(N, "swapped statistics"),
            fault("image_crop_resize", "argument", "resampling"),
        ),
    ),
}
