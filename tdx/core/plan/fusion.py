"""Which stages run as one map on each image as it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdx.core.envs import EnvBase
from tdx.core.linear_images import ImageKernel, compile_image, linear_form
from tdx.core.plan.forms import StageForm
from tdx.core.transforms import Transform
from tdx.core.transforms.linear_image import LinearImage
from tdx.keys import NestedKey, normalize_key


@dataclass(frozen=True, slots=True)
class FusedImages:
    """Neighbouring stages that are one linear map of the images that the env observes.

    Args:
        key: the images' key, before and after.
        indices: the stages.
        kernel: what they are together; maps one image after another.
    """

    key: NestedKey
    indices: tuple[int, ...]
    kernel: ImageKernel


def fused_images(base: EnvBase, forms: Sequence[StageForm]) -> FusedImages | None:
    """The stages to run on each image as it arrives, or ``None`` where nothing is gained.

    Whoever reads the images must read what comes out of the last of these stages.

    Args:
        base: the env before all chains.
        forms: the stages.
    """
    leaves = list(base.full_observation_spec.items(True, True))
    if len(leaves) != 1:
        return None
    key, spec = normalize_key(leaves[0][0]), leaves[0][1]
    shape = tuple(spec.shape[base.ndim :])
    if len(shape) != 3 or spec.dtype is None:
        return None
    found: list[int] = []
    stages: list[Transform] = []
    whole: LinearImage | None = None
    for form in forms:
        if not _touches(form, key):
            continue
        if form.reads != (key,) or form.writes != (key,) or form.form is None:
            break
        longer = linear_form([*stages, form.stage], (shape[0], shape[1], shape[2]), spec.dtype)
        if longer is None:
            break
        stages.append(form.stage)
        found.append(form.index)
        whole = longer
    kernel = None if whole is None else compile_image(whole)
    return None if kernel is None else FusedImages(key, tuple(found), kernel)


def _touches(form: StageForm, key: NestedKey) -> bool:
    if form.is_opaque or form.reads is None:
        return True
    return key in (*form.reads, *(form.writes or ()), *form.drops, *form.root)
