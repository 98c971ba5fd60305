"""What a seeded mutation is, and the operations of which the chains of all libraries consist.

The operations are written in NumPy alone, so that labels depend neither on the library under test
nor on the code that explains differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.stacks.checkpoints.folders import Folder

Array = npt.NDArray[Any]
Values = Mapping[str, Array]


@dataclass(frozen=True)
class Fault:
    """One edit of a reference stack, with its label.

    Args:
        kind: What was changed.
        stage: Index in the stages of the opened reference; the innermost stage is the first.
        commutes: First and last stage at which the edit has the same effect.
        parameters: Numbers of the change. ``factor`` and ``offset`` map the output of the stage
            in the reference to the output in the target, ``order`` and ``indices`` index it.
        observable: Whether values differ; ``None`` if it is unknown.
    """

    kind: str
    stage: int
    commutes: tuple[int, int] | None = None
    parameters: dict[str, object] = field(default_factory=dict)
    observable: bool | None = True


@dataclass(frozen=True)
class Mutation:
    """A reference stack, and a target with zero (clean), one or two faults.

    Args:
        name: Unique name.
        library: Library of both stacks.
        seed: Seed of the generator.
        reference: Builds the reference.
        target: Builds the target.
        faults: The edits, innermost first.
        chains: The chains of both sides; ``None`` if they are files.
        build: Builds a stack with a chain.
        offset: Stages of an opened stack inside the first stage of the chain.
        folders: Makes the checkpoints of both sides, for LeRobot.
    """

    name: str
    library: str
    seed: int
    reference: Callable[[], object]
    target: Callable[[], object]
    faults: tuple[Fault, ...] = ()
    chains: tuple[Chain, Chain] | None = None
    build: Callable[[Chain], object] | None = None
    offset: int = 0
    folders: Callable[[], tuple[Folder, Folder]] | None = None

    @property
    def observable(self) -> bool | None:
        """Whether any fault is observable."""
        states = [fault.observable for fault in self.faults]
        return True if True in states else None if None in states else False


@dataclass(frozen=True)
class Stage:
    """One operation of a chain, with its arguments."""

    operation: str
    arguments: Mapping[str, object] = field(default_factory=dict)

    def replaced(self, **arguments: object) -> Stage:
        """Return the stage with other arguments."""
        return Stage(self.operation, {**self.arguments, **arguments})


@dataclass(frozen=True)
class Chain:
    """The stages around an env, innermost first."""

    base: str
    stages: tuple[Stage, ...]


STATEFUL = ("running", "history", "delta", "delay", "noise", "sequence", "sometimes")
"""Operations whose output depends on earlier observations."""


class Operation:
    """Apply a stage to the observations of one env.

    Args:
        stage: The stage.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._frames: list[Array] = []
        self._random = np.random.default_rng(int(self._get("seed", 0)))
        self._count = self._get("count", 0.0)
        self._mean, self._variance = self._get("mean", 0.0), self._get("variance", 1.0)
        self._inner = [Operation(part) for part in self._get("stages", ())]

    def _get(self, name: str, default: object = None) -> Any:
        return self.stage.arguments.get(name, default)

    def __call__(self, value: Array, first: bool) -> Array:
        """Return the output for one observation; ``first`` after a reset."""
        method: Callable[[Array, bool], Array] = getattr(self, f"_{self.stage.operation}")
        return method(value, first)

    def _identity(self, value: Array, first: bool) -> Array:
        return value

    def _sequence(self, value: Array, first: bool) -> Array:
        for operation in self._inner:
            value = operation(value, first)
        return value

    def _sometimes(self, value: Array, first: bool) -> Array:
        """Pass on the observations of resets, or those of steps."""
        is_off = first == (self._get("off") == "resets")
        return value if is_off else self._sequence(value, first)

    def _normalize(self, value: Array, first: bool) -> Array:
        value = _as_float(value)
        mean, std = (np.asarray(self._get(name), value.dtype) for name in ("mean", "std"))
        return (value - mean) / (std + value.dtype.type(self._get("epsilon", 1e-8)))

    def _running(self, value: Array, first: bool) -> Array:
        if self._get("update"):
            count = self._count + 1
            delta = value - self._mean
            squares = self._variance * self._count + delta**2 * self._count / count
            self._mean, self._variance = self._mean + delta / count, squares / count
            self._count = count
        result = (value - self._mean) / np.sqrt(self._variance + 1e-8)
        return result.astype(np.float32)

    def _scale(self, value: Array, first: bool) -> Array:
        value = _as_float(value)
        factor, offset = (np.asarray(self._get(name), value.dtype) for name in ("factor", "offset"))
        return value * factor + offset

    def _clip(self, value: Array, first: bool) -> Array:
        low, high = (value.dtype.type(self._get(name)) for name in ("low", "high"))
        return np.clip(value, low, high)

    def _select(self, value: Array, first: bool) -> Array:
        return np.take(value, list(self._get("indices")), int(self._get("axis", -1)))

    def _pad(self, value: Array, first: bool) -> Array:
        widths = [(0, 0)] * (value.ndim - 1) + [(self._get("before"), self._get("after"))]
        return np.pad(value, widths, constant_values=self._get("value"))

    def _history(self, value: Array, first: bool) -> Array:
        count, spacing = self._get("length"), self._get("spacing", 1)
        length = (count - 1) * spacing + 1
        if first and not (self._frames and self._get("start", "reset") == "kept"):
            filler = value if self._get("padding") == "same" else np.zeros_like(value)
            self._frames = [filler] * length
        self._frames = [*self._frames[1:], value]
        is_reversed = self._get("order") == "newest first"
        frames = (self._frames[::-1] if is_reversed else self._frames)[::spacing]
        axis = self._get("axis")
        return np.stack(frames, 0) if self._get("new_axis") else np.concatenate(frames, axis)

    def _delta(self, value: Array, first: bool) -> Array:
        previous = value if first else self._frames[0]
        self._frames = [value]
        return value - previous

    def _delay(self, value: Array, first: bool) -> Array:
        steps = self._get("steps")
        self._frames = [value] * (steps + 1) if first else [*self._frames[1:], value]
        return self._frames[0]

    def _noise(self, value: Array, first: bool) -> Array:
        noise = self._random.normal(0, self._get("std"), value.shape)
        if np.issubdtype(value.dtype, np.integer):
            return np.clip(np.rint(value + noise * 255), 0, 255).astype(value.dtype)
        return value + noise.astype(value.dtype)

    def _flip(self, value: Array, first: bool) -> Array:
        return np.ascontiguousarray(np.flip(value, self._get("axis")))

    def _floor(self, value: Array, first: bool) -> Array:
        return np.floor(value)

    def _cast(self, value: Array, first: bool) -> Array:
        return value.astype(self._get("dtype")).astype(value.dtype)

    def _transpose(self, value: Array, first: bool) -> Array:
        return np.ascontiguousarray(np.transpose(value, self._get("axes")))

    def _crop(self, value: Array, first: bool) -> Array:
        rows = slice(self._get("top"), self._get("top") + self._get("height"))
        columns = slice(self._get("left"), self._get("left") + self._get("width"))
        return value[..., rows, columns] if self._get("channels_first") else value[rows, columns]

    def _resize(self, value: Array, first: bool) -> Array:
        image = torch.from_numpy(np.ascontiguousarray(value))
        image = image if self._get("channels_first") else image.movedim(-1, 0)
        kernel, size = self._get("kernel"), (self._get("height"), self._get("width"))
        smooth = kernel in ("bilinear", "bicubic")
        options = {"align_corners": False, "antialias": self._get("antialias")} if smooth else {}
        batch = image[None].float()
        resized = torch.nn.functional.interpolate(batch, size, mode=kernel, **options)[0]
        if not image.is_floating_point():
            resized = resized.clamp(0, 255).round().to(image.dtype)
        resized = resized if self._get("channels_first") else resized.movedim(0, -1)
        return np.ascontiguousarray(resized.numpy())

    def _gray(self, value: Array, first: bool) -> Array:
        weights = np.asarray(self._get("weights"), np.float32)
        axis = -3 if self._get("channels_first") else -1
        gray = np.expand_dims(np.moveaxis(value, axis, -1).astype(np.float32) @ weights, axis)
        if np.issubdtype(value.dtype, np.integer):
            gray = np.rint(gray)
        return gray.astype(value.dtype)

    def _to_float(self, value: Array, first: bool) -> Array:
        low, high = np.float32(self._get("low", 0)), np.float32(self._get("high", 1))
        if self._get("channels_first"):
            value = np.ascontiguousarray(np.moveaxis(value, -1, -3))
        return value.astype(np.float32) / np.float32(255) * (high - low) + low


def _as_float(value: Array) -> Array:
    return value.astype(np.float32) if np.issubdtype(value.dtype, np.integer) else value


def simulate(stages: Sequence[Stage], frames: Sequence[tuple[Array, bool]]) -> list[Array]:
    """Return the outputs of a chain for recorded observations and marks of episode starts.

    Raises:
        ValueError: A stage cannot process its input.
        IndexError: The same.
    """
    operations = [Operation(stage) for stage in stages]
    outputs = []
    for value, first in frames:
        for operation in operations:
            value = operation(value, first)
        outputs.append(value)
    return outputs


def differ(one: Sequence[Array], other: Sequence[Array], tolerance: float) -> bool:
    """Return True if two lists of arrays differ by more than a share of their largest value."""
    if [value.shape for value in one] != [value.shape for value in other]:
        return True
    first, second = (np.stack(values).astype(np.float64) for values in (one, other))
    largest = max(float(np.abs(first).max()), 1e-6)
    return bool(np.abs(first - second).max() > tolerance * largest)
