"""Plain data about resets and steps, readable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Change = Literal["new", "changed", "same"]
Kind = Literal["env", "stage", "policy", "given", "kept"]
Lane = Literal["forward", "inverse"]


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """Maps the index of a traced stage to the number that a user sees.

    Args:
        numbers: Numbers of the pipeline's stages, in order. Empty: their traced indices.
        inner: Number of stages that the env has below those of the pipeline; they have no number.
        env: Id of the env, which is shown instead of its class. Empty: it has none.

    Example:
        >>> StageNumbers((0, 3), inner=1).title(2, "RewardSum")
        '3 RewardSum'
    """

    numbers: Sequence[int] = ()
    inner: int = 0
    env: str = ""

    def name(self, kind: str, name: str) -> str:
        """Return the name of a traced call: the id of the env, else its own name."""
        return self.env if kind == "env" and self.env else name

    def number(self, index: int) -> int:
        """Return the number of a stage; -1 if it has none."""
        if not self.numbers:
            return index
        at = index - self.inner
        return self.numbers[at] if 0 <= at < len(self.numbers) else -1

    def title(self, index: int, name: str) -> str:
        """Return number and name of a stage, or only the name."""
        number = self.number(index)
        return f"{number} {name}" if number >= 0 else name


@dataclass(frozen=True, slots=True)
class ValueView:
    """One version of a key, of all rows or of one.

    Args:
        shape: Shape; without the batch dims for a single row.
        dtype: Such as ``"float32"``; the class name for data that is not a tensor.
        minimum: Minimum without NaN; ``None`` without numbers.
        histogram: Counts in equal bins from minimum to maximum; empty for fewer than three numbers.
        change: Compared with the same version in the other trace.
        by_writer: Compared with the previous version in the same trace.
        delta: Largest difference; ``None`` if the shapes differ or there are no numbers.
        in_place: True if the previous version was overwritten in place.
    """

    key: str
    version: str
    shape: tuple[int, ...]
    dtype: str
    text: str
    minimum: float | None = None
    mean: float | None = None
    maximum: float | None = None
    nans: int = 0
    infinities: int = 0
    histogram: tuple[int, ...] = ()
    change: Change = "new"
    by_writer: Change = "new"
    before: str = ""
    delta: float | None = None
    violations: tuple[str, ...] = ()
    in_place: bool = False
    is_image: bool = False


@dataclass(frozen=True, slots=True)
class HookView:
    """Result of one hook: the env, a stage or the policy.

    Args:
        kind: ``env`` for the base env, ``stage``, ``policy``, ``given`` or ``kept``.
        index: Number of the stage that the user sees; -1 if it has none.
        written: Indices in :attr:`TraceView.values` of the values that it wrote.
        present: Indices of all values that exist after it.
        violations: Spec violations without a value, such as a missing key.
        passed: Indices in :attr:`TraceView.values` of what it passed on unchanged and changed in
            another reset or step.
        changes: Each key that it changed in this session, with the number of resets or steps in
            which it did, and of those with the key.
    """

    kind: Kind
    index: int
    name: str
    lane: Lane
    time_ns: int
    written: tuple[int, ...]
    present: tuple[int, ...]
    dropped: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()
    passed: tuple[int, ...] = ()
    changes: tuple[tuple[str, int, int], ...] = ()

    @property
    def title(self) -> str:
        """Name in messages: ``0 StepCounter``."""
        is_numbered = self.kind == "stage" and self.index >= 0
        return f"{self.index} {self.name}" if is_numbered else self.name


@dataclass(frozen=True, slots=True)
class TraceView:
    """One reset or step.

    Args:
        step: Number of steps before it.
        row: Row of the batch that it shows; ``None`` for all rows.
        values: Versions, each once.
        unattributed_ns: Duration outside the hooks.
        is_earlier: True if that is a trace of the earlier session.
        error: Error raised in the last of ``places``.
    """

    index: int
    step: int
    episode: int
    phase: Literal["reset", "step"]
    row: int | None
    places: tuple[HookView, ...]
    values: tuple[ValueView, ...]
    time_ns: int
    unattributed_ns: int
    against: int | None = None
    is_earlier: bool = False
    error: str | None = None

    @property
    def has_problem(self) -> bool:
        """True if there is an error, a spec violation or NaN."""
        violations = any(value.violations for value in self.values) or any(
            each.violations for each in self.places
        )
        return self.error is not None or violations or any(value.nans for value in self.values)


@dataclass(frozen=True, slots=True)
class ImageView:
    """A downsampled image, or a strip of stacked frames.

    Args:
        stage: Number of the stage; -1 if it is not a stage.
        rgb: Three bytes per pixel, row by row.
        frame_size: Width and height of a frame before downsampling.
        frames: Number of frames side by side, the oldest first.
    """

    version: str
    name: str
    stage: int
    shape: tuple[int, ...]
    width: int
    height: int
    rgb: bytes
    frame_size: tuple[int, int]
    frames: int = 1
    is_earlier: bool = False

    @property
    def key(self) -> str:
        """The key, with dots."""
        return self.version.partition("@")[0]


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """One episode of one env.

    Args:
        total: Sum of its rewards. ``None``: the stack has no rewards.
        end: ``terminated``, ``truncated``, ``done``, or empty while it is running.
    """

    row: int
    number: int
    first: int
    last: int
    steps: int
    total: float | None
    end: str


@dataclass(frozen=True, slots=True)
class EnvCell:
    """State of one env of a batch after the latest step.

    Args:
        total: Sum of the rewards of its episode. ``None``: the stack has no rewards.
        end: How its episode ended; empty while it is running.
    """

    row: int
    steps: int
    total: float | None
    end: str


@dataclass(frozen=True, slots=True)
class PlotView:
    """A number over the traces, divided into bins.

    Args:
        low: Minimum in each bin; ``None`` without numbers.
        earlier: The same number in the earlier session, over the same traces.
    """

    name: str
    first: int
    last: int
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    latest: float | None
    earlier: PlotView | None = None


TRACED_NUMBERS = StageNumbers()
"""Each stage has its traced index."""
STUCK_STEPS = 50
"""Number of steps after which an output that does not follow its input is reported."""
ReadingWarning = Literal["", "NaN", "infinite", "outside its spec", "constant", "at a bound"]


@dataclass(frozen=True, slots=True)
class StageReading:
    """What a stage did in the latest step, and in those before it.

    Args:
        key: A key that it changes; empty if it has changed none.
        numbers: Mean of the key after the stage in the latest steps, the newest last.
        before: Mean of the key before the stage; ``None`` if the stage creates it.
        warning: What is wrong with its output. ``constant``: it has not changed for many steps,
            although the input of the stage has.
    """

    number: int
    time_ns: int
    key: str = ""
    numbers: tuple[float, ...] = ()
    before: float | None = None
    is_changed: bool = False
    warning: ReadingWarning = ""
