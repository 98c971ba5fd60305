"""In what way values differ, as edits of the values of a reference; loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

from tdx.foundation.serialization import Entries, Result

if TYPE_CHECKING:
    from torch import Tensor

    from tdx.compare.values import Tolerance

ExplanationKind = Literal[
    "inactive",
    "twice",
    "scale",
    "feature scale",
    "range",
    "permutation",
    "selection",
    "padding",
    "channel order",
    "axis order",
    "flip",
    "reshape",
    "resampling",
    "crop",
    "gray weights",
    "rounding",
    "clip",
    "history",
    "delta",
    "smoothing",
    "swapped statistics",
    "fresh statistics",
    "moving statistics",
    "width",
    "renamed key",
    "time shift",
    "function",
    "constant",
    "few values",
    "noise",
]

STOP_UPDATES = (
    "stop the updates: training = False in Stable-Baselines3, update_running_mean = False in "
    "Gymnasium, freeze() in TorchRL and tdx"
)


def _exact() -> Tolerance:
    from tdx.compare.values import EXACT

    return EXACT


@dataclass(frozen=True, slots=True)
class Sides:
    """Values of one key after a stage in consecutive steps, ``[T, R, ...]`` for R sub-envs.

    Args:
        reference: What the stage of the reference returned.
        target: What that of the target returned.
        received: What both received. ``None``: it is not known.
        starts: Records in which an episode starts.
        tolerance: Largest difference that counts as equal.
        others: Other keys: what the stage received, and what that of the reference returned.
    """

    reference: Tensor
    target: Tensor
    received: Tensor | None = None
    starts: tuple[int, ...] = (0,)
    tolerance: Tolerance = field(default_factory=_exact)
    others: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def row_dims(self) -> int:
        """Number of dims of one value."""
        return self.reference.ndim - 2

    def in_float64(self) -> Sides:
        """Return the same values in float64."""
        return Sides(
            self.reference.double(),
            self.target.double(),
            None if self.received is None else self.received.double(),
            self.starts,
            self.tolerance,
            {key: (one.double(), other.double()) for key, (one, other) in self.others.items()},
        )

    def is_equal(self, other: Sides) -> bool:
        """Return True if both have the same values and the same tolerance."""
        if (self.starts, self.tolerance) != (other.starts, other.tolerance):
            return False
        if self.others.keys() != other.others.keys():
            return False
        tensors = [
            (self.reference, other.reference),
            (self.target, other.target),
            (self.received, other.received),
            *(
                pair
                for key, own in self.others.items()
                for pair in zip(own, other.others[key], strict=True)
            ),
        ]
        return all(
            one is two if one is None or two is None else one.dtype == two.dtype and one.equal(two)
            for one, two in tensors
        )

    def episodes(self) -> list[tuple[int, int]]:
        """Return the first record of each episode, and that after its last one."""
        limits = [*self.starts, len(self.target)]
        if not self.starts or self.starts[0] > 0:
            limits.insert(0, 0)
        return [(one, other) for one, other in pairwise(limits) if one < other]


Prediction = Callable[[Sides], "Tensor | None"]
"""Returns the values of the target, as an edit predicts them; ``None`` if it does not apply."""


def _predict_nothing(_: Sides) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Edit(Result):
    """One way in which the values of a target differ.

    Args:
        kind: Kind of the difference.
        text: The difference in words, after "the values differ:".
        parameters: Its numbers, as plain data.
        hint: How to correct it. ``None``: it follows from the text.
        predict: Predicts the values of the target.
        cost: Number of parameters, roughly: of several edits that predict the values, the cheapest
            is the best.
        slack: Error that is allowed in each value, such as 1 for pixels that are rounded.
        is_partial: True if NaN in a prediction means that it says nothing about a value.
    """

    json_entries: ClassVar[Entries] = ("kind", "text", "parameters")

    kind: ExplanationKind
    text: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    hint: str | None = None
    predict: Prediction = field(default=_predict_nothing, repr=False, compare=False)
    cost: float = 1.0
    slack: float = 0.0
    is_partial: bool = False

    def __reduce__(self) -> tuple[type[Edit], tuple[object, ...]]:
        """Leave the prediction out of a pickle: the app reads reports of its worker."""
        shown = self.kind, self.text, dict(self.parameters), self.hint
        return Edit, (*shown, _predict_nothing, self.cost, self.slack, self.is_partial)


@dataclass(frozen=True, slots=True)
class Explanation(Result):
    """The edits that turn the values of a reference into those of a target.

    Args:
        edits: One edit, or two where one alone does not suffice.
        alternatives: Other edits that predict the same values.
        values: Number of values that it predicts.
        steps: Number of records that it was tried on.
    """

    json_entries: ClassVar[Entries] = (
        *("kind", "text", "parameters", "edits", "alternatives", "values", "steps"),
    )

    edits: tuple[Edit, ...]
    alternatives: tuple[Edit, ...] = ()
    values: int = 0
    steps: int = 0

    @property
    def kind(self) -> str:
        """Kind of the difference, or both kinds."""
        return " and ".join(edit.kind for edit in self.edits)

    @property
    def text(self) -> str:
        """The difference in words, with the numbers of a scale that does the same."""
        text = ", and ".join(edit.text for edit in self.edits)
        numbers = next((edit for edit in self.alternatives if edit.kind == "scale"), None)
        return text if numbers is None else f"{text} ({numbers.text})"

    @property
    def hint(self) -> str | None:
        """How to correct it. ``None``: it follows from the text."""
        hints = [edit.hint for edit in self.edits if edit.hint is not None]
        return "; then ".join(reversed(hints)) or None

    @property
    def parameters(self) -> dict[str, object]:
        """The numbers of all edits."""
        return {name: value for edit in self.edits for name, value in edit.parameters.items()}


def renamed(old: str, new: str) -> Explanation:
    """Return the explanation of a key that has the values of another one."""
    text, parameters = f"{old} is called {new}", {"from": old, "to": new}
    return Explanation((Edit("renamed key", text, parameters, f"call it {old}"),))
