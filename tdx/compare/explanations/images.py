"""Edits of images: resampling, crops and weights of gray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tdx.compare.edits import Edit, Sides
from tdx.compare.values import format_number

_KERNELS = (
    ("nearest", False),
    ("nearest-exact", False),
    ("bilinear", False),
    ("bilinear", True),
    ("bicubic", False),
    ("bicubic", True),
    ("area", False),
    ("overlap", False),
)
_GRAYS = (
    ((0.299, 0.587, 0.114), "of Rec. 601"),
    ((0.2989, 0.587, 0.114), "of Rec. 601"),
    ((0.2126, 0.7152, 0.0722), "of Rec. 709"),
    ((1 / 3, 1 / 3, 1 / 3), "of the mean"),
    ((0.114, 0.587, 0.299), "of Rec. 601 with BGR taken for RGB"),
)
_SCREENED = 2
"""Images on which a kernel is tried first."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the height and the width of an image are among its dims, and the largest value.

    Args:
        rows: Dim of the rows of pixels.
        columns: Dim of the columns.
        is_whole: True if pixels are whole numbers.
        unit: One step of an 8-bit pixel.
    """

    rows: int
    columns: int
    is_whole: bool
    unit: float


def _layouts(received: Tensor, made: Tensor) -> Iterator[_Layout]:
    if received.ndim != made.ndim or not 4 <= received.ndim <= 5:
        return
    largest = float(made.abs().max()) if made.numel() else 0.0
    is_whole = bool((made == made.round()).all()) and largest > 1
    unit = 1.0 if largest > 2 else 1 / 255
    dims = [(2, 3)] if received.ndim == 4 else [(2, 3), (3, 4)]
    for rows, columns in dims:
        others = [dim for dim in range(2, received.ndim) if dim not in (rows, columns)]
        is_kept = all(received.shape[dim] == made.shape[dim] for dim in others)
        if is_kept and min(received.shape[rows], received.shape[columns]) > 4:
            yield _Layout(rows, columns, is_whole, unit)


def _planes(values: Tensor, layout: _Layout) -> Tensor:
    return values.movedim((layout.rows, layout.columns), (-2, -1))


def _resize(
    received: Tensor, size: tuple[int, int], kernel: tuple[str, bool], layout: _Layout
) -> Tensor:
    planes = _planes(received, layout)
    flat = planes.reshape(-1, 1, *planes.shape[-2:]).float()
    mode, antialias = kernel
    if mode == "overlap":
        # The area of OpenCV: each pixel counts by the part of it that a new one covers.
        height, width = (
            _overlaps(old, new) for old, new in zip(flat.shape[-2:], size, strict=True)
        )
        resized = height @ flat @ width.T
        if layout.is_whole:
            resized = resized.round().clamp(0, 255)
        resized = resized.reshape(*planes.shape[:-2], *size).double()
        return resized.movedim((-2, -1), (layout.rows, layout.columns))
    options: dict[str, bool] = {}
    if mode in ("bilinear", "bicubic"):
        options = {"align_corners": False, "antialias": antialias}
    resized = interpolate(flat, size, mode=mode, **options)
    if layout.is_whole:
        resized = resized.round().clamp(0, 255)
    resized = resized.reshape(*planes.shape[:-2], *size).double()
    return resized.movedim((-2, -1), (layout.rows, layout.columns))


def _overlaps(old: int, new: int) -> Tensor:
    """Return how much each new pixel covers of each old one, ``[new, old]``."""
    edges = torch.arange(new + 1) * (old / new)
    pixels = torch.arange(old)
    covered = torch.minimum(edges[1:, None], pixels + 1) - torch.maximum(edges[:-1, None], pixels)
    return covered.clamp(min=0) * (new / old)


def resampling_edits(sides: Sides) -> Iterator[Edit]:
    """Yield another kernel, or another size, of resized images."""
    received, reference, target = sides.received, sides.reference, sides.target
    if received is None or received.shape == reference.shape == target.shape:
        return
    for layout in _layouts(received, target):
        own = _find_kernel(received, target, layout)
        if own is None:
            continue
        size = target.shape[layout.rows], target.shape[layout.columns]
        text = f"it is resized with {_kernel_text(own)}"
        known: tuple[str, bool] | None = None
        recorded = size
        if reference.ndim == target.ndim and (same := list(_layouts(received, reference))):
            known = _find_kernel(received, reference, same[0])
            recorded = reference.shape[layout.rows], reference.shape[layout.columns]
            if known == own and recorded == size:
                continue
            if recorded != size:
                text = f"it is resized to {list(size)} instead of {list(recorded)}"
            if known is not None and known != own:
                text += "" if recorded == size else f", with {_kernel_text(own)}"
                text += f" instead of {_kernel_text(known)}"

        def predict(
            sides: Sides,
            own: tuple[str, bool] = own,
            size: tuple[int, int] = size,
            layout: _Layout = layout,
        ) -> Tensor | None:
            return None if sides.received is None else _resize(sides.received, size, own, layout)

        parameters: dict[str, object] = {
            "kernel": own[0],
            "antialias": own[1],
            "height": size[0],
            "width": size[1],
        }
        if known is not None:
            height, width = recorded
            parameters["reference"] = {
                "kernel": known[0],
                "antialias": known[1],
                "height": height,
                "width": width,
            }
        hint = "resize with the kernel, the antialiasing and the size of the reference"
        yield Edit("resampling", text, parameters, hint, predict, 1.0, slack=2.01 * layout.unit)


def _kernel_text(kernel: tuple[str, bool]) -> str:
    return f"{kernel[0]}, antialiased" if kernel[1] else kernel[0]


def _find_kernel(received: Tensor, made: Tensor, layout: _Layout) -> tuple[str, bool] | None:
    """Return the kernel whose images are nearest to those of a stage."""
    size = made.shape[layout.rows], made.shape[layout.columns]
    if min(size) < 2 or size == (received.shape[layout.rows], received.shape[layout.columns]):
        return None
    few = received[:_SCREENED, :1], made[:_SCREENED, :1]
    errors = []
    for kernel in _KERNELS:
        gap = (_resize(few[0], size, kernel, layout) - few[1]).abs()
        if float(gap.max()) <= 2.01 * layout.unit:
            errors.append((float(gap.mean()), kernel))
    return min(errors)[1] if errors else None


def crop_edits(sides: Sides) -> Iterator[Edit]:
    """Yield another place or size of a crop."""
    received, reference, target = sides.received, sides.reference, sides.target
    if received is None:
        return
    for layout in _layouts(received, target):
        place = _find_crop(received, target, layout)
        if place is None:
            continue
        (top, left), size = place, (target.shape[layout.rows], target.shape[layout.columns])
        text = f"it is cut out at row {top} and column {left}"
        known = None
        if reference.ndim == target.ndim and (same := list(_layouts(received, reference))):
            known = _find_crop(received, reference, same[0])
        if known == place and reference.shape == target.shape:
            continue
        if known is not None:
            text += f" instead of row {known[0]} and column {known[1]}"
        if reference.shape[2:] != target.shape[2:]:
            text += f", with {size[0]} rows and {size[1]} columns"

        def predict(
            sides: Sides,
            top: int = top,
            left: int = left,
            size: tuple[int, int] = size,
            layout: _Layout = layout,
        ) -> Tensor | None:
            if sides.received is None:
                return None
            return _cut(sides.received, (top, left), size, layout)

        parameters: dict[str, object] = {
            "top": top,
            "left": left,
            "height": size[0],
            "width": size[1],
        }
        if known is not None:
            parameters["reference"] = {
                "top": known[0],
                "left": known[1],
                "height": reference.shape[layout.rows],
                "width": reference.shape[layout.columns],
            }
        hint = "cut out the region of the reference"
        yield Edit("crop", text, parameters, hint, predict, 1.0)


def _find_crop(received: Tensor, made: Tensor, layout: _Layout) -> tuple[int, int] | None:
    """Return the row and the column at which images were cut out."""
    whole, part = (_planes(side[:_SCREENED, :1], layout) for side in (received, made))
    height, width = part.shape[-2:]
    if height > whole.shape[-2] or width > whole.shape[-1] or part.shape == whole.shape:
        return None
    # All places at once: those whose first and last pixel are right are compared as a whole.
    spare = whole.shape[-2] - height + 1, whole.shape[-1] - width + 1
    corners = whole[..., : spare[0], : spare[1]] == part[..., :1, :1]
    corners &= whole[..., height - 1 :, width - 1 :] == part[..., -1:, -1:]
    candidates = corners.flatten(0, -3).all(0).nonzero().tolist()
    for top, left in candidates:
        if torch.equal(whole[..., top : top + height, left : left + width], part):
            return top, left
    return None


def _color_planes(received: Tensor, made: Tensor, dim: int) -> tuple[Tensor, Tensor] | None:
    """Return the colors ``[N, 3]`` of many pixels, and what a stage made of them, ``[N]``."""
    planes = received.movedim(dim, -1)
    squeezed = made.squeeze(dim) if made.ndim == 5 and made.shape[dim] == 1 else made
    if received.shape[dim] != 3 or planes.shape[:-1] != squeezed.shape:
        return None
    colors, gray = planes.reshape(-1, 3), squeezed.reshape(-1)
    step = max(len(gray) // 20_000, 1)
    return colors[::step], gray[::step]


def _gray_weights(colors: Tensor, gray: Tensor) -> list[float]:
    """Return the weights of red, green and blue that are nearest to gray pixels."""
    solved = torch.linalg.lstsq(colors, gray[:, None]).solution.flatten()
    return [float(weight) for weight in solved]


def _named_weights(received: Tensor, made: Tensor, dim: int) -> tuple[list[float], str] | None:
    """Return the weights of red, green and blue, those of a standard if they are near."""
    pixels = _color_planes(received, made, dim)
    if pixels is None:
        return None
    (colors, gray), near = pixels, []
    solved = _gray_weights(colors, gray)
    for known, text in _GRAYS:
        if max(abs(a - b) for a, b in zip(solved, known, strict=True)) < 5e-3:
            predicted = colors @ torch.tensor(known, dtype=colors.dtype)
            if bool((gray == gray.round()).all()):
                predicted = predicted.round()
            near.append((float((predicted - gray).abs().mean()), list(known), f" ({text})"))
    return min(near)[1:] if near else (solved, "")


def _to_gray(received: Tensor, dim: int, weights: Sequence[float], like: Tensor) -> Tensor:
    made = received.movedim(dim, -1) @ torch.tensor(weights, dtype=torch.float64)
    return made.unsqueeze(dim) if like.ndim == 5 else made


def image_stages(
    received: Tensor, made: Tensor
) -> Iterator[tuple[Callable[[Tensor], Tensor], float]]:
    """Yield what a stage may do to images ``[T, R, ...]``, and the error allowed in each pixel."""
    for layout in _layouts(received, made):
        size = made.shape[layout.rows], made.shape[layout.columns]
        place = _find_crop(received, made, layout)
        if place is not None:
            yield partial(_cut, place=place, size=size, layout=layout), 0.0
        elif (kernel := _find_kernel(received, made, layout)) is not None:
            resize = partial(_resize, size=size, kernel=kernel, layout=layout)
            yield resize, 2.01 * layout.unit
    if received.ndim == 5:
        for dim in (4, 2):
            pixels = _color_planes(received, made, dim)
            if pixels is not None:
                weights = _gray_weights(*pixels)
                unit = 1.0 if float(made.abs().max()) > 2 else 1 / 255
                yield partial(_to_gray, dim=dim, weights=weights, like=made), 1.51 * unit


def _cut(
    received: Tensor, place: tuple[int, int], size: tuple[int, int], layout: _Layout
) -> Tensor:
    rows = received.narrow(layout.rows, place[0], size[0])
    return rows.narrow(layout.columns, place[1], size[1])


def gray_edits(sides: Sides) -> Iterator[Edit]:
    """Yield other weights of red, green and blue."""
    received, reference, target = sides.received, sides.reference, sides.target
    if received is None or reference.shape != target.shape or received.ndim != 5:
        return
    for dim in (4, 2):
        own, recorded = (_named_weights(received, side, dim) for side in (target, reference))
        if own is None:
            continue
        unit = 1.0 if float(target.abs().max()) > 2 else 1 / 255
        weights, name = own
        shown = ", ".join(map(format_number, weights))

        def predict(
            sides: Sides, dim: int = dim, weights: tuple[float, ...] = tuple(weights)
        ) -> Tensor | None:
            if sides.received is None:
                return None
            return _to_gray(sides.received, dim, weights, sides.target)

        parameters: dict[str, object] = {"weights": weights}
        if recorded is not None:
            parameters["reference"] = {"weights": recorded[0]}
        hint = "use the weights of red, green and blue of the reference"
        text = f"its weights of red, green and blue are {shown}{name}"
        yield Edit("gray weights", text, parameters, hint, predict, 1.0, slack=1.51 * unit)
