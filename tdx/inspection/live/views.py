"""What there is to see of one reset or step, as plain data that needs no torch to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Change = Literal["new", "changed", "same"]
Kind = Literal["env", "stage", "policy", "given", "kept"]
Lane = Literal["forward", "inverse"]


@dataclass(frozen=True, slots=True)
class ValueView:
    """One version of a key, of all rows or of one.

    Args:
        key: the key, with dots.
        version: its name, such as ``"reward@1"``.
        shape: without the batch dims where it is of one row.
        dtype: such as ``"float32"``; the class name where it is no tensor.
        text: the numbers themselves, as far as a line takes them.
        minimum: the smallest number, nan aside; none where there is none.
        mean: the mean, nan and infinities aside.
        maximum: the largest, nan aside.
        nans: how many nan.
        infinities: how many infinities.
        histogram: how many numbers lie in each of equal parts from the smallest to the largest;
            nothing where there are fewer than three.
        change: against the same version in the trace that it is compared with.
        by_writer: against the version before it in the same trace, which its writer was given.
        before: what :attr:`text` was there.
        delta: the largest difference to it; none where the shapes differ or it is no number.
        lies: what its spec promises and is not so, a line each.
        in_place: whether it was written over the version before.
        is_picture: whether it can be drawn as an image.
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
    lies: tuple[str, ...] = ()
    in_place: bool = False
    is_picture: bool = False


@dataclass(frozen=True, slots=True)
class PlaceView:
    """What one hook did.

    Args:
        kind: ``env`` for the env inside, ``stage``, ``policy``, ``given`` or ``kept``.
        index: Number of the stage as the user knows it; -1 for what has none.
        name: class name.
        lane: ``forward``, or ``inverse`` on the way in.
        time_ns: how long it took.
        written: places in :attr:`TraceView.values` of what it wrote.
        present: those of all that is there after it.
        dropped: keys that ended here.
        undeclared: keys that it wrote without naming them.
        lies: promises that it broke and that no value shows, such as a key that is missing.
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
    lies: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """As people read it: ``0 StepCounter``."""
        is_numbered = self.kind == "stage" and self.index >= 0
        return f"{self.index} {self.name}" if is_numbered else self.name


@dataclass(frozen=True, slots=True)
class TraceView:
    """One reset or step.

    Args:
        index: the number of the trace.
        step: how many steps were made before it.
        episode: the number of its episode.
        phase: ``reset`` or ``step``.
        row: which env of a batch it shows; none for all of them together.
        places: every hook in the order in which they ran.
        values: every version, each once.
        time_ns: how long all of it took.
        unattributed_ns: what of that was spent in no hook.
        against: the trace that it is compared with; none where there is none.
        error: what was raised in the last of ``places``.
    """

    index: int
    step: int
    episode: int
    phase: Literal["reset", "step"]
    row: int | None
    places: tuple[PlaceView, ...]
    values: tuple[ValueView, ...]
    time_ns: int
    unattributed_ns: int
    against: int | None = None
    error: str | None = None

    @property
    def is_troubled(self) -> bool:
        """Whether something is not as it should be."""
        lies = any(value.lies for value in self.values) or any(each.lies for each in self.places)
        return self.error is not None or lies or any(value.nans for value in self.values)


@dataclass(frozen=True, slots=True)
class Picture:
    """An image, as small as it is to be shown.

    Args:
        version: of which version it is.
        place: who wrote it.
        stage: the place of that in the chain; -1 for what is no stage.
        shape: of the whole tensor.
        width: in pixels, after it was made smaller.
        height: likewise.
        rgb: three bytes a pixel, row after row.
    """

    version: str
    place: str
    stage: int
    shape: tuple[int, ...]
    width: int
    height: int
    rgb: bytes


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """One episode of one env.

    Args:
        row: which env of the batch.
        number: counts the episodes of this env.
        first: the trace it begins with.
        last: the latest trace of it.
        steps: how many steps it has.
        total: the sum of its rewards.
        end: ``terminated``, ``truncated``, ``done``, or nothing while it goes on.
        held: whether its first trace is still in the history.
    """

    row: int
    number: int
    first: int
    last: int
    steps: int
    total: float
    end: str
    held: bool = True


@dataclass(frozen=True, slots=True)
class EnvCell:
    """One env of a batch, after the latest step.

    Args:
        row: which.
        steps: of its episode.
        reward: the latest.
        total: the sum of the rewards of its episode.
        end: how its episode ended just now; nothing where it goes on.
    """

    row: int
    steps: int
    reward: float
    total: float
    end: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A number over the traces, in as many parts as are wanted.

    Args:
        name: what it is of.
        first: the trace at the left end.
        last: that at the right end.
        low: the smallest number in each part; none where there is none.
        high: the largest in each.
        latest: the last number.
    """

    name: str
    first: int
    last: int
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    latest: float | None
